"""Configuration: the sample cannot go stale, and whatever is wrong is refused by its full name."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from delayserver.config.settings import NodeSettings, Settings
from delayserver.config.toml_file import ConfigError, keys_of, load_settings, parse_assignment

SAMPLE = Path(__file__).parents[3] / "delayserver.sample.toml"


def keys_in(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, dict) and value:
        return {key for name, inner in value.items() for key in keys_in(inner, f"{prefix}.{name}".lstrip("."))}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {key for entry in value for key in keys_in(entry, prefix)}
    return {prefix}


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "server.toml"
    path.write_text(text)
    return str(path)


def test_the_defaults_need_no_file() -> None:
    assert load_settings() == Settings()


def test_the_sample_has_every_key_and_no_other() -> None:
    assert keys_in(tomllib.loads(SAMPLE.read_text())) == set(keys_of())


def test_the_sample_shows_the_defaults() -> None:
    assert load_settings(str(SAMPLE)) == Settings()


def test_every_key_of_the_sample_has_its_reason_above_it() -> None:
    lines = SAMPLE.read_text().splitlines()
    unexplained = [line for before, line in pairwise(lines) if " = " in line and line[:1] != "#" and before[:1] != "#"]
    assert unexplained == []


def test_durations_and_sizes_are_numbers_in_the_unit_of_the_key_or_texts(tmp_path: Path) -> None:
    text = '[storage]\nwindow_ms = "30s"\nretention_ms = 5000\ngroup_bytes_max = "16MiB"\ncheckpoint_bytes = 100\n'
    storage = load_settings(write(tmp_path, text)).storage
    assert (storage.window_ms, storage.retention_ms) == (30_000, 5_000)
    assert (storage.group_bytes_max, storage.checkpoint_bytes) == (16 << 20, 100)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, '[listen]\nport = 1000\nhost = "0.0.0.0"\n')
    listen = load_settings(path, {"listen.port": 2000}).listen
    assert (listen.host, listen.port) == ("0.0.0.0", 2000)


def test_groups_and_routes_are_read(tmp_path: Path) -> None:
    text = """
[[groups]]
name = "near"
nodes = ["embedded"]
[[groups]]
name = "far"
nodes = [{address = "10.0.0.1:20801", weight = 3}, "[::1]:20802"]
[[routes]]
pattern = "orders.*"
groups = ["far", "near"]
"""
    settings = load_settings(write(tmp_path, text))
    assert settings.groups[1].nodes == (NodeSettings("10.0.0.1:20801", 3), NodeSettings("[::1]:20802"))
    assert settings.routes[0].groups == ("far", "near")


def test_an_assignment_holds_toml_or_a_bare_word() -> None:
    assert parse_assignment("storage.window_ms=30s") == ("storage.window_ms", "30s")
    assert parse_assignment("listen.port = 7") == ("listen.port", 7)
    assert parse_assignment("storage.durability=os") == ("storage.durability", "os")
    with pytest.raises(ConfigError, match="write KEY=VALUE"):
        parse_assignment("listen.port")


REFUSED = {
    "unknown section": ("[listn]\nport = 1", "unknown key 'listn', did you mean 'listen'?"),
    "unknown key": ("[listen]\nprot = 1", "unknown key 'listen.prot', did you mean 'listen.port'?"),
    "unknown key without a likeness": ("[wheel]\nzzzz = 1", "unknown key 'wheel.zzzz'; known are: wheel.tick_ms"),
    "option of a node without options": (
        "[[groups]]\nnodes = [{address = '127.0.0.1:20801', options = {a = 1}}]",
        "unknown key 'groups.nodes.options.a'; this kind of node has no options",
    ),
    "unknown key of a node": ("[[groups]]\nnodes = [{adress = 'x'}]", "did you mean 'groups.nodes.address'?"),
    "text for a number": ("[listen]\nport = 'http'", "listen.port: expected a whole number, not 'http'"),
    "truth for a number": ("[listen]\nport = true", "listen.port: expected a whole number, not True"),
    "fraction for a number": ("[wheel]\nslots = 1.5", "wheel.slots: expected a whole number, not 1.5"),
    "number for a text": ("[listen]\nhost = 1", "listen.host: expected a text"),
    "empty text": ("[storage]\ndata_dir = ''", "storage.data_dir: expected a text that is not empty"),
    "table for a value": ("[listen.port]\na = 1", "listen.port: expected a whole number"),
    "value for a table": ("listen = 5", "listen: expected a table, not 5"),
    "above its bound": ("[listen]\nport = 70000", "listen.port: expected a whole number from 0 to 65535, not 70000"),
    "below its bound": ("[wheel]\nslots = 0", "wheel.slots: expected a whole number from 1 to 1048576, not 0"),
    "negative": ("[storage]\nretention_ms = -1", "storage.retention_ms: expected milliseconds"),
    "no duration": ("[storage]\nwindow_ms = '1 fortnight'", "storage.window_ms: '1 fortnight' is no duration"),
    "size for a duration": ("[storage]\nwindow_ms = '1MiB'", "storage.window_ms: '1MiB' is no duration"),
    "no size": ("[storage]\ngroup_bytes_max = '8 apples'", "storage.group_bytes_max: '8 apples' is no size"),
    "no choice": ("[storage]\ndurability = 'synch'", "expected 'sync' or 'os', not 'synch', did you mean 'sync'?"),
    "window that does not divide a day": (
        "[storage]\nwindow_ms = '7m'",
        "storage.window_ms 420000: must be whole seconds that divide a day",
    ),
    "no address": ("[[groups]]\nnodes = ['here']", "groups.nodes.address: 'here' is no address"),
    "no nodes": ("[[groups]]\nnodes = []", "groups.nodes: expected a list with at least one entry"),
    "group twice": ("[[groups]]\n[[groups]]", "groups.name: 'default' is defined twice"),
    "route to nowhere": ("[[routes]]\ngroups = ['defualt']", "unknown group 'defualt', did you mean 'default'?"),
    "groups without routes": (
        "[[groups]]\nname = 'shop'",
        "the default route leads to 'default', write [[routes]] too",
    ),
    "crossed bounds": ("[dispatch]\nbackoff_ms_min = '1h'", "dispatch.backoff_ms_min = 3600000 is above dispatch"),
    "no TOML": ("listen = [", "is not TOML"),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_setting_is_refused_by_its_full_name(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    message = str(caught.value)
    assert expected in message
    assert message.startswith(path)
    assert "\n" not in message


def test_a_missing_file_and_a_file_of_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file"):
        load_settings(str(tmp_path / "missing.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bytes\.toml: is not TOML"):
        load_settings(str(tmp_path / "bytes.toml"))


def test_unknown_flags_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"command line: unknown key 'listen\.prot', did you mean 'listen\.port'"):
        load_settings(flags={"listen.prot": 1})
    with pytest.raises(ConfigError, match="known are: listen, http, tls, message, storage"):
        load_settings(flags={"zzzz": 1})
    with pytest.raises(ConfigError, match="groups and routes are set in the file"):
        load_settings(flags={"groups": []})
