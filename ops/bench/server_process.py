"""A real server process on a fresh data directory: started as an operator would, watched through /proc, ended by its pid."""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

from delayserver.client import Client

STOP_TIMEOUT_S: Final = 30.0  # above the server's own bound for a clean stop
FAILING_S: Final = 2.0
PORTS: Final = range(24_801, 25_801)
ROOT: Final = Path(__file__).resolve().parents[2]


class ServerFailed(Exception):
    """The server did not start, or went away during a run; holds what it said last."""


@contextlib.contextmanager
def fresh_directory(base: str | None) -> Iterator[str]:
    """A new directory below ``base`` (default: the system's temporary directory), emptied afterwards, and removed when the
    process ends: where ext4 has just removed some thousand files, it takes twenty times as long to make another one, for
    minutes, and the next run would pay for that."""
    if base is not None:
        os.makedirs(base, exist_ok=True)
    path = tempfile.mkdtemp(prefix="delayserver-bench-", dir=base)
    try:
        yield path
    finally:
        atexit.register(shutil.rmtree, path, ignore_errors=True)
        for file in Path(path).rglob("*"):
            with contextlib.suppress(OSError):  # another user's, as a peer's may be
                if file.is_file() and not file.is_symlink():
                    os.truncate(file, 0)


def python_path() -> str:
    """PYTHONPATH with which a server finds the same packages as this process."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


def free_port() -> int:
    """A free port below the ephemeral range: a client that polls a port of that range can connect to itself."""
    for port in PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerFailed(f"no free port from {PORTS.start} to {PORTS.stop - 1}")


class ServerProcess:
    """``python -m delayserver serve`` with durability ``sync`` on ``directory``; started on entering."""

    def __init__(self, directory: str, config: str | None = None) -> None:
        self.directory = directory
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._process is not None:
            # A server that fails says goodbye to its clients first: wait for its own end, which tells why.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(FAILING_S)
        gone = self._stop()
        # Also when a client has failed already: why the server went is the reason for that.
        if gone is not None and (kind is None or issubclass(kind, Exception)):
            raise ServerFailed(f"the server ended by itself with code {gone}: {self.last_words()}")

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start the process and return at once; it keeps its port over restarts."""
        command = [sys.executable, "-m", "delayserver", "serve", "--json"]
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
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "PYTHONPATH": python_path()}
            )

    def wait_ready(self) -> None:
        """Wait for the line that says "ready". Raises `ServerFailed`."""
        assert self._process is not None and self._process.stdout is not None
        # The line comes or the process ends: reading needs no timer of its own beyond the bench's user.
        line = self._process.stdout.readline()
        if not line:
            raise ServerFailed(f"the server ended before it was ready: {self.last_words()}")

    def start(self) -> None:
        """Launch and wait until requests are accepted."""
        self.launch()
        self.wait_ready()

    def stop(self) -> int:
        """End it with SIGTERM; its exit code. Raises `subprocess.TimeoutExpired` past the bound."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(STOP_TIMEOUT_S)
        self._close()
        return code

    def _stop(self) -> int | None:
        """End it with SIGTERM, or SIGKILL past the bound; the exit code if it had gone by itself."""
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
        """SIGKILL, as a crash of the process; the page cache stays warm."""
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
        """The end of what the server wrote to stderr."""
        return Path(self._log).read_text(errors="replace")[-2000:].strip() or "it said nothing"

    # -- watching

    def status(self) -> dict[str, Any]:
        """The server's status map, over a connection of its own."""
        with Client(self.address, timeout_s=60.0) as client:
            return dict(client.status())

    def wait_replayed(self, timeout_s: float = 120.0) -> float:
        """Wait until nothing acknowledged is left to bucket; seconds waited. Raises `ServerFailed`."""
        begin = time.monotonic()
        with Client(self.address, timeout_s=60.0) as client:
            while client.status()["storage"]["replay_lag_bytes"]:
                if time.monotonic() - begin > timeout_s:
                    raise ServerFailed(f"the replayer is not done after {timeout_s:g} s")
                time.sleep(0.01)
        return time.monotonic() - begin

    def memory_bytes(self) -> dict[str, int]:
        """Resident memory now, the anonymous part of it, and its peak."""
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
        """Processor time used so far, all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
