"""`find_problems` and `effective_settings`: all that is wrong, with its place, and where each value is from."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from delayserver.config import toml_file
from delayserver.config.checking import ConfigProblem, find_problems
from delayserver.config.listing import DEFAULT, FILE, FLAG, effective_settings
from delayserver.config.toml_file import SECRETS, keys_of
from delayserver.config.toml_lines import lines_of
from tests.delayserver.config.test_config import REFUSED, SAMPLE, write


def test_lines_are_those_of_keys_tables_and_entries() -> None:
    text = '''# first
[listen]
host = "a"

# a reason
port = 1  # more
[message]
delay_levels = """
[storage]
port = 2
"""
[[groups]]
name = "one"
nodes = [
    "10.0.0.1:1",
]
[[groups]]
[[groups.nodes]]
address = "10.0.0.2:1"
[[groups.nodes]]
storage.window_ms = 1
'''
    lines = lines_of(text)
    assert {place: number for place, number in lines.items() if place[0] != "groups"} == {
        ("listen",): 2,
        ("listen", "host"): 3,
        ("listen", "port"): 6,
        ("message",): 7,
        ("message", "delay_levels"): 8,
    }
    assert [lines["groups", number] for number in (0, 1)] == [12, 17]
    assert lines["groups", 0, "nodes"] == 14
    assert [lines["groups", 1, "nodes", number] for number in (0, 1)] == [18, 20]
    assert lines["groups", 1, "nodes", 1, "storage", "window_ms"] == 21
    assert all(_is_there(tomllib.loads(text), place) for place in lines)


def _is_there(value: Any, place: tuple[str | int, ...]) -> bool:
    for name in place:
        value = value[name]
    return True


def test_every_key_of_the_sample_has_a_line_with_its_name() -> None:
    text = SAMPLE.read_text()
    lines = lines_of(text)
    for place, number in lines.items():
        name = next(part for part in reversed(place) if isinstance(part, str))
        assert name in text.splitlines()[number - 1], place
    named = {".".join([part for part in place if isinstance(part, str)]) for place in lines}
    assert set(keys_of()) <= named


def test_all_problems_are_found_at_once_with_their_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[listen]\nprot = 1\nport = 99999\n\n[wheel]\nslots = 0\ntick_ms = 5\n'
        '[[groups]]\nname = "good"\n[[groups]]\nnodes = ["x"]\n[[routes]]\npattern = 1\n'
        '[nope]\na = 1\nb = 2\n',
    )  # fmt: skip
    problems = find_problems(path, ["storage.window_ms=soon", "listen.port=1", "a.b=1"])
    assert [problem.line for problem in problems] == [2, 3, 6, 10, 12, 14, None, None]
    assert [problem.place for problem in problems] == [path] * 6 + ["--set"] * 2
    words = (
        "listen.prot",
        "listen.port",
        "wheel.slots",
        "'x' is no address",
        "routes.pattern",
        "'nope'",
        "soon",
        "a.b",
    )
    for problem, word in zip(problems, words, strict=True):
        assert word in problem.text
    assert str(problems[0]).startswith(f"{path}:2: unknown key")


@pytest.mark.parametrize("text", [text for text, _ in REFUSED.values()], ids=REFUSED.keys())
def test_config_check_reports_settings_that_the_server_refuses(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(toml_file.ConfigError) as refused:
        toml_file.load_settings(path)
    problems = find_problems(path, [])
    assert problems
    assert problems[0].text in str(refused.value)
    assert problems[0].place == path


def test_values_that_contradict_each_other_are_a_problem_with_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "[message]\nsubject_bytes_max = 9\n\n[dispatch]\nbackoff_ms_min = '1h'\n")
    (problem,) = find_problems(path, [])
    assert (problem.line, problem.text.partition(" =")[0]) == (5, "dispatch.backoff_ms_min")
    (assigned,) = find_problems(None, ["dispatch.backoff_ms_min=1h"])
    assert (assigned.place, assigned.line) == ("command line", None)


def test_a_secret_in_a_file_counts_as_one_in_the_configuration(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    path = write(tmp_path, f"[listen]\nserver_secret_file = '{secret}'\n")
    (problem,) = find_problems(path, [])
    assert problem.line == 2 and problem.text.endswith(f"{secret} cannot be read: No such file or directory")
    secret.write_text("  at least sixteen characters\n")
    assert find_problems(path, []) == []
    assert toml_file.load_settings(path).listen.server_secret == "at least sixteen characters"
    shown = {setting.key: setting.value for setting in effective_settings(path, {})}
    assert shown["listen.server_secret"] is None and shown["listen.server_secret_file"] == str(secret)
    (twice,) = find_problems(path, ["listen.server_secret=another of sixteen"])
    assert "give one of them" in twice.text
    secret.write_bytes(b"\xff" * 20)
    (broken,) = find_problems(path, [])
    assert broken.text.endswith("it is no text")
    secret.write_text("short")
    assert find_problems(path, [])


def test_no_toml_and_no_file_are_problems(tmp_path: Path) -> None:
    path = write(tmp_path, "[listen]\nport = = 1\n")
    (problem,) = find_problems(path, [])
    assert (problem.place, problem.line) == (path, 2)
    assert problem.text.startswith("is not TOML")
    missing = str(tmp_path / "missing.toml")
    assert find_problems(missing, []) == [ConfigProblem(missing, None, "cannot be read: No such file or directory")]


def test_nothing_is_wrong_with_the_sample_and_the_defaults() -> None:
    assert find_problems(None, []) == []
    assert find_problems(str(SAMPLE), ["storage.durability=os"]) == []


def test_each_setting_has_its_source(tmp_path: Path) -> None:
    path = write(tmp_path, '[listen]\nhost = "0.0.0.0"\nport = 7\n[[groups]]\nname = "default"\n')
    found = {setting.key: setting for setting in effective_settings(path, {"listen.port": 8})}
    assert [key for key, setting in found.items() if setting.source != DEFAULT] == [
        "listen.host",
        "listen.port",
        "groups",
    ]
    host, port, groups = found["listen.host"], found["listen.port"], found["groups"]
    assert (host.value, host.default, host.source, host.line) == ("0.0.0.0", "127.0.0.1", FILE, 2)
    assert (port.value, port.default, port.source, port.line) == (8, 20801, FLAG, None)
    assert (groups.value, groups.line) == (
        [{"name": "default", "nodes": [{"address": "embedded", "weight": 1}]}],
        4,
    )


def test_every_key_is_listed_and_no_secret_is() -> None:
    secret = "a secret of many characters"
    found = effective_settings(None, {"listen.server_secret": secret})
    listed = {setting.key for setting in found}
    assert listed == {
        key if key.partition(".")[0] not in ("groups", "routes") else key.partition(".")[0] for key in keys_of()
    }
    assert secret not in repr(found)
    assert {setting.key for setting in found if setting.secret} == SECRETS


def test_a_key_that_looks_like_a_secret_is_one() -> None:
    # A network or a lifetime of a secret is none. So the rule is on the last word.
    secret_words = ("secret", "password", "token", "passphrase")
    assert {key for key in keys_of() if key.rpartition("_")[2] in secret_words} <= SECRETS
