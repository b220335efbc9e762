"""While the gate is closed no other thread changes a file, and what was under way has ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from store.disk.filesystem import RealFileSystem
from store.disk.write_gate import WriteGate

LONG_S = 60


def started(work: Callable[[], object]) -> Thread:
    thread = Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_change_waits_until_the_gate_opens() -> None:
    gate, done = WriteGate(), Event()

    def change() -> None:
        gate.enter()
        done.set()
        gate.leave()

    with gate.closed():
        thread = started(change)
        assert not done.wait(0.05)
    thread.join(LONG_S)
    assert done.is_set()


def test_the_gate_closes_when_the_change_under_way_has_ended() -> None:
    gate, closed = WriteGate(), Event()

    def close() -> None:
        with gate.closed():
            closed.set()

    gate.enter()
    thread = started(close)
    assert not closed.wait(0.05)
    gate.leave()
    thread.join(LONG_S)
    assert closed.is_set()


def test_a_change_that_takes_long_holds_no_other_up() -> None:
    gate, closed, other = WriteGate(polite_looks=1 << 40), Event(), Event()

    def close() -> None:
        with gate.closed():
            closed.set()

    def change() -> None:
        gate.enter()
        other.set()
        gate.leave()

    gate.enter()
    closing = started(close)
    started(change).join(LONG_S)
    assert other.is_set() and not closed.is_set()
    gate.leave()
    closing.join(LONG_S)
    assert closed.is_set()


def test_a_gate_that_waits_in_vain_for_a_quiet_moment_makes_one() -> None:
    gate, over, closed = WriteGate(polite_looks=3), Event(), Event()

    def change() -> None:
        while not over.is_set():
            gate.enter()
            gate.leave()

    def close() -> None:
        with gate.closed():
            closed.set()

    changing = [started(change) for _ in range(4)]
    started(close).join(LONG_S)
    over.set()
    for each in changing:
        each.join(LONG_S)
    assert closed.is_set()


def test_the_thread_that_has_closed_the_gate_may_change_files() -> None:
    gate = WriteGate()
    with gate.closed():
        gate.enter()
        gate.leave()


CHANGES: dict[str, Callable[[RealFileSystem, str], object]] = {
    "write": lambda fs, path: fs.open(f"{path}/file").pwrite(0, [b"new"]),
    "write_through": lambda fs, path: fs.open(f"{path}/file").write_through(0, memoryview(bytearray(4096))),
    "truncate": lambda fs, path: fs.open(f"{path}/file").truncate(1),
    "allocate": lambda fs, path: fs.open(f"{path}/file").allocate(9_000),
    "make": lambda fs, path: fs.open(f"{path}/new", create=True),
    "make_directory": lambda fs, path: fs.make_directory(f"{path}/new"),
    "remove": lambda fs, path: fs.remove(f"{path}/file"),
    "remove_directory": lambda fs, path: fs.remove_directory(f"{path}/folder"),
    "replace": lambda fs, path: fs.replace(f"{path}/file", f"{path}/other"),
    "link": lambda fs, path: fs.link(f"{path}/file", f"{path}/second"),
}


def seen(folder: Path) -> list[tuple[str, bytes]]:
    return sorted((path.name, path.read_bytes() if path.is_file() else b"") for path in folder.iterdir())


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_the_disk_waits_while_it_stands_still(tmp_path: Path, change: str) -> None:
    fs = RealFileSystem()
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    before = seen(tmp_path)
    with fs.stand_still():
        thread = started(lambda: CHANGES[change](fs, str(tmp_path)))
        thread.join(0.05)
        assert thread.is_alive() or change == "write_through"
        assert seen(tmp_path) == before
    thread.join(LONG_S)
    assert not thread.is_alive()
    assert seen(tmp_path) != before or change == "write_through"


class Syncing(RealFileSystem):
    """While a directory is synced, another thread has the disk stand still."""

    def __init__(self) -> None:
        super().__init__()
        self.stood_still = 0

    def sync_directory(self, path: str) -> None:
        def look() -> None:
            with self.stand_still():
                self.stood_still += 1

        started(look).join(LONG_S)
        super().sync_directory(path)


def test_nobody_waits_for_the_sync_of_a_directory(tmp_path: Path) -> None:
    fs = Syncing()
    fs.make_directory(f"{tmp_path}/one/two")
    assert fs.stood_still == 2
