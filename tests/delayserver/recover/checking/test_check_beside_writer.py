"""A check beside ingest: message_log grows between two reads of it, and that is no finding."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import pytest

from delayserver.client import Client
from delayserver.recover.checking.check import check_directory
from store.disk.filesystem import RealFile, RealFileSystem
from tests.delayserver.recover.directories import SMALL, ServerProcess


class _Growing(RealFileSystem):
    """Shows the segments of message_log up to `start`, and `step` bytes more at each read of them."""

    def __init__(self, start: int, step: int) -> None:
        super().__init__()
        self.written = start
        self.step = step

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        if "/message_log/" not in path:
            return super().open(path, create=create, write=write)
        shown = self

        class Shown(RealFile):
            def pread(self, offset: int, length: int) -> bytes:
                found = super().pread(offset, length)
                there = min(max(shown.written - offset, 0), length)
                shown.written += shown.step
                return found[:there] + bytes(len(found) - there)

        return self._open(Shown, path, create=create, write=write)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A directory as a server leaves it after a kill, with the message_log of later, and the end of this log at the kill."""
    path = tmp_path_factory.mktemp("beside")
    data, due_ms = path / "data", int(time.time() * 1000) + 3_600_000
    with ServerProcess(data, *SMALL) as server, Client(server.address) as client:
        client.lookup(client.send("sent", "before", due_ms=due_ms).receipt)
        server.stop(signal.SIGKILL)
    shutil.copytree(data, path / "copy")
    [segment] = (path / "copy" / "message_log").iterdir()
    start = -(-len(segment.read_bytes().rstrip(b"\0")) // 8) * 8
    with ServerProcess(data, *SMALL) as server, Client(server.address) as client:
        for number in range(60):
            client.send("sent", "x" * number, due_ms=due_ms)
        server.stop(signal.SIGKILL)
    shutil.copy(data / "message_log" / segment.name, segment)
    shutil.copy(data / "sequences", path / "copy")  # a check reads it behind the log
    return path / "copy", start


@pytest.mark.parametrize("step", [0, 8, 120, *range(200, 600, 50), 1000])
def test_a_log_that_grows_while_it_is_read_has_no_damage(beside: tuple[Path, int], step: int) -> None:
    directory, start = beside
    taken, checked = check_directory(_Growing(start, step), str(directory))
    taken.close()
    assert [found for found in checked.findings if found.kind != "torn"] == []
    assert checked.balance.totals()[0] >= 1
