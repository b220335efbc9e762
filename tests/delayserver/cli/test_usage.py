"""What the command line says without a server: help, usage errors, and one line for what fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from delayserver import __version__
from delayserver.cli import cli, commands

ROOT = Path(__file__).parents[3]
COMMAND_NAMES = ("serve", "broker", "send", "pull", "cancel", "reschedule", "lookup", "status", "demo")


def test_the_help_lists_every_command(delayserver: Callable[..., Any]) -> None:
    done = delayserver("--help")
    assert done.code == 0
    for name in COMMAND_NAMES:
        assert f"\n  {name} " in done.out


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_every_command_explains_itself(name: str) -> None:
    done = CliRunner().invoke(cli, [name, "--help"])
    assert done.exit_code == 0
    assert "Usage:" in done.output


def test_the_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom delayserver.cli import main\nmain(['--help'])\n"
        "print([m for m in ('numpy', 'trio', 'rich', 'anyio', 'msgpack', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version_prints_the_version(delayserver: Callable[..., Any]) -> None:
    done = delayserver("--version")
    assert (done.code, done.out.strip()) == (0, f"delayserver, version {__version__}")


USAGE_ERRORS = {
    "unknown command": (["frobnicate"], "No such command 'frobnicate'"),
    "misspelt command": (["sned", "a", "b"], "No such command 'sned', did you mean 'send'?"),
    "unknown option": (["send", "a", "b", "--dely", "1s"], "No such option"),
    "no subject": (["send"], "Missing argument 'SUBJECT'"),
    "no body": (["send", "a"], "give the body as an argument"),
    "two bodies": (["send", "a", "b", "--file", "LICENSE"], "only one of them"),
    "delay and at": (["send", "a", "b", "--delay", "1s", "--at", "2027-01-01T00:00Z"], "not both"),
    "delay without unit": (["send", "a", "b", "--delay", "10"], "such as 250ms, 10s, 5m, 2h or 3d"),
    "negative delay": (["send", "a", "b", "--delay", "-5s"], "is no duration"),
    "at without zone": (["send", "a", "b", "--at", "2027-01-01T00:00"], "has no zone: write 2027-01-01T00:00:00Z"),
    "property without value": (["send", "a", "b", "--property", "x"], "write KEY=VALUE"),
    "no address": (["status", "--server", "here"], "write HOST:PORT"),
    "watching without rest": (["status", "--watch", "--every", "0s"], "--every 200ms"),
    "no group": (["pull", "a"], "Missing option '--group'"),
    "max of zero": (["pull", "a", "--group", "g", "--max", "0"], "0 is not in the range"),
    "no receipt": (["cancel"], "Missing argument 'RECEIPT...'"),
    "reschedule to no time": (["reschedule", "r"], "say when: --delay"),
    "port out of range": (["serve", "--port", "70000"], "listen.port: expected a whole number from 0 to 65535"),
    "unknown setting": (["serve", "--set", "listen.prot=1"], "did you mean 'listen.port'?"),
    "setting without value": (["broker", "--set", "listen.port"], "write KEY=VALUE"),
    "missing config": (["serve", "--config", "/nowhere.toml"], "/nowhere.toml: cannot be read"),
}


@pytest.mark.parametrize(("arguments", "expected"), USAGE_ERRORS.values(), ids=USAGE_ERRORS.keys())
def test_wrong_usage_ends_with_2_and_says_what_to_write(
    delayserver: Callable[..., Any], arguments: list[str], expected: str
) -> None:
    done = delayserver(*arguments)
    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert "Traceback" not in done.err


def all_commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Each command with its words, those of plugins included."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from all_commands(found, (*path, name))


def test_no_parameter_is_called_a_range() -> None:
    named = [
        (" ".join(path), parameter.name)
        for path, command in all_commands(cli)
        for parameter in command.params
        if "range" in parameter.type.name
    ]
    assert named == []


def test_a_property_that_is_given_twice_is_refused() -> None:
    for command in (["send", "s", "x", "--delay", "1s"], ["publish", "s", "x"]):
        done = CliRunner().invoke(cli, [*command, "--property", "a=1", "--property", "a=2"])
        assert (done.exit_code, "a is given twice" in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    "arguments", [["status"], ["send", "a", "b"], ["pull", "a", "--group", "g"], ["cancel", "r"], ["lookup", "r"]]
)
def test_an_unreachable_server_is_one_line_with_the_address_and_what_to_do(
    delayserver: Callable[..., Any], arguments: list[str]
) -> None:
    done = delayserver(*arguments, "--server", "127.0.0.1:1")
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1
    assert "127.0.0.1:1" in done.err
    assert "delayserver serve" in done.err


def test_a_closed_stdout_is_no_traceback() -> None:
    command = f"{sys.executable} -m delayserver --version >&-"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from delayserver.cli import main

    monkeypatch.setattr(cli, "main", lambda **_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main(["status"])


def register(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = EntryPoint(name="report", value=value, group=commands.GROUP)
    monkeypatch.setattr(commands, "entry_points", lambda group: [point])


def test_a_registered_command_runs_and_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "delayserver.cli.running.status:status")
    assert "  report " in CliRunner().invoke(cli, ["--help"]).output
    assert "Show what the server accepted" in CliRunner().invoke(cli, ["report", "--help"]).output


def test_a_registered_command_without_its_extra_says_in_one_line_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from delayserver.cli import main

    register(monkeypatch, "no_such_module_anywhere.command:report [audit]")
    assert main(["report"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "pip install --use-pep517 '.[audit]'" in err
    # The help of the others does not suffer from it.
    assert main(["--help"]) == 0


def test_a_registered_name_cannot_replace_a_command_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="send", value="nowhere:send", group=commands.GROUP)
    monkeypatch.setattr(commands, "entry_points", lambda group: [point])
    assert isinstance(cli.get_command(click.Context(cli), "send"), click.Command)
