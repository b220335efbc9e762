"""Runs a real server process on a fresh data directory, as an operator does, and watches it through /proc."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from delayserver.client import Client

STOP_TIMEOUT_S: Final = 30.0  # above the server's own bound for a clean stop
FAILING_S: Final = 2.0
PORTS: Final = range(24_801, 25_801)
ROOT: Final = Path(__file__).resolve().parents[2]


class ServerFailed(Exception):
    """The server did not start, or ended during a run. Has the end of its log."""


@contextlib.contextmanager
def fresh_directory(base: str | None) -> Iterator[str]:
    """A new directory below ``base`` (default: the system's temporary directory). Truncates its files at the end.

    The directory is removed when the process ends. After ext4 has removed some thousand files, making a file takes
    twenty times as long for minutes, which would slow down the next run."""
    if base is not None:
        os.makedirs(base, exist_ok=True)
    path = tempfile.mkdtemp(prefix="delayserver-bench-", dir=base)
    try:
        yield path
    finally:
        atexit.register(shutil.rmtree, path, ignore_errors=True)
        for file in Path(path).rglob("*"):
            with contextlib.suppress(OSError):  # files of a peer may belong to another user
                if file.is_file() and not file.is_symlink():
                    os.truncate(file, 0)


def python_path() -> str:
    """A PYTHONPATH with which a server finds the same packages as this process."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


def free_port() -> int:
    """A free port below the ephemeral range, because a client that polls an ephemeral port can connect to itself. Each
    process begins elsewhere: two that look at the same moment would find the same one."""
    for number in range(os.getpid(), os.getpid() + len(PORTS)):
        port = PORTS[number % len(PORTS)]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerFailed(f"no free port from {PORTS.start} to {PORTS.stop - 1}")


def process_cpu_s(pid: int) -> float:
    """The processor time of all threads of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def a_processor_of_its_own(server_pid: int) -> Iterator[None]:
    """The server has one processor for itself within the block; this process, and what it starts, have the others. With
    one processor all share it."""
    before = os.sched_getaffinity(0)
    own = min(before)
    if len(before) == 1:
        yield
        return
    for thread in Path(f"/proc/{server_pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {own})
    os.sched_setaffinity(0, before - {own})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class ServerProcess:
    """``python -m delayserver serve`` with durability ``sync`` on ``directory``. A `with` block starts and stops it."""

    def __init__(
        self, directory: str, config: str | None = None, module: str = "delayserver", options: Sequence[str] = ()
    ) -> None:
        """``module``: what ``python -m`` runs instead. ``options``: more of the command line."""
        self.directory = directory
        self._module = module
        self._config = config
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._process is not None:
            # A failing server closes its connections first. Waits for its own end, whose log has the reason.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(FAILING_S)
        gone = self._stop()
        # Also after the failure of a client, because the end of the server is the reason for that.
        if gone is not None and (kind is None or issubclass(kind, Exception)):
            raise ServerFailed(f"the server ended by itself with code {gone}: {self.last_words()}")

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Starts the process and returns at once. The port stays the same after restarts."""
        command = [sys.executable, "-m", self._module, "serve", "--json", "--http-port", "0"]
        command += [
            "--data-dir",
            f"{self.directory}/data",
            "--port",
            str(self._port),
            "--set",
            "storage.durability=sync",
        ]
        if self._config is not None:
            command += ["--config", self._config]
        command += self._options
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "PYTHONPATH": python_path()}
            )

    def wait_ready(self) -> None:
        """Waits for the ready line. Raises `ServerFailed`."""
        assert self._process is not None and self._process.stdout is not None
        # Without a timeout: the line comes, the process ends, or the user interrupts the bench.
        line = self._process.stdout.readline()
        if not line:
            raise ServerFailed(f"the server ended before it was ready: {self.last_words()}")

    def start(self) -> None:
        """Starts the process and waits until it accepts requests."""
        self.launch()
        self.wait_ready()

    def stop(self) -> int:
        """Stops the server with SIGTERM. Returns the exit code. Raises `subprocess.TimeoutExpired`."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(STOP_TIMEOUT_S)
        self._close()
        return code

    def _stop(self) -> int | None:
        """Stops the server by SIGTERM, or SIGKILL after STOP_TIMEOUT_S. Returns the exit code if it ended by itself."""
        process = self._process
        if process is None:
            return None
        gone = process.poll()
        if gone is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._close()
        return gone

    def kill(self) -> None:
        """Kills the server with SIGKILL, like a crash of the process. The page cache stays warm."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def _close(self) -> None:
        assert self._process is not None
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    @property
    def _log(self) -> str:
        return f"{self.directory}/server.log"

    def last_words(self) -> str:
        """The end of the server's stderr."""
        return Path(self._log).read_text(errors="replace")[-2000:].strip() or "it said nothing"

    # -- watching

    def status(self) -> dict[str, Any]:
        """The server's status map, over a new connection."""
        with Client(self.address, timeout_s=60.0) as client:
            return dict(client.status())

    def wait_replayed(self, timeout_s: float = 120.0) -> float:
        """Waits until all acknowledged messages are replayed. Returns the seconds waited. Raises `ServerFailed`."""
        begin = time.monotonic()
        with Client(self.address, timeout_s=60.0) as client:
            while client.status()["storage"]["replay_lag_bytes"]:
                if time.monotonic() - begin > timeout_s:
                    raise ServerFailed(f"the replayer is not done after {timeout_s:g} s")
                time.sleep(0.01)
        return time.monotonic() - begin

    def memory_bytes(self) -> dict[str, int]:
        """The resident memory, its anonymous part, and its peak, in bytes."""
        fields = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("VmRSS", "RssAnon", "VmHWM"):
                fields[name] = int(value.split()[0]) * 1024
        return {"rss": fields["VmRSS"], "anonymous": fields["RssAnon"], "peak": fields["VmHWM"]}

    def open_files(self) -> int:
        """Open file descriptors, sockets and pipes included."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_s(self) -> float:
        """The processor time of all threads so far, in seconds."""
        return process_cpu_s(self.pid)
