"""A backup holds every file as it was, and copies only what the one before has not."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from delayserver.backup.copying import PIECE_BYTES, SHORT_PIECES_MAX, back_up
from delayserver.backup.objects import Folder
from delayserver.backup.repository import BackupError, Repository
from store.disk.filesystem import write_atomically
from store.disk.memory_filesystem import MemoryFileSystem
from store.errors import CorruptionError, DiskFullError, LockedError
from store.snapshots.taking import list_still
from store.tables.identity import DataDirectory
from tests.delayserver.backup.builders import (
    NOW_US,
    PLACE,
    ROOM,
    ROOT,
    SECOND_US,
    backed_up,
    contents,
    repository,
    silent,
    stored,
    write,
)
from tests.fakes.disk import FakeDisk, new_disk


def directory(server_id: int = 0xABC) -> FakeDisk:
    disk = new_disk()
    DataDirectory.open(disk, ROOT, random_server_id=lambda: server_id, role="server").close()
    disk.remove(f"{ROOT}/lock")
    disk.remove(f"{ROOT}/sequences.tmp")
    return disk


def random_bytes(count: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(count)


def test_a_backup_has_all_files_as_they_are() -> None:
    disk, place = directory(), repository()
    large = random_bytes(2 * PIECE_BYTES + 12_345)
    write(disk, {"a": b"", "b/c": b"text", "large": large, "zeros": bytes(99_999), "end": b"x" + bytes(200_000)})
    write(disk, {"hole": b"behind"}, offset=300_000)
    done = backed_up(place, disk)
    _, manifest = place.newest()
    assert stored(place, manifest) == contents(disk)
    assert (done.files, done.size_bytes) == (len(contents(disk)), sum(map(len, contents(disk).values())))
    assert done.copied_bytes < done.size_bytes - 299_000, "zeros at the end are not copied"
    assert (manifest.server_id, manifest.role, manifest.taken_us) == (0xABC, "server", NOW_US)


def test_a_directory_of_which_one_percent_has_changed_copies_less_than_three() -> None:
    disk, place = directory(), repository()
    write(disk, {f"day/{number}.log": random_bytes(200_000, number) for number in range(100)})
    first = backed_up(place, disk)
    for number in range(100):  # grown here and there
        write(disk, {f"day/{number}.log": random_bytes(2_000, number + 100)}, offset=200_000)
    grown = backed_up(place, disk, NOW_US + SECOND_US)
    assert grown.copied_bytes <= 0.03 * first.copied_bytes
    write(disk, {"day/new.log": random_bytes(200_000, 500)})
    added = backed_up(place, disk, NOW_US + 2 * SECOND_US)
    assert added.copied_bytes <= 0.03 * first.copied_bytes
    assert stored(place, place.newest()[1]) == contents(disk)
    assert backed_up(place, disk, NOW_US + 3 * SECOND_US).copied_bytes == 0


def test_files_that_have_not_changed_are_not_read() -> None:
    disk, place = directory(), repository()
    write(disk, {"a": b"text"})
    backed_up(place, disk)
    before = disk.counts["pread"]
    backed_up(place, disk, NOW_US + SECOND_US)
    assert disk.counts["pread"] - before <= 2, "the identity alone"


def test_a_file_that_was_replaced_by_a_longer_one_is_copied_anew() -> None:
    disk, place = directory(), repository()
    write(disk, {"table": b"old content"})
    backed_up(place, disk)
    write_atomically(disk, f"{ROOT}/table", b"new content, and more")
    backed_up(place, disk, NOW_US + SECOND_US)
    assert stored(place, place.newest()[1])["table"] == b"new content, and more"


def test_a_file_that_was_cut_and_written_again_is_copied_anew() -> None:
    disk, place = directory(), repository()
    write(disk, {"log": b"torn"})
    backed_up(place, disk)
    file = disk.open(f"{ROOT}/log")
    file.truncate(1)
    file.pwrite(1, [b"he whole record"])
    backed_up(place, disk, NOW_US + SECOND_US)
    assert stored(place, place.newest()[1])["log"] == b"the whole record"


def test_short_pieces_of_a_growing_file_are_joined() -> None:
    disk, place = directory(), repository()
    data = b""
    for number in range(SHORT_PIECES_MAX + 5):
        write(disk, {"log": b"piece"}, offset=len(data))
        data += b"piece"
        backed_up(place, disk, NOW_US + number * SECOND_US)
    (log,) = [file for file in place.newest()[1].files if file.path == "log"]
    assert len(log.pieces) < 10
    assert stored(place, place.newest()[1])["log"] == data


def test_old_backups_are_pruned_and_the_others_stay_whole() -> None:
    disk, place = directory(), repository()
    contents_at = []
    for number in range(6):
        write(disk, {f"{number}.log": random_bytes(50_000, number)})
        if number >= 3:
            disk.remove(f"{ROOT}/{number - 3}.log")
        backed_up(place, disk, NOW_US + number * SECOND_US)
        contents_at.append(contents(disk))
    names = place.names()
    assert place.prune(2) == names[:4]
    assert [stored(place, place.manifest(name)) for name in place.names()] == contents_at[4:]
    assert sum(place.pack_sizes().values()) <= 6 * 50_000, "what only the others needed is gone"


def test_a_pack_of_which_little_is_of_use_is_copied_anew_and_goes_with_its_backups() -> None:
    disk, place = directory(), repository()
    write(disk, {f"{number}.log": random_bytes(10_000, number) for number in range(10)})
    backed_up(place, disk)
    for number in range(1, 10):
        disk.remove(f"{ROOT}/{number}.log")
    backed_up(place, disk, NOW_US + SECOND_US)
    place.prune(1)
    assert sum(place.pack_sizes().values()) < 11_000
    assert stored(place, place.newest()[1]) == contents(disk)


def test_a_full_disk_leaves_no_backup_and_the_next_one_goes_on() -> None:
    disk, target = directory(), MemoryFileSystem(ROOM)
    place = repository(target)
    write(disk, {"a.log": random_bytes(100_000)})
    backed_up(place, disk)
    write(disk, {"b.log": random_bytes(3 * PIECE_BYTES, 1)})
    target.bytes_max = target.used_bytes + PIECE_BYTES
    with pytest.raises(DiskFullError):
        backed_up(place, disk, NOW_US + SECOND_US)
    assert len(place.names()) == 1
    target.bytes_max = ROOM
    backed_up(place, disk, NOW_US + 2 * SECOND_US)
    assert stored(place, place.newest()[1]) == contents(disk)
    assert place.prune(1)
    packs = {piece.pack for piece in place.newest()[1].pieces()}
    assert set(place.pack_sizes()) == packs, "nothing of the interrupted one is left"


class Dies(Exception):
    """The process was killed."""


@pytest.mark.parametrize("at", range(1, 40, 2))
def test_a_backup_that_dies_at_any_call_is_whole_or_none(at: int) -> None:
    disk, target = directory(), new_disk()
    place = repository(target)
    write(disk, {"a.log": b"first"})
    backed_up(place, disk)
    expected = [contents(disk), contents(disk) | {"b.log": b"second"}]
    write(disk, {"b.log": b"second"})
    calls = 0

    def die(_operation: str, _path: str) -> int:
        nonlocal calls
        calls += 1
        if calls >= at:
            raise Dies
        return 0

    target.refuse = die
    with suppress(Dies):
        backed_up(place, disk, NOW_US + SECOND_US)
    target.refuse = None
    target.crash(Random(at))
    place = repository(target)
    names = place.names()
    assert [stored(place, place.manifest(name)) for name in names] == expected[: len(names)]
    assert names
    backed_up(place, disk, NOW_US + 2 * SECOND_US)
    assert stored(place, place.newest()[1]) == contents(disk)


def test_backups_of_two_servers_do_not_mix() -> None:
    place = repository()
    backed_up(place, directory())
    with pytest.raises(BackupError, match="choose another place"):
        backed_up(place, directory(0xDEF))


def test_two_backups_do_not_write_at_once() -> None:
    target = MemoryFileSystem(ROOM)
    first = repository(target)
    first.hold()
    with pytest.raises(LockedError, match="another backup"):
        repository(target).hold()
    first.close()
    repository(target).hold()


def test_a_clock_that_stepped_back_does_not_make_an_older_backup_the_last_one() -> None:
    disk, place = directory(), repository()
    backed_up(place, disk)
    write(disk, {"a": b"new"})
    backed_up(place, disk, NOW_US - 3_600 * SECOND_US)
    backed_up(place, disk, NOW_US)
    assert len(place.names()) == 3
    assert "a" in stored(place, place.newest()[1])


def test_a_file_that_is_shorter_than_listed_ends_the_backup() -> None:
    disk, place = directory(), repository()
    write(disk, {"a.log": b"0123456789"})
    listing = list_still(disk, ROOT, NOW_US)
    disk.open(f"{ROOT}/a.log").truncate(5)
    with pytest.raises(BackupError, match="begin the backup again"):
        back_up(place, disk, ROOT, listing, "test", silent)
    assert place.names() == []


def test_each_changed_byte_of_a_backup_is_found_by_its_file_and_offset() -> None:
    disk, target = directory(), new_disk()
    place = Repository(Folder(target, PLACE))
    write(disk, {"a.log": random_bytes(5_000)})
    backed_up(place, disk)
    (pack,) = target.files(f"{PLACE}/packs/")
    (manifest,) = target.files(f"{PLACE}/snapshots/")
    assert place.damages(place.names(), silent) == []
    for path in (pack, manifest):
        for offset in range(0, target.size(path), 97):
            target.flip_bit(path, offset)
            (found,) = place.damages(place.names(), silent)
            assert path in str(found) and isinstance(found, CorruptionError), offset
            target.flip_bit(path, offset)
    target.remove(pack)
    assert "missing" in str(place.damages(place.names(), silent)[0])
