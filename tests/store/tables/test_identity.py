"""One owner, one server id, and no sequence twice."""

from __future__ import annotations

from random import Random

import pytest

from store.errors import CorruptionError, DiskFullError, FormatError, LockedError
from store.tables.identity import (
    BLOCK,
    CLOCK_AHEAD_US,
    DataDirectory,
    SequenceReservation,
    read_identity,
    read_reservation,
    read_role,
    rebuild_identity,
)
from tests.fakes.disk import FakeDisk, SimulatedCrash

MINUTE_US = 60_000_000


def opened(fs: FakeDisk, server_id: int = 0xABC, role: str = "") -> DataDirectory:
    return DataDirectory.open(fs, "/d", random_server_id=lambda: server_id, holder="process 5 (delayserver)", role=role)


def test_the_server_id_is_drawn_once(disk: FakeDisk) -> None:
    first = opened(disk)
    assert first.created and first.server_id == 0xABC
    first.close()
    second = opened(disk, 0xDEF)
    assert not second.created and second.server_id == 0xABC == read_identity(disk, "/d")


def test_a_second_process_is_refused_with_the_name_of_the_first(disk: FakeDisk) -> None:
    held = opened(disk)
    with pytest.raises(LockedError, match=r"process 5 \(delayserver\)"):
        opened(disk)
    held.close()
    opened(disk).close()


def test_a_directory_with_other_files_is_refused_and_left_alone(disk: FakeDisk) -> None:
    disk.make_directory("/d")
    disk.open("/d/thesis.txt", create=True)
    with pytest.raises(FormatError, match=r"thesis\.txt"):
        opened(disk)
    assert disk.files() == ["/d/thesis.txt"]
    with pytest.raises(FormatError, match="not a data directory"):
        read_identity(disk, "/d")


@pytest.mark.parametrize(("made_by", "opened_by"), [("server", "broker"), ("broker", "server")])
def test_a_directory_of_another_role_is_refused_and_left_alone(made_by: str, opened_by: str, disk: FakeDisk) -> None:
    opened(disk, role=made_by).close()
    before = {path: disk.content(path) for path in disk.files() if not path.endswith("lock")}
    with pytest.raises(FormatError, match=f"/d: the data of a {made_by}, and this is a {opened_by}"):
        opened(disk, role=opened_by)
    assert {path: disk.content(path) for path in before} == before
    assert read_role(disk, "/d") == made_by
    opened(disk, role=made_by).close()  # the refused one has left no lock
    opened(disk).close()  # and tools, which are neither, may look


def test_a_directory_that_names_no_role_is_anybodys(disk: FakeDisk) -> None:
    opened(disk, role="server").close()
    rebuild_identity(disk, "/d", 0xABC)
    assert read_role(disk, "/d") == ""
    opened(disk, role="broker").close()
    opened(disk, role="server").close()


def test_a_role_of_a_later_version_is_refused(monkeypatch: pytest.MonkeyPatch, disk: FakeDisk) -> None:
    monkeypatch.setattr("store.tables.identity.ROLES", ("", "server", "broker", "mirror"))
    opened(disk, role="mirror").close()
    monkeypatch.undo()
    with pytest.raises(FormatError, match="role 3 is none that this program knows"):
        opened(disk, role="server")


def test_a_server_id_is_48_bits_and_never_zero() -> None:
    for bad in (0, 1 << 48):
        with pytest.raises(AssertionError):
            opened(FakeDisk(), bad)


def test_a_directory_whose_making_was_interrupted_is_made_anew() -> None:
    for point in range(1, 25):
        for seed in range(4):
            fs = FakeDisk()
            fs.crash_after(point)
            made = None
            try:
                made = opened(fs).server_id
            except SimulatedCrash:
                pass
            fs.crash(Random(seed))
            directory = opened(fs, 0xDEF)
            assert directory.server_id == (made or directory.server_id)
            assert SequenceReservation.open(fs, "/d", directory.server_id).next == 1


def test_every_changed_byte_of_both_files_is_detected() -> None:
    for name in ("identity", "sequences"):
        for offset in range(64):
            fs = FakeDisk()
            opened(fs).close()
            fs.flip_bit(f"/d/{name}", offset, offset % 8)
            with pytest.raises(CorruptionError):
                SequenceReservation.open(fs, "/d", opened(fs).server_id)


def test_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch, disk: FakeDisk) -> None:
    monkeypatch.setattr("store.tables.identity.FORMAT_VERSION", 2)
    opened(disk).close()
    monkeypatch.undo()
    with pytest.raises(FormatError, match="newer"):
        opened(disk)


def reservation(fs: FakeDisk) -> SequenceReservation:
    return SequenceReservation.open(fs, "/d", 0xABC)


def test_sequences_start_at_one_and_go_on_exactly_after_a_clean_stop(disk: FakeDisk) -> None:
    opened(disk).close()
    sequences = reservation(disk)
    assert (sequences.next, sequences.clean) == (1, True)
    assert [sequences.take(5), sequences.take(1), sequences.next] == [1, 6, 7]
    sequences.close_clean()
    sequences = reservation(disk)
    assert (sequences.next, sequences.clean) == (7, True)


def test_after_an_unclean_stop_sequences_go_on_behind_the_reservation(disk: FakeDisk) -> None:
    opened(disk).close()
    sequences = reservation(disk)
    sequences.take(100)
    disk.crash(Random(0))
    sequences = reservation(disk)
    assert (sequences.next, sequences.clean) == (1 + BLOCK, False)
    sequences.close_clean()
    assert reservation(disk).next == 1 + BLOCK


def test_an_orderly_end_is_exact_and_the_next_start_forgets_it(disk: FakeDisk) -> None:
    opened(disk).close()
    sequences = reservation(disk)
    sequences.take(6)
    sequences.close_orderly()
    found = read_reservation(disk, "/d/sequences", 0xABC)
    assert (found.clean, found.orderly, found.next, found.reserved) == (False, True, 7, 7)
    sequences = reservation(disk)
    assert (sequences.next, sequences.clean) == (7, False)
    found = read_reservation(disk, "/d/sequences", 0xABC)
    assert (found.clean, found.orderly) == (False, False)


def test_taking_does_not_touch_the_disk_while_it_is_covered(disk: FakeDisk) -> None:
    opened(disk).close()
    sequences = reservation(disk)
    operations = disk.operations
    while not sequences.needs_extension():
        sequences.take(1000)
    assert sequences.reserved - sequences.next > BLOCK // 2 - 1001
    assert disk.operations == operations
    sequences.extend()
    assert disk.operations > operations and not sequences.needs_extension()
    operations = disk.operations
    sequences.extend()  # another thread was faster
    assert disk.operations == operations


def test_a_take_beyond_the_reservation_reserves_first(disk: FakeDisk) -> None:
    opened(disk).close()
    sequences = reservation(disk)
    assert sequences.take(5 * BLOCK) == 1
    assert sequences.reserved >= sequences.next
    disk.crash(Random(0))
    assert reservation(disk).next > 5 * BLOCK


def test_a_full_disk_gives_the_room_that_was_kept_and_then_takes_nothing(disk: FakeDisk) -> None:
    opened(disk).close()
    sequences = reservation(disk)
    sequences.take(BLOCK)
    disk.capacity_bytes = 0
    assert sequences.take(BLOCK) == BLOCK + 1, "the next reservation has its room"
    for _ in range(2):
        with pytest.raises(DiskFullError):
            sequences.take(1)
    disk.capacity_bytes = None
    assert sequences.take(1) == 2 * BLOCK + 1


def test_no_sequence_is_given_out_twice_through_crashes_and_full_disks() -> None:
    for seed in range(60):
        random = Random(seed)
        fs = FakeDisk()
        opened(fs).close()
        highest = 0
        for _ in range(12):
            fs.crash_after(random.randrange(1, 14))
            try:
                sequences = reservation(fs)
                for _ in range(random.randrange(4)):
                    count = random.choice([1, 1000, BLOCK // 2, 2 * BLOCK])
                    first = sequences.take(count)
                    assert first > highest
                    highest = first + count - 1
                if random.random() < 0.5:
                    sequences.close_clean()
            except SimulatedCrash:
                pass
            if random.random() < 0.5:
                fs.crash(random)
            else:
                fs.kill()


def test_a_lost_reservation_is_corruption_and_can_be_rebuilt_above_the_logs(disk: FakeDisk) -> None:
    opened(disk).close()
    disk.remove("/d/sequences")
    with pytest.raises(CorruptionError, match="missing"):
        reservation(disk)
    sequences = SequenceReservation.rebuild(disk, "/d", 0xABC, above=500)
    assert sequences.next > 500 + BLOCK and not sequences.clean


def test_sequences_begin_above_a_fence_that_is_above_the_logs(disk: FakeDisk) -> None:
    opened(disk).close()
    assert SequenceReservation.open(disk, "/d", 0xABC, above=9).next == 10
    with pytest.raises(FormatError, match="belongs to server"):
        SequenceReservation.open(disk, "/d", 0xDEF)


def test_nothing_is_taken_after_a_clean_close_and_nothing_is_given_back(disk: FakeDisk) -> None:
    opened(disk).close()
    sequences = reservation(disk)
    sequences.take(5)
    with pytest.raises(AssertionError):
        sequences.close_clean(3)
    sequences.close_clean(8)
    with pytest.raises(AssertionError):
        sequences.take(1)
    assert reservation(disk).next == 8


def told_us(fs: FakeDisk) -> int:
    return read_reservation(fs, "/d/sequences", 0xABC).clock_us


def test_a_time_is_reserved_ahead_and_in_whole_minutes_until_a_clean_stop(disk: FakeDisk) -> None:
    opened(disk).close()
    assert told_us(disk) == 0
    now_us = 1_772_366_400_000_001
    sequences = SequenceReservation.open(disk, "/d", 0xABC, clock_us=now_us)
    assert told_us(disk) == now_us - 1 + MINUTE_US
    operations = disk.operations
    sequences.reserve_clock(now_us + MINUTE_US - 1)
    assert disk.operations == operations, "that is reserved"
    sequences.reserve_clock(now_us + MINUTE_US)
    reserved_us = told_us(disk)
    assert now_us + MINUTE_US + CLOCK_AHEAD_US <= reserved_us < now_us + 2 * MINUTE_US + CLOCK_AHEAD_US
    sequences.take(2 * BLOCK)
    assert told_us(disk) == reserved_us, "a block of sequences leaves it as it is"
    disk.crash(Random(0))
    sequences = reservation(disk)
    assert told_us(disk) == reserved_us, "so does a tool that does not know the time"
    sequences.close_clean()
    assert told_us(disk) == 0
    sequences.reserve_clock(now_us)
    assert told_us(disk) == 0, "nothing is written after a clean end"


@pytest.mark.parametrize("time_us", [-5, 0, 1 << 62])
def test_a_time_that_no_field_can_hold_is_the_nearest_that_it_can(time_us: int, disk: FakeDisk) -> None:
    opened(disk).close()
    SequenceReservation.open(disk, "/d", 0xABC, clock_us=0).reserve_clock(time_us)
    assert told_us(disk) == (0 if time_us <= 0 else ((1 << 32) - 1) * MINUTE_US)
