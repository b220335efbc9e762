"""`delayserver targets` says what a server's nodes do, and tries one without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from delayserver.cli import cli
from delayserver.targets.registry import KINDS
from tests.delayserver.cli.conftest import Server
from tests.delayserver.targets.lines_target import LINES
from tests.ports import free_port


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, LINES.scheme, LINES)


def config(tmp_path: Path, *nodes: str) -> str:
    path = tmp_path / "server.toml"
    path.write_text(
        "".join([f'[[groups]]\nname = "g{number}"\nnodes = [{node}]\n' for number, node in enumerate(nodes)])
        + '[[routes]]\npattern = "*"\ngroups = ["g0"]\n'
    )
    return str(path)


def run(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    done = CliRunner().invoke(cli, ["targets", *arguments, "--json"], catch_exceptions=False)
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_node_gets_one_message_and_says_what_became_of_it(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    path = config(tmp_path, f'{{ address = "lines://{file}", options = {{ end = "\\n" }} }}')
    expected = {"name": f"lines://{file}", "kind": "lines", "state": "stored"}
    for name in ("g0", f"lines://{file}"):
        code, (record,), _ = run("test", name, "--config", path)
        assert (code, record | {"last_error": ""}) == (0, expected | {"last_error": ""})
    assert file.read_text() == "a test by delayserver targets test\n" * 2


def test_a_node_that_fails_is_named_with_its_reason(tmp_path: Path) -> None:
    path = config(tmp_path, f'"127.0.0.1:{free_port()}"', '"embedded"')
    code, (record,), _ = run("test", "g0", "--config", path)
    assert (code, record["kind"], record["state"]) == (1, "tcp", "failed")
    assert "cannot connect" in record["last_error"]
    code, (record,), _ = run("test", "embedded", "--config", path)
    assert (code, record["state"]) == (1, "failed")
    assert "inside the server" in record["last_error"]


def test_a_name_that_is_none_is_a_usage_error_with_those_that_are(tmp_path: Path) -> None:
    code, records, stderr = run("test", "lake", "--config", config(tmp_path, '"h:1"'))
    assert (code, records) == (2, [])
    assert "known are g0: h:1" in stderr


def test_a_list_has_the_state_of_each_node_of_a_server(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    path = config(tmp_path, '"embedded"', f'"127.0.0.1:{free_port()}"')
    server = start_server(tmp_path / "data", "--config", path)
    code, records, _ = run("list", "--server", server.address)
    assert (code, [(each["group"], each["kind"], each["state"]) for each in records]) == (
        0,
        [("g0", "embedded", "unknown"), ("g1", "tcp", "unknown")],
    )
