"""Real processes for the tests of the command line: `python -m delayserver …`, and a server that runs beside them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Program, without_stalls

ROOT = Path(__file__).parents[3]
COMMAND_SECONDS_MAX = 60


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON objects that it printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def row(self) -> dict[str, Any]:
        """The only one."""
        (row,) = self.rows
        return row


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """A command that goes on running. Its environment has no terminal width or colour of the machine it runs on."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    everything = {"cwd": ROOT, "env": environment, **pipes, **options}
    if Program.can_fork(options):
        return Program(list(arguments), **everything)
    return subprocess.Popen([sys.executable, "-m", "delayserver", *arguments], **everything)


def run(*arguments: str, stdin: bytes | None = None) -> Done:
    """Run one command to its end."""
    process = start(*arguments, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE)
    out, err = process.communicate(stdin, timeout=COMMAND_SECONDS_MAX)
    return Done(process.returncode, out.decode(), err.decode())


@dataclass(frozen=True, slots=True)
class Server:
    """A running `delayserver serve`."""

    process: subprocess.Popen[bytes]
    address: str
    data_dir: Path
    server_id: str

    def run(self, *arguments: str, stdin: bytes | None = None) -> Done:
        """Run a client command against it."""
        return run(*arguments, "--server", self.address, stdin=stdin)

    def stop(self, number: int = signal.SIGTERM) -> Done:
        """Send the signal, wait for the end. Its log comes without stalls."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=COMMAND_SECONDS_MAX)
        return Done(self.process.returncode, out.decode(), without_stalls(err.decode()))


def serve(data_dir: Path | None, *arguments: str, **options: Any) -> Server:
    """Start a server on a free port and wait until it is ready."""
    place = ("--data-dir", str(data_dir)) if data_dir is not None else ()
    process = start("serve", *place, "--port", "0", "--http-port", "0", "--json", *arguments, **options)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        _, err = process.communicate(timeout=COMMAND_SECONDS_MAX)
        pytest.fail(f"the server did not start: {err.decode()}")
    ready = json.loads(line)
    return Server(process, f"{ready['host']}:{ready['port']}", data_dir or Path(), ready["server_id"])


@contextmanager
def serving(data_dir: Path, *arguments: str) -> Iterator[Server]:
    """`serve` for the block; what runs then is killed."""
    running = serve(data_dir, *arguments)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


@pytest.fixture(scope="session")
def delayserver() -> Callable[..., Done]:
    """Runs one command to its end."""
    return run


@pytest.fixture
def begin() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts commands that go on running; they are killed at the end of the test if they still do."""
    started: list[subprocess.Popen[bytes]] = []

    def begin_one(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        return started[-1]

    yield begin_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts servers of this test alone."""
    started: list[Server] = []

    def start_one(data_dir: Path | None, *arguments: str, **options: Any) -> Server:
        started.append(serve(data_dir, *arguments, **options))
        return started[-1]

    yield start_one
    for server in started:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests of a module; each uses subjects of its own."""
    running = serve(tmp_path_factory.mktemp("server") / "data")
    yield running
    done = running.stop()
    assert (done.code, done.err) == (0, "")
