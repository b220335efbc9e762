"""A snapshot has the files of one moment, whatever is written, replaced and removed beside it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from store.disk.filesystem import RealFileSystem, read_whole, write_atomically
from store.disk.memory_filesystem import MemoryFileSystem
from store.errors import CorruptionError, FormatError, StoreError
from store.snapshots.snapshot_listing import ListedFile, Listing, read_listing, write_listing
from store.snapshots.taking import FILES, TRIES, SnapshotTaking, list_still
from store.tables.identity import DataDirectory

NUMBER = struct.Struct("<q")
NOW_US = 1_700_000_000_000_000


def made(path: Path) -> tuple[RealFileSystem, str]:
    fs = RealFileSystem()
    DataDirectory.open(fs, str(path), random_server_id=lambda: 0xABC, role="server").close()
    return fs, str(path)


def taken(fs: RealFileSystem, root: str, name: str = "one", lengths: dict[str, int] | None = None) -> Listing:
    return SnapshotTaking(fs, root).take(name, lambda: lengths or {}, lambda: NOW_US)


def content(root: str, name: str, file: ListedFile) -> bytes:
    return Path(f"{root}/snapshot/{name}/{FILES}/{file.path}").read_bytes()[: file.size]


@contextmanager
def written_beside(fs: RealFileSystem, root: str) -> Iterator[None]:
    """A process that writes each number to the file `first`, then to `second`, then atomically to `third`."""
    over = Event()

    def write() -> None:
        first, second = fs.open(f"{root}/first", create=True), fs.open(f"{root}/day/second", create=True)
        number = 0
        while not over.is_set():
            for file in (first, second):
                file.pwrite(number * NUMBER.size, [NUMBER.pack(number)])
            write_atomically(fs, f"{root}/third", NUMBER.pack(number))
            number += 1

    thread = Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


def test_an_effect_is_never_in_a_snapshot_without_its_cause(tmp_path: Path) -> None:
    fs, root = made(tmp_path)
    (tmp_path / "day").mkdir()
    for number in range(300):  # so many that they take a while to look at
        (tmp_path / f"between-{number}").write_bytes(b"x")
    with written_beside(fs, root):
        while not fs.exists(f"{root}/third"):
            pass
        for number in range(40):
            taking = SnapshotTaking(fs, root)
            listing = taking.take(str(number), dict, lambda: NOW_US)
            sizes = {file.path: file.size // NUMBER.size for file in listing.files}
            (third,) = [file for file in listing.files if file.path == "third"]
            (last,) = NUMBER.unpack(content(root, str(number), third))
            assert sizes["first"] >= sizes["day/second"] > last >= sizes["first"] - 2, number
            taking.drop_all()


class Replacing(RealFileSystem):
    """Replaces a file each time before the disk stands still, so many times. Counts names made while it does."""

    def __init__(self, path: str, times: int) -> None:
        super().__init__()
        self.path = path
        self.times = times
        self.replaced = self.linked_still = self.moments = 0
        self._still = False

    @contextmanager
    def stand_still(self) -> Iterator[None]:
        if self.replaced < self.times:
            self.replaced += 1
            write_atomically(self, self.path, b"%d" % self.replaced)
        self.moments += 1
        with super().stand_still():
            self._still = True
            yield
            self._still = False

    def link(self, source: str, target: str) -> None:
        self.linked_still += self._still
        super().link(source, target)


@pytest.mark.parametrize(("times", "replaced", "linked_still"), [(0, 0, 0), (2, 2, 0), (100, TRIES, 1)])
def test_names_are_made_while_others_may_write(tmp_path: Path, times: int, replaced: int, linked_still: int) -> None:
    made(tmp_path)
    (tmp_path / "busy").write_bytes(b"0")
    fs = Replacing(f"{tmp_path}/busy", times)
    listing = taken(fs, str(tmp_path))
    assert (fs.replaced, fs.moments, fs.linked_still) == (replaced, min(times + 1, TRIES), linked_still)
    (busy,) = [file for file in listing.files if file.path == "busy"]
    assert content(str(tmp_path), "one", busy) == b"%d" % replaced


def test_what_is_written_replaced_and_removed_later_is_not_in_it(tmp_path: Path) -> None:
    fs, root = made(tmp_path)
    for name in ("grows", "replaced", "removed"):
        (tmp_path / name).write_bytes(name.encode())
    listing = taken(fs, root)
    with (tmp_path / "grows").open("ab") as file:
        file.write(b" more")
    write_atomically(fs, f"{root}/replaced", b"new")
    fs.remove(f"{root}/removed")
    (tmp_path / "made").write_bytes(b"")
    found = {file.path: content(root, "one", file) for file in listing.files}
    assert {name: data for name, data in found.items() if name not in ("identity", "sequences")} == {
        name: name.encode() for name in ("grows", "replaced", "removed")
    }
    assert (listing.server_id, listing.role, listing.taken_us) == (0xABC, "server", NOW_US)
    assert read_listing(fs, f"{root}/snapshot/one") == listing


def test_a_file_that_is_allocated_ahead_has_the_length_that_is_in_use(tmp_path: Path) -> None:
    fs, root = made(tmp_path)
    (tmp_path / "message_log").mkdir()
    for base, length in ((0, 640), (640, 4096)):
        (tmp_path / "message_log" / f"{base:020d}.log").write_bytes(bytes(length))
    listing = taken(fs, root, lengths={f"{root}/message_log/{640:020d}.log": 128, f"{root}/not/there": 5})
    assert [file.size for file in listing.files if file.path.startswith("message_log")] == [640, 128]
    assert listing.log_end == 768


def test_locks_room_and_unfinished_files_are_left_out(tmp_path: Path) -> None:
    fs, root = made(tmp_path)
    (tmp_path / "dispatch_log").mkdir()
    for name in ("checkpoint.tmp", "dispatch_log/reserve", "lock"):
        (tmp_path / name).write_bytes(b"x")
    taken(fs, root)
    assert [file.path for file in taken(fs, root, "two").files] == ["identity", "sequences"]
    assert [file.path for file in list_still(fs, root, NOW_US).files] == ["identity", "sequences"]


def test_all_snapshots_are_dropped_also_half_made_ones(tmp_path: Path) -> None:
    fs, root = made(tmp_path)
    taken(fs, root)
    (tmp_path / "snapshot/half/files").mkdir(parents=True)
    (tmp_path / "snapshot/half/files/x").write_bytes(b"")
    SnapshotTaking(fs, root).drop_all()
    assert not (tmp_path / "snapshot").exists()
    SnapshotTaking(fs, root).drop_all()


def test_a_directory_in_memory_has_no_snapshots() -> None:
    fs = MemoryFileSystem(1 << 20)
    with pytest.raises(StoreError, match="in memory"):
        SnapshotTaking(fs, "/d").take("one", dict, lambda: NOW_US)


def test_damage_of_a_listing_is_found(tmp_path: Path) -> None:
    fs, folder = RealFileSystem(), str(tmp_path)
    write_listing(fs, folder, Listing(1, "server", 2, 3, (ListedFile("a", 1, 2, 3),)))
    data = read_whole(fs, f"{folder}/listing")
    for place in range(len(data)):
        write_atomically(fs, f"{folder}/listing", data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises((CorruptionError, FormatError)):
            read_listing(fs, folder)
    write_atomically(fs, f"{folder}/listing", data.replace(b"DELAYLST 1", b"DELAYLST 2"))
    with pytest.raises(FormatError, match="upgrade"):
        read_listing(fs, folder)
