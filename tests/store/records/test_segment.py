"""Damage of every kind to a segment, and what the scanner makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

from store.errors import CorruptionError, DiskFullError, FormatError, SyncFailedError
from store.records.batches import MessageBatch, OutcomeBatch
from store.records.column_batch import ColumnBatch
from store.records.record import BATCHES, encode_record
from store.records.scan import SECTOR_BYTES
from store.records.segment import (
    FILE_HEADER_BYTES,
    FILE_MESSAGE_LOG,
    FILE_SCHEDULE,
    Damage,
    FileHeader,
    ScanReport,
    Segment,
)
from tests.fakes.disk import PAGE, FakeDisk, SimulatedCrash, new_disk

PATH = "/d/file.log"
HEADER = FileHeader(FILE_MESSAGE_LOG, 7, 0)


def batch(sequence: int, body_bytes: int = 100) -> MessageBatch:
    return MessageBatch.filled(
        2,
        sequence=np.array([sequence, sequence + 1]),
        due_ms=np.array([5, sequence]),
        bodies_length=body_bytes // 2,
        bodies=bytes([sequence % 251 + 1]) * (body_bytes // 2 * 2),
    )


def reopened(fs: FakeDisk) -> Segment:
    return Segment.open(fs, PATH, FILE_MESSAGE_LOG, 7)


def sequences(segment: Segment) -> list[int]:
    return [header.first_sequence for header, _ in segment.records(report=ScanReport(0))]


@dataclass
class Written:
    """Five records: 1, 3 and 5 synced one by one; 7 and 9 appended after the last sync, in one group."""

    fs: FakeDisk
    segment: Segment
    starts: list[int]
    ends: list[int]


@pytest.fixture
def written() -> Written:
    fs = new_disk()
    segment = Segment.create(fs, PATH, HEADER)
    places = []
    for sequence in (1, 3, 5):
        places.append(segment.append(batch(sequence, 3000)))
        segment.sync()
    places += segment.append_all([batch(7, 3000), batch(9, 3000)])
    return Written(fs, segment, [place.start for place in places], [place.end for place in places])


def columns_at(w: Written, index: int) -> int:
    return w.starts[index] + 64 + 20


# What is done to the file, what is read afterwards, the records reported as damaged, and whether a tail was torn off.
Case = tuple[str, Callable[[Written], None], list[int], list[int], bool]


def cut(length: Callable[[Written], int]) -> Callable[[Written], None]:
    return lambda w: w.fs.open(PATH).truncate(length(w))


def zero(start: Callable[[Written], int], stop: Callable[[Written], int]) -> Callable[[Written], None]:
    return lambda w: w.fs.overwrite(PATH, start(w), bytes(stop(w) - start(w)))


def flip(offset: Callable[[Written], int]) -> Callable[[Written], None]:
    return lambda w: w.fs.flip_bit(PATH, offset(w), 3)


def flip_blobs(*indices: int) -> Callable[[Written], None]:
    def apply(w: Written) -> None:
        for index in indices:
            w.fs.flip_bit(PATH, w.ends[index] - 1500)

    return apply


def unreadable(offset: Callable[[Written], int], sectors: int = 1) -> Callable[[Written], None]:
    def apply(w: Written) -> None:
        first = offset(w) // SECTOR_BYTES * SECTOR_BYTES
        w.fs.unreadable[PATH] = [(first, first + sectors * SECTOR_BYTES)]

    return apply


def zero_header(index: int) -> Callable[[Written], None]:
    return zero(lambda w: w.starts[index], lambda w: w.starts[index] + 64)


def zero_record(index: int) -> Callable[[Written], None]:
    return zero(lambda w: w.starts[index], lambda w: w.ends[index])


def copy(source: int, target: Callable[[Written], int]) -> Callable[[Written], None]:
    def apply(w: Written) -> None:
        content = w.fs.content(PATH)[w.starts[source] : w.ends[source]]
        w.fs.overwrite(PATH, target(w), content)

    return apply


CASES: list[Case] = [
    ("nothing is wrong", lambda w: None, [1, 3, 5, 7, 9], [], False),
    ("the last record is cut in its header", cut(lambda w: w.starts[4] + 30), [1, 3, 5, 7], [], True),
    ("the last record is cut in its columns", cut(lambda w: w.starts[4] + 90), [1, 3, 5, 7], [], True),
    ("the last record is cut in its blob", cut(lambda w: w.ends[4] - 10), [1, 3, 5, 7], [], True),
    ("the last record is cut behind its header", cut(lambda w: w.starts[4] + 64), [1, 3, 5, 7], [], True),
    ("the last record is cut away whole", cut(lambda w: w.starts[4]), [1, 3, 5, 7], [], False),
    ("a run of zeros stands in place of the last", zero_record(4), [1, 3, 5, 7], [], False),
    ("the last header is zeroed", zero_header(4), [1, 3, 5, 7], [], True),
    ("preallocated zeros stand behind", cut(lambda w: w.ends[4] + 100_000), [1, 3, 5, 7, 9], [], False),
    ("a synced header is flipped", flip(lambda w: w.starts[1] + 20), [1, 5, 7, 9], [1], False),
    ("synced columns are flipped", flip(lambda w: columns_at(w, 1)), [1, 5, 7, 9], [1], False),
    ("a synced blob is flipped", flip_blobs(1), [1, 5, 7, 9], [1], False),
    ("the first record is flipped", flip(lambda w: w.starts[0] + 5), [3, 5, 7, 9], [0], False),
    ("a synced record is zeroed", zero_record(1), [1, 5, 7, 9], [1], False),
    ("a page of synced data is zeroed", zero(lambda w: PAGE, lambda w: 2 * PAGE), [1, 7, 9], [1, 2], False),
    ("two synced records are flipped", flip_blobs(0, 2), [3, 7, 9], [0, 2], False),
    # Bad, then good: above the synced offset it is what pages out of order leave, and the good one is not read.
    ("an unsynced record is bad, the next good", flip_blobs(3), [1, 3, 5], [], True),
    ("an unsynced header is lost, the next good", zero_header(3), [1, 3, 5], [], True),
    ("synced and unsynced are bad", flip_blobs(1, 3), [1, 5], [1], True),
    ("a sector of a synced record", unreadable(lambda w: w.ends[1] - 1600), [1, 5, 7, 9], [1], False),
    # No crash leaves what cannot be read: it is not taken for torn, and what is behind it is not given up.
    ("a sector of an unsynced record", unreadable(lambda w: w.ends[3] - 1600), [1, 3, 5, 9], [3], False),
    ("a sector of the last record", unreadable(lambda w: w.ends[4] - 1600), [1, 3, 5, 7], [4], False),
    ("sectors with the last header", unreadable(lambda w: w.starts[4], 2), [1, 3, 5], [3, 4], False),
    ("a sector with an unsynced header, the next good", unreadable(lambda w: w.starts[3]), [1, 3, 9], [2, 3], False),
    ("a batch stands twice", copy(2, lambda w: w.ends[4]), [1, 3, 5, 7, 9], [], True),
    ("an old batch stands in place of a synced one", copy(0, lambda w: w.starts[1]), [1, 5, 7, 9], [1], False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "readable", "damaged", "torn"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_damage_is_distinguished_by_kind(
    written: Written, damage: Callable[[Written], None], readable: list[int], damaged: list[int], torn: bool
) -> None:
    damage(written)
    segment = reopened(written.fs)
    damages: list[Damage] = []
    report = segment.recover(damages=damages)
    assert sequences(segment) == readable
    covered = {i for i in range(5) for d in damages if d.start <= written.starts[i] < d.stop}
    assert covered == set(damaged)
    assert report.torn is torn
    # What was recovered stays as it is, and the file can be written on.
    segment.append(batch(11))
    segment.sync()
    again = reopened(written.fs)
    again.recover(damages=[])
    assert sequences(again) == [*readable, 11]


@pytest.mark.parametrize("behind", [0, 100_000])
def test_a_sector_behind_the_end_that_cannot_be_read_is_cut_off(written: Written, behind: int) -> None:
    end = written.ends[4]
    written.fs.open(PATH).truncate(end + 200_000)
    unreadable(lambda w: end + behind + SECTOR_BYTES)(written)
    segment = reopened(written.fs)
    assert segment.recover().torn
    assert segment.end == end == written.fs.size(PATH)
    assert sequences(segment) == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("allocated", [0, 4 << 20])
def test_a_record_whose_header_the_disk_cannot_read_for_a_moment_is_not_cut_off(
    written: Written, allocated: int
) -> None:
    written.fs.open(PATH).allocate(allocated)
    unreadable(lambda w: w.starts[4])(written)
    segment = reopened(written.fs)
    damages: list[Damage] = []
    segment.recover(damages=damages)
    assert damages[-1].stop == segment.end == written.ends[4]
    written.fs.unreadable.clear()
    segment = reopened(written.fs)
    segment.recover()
    assert sequences(segment) == [1, 3, 5, 7, 9]


def test_behind_an_end_that_cannot_be_read_a_record_begins_where_one_may(written: Written) -> None:
    written.fs.open(PATH).truncate(written.starts[4] + 30)
    unreadable(lambda w: w.starts[4], 6)(written)
    segment = reopened(written.fs)
    assert segment.recover(damages=[]).torn
    assert segment.end == written.starts[4] + 24 == written.fs.size(PATH)


def test_corruption_without_a_list_for_it_is_raised_with_its_place(written: Written) -> None:
    written.fs.flip_bit(PATH, written.starts[1] + 20)
    with pytest.raises(CorruptionError) as raised:
        reopened(written.fs).recover()
    assert raised.value.offset == written.starts[1] and raised.value.path == PATH


def test_a_file_shorter_than_its_durable_part_is_corruption_not_a_torn_tail(written: Written) -> None:
    written.fs.open(PATH).truncate(written.starts[1] + 100)
    damages: list[Damage] = []
    segment = reopened(written.fs)
    segment.recover(written.ends[2], damages=damages)
    assert [(d.start, d.stop) for d in damages] == [(written.starts[1] + 100, written.ends[2])]
    assert sequences(segment) == [1]


def test_damage_with_nothing_behind_it_does_not_reach_into_the_preallocated_zeros() -> None:
    fs = new_disk()
    segment = Segment.create(fs, PATH, HEADER, allocate_bytes=1 << 20)
    for sequence in (1, 3):
        place = segment.append(batch(sequence))
        segment.sync()
    fs.flip_bit(PATH, place.start + 3)
    again = reopened(fs)
    damages: list[Damage] = []
    again.recover(place.end, damages=damages)  # a checkpoint knows that this was durable: nothing is looked at
    assert again.end == place.end and not damages
    again = reopened(fs)
    again.synced = place.end
    report = ScanReport(0)
    assert len(list(again.records(report=report))) == 1
    assert [(d.start, d.stop) for d in report.damages] == [(place.start, place.end)]


def test_an_old_batch_behind_a_truncation_is_not_read(written: Written) -> None:
    written.fs.flip_bit(PATH, written.starts[3] + 3)  # 7 is torn, 9 behind it is whole
    segment = reopened(written.fs)
    segment.recover()
    segment.append(batch(21, 3000))  # as long as 7, so that 9 would follow it exactly
    segment.sync()
    assert segment.end == written.ends[3]
    again = reopened(written.fs)
    again.recover()
    assert sequences(again) == [1, 3, 5, 21]


def test_records_that_a_restart_reads_back_are_durable_when_recovery_ends() -> None:
    for seed in range(20):
        fs = new_disk()
        segment = Segment.create(fs, PATH, HEADER)
        segment.append(batch(1, 9000))
        fs.kill()  # the page cache has it, the disk does not
        segment = reopened(fs)
        segment.recover()
        assert sequences(segment) == [1]
        fs.crash(Random(seed))
        assert sequences(reopened(fs)) == [1]


def test_records_that_a_failed_sync_left_are_written_again_before_they_count() -> None:
    for seed in range(20):
        fs = new_disk()
        segment = Segment.create(fs, PATH, HEADER)
        segment.append(batch(1, 9000))
        segment.sync()
        segment.append(batch(3, 9000))
        fs.fail_next_sync("file.log")
        with pytest.raises(SyncFailedError):
            segment.sync()
        fs.kill()
        segment = reopened(fs)
        segment.recover()
        fs.crash(Random(seed))
        assert sequences(reopened(fs)) == [1, 3]


def test_a_failed_sync_is_final_for_the_file() -> None:
    fs = new_disk()
    segment = Segment.create(fs, PATH, HEADER)
    segment.append(batch(1))
    fs.fail_next_sync("file.log")
    for _ in range(2):
        with pytest.raises(SyncFailedError):
            segment.sync()
    with pytest.raises(SyncFailedError):
        segment.append(batch(3))


def test_a_group_that_found_the_disk_full_is_never_read() -> None:
    for seed in range(30):
        fs = FakeDisk(capacity_bytes=4 * PAGE)
        fs.make_directory("/d")
        segment = Segment.create(fs, PATH, HEADER)
        segment.append(batch(1, 4000))
        with pytest.raises(DiskFullError):
            segment.append_all([batch(3, 4000), batch(5, 20_000)])  # 3 fits whole, 5 does not
        assert sequences(segment) == [1]
        if seed % 2:
            segment.append(batch(7, 100))
        fs.crash(Random(seed))
        again = reopened(fs)
        again.recover()
        assert sequences(again) in ([1], [1, 7])


def test_a_file_with_a_cut_or_zeroed_header_is_named() -> None:
    fs = new_disk()
    Segment.create(fs, PATH, HEADER).append(batch(1))
    fs.flip_bit(PATH, 20)
    with pytest.raises(CorruptionError, match="header checksum"):
        reopened(fs)
    fs.overwrite(PATH, 0, bytes(64))
    with pytest.raises(CorruptionError, match="header checksum"):
        reopened(fs)
    fs.open(PATH).truncate(30)
    with pytest.raises(CorruptionError, match="cut off"):
        reopened(fs)


def test_every_bit_of_the_file_header_is_checked() -> None:
    for offset in range(FILE_HEADER_BYTES):
        fs = new_disk()
        Segment.create(fs, PATH, HEADER)
        fs.flip_bit(PATH, offset, offset % 8)
        with pytest.raises((CorruptionError, FormatError)):
            reopened(fs)


@pytest.mark.parametrize(
    ("content", "kind", "server_id", "message"),
    [
        (FileHeader(FILE_MESSAGE_LOG, 8, 0).encode(), FILE_MESSAGE_LOG, 7, "belongs to server 000000000008"),
        (HEADER.encode(), FILE_SCHEDULE, 7, "file kind 1 where 2"),
        (b"PK\x03\x04" * 50, FILE_MESSAGE_LOG, 7, "not a file of this program"),
    ],
    ids=["foreign server", "wrong kind", "foreign file"],
)
def test_a_file_that_is_not_ours_is_refused(content: bytes, kind: int, server_id: int, message: str) -> None:
    fs = new_disk()
    fs.open(PATH, create=True).pwrite(0, [content])
    with pytest.raises(FormatError, match=message):
        Segment.open(fs, PATH, kind, server_id)


def test_a_newer_format_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = new_disk()
    monkeypatch.setattr("store.records.file_header.FORMAT_VERSION", 2)
    Segment.create(fs, PATH, HEADER)
    monkeypatch.undo()
    with pytest.raises(FormatError, match="version 2 is newer"):
        reopened(fs)


def test_a_record_of_a_newer_version_is_refused_and_never_cut_off_as_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = new_disk()
    segment = Segment.create(fs, PATH, HEADER)
    newer = OutcomeBatch.filled(1, sequence=1)
    record = encode_record(newer, 64, 64)
    segment.file.pwrite(64, record.buffers)
    monkeypatch.delitem(BATCHES, OutcomeBatch.schema.kind)
    size = fs.size(PATH)
    with pytest.raises(FormatError, match="unknown record kind 3"):
        reopened(fs).recover()
    assert fs.size(PATH) == size


@pytest.mark.parametrize("cut", [8, 64, 100])
def test_a_cut_record_of_a_newer_version_is_refused_and_never_cut_off_as_torn(
    monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    fs = new_disk()
    segment = Segment.create(fs, PATH, HEADER)
    record = encode_record(OutcomeBatch.filled(1, sequence=1), 64, 64)
    segment.file.pwrite(64, record.buffers)
    segment.file.truncate(64 + record.total_bytes - cut)
    monkeypatch.delitem(BATCHES, OutcomeBatch.schema.kind)
    size = fs.size(PATH)
    with pytest.raises(FormatError, match="unknown record kind 3"):
        reopened(fs).recover()
    assert fs.size(PATH) == size


def test_creating_never_replaces_a_file_with_records() -> None:
    fs = new_disk()
    Segment.create(fs, PATH, HEADER).close()
    segment = Segment.create(fs, PATH, HEADER)  # only a header: replaced
    segment.append(batch(1))
    with pytest.raises(FormatError, match="holds records"):
        Segment.create(fs, PATH, HEADER)


def test_a_body_that_looks_like_a_record_is_not_read_as_one() -> None:
    fs = new_disk()
    segment = Segment.create(fs, PATH, HEADER)
    inner = b"".join(map(bytes, encode_record(batch(666), 64, 64).buffers))
    place = segment.append(MessageBatch.filled(1, sequence=1, bodies_length=len(inner), bodies=inner))
    fs.overwrite(PATH, place.start, bytes(64))  # the header of the true record never reached the disk
    again = reopened(fs)
    report = again.recover()
    assert sequences(again) == [] and report.torn and not report.damages


def test_an_interrupted_creation_leaves_nothing_or_a_file_without_records() -> None:
    for point in range(1, 6):
        for seed in range(10):
            fs = new_disk()
            fs.crash_after(point)
            try:
                Segment.create(fs, PATH, HEADER, allocate_bytes=PAGE * 4).append(batch(1))
            except SimulatedCrash:
                pass
            fs.crash(Random(seed))
            assert Segment.create(fs, PATH, HEADER).end == FILE_HEADER_BYTES or point == 6


def test_reading_one_record_at_a_wrong_place_is_corruption(written: Written) -> None:
    header, found = written.segment.read(written.starts[1])
    assert isinstance(found, ColumnBatch) and header.end == written.ends[1]
    assert [h.offset for h in written.segment.headers()] == written.starts
    with pytest.raises(CorruptionError):
        written.segment.read(written.starts[1] + 8)
    with pytest.raises(CorruptionError):
        list(written.segment.headers(written.starts[1] + 8))


def test_a_file_that_cannot_be_undone_takes_nothing_more() -> None:
    fs = FakeDisk(capacity_bytes=2 * PAGE)
    fs.make_directory("/d")
    segment = Segment.create(fs, PATH, HEADER)
    fs.fail_next_sync("file.log")
    for length in (50_000, 10):  # not DiskFullError: what is left of the first one may be found by the next start
        with pytest.raises(SyncFailedError, match="could not be undone"):
            segment.append(batch(1, length))
