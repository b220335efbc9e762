"""Addresses and options of Kafka nodes: what is wrong is named before a server starts, and secrets are shown nowhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from delayserver.config.checking import find_problems
from delayserver.config.listing import effective_settings
from delayserver.config.toml_file import load_settings
from delayserver.targets.kafka_options import KafkaOptions
from delayserver.targets.registry import capabilities_of, read_address

WRONG_ADDRESSES = {
    "kafka://h:9092": "names no topic",
    "kafka://h:9092/": "is no topic",
    "kafka://h/t": "write HOST:PORT",
    "kafka://h:1,/t": "write HOST:PORT",
    "kafka://user:pw@h:9092/t": "no credentials",
    "kafka://h:9092/a/b": "is no topic",
    "kafka://h:9092/{tag}": "is no topic",
    "kafka://h:9092/..": "is no topic",
    f"kafka://h:9092/{'x' * 250}": "is no topic",
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())


@pytest.mark.parametrize(("address", "said"), WRONG_ADDRESSES.items())
def test_a_wrong_address_is_refused_by_what_is_wrong(address: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_address(address)


@pytest.mark.parametrize("address", ["kafka://h:9092/t", "kafka://a:1,[::1]:2/x.{subject}-y", "kafka://h:9/{subject}"])
def test_an_address_names_brokers_and_a_topic_or_its_template(address: str) -> None:
    assert read_address(address) == address


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ValueError, match=r"pip install 'delayserver\[kafka\]'"):
        read_address("kafka://h:9092/t")


WRONG_OPTIONS = {
    'key = "tag"': "key: 'tag' is none",
    'key = "property:"': "key: 'property:' is none",
    'partitioner = "best"': "partitioner: 'best' is none",
    'compression = "zip"': "compression: 'zip' is none",
    'connection = ["acks=1"]': "acks may not be set",
    'connection = ["security.protocol"]': "expected NAME=VALUE",
    'connection = ["sasl.password=hush"]': "sasl.password is a secret",
    'secrets = ["sasl.password=hush"]': "write sasl.password=file:PATH",
    'secrets = ["sasl.password=file:/no/such"]': "sasl.password has no value",
    'secrets = ["sasl.password=env:NO_SUCH_VARIABLE"]': "sasl.password has no value",
}


def config(tmp_path: Path, options: str) -> str:
    path = tmp_path / "server.toml"
    node = f'{{ address = "kafka://h:9092/t", options = {{ {options} }} }}'
    path.write_text(f'[[groups]]\nname = "lake"\nnodes = [{node}]\n[[routes]]\npattern = "*"\ngroups = ["lake"]\n')
    return str(path)


@pytest.mark.parametrize(("options", "said"), WRONG_OPTIONS.items())
def test_config_check_names_a_wrong_option_and_shows_no_secret(tmp_path: Path, options: str, said: str) -> None:
    (problem,) = find_problems(config(tmp_path, options), ())
    assert said in problem.text
    assert "hush" not in problem.text


def test_secrets_come_from_files_and_the_environment_and_are_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_PASSWORD", "hush 1")
    (tmp_path / "password").write_text("hush 2\n")
    places = f'"ssl.key.password=env:KEY_PASSWORD", "sasl.password=file:{tmp_path}/password"'
    path = config(tmp_path, f'connection = ["sasl.username=x"], secrets = [{places}]')
    options = load_settings(path).groups[0].nodes[0].options
    assert isinstance(options, KafkaOptions)
    expected = {"sasl.username": "x", "ssl.key.password": "hush 1", "sasl.password": "hush 2"}
    assert options.read_connection() == expected
    (tmp_path / "password").write_text("hush 3")
    assert options.read_connection()["sasl.password"] == "hush 3", "read again for each new producer"
    assert "hush" not in repr(options) + repr(effective_settings(path, {}))


@pytest.mark.parametrize(
    ("key", "keeps"), [("order_key", True), ("subject", True), ("message_id", False), ("none", False)]
)
def test_order_is_kept_where_an_order_key_has_one_partition(key: str, keeps: bool) -> None:
    found = capabilities_of("kafka://h:9092/t", KafkaOptions(key=key))
    assert (found.keeps_keys, found.idempotent, found.consumable) == (keeps, False, False)
