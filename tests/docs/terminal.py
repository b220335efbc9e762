"""A terminal as a reader has it: one bash and one Python that live as long as a document, in a folder of their own.

The documents use the usual ports. Here each one stands for a free port, in commands, programs and files.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from tests.ports import free_port

# Spark alone takes a minute for a program on a busy machine.
STEP_SECONDS_MAX: Final = 900
ROOT: Final = Path(__file__).parents[2]
PORTS: Final = ("20801", "20880", "20811", "20812", "8000")

# Adds the ports of this terminal where a command line has none.
PROGRAM: Final = """\
#!{python}
import sys
import click
from delayserver.cli import cli, main

arguments = sys.argv[1:]
command, context, rest = cli, click.Context(cli), list(arguments)
while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
    command = command.get_command(context, rest.pop(0))
ports = {{"port": "{rpc}", "http_port": "{http}"}} if arguments[:1] == ["serve"] else {{}}
defaults = {{"server": "127.0.0.1:{rpc}", **ports}}
for parameter in getattr(command, "params", []):
    option = "--" + (parameter.name or "").replace("_", "-")
    if parameter.name in defaults and option in parameter.opts and not any(a.split("=")[0] == option for a in arguments):
        arguments += [option, defaults[parameter.name]]
if __name__ == "__main__":
    sys.exit(main(arguments))
"""

# As on a terminal, a line goes out when it ends, and whole. Without a buffer each word would go alone, and what other
# programs print would stand within the line.
LINES: Final = """\
import sys
for stream in (sys.stdout, sys.stderr):
    if stream is not None:
        stream.reconfigure(line_buffering=True)
"""

INTERPRETER: Final = """\
import json, linecache, sys, traceback
space = {"__name__": "__main__"}
for line in sys.stdin:
    code, name, mark = json.loads(line)
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    failed = ""
    try:
        exec(compile(code, name, "exec"), space)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        failed = "the block"
    print(f"\\n{mark}{failed}", flush=True)
"""


class StepFailed(Exception):
    """A block of a document did not do what the document says."""


class Terminal:
    """The bash and the Python of one document. Ends them, and all that they started, at the end of the ``with`` block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = {port: str(free_port()) for port in PORTS}
        programs = folder / ".bin"
        programs.mkdir()
        program = programs / "delayserver"
        program.write_text(PROGRAM.format(python=sys.executable, rpc=self._ports["20801"], http=self._ports["20880"]))
        (programs / "sitecustomize.py").write_text(LINES)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("COLUMNS", "FORCE_COLOR", "PYTHONUNBUFFERED")
        }
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment = {
            **kept,
            "PATH": path,
            "HOME": str(folder),
            "PYTHONPATH": str(programs),
            "LC_ALL": "C.UTF-8",
        }
        self._shell = _Process(["bash", "--norc", "--noprofile"], folder, self._environment)
        self._python: _Process | None = None
        self._steps = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in [self._python, self._shell]:
            if process is not None:
                process.end()

    def run(self, commands: str) -> str:
        """The output of shell commands. Raises `StepFailed` if one fails; what it starts in the background goes on."""
        self._steps += 1
        script = self.folder / f".step-{self._steps}"
        script.write_text(self.with_own_ports(commands) + "\n")
        mark = f"-- end of step {self._steps}: "
        self._shell.write(
            f"failed=; trap 'failed=$BASH_COMMAND' ERR; . ./{script.name} </dev/null; trap - ERR\n"
            f'printf "\\n%s%s\\n" "{mark}" "$failed"\n'
        )
        return self.with_usual_ports(self._shell.read_until(mark))

    def execute(self, code: str, name: str) -> str:
        """The output of Python code, which goes on where the code before it ended."""
        if self._python is None:
            self._python = _Process([sys.executable, "-c", INTERPRETER], self.folder, self._environment)
        self._steps += 1
        mark = f"-- end of step {self._steps}: "
        self._python.write(json.dumps([self.with_own_ports(code), name, mark]) + "\n")
        return self.with_usual_ports(self._python.read_until(mark))

    def more_output(self, seconds: float) -> str:
        """What the shell, or a program that runs in its background, prints within this time."""
        return self.with_usual_ports(self._shell.read_some(seconds))

    def save(self, name: str, text: str) -> None:
        """Writes a file of the reader."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.with_own_ports(text))

    def with_own_ports(self, text: str) -> str:
        """The text with the free ports in place of the usual ones."""
        return re.sub(rf"(?<![\d.])({'|'.join(PORTS)})\b", lambda found: self._ports[found[0]], text)

    def with_usual_ports(self, text: str) -> str:
        """The text with the usual ports in place of the free ones."""
        usual = {own: port for port, own in self._ports.items()}
        return re.sub(rf"(?<![\d.])({'|'.join(usual)})\b", lambda found: usual[found[0]], text)


class _Process:
    """A child that reads steps and prints a mark behind each. It leads a process group, which ends with it."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        assert self._child.stdin is not None and self._child.stdout is not None
        self._input: IO[bytes] = self._child.stdin
        self._output: IO[bytes] = self._child.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        self._read = ""

    def write(self, text: str) -> None:
        self._input.write(text.encode())
        self._input.flush()

    def read_some(self, seconds: float) -> str:
        """What has come, after at most this time."""
        text = self._read
        self._read = ""
        if not text and self._selector.select(seconds):
            text = os.read(self._output.fileno(), 1 << 16).decode(errors="replace")
        return text

    def read_until(self, mark: str) -> str:
        """What comes before the mark. Raises `StepFailed` if something stands behind it, or if it does not come."""
        deadline = time.monotonic() + STEP_SECONDS_MAX
        text = self._read
        self._read = ""
        while True:
            before, found, behind = text.partition(mark)
            if found and "\n" in behind:
                failed, _, self._read = behind.partition("\n")
                if failed:
                    raise StepFailed(f"failed: {failed}\n{before}")
                return before
            if time.monotonic() > deadline or self._child.poll() is not None:
                raise StepFailed(f"no end of the step after {STEP_SECONDS_MAX} s, or the shell has ended\n{text}")
            text += self.read_some(1)

    def end(self) -> None:
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._child.wait()
        self._selector.close()
        self._input.close()
        self._output.close()
