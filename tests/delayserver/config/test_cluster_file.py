"""The file of a cluster is checked as the settings are: each problem names its key, and the nearest one that is known."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from delayserver.config.cluster_file import ClusterFile, load_cluster
from delayserver.config.toml_file import ConfigError

LEAST = '[cluster]\nkafka = "k1:9092,k2:9092"\nmember = "a"\n'


def load(tmp_path: Path, text: str) -> ClusterFile:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return load_cluster(str(path))


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    assert load(tmp_path, LEAST) == ClusterFile("k1:9092,k2:9092", "a")
    assert load(tmp_path, LEAST).topic == "delayserver"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[cluster]\nkafka = "k1:9092"\nmemer = "a"', "unknown key 'cluster.memer', did you mean 'cluster.member'"),
        ('[clster]\nkafka = "k1:9092"', "unknown key 'clster', did you mean 'cluster'"),
        ('[cluster]\nkafka = "k1:9092"', "cluster.member is missing"),
        ("", "cluster is missing"),
        ('[cluster]\nkafka = "k1"\nmember = "a"', "kafka: 'k1' is no address"),
        ('[cluster]\nkafka = "k1:1"\nmember = "a b"', "expected at most 64 letters"),
        (LEAST + "shard = -1", "cluster.shard: expected a whole number of at least 0"),
        (LEAST + "[cluster.kafka_options]\nsasl.password = 'x'", "write names that have dots in quotes"),
        (LEAST + 'password_file = "/none"', "/none: cannot be read"),
    ],
)
def test_each_problem_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path}/cluster.toml: ")
    assert said in str(raised.value)


def test_the_password_has_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    options = '[cluster.kafka_options]\n"security.protocol" = "SASL_SSL"\n'
    file = load(tmp_path, f'{LEAST}password_file = "{tmp_path}/password"\n{options}')
    assert file.kafka_options == {"security.protocol": "SASL_SSL", "sasl.password": "secret"}
    assert "secret" not in repr(file)
    with pytest.raises(ConfigError, match="give one of them"):
        load(tmp_path, f'{LEAST}password_file = "{tmp_path}/password"\n{options}"sasl.password" = "other"\n')


def test_the_probe_of_fronts_can_be_turned_off(tmp_path: Path) -> None:
    assert not load(tmp_path, LEAST + "front_probe = false").front_probe


def test_the_sample_has_every_key() -> None:
    path = Path(__file__).parents[3] / "cluster.sample.toml"
    text = path.read_text()
    assert load_cluster(str(path)).member == "a"
    everything = text.replace("\n# [", "\n[").replace("\n# password_file", "\npassword_file").replace('\n# "', '\n"')
    tree = tomllib.loads(everything)["cluster"]
    assert set(tree) == {field.name for field in fields(ClusterFile)}
    defaults = ClusterFile(tree["kafka"], tree["member"])
    assert all(tree[name] == getattr(defaults, name) for name in ("topic", "shard", "copies"))
