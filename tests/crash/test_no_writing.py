"""A data directory that can be read and not written any more: its rights are lost, or its file system is read-only."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from delayserver.client import Client
from delayserver.protocol.errors import ConnectionLost, DelayServerError, StorageFailed
from tests.crash.command_line import CommandLineServer, require
from tests.forked import without_stalls

SUBJECT, GROUP = "read.only", "g"
# Small files, so that new ones are needed all the time.
CONFIG = """\
[storage]
window_ms = 1000
message_log_segment_bytes = 65536
dispatch_reserve_bytes = 65536
free_bytes_min = 65536
checkpoint_interval_ms = 200
[broker]
segment_bytes = 1048576
"""
SENDS_MAX = 2000
RECEIVE_S = 60.0


def send_until_refused(server: CommandLineServer) -> tuple[list[int], DelayServerError]:
    """The sequences that were acknowledged, and the error that ended it."""
    accepted: list[int] = []
    try:
        with Client(server.address, retries=0) as client:
            for _ in range(SENDS_MAX):
                accepted.append(client.send(SUBJECT, "x", delay_ms=1500).sequence)
                time.sleep(0.01)
    except DelayServerError as error:  # also where the server ended before there was a connection
        return accepted, error
    raise AssertionError("nothing was refused")


def receive(server: CommandLineServer, sequences: list[int]) -> None:
    """All of these arrive, each once."""
    came: list[int] = []
    deadline_s = time.monotonic() + RECEIVE_S
    with Client(server.address) as client:
        while time.monotonic() < deadline_s:
            pulled = client.pull(SUBJECT, GROUP, 1000, 0.2)
            if pulled:
                client.ack(SUBJECT, GROUP, pulled)
            came += [delivery.sequence for delivery in pulled]
            if len(came) >= len(sequences) and not client.status()["pending"]:
                break
        # A send whose connection was lost with the server may have been taken all the same.
        assert set(came) >= set(sequences) and len(came) == len(set(came))
        assert client.status()["early"] == 0


def prove(server: CommandLineServer, first: list[int], reason: str) -> None:
    """With writing taken away: refused by name or ended, never acknowledged and lost, and one line says which file."""
    accepted, error = send_until_refused(server)
    assert isinstance(error, (StorageFailed, ConnectionLost)), error
    assert server.wait() == 1, server.said()
    lines = without_stalls(server.said()).strip().splitlines()
    assert lines[-1].startswith("Error: ") and str(server.data_dir) in lines[-1] and reason in lines[-1], server.said()
    assert "Traceback" not in server.said()
    first += accepted


def still_refused(server: CommandLineServer, reason: str) -> None:
    """A start while nothing can be written is one line as well."""
    before = len(without_stalls(server.said()))
    assert not server.start()
    assert server.wait() == 1
    (line,) = without_stalls(server.said())[before:].strip().splitlines()
    assert line.startswith("Error: ") and reason in line


def set_rights(root: Path, *, writable: bool) -> None:
    """Of every folder and file."""
    for path in [root, *root.rglob("*")]:
        path.chmod((0o700 if path.is_dir() else 0o600) if writable else (0o500 if path.is_dir() else 0o400))


def test_rights_that_are_lost_end_the_server_by_name_and_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    # Rights do not bind a process that may override them, as root may.
    prefix = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    server = CommandLineServer(tmp_path, CONFIG, prefix=prefix)
    try:
        assert server.start(), server.said()
        accepted: list[int] = []
        with Client(server.address) as client:
            accepted.append(client.send(SUBJECT, "before", delay_ms=1500).sequence)
        set_rights(server.data_dir, writable=False)
        prove(server, accepted, "Permission denied")
        still_refused(server, "Permission denied")
        set_rights(server.data_dir, writable=True)
        assert server.start(), server.said()
        receive(server, accepted)
        assert server.stop() == 0, server.said()
    finally:
        server.clean_up()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Makes a folder read-only: no file in it can be opened for writing from then on.

    The kernel refuses that to a file system with files open for writing, as a server has them; but a read-only mount of the
    folder over itself is what a path leads to. It is made read-only elsewhere first: a mount that is writable for a moment
    would stay so where the server opens a file in that moment.
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done: list[Path] = []

    def mount(*arguments: str) -> None:
        found = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
        require(not found.returncode, f"the right to mount ({found.stderr.strip()})")
        done.append(Path(arguments[-1]))

    def make(path: Path) -> None:
        mount("--bind", str(path), str(elsewhere))
        mount("-o", "remount,bind,ro", str(elsewhere))
        mount("--bind", str(elsewhere), str(path))

    yield make
    for path in reversed(done):
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


def test_a_file_system_that_becomes_read_only_ends_the_server_by_name_and_nothing_that_was_acknowledged(
    read_only: Callable[[Path], None], tmp_path: Path
) -> None:
    server = CommandLineServer(tmp_path, CONFIG)
    try:
        assert server.start(), server.said()
        accepted: list[int] = []
        with Client(server.address) as client:
            accepted.append(client.send(SUBJECT, "before", delay_ms=1500).sequence)
        read_only(server.data_dir)
        prove(server, accepted, "Read-only file system")
        still_refused(server, "Read-only file system")
        subprocess.run(["umount", str(server.data_dir)], check=True)
        assert server.start(), server.said()
        receive(server, accepted)
        assert server.stop() == 0, server.said()
    finally:
        server.clean_up()
