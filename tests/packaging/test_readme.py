"""README does not promise what is not there: its two commands, its links, and every command line in it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from delayserver.cli import cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONSOLE_LINES = [
    line.removeprefix("$ ").removesuffix(" &")
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]


def test_there_are_two_commands_for_a_fresh_machine_and_ci_runs_them_from_here() -> None:
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv ")]
    assert [command.rpartition("&& ")[2] for command in commands] == [
        ".venv/bin/delayserver demo",
        ".venv/bin/python -m pytest -q",
    ]
    assert "grep '^python3 -m venv ' README.md" in (ROOT / ".ci" / "run").read_text()


def test_ci_is_executable_and_stops_at_the_first_failure() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111 == 0o111
    assert "set -euo pipefail" in script.read_text()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)", README))))
def test_the_targets_of_links_in_readme_exist(target: str) -> None:
    assert (ROOT / target).exists()


@pytest.mark.parametrize("line", [line for line in CONSOLE_LINES if line.startswith("delayserver ")])
def test_every_command_line_of_the_tour_is_accepted(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, arguments)


def test_readme_names_the_losses_that_one_node_does_not_protect_against() -> None:
    assert re.search(r"does not protect against: the loss of its disk", README)


def test_readme_has_no_open_places() -> None:
    assert not re.search(r"TODO|TBD|FIXME|@\w+@|coming soon", README)
