"""Completion in real shells: what a person gets who presses the tab key."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from delayserver.cli import cli
from delayserver.cli.commands import COMMANDS

ROOT = Path(__file__).parents[4]
WAIT_S = 60

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'PS1="ready> "; eval "$(delayserver completion bash)"\n'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'PS1="ready> "; autoload -U compinit; compinit -u -D; eval "$(delayserver completion zsh)"\n',
    ),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program `delayserver` of this interpreter."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "delayserver"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m delayserver "$@"\n')
    script.chmod(0o755)
    return folder


def environment(program: Path) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{program}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TERM": "dumb",
        "HOME": str(program),
    }


class Terminal:
    """A shell on a pseudo-terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.shown = ""

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self._descriptor, text.encode())

    def wait_for(self, text: str) -> str:
        """Everything shown, once it has this text. What was shown before does not count later."""
        end_s = time.monotonic() + WAIT_S
        while text not in self.shown:
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"{text!r} was not shown, but {self.shown!r}"
            if select.select([self._descriptor], [], [], left_s)[0]:
                self.shown += os.read(self._descriptor, 65_536).decode(errors="replace")
        shown, self.shown = self.shown, ""
        return shown


@contextmanager
def terminal(command: list[str], program: Path) -> Iterator[Terminal]:
    """A shell on a pseudo-terminal, killed at the end of the block."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(program), start_new_session=True
    )
    os.close(theirs)
    try:
        yield Terminal(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_completes_commands_and_options(shell: str, program: Path) -> None:
    command, setup = SHELLS[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    with terminal(command, program) as shown:
        shown.type(setup + "echo set''up\n")
        shown.wait_for("setup")
        shown.type("delayserver resch\t")
        shown.wait_for("delayserver reschedule")
        shown.type("\x15delayserver serve --shut\x15delayserver serve --mem\t")
        shown.wait_for("serve --memory")
        shown.type("\x15delayserver config sh\t")
        shown.wait_for("config show")


def test_fish_completes_commands_with_their_summaries(program: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = 'delayserver completion fish | source; complete -C "delayserver re"'
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], env=environment(program), capture_output=True, text=True, check=True
    )
    rows = dict(line.split("\t") for line in done.stdout.splitlines())
    assert rows["recover"] == COMMANDS["recover"]
    assert {"reschedule", "reload", "report"} <= set(rows)


def test_completion_of_a_command_imports_no_command(program: Path) -> None:
    code = (
        "import os, sys\nfrom delayserver.cli import main\n"
        "os.environ.update(_DELAYSERVER_COMPLETE='bash_complete', COMP_WORDS='delayserver ', COMP_CWORD='1')\n"
        "try: main([])\nexcept SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith(('ops.', 'numpy', 'trio', 'delayserver.cli.running.serve'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    *completed, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    assert {f"plain,{name}" for name in COMMANDS} <= set(completed)


def test_an_unknown_shell_is_refused() -> None:
    done = CliRunner().invoke(cli, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in done.output
