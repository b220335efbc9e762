from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.errors import CorruptionError, FormatError
from store.indexes.schedule_index import batch_sums
from store.logs.schedule_log import ScheduleIndex, ScheduleKey, ScheduleLog, ScheduleSource, index_rows
from store.records.batches import MessageBatch
from store.records.column_batch import gather_ragged
from store.records.id_hash import hash_id
from store.records.message_name import MessageName
from store.records.segment import FILE_HEADER_BYTES, FILE_SCHEDULE, Damage, Segment
from tests.fakes.disk import FakeDisk
from tests.fakes.rows import messages
from tests.fakes.schedule_files import DAY, KEY, MINUTE, ROOT, assert_same, filled, opened, whole


def test_files_are_named_by_window_and_source(disk: FakeDisk) -> None:
    log = opened(disk)
    for key in (KEY, ScheduleKey(MINUTE, ScheduleSource.FROM_DAY), DAY):
        log.append(key, messages(1, 2))
    assert disk.files() == [
        f"{ROOT}/2026-11-21/0915.day.log", f"{ROOT}/2026-11-21/0915.direct.log", f"{ROOT}/2026-11-21/day.log",
    ]  # fmt: skip
    assert log.keys() == [DAY, KEY, ScheduleKey(MINUTE, ScheduleSource.FROM_DAY)]
    assert log.keys_between(MINUTE, MINUTE + 1) == [KEY, ScheduleKey(MINUTE, ScheduleSource.FROM_DAY)]


def test_a_file_that_is_not_there_is_empty() -> None:
    log = opened(FakeDisk())
    assert (log.end(KEY), log.last_sequence(KEY), log.rows(KEY), KEY in log) == (0, 0, 0, False)
    assert list(log.batches(KEY)) == [] and len(log.index(KEY)) == 0
    assert not log.find(KEY, np.array([1])).mask.any()
    assert not log.find_ids(KEY, [MessageName(1, 1, b"a", 1)]).last and not len(log.read_rows(KEY, np.array([1])))


@pytest.mark.parametrize("counts", [[1], [5, 1, 1, 300, 2], [1] * 300, [700, 2, 800]])
def test_appended_messages_are_read_back(counts: list[int]) -> None:
    log, rows = filled(FakeDisk(), counts)
    assert_same(whole(log), rows)
    names = [name for name, _ in MessageBatch.schema.fields]
    columns = log.read_columns(KEY, names)
    for name in names:
        np.testing.assert_array_equal(columns[name], getattr(rows, name), name)
    assert log.rows(KEY) == len(rows) and log.last_sequence(KEY) == int(rows.sequence[-1])


@pytest.mark.parametrize("counts", [[1], [5, 1, 1, 300, 2], [1] * 300, [700, 2, 800]])
def test_the_index_points_at_the_bytes_of_each_row(counts: list[int]) -> None:
    log, rows = filled(FakeDisk(), counts)
    index = log.index(KEY)
    order = np.random.default_rng(1).permutation(len(rows))
    for name in MessageBatch.schema.blobs:
        lengths = getattr(rows, f"{name}_length")
        got = log.gather(KEY, getattr(index, f"{name}_offset")[order], lengths[order])
        assert bytes(got) == bytes(gather_ragged(getattr(rows, name), lengths, order)), name
    for name in ScheduleIndex.FROM_BATCH:
        np.testing.assert_array_equal(getattr(index, name), getattr(rows, name), name)


@pytest.mark.parametrize("part_bytes", [1, 5_000, 1 << 30])
@pytest.mark.parametrize("counts", [[1], [5, 1, 1, 300, 2], [1] * 300])
def test_the_index_has_the_sums_of_the_rows(
    counts: list[int], part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, rows = filled(FakeDisk(), counts)
    monkeypatch.setattr("store.logs.schedule_log.INDEX_PART_BYTES", part_bytes)
    index = log.index(KEY)
    assert index.sequence.tolist() == rows.sequence.tolist()
    assert index.row_sum.tolist() == batch_sums(rows).tolist()
    assert len(set(index.row_sum.tolist())) > len(rows) // 2, "or they would say nothing"


def test_the_index_of_an_appended_batch_equals_the_index_read_back() -> None:
    log = opened(FakeDisk())
    log.append(KEY, messages(1, 10))
    batch = messages(20, 33)
    place = log.append(KEY, batch)
    direct, read = index_rows(batch, place.blob_start), log.index(KEY, place.start, place.end)
    for name in (*ScheduleIndex.FROM_BATCH, "ids_offset", "properties_offset", "bodies_offset"):
        np.testing.assert_array_equal(getattr(direct, name), getattr(read, name), name)


@given(st.tuples(st.integers(0, 60_000), st.integers(0, 60)), st.tuples(st.integers(0, 60_000), st.integers(0, 60)))
@settings(max_examples=30, deadline=None)
def test_a_key_range_excludes_its_start_and_includes_its_stop(low: tuple[int, int], high: tuple[int, int]) -> None:
    log, rows = filled(FakeDisk(), [20, 1, 30])
    at = MINUTE + low[0], low[1]
    to = MINUTE + high[0], high[1]
    keys = list(zip(rows.due_ms.tolist(), rows.sequence.tolist(), strict=True))
    got = log.index(KEY, from_key=at, to_key=to)
    assert got.sequence.tolist() == [sequence for due, sequence in keys if at < (due, sequence) <= to]
    exact = keys[7]
    assert exact[1] in log.index(KEY, to_key=exact).sequence
    assert exact[1] not in log.index(KEY, from_key=exact).sequence


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_gather_equals_slicing_the_file(data: st.DataObject) -> None:
    disk = FakeDisk()
    log, _ = filled(disk, [400])
    content = disk.content(log.path(KEY))
    width = data.draw(st.one_of(st.none(), st.integers(1, 300)))
    ranges = data.draw(
        st.lists(st.tuples(st.integers(0, len(content) - 300), st.integers(0, 300)), max_size=40)
    )  # fmt: skip
    offsets = np.array([offset for offset, _ in ranges], np.int64)
    lengths = np.array([width or length for _, length in ranges], np.uint32)
    expected = b"".join(content[a : a + n] for a, n in zip(offsets.tolist(), lengths.tolist(), strict=True))
    assert bytes(log.gather(KEY, offsets, lengths)) == expected


def test_ranges_far_apart_are_read_one_by_one(disk: FakeDisk) -> None:
    log = opened(disk)
    log.append(KEY, MessageBatch.filled(2, sequence=np.array([1, 2]), bodies_length=1 << 20, bodies=bytes(2 << 20)))
    index = log.index(KEY)
    before = disk.counts["pread"]
    assert len(log.gather(KEY, index.bodies_offset[::-1], np.array([10, 10], np.uint32))) == 20
    assert disk.counts["pread"] - before == 2
    assert len(log.gather(KEY, index.bodies_offset[:1] + np.arange(50)[::-1] * 90, np.full(50, 50, np.uint32))) == 2500
    assert disk.counts["pread"] - before == 3


def test_gathering_beyond_the_end_is_corruption() -> None:
    log, _ = filled(FakeDisk(), [3])
    with pytest.raises(CorruptionError):
        log.gather(KEY, np.array([log.end(KEY) - 8, log.end(KEY)]), np.array([8, 8], np.uint32))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.lists(st.integers(-3, 300), max_size=40))
@settings(max_examples=40, deadline=None)
def test_find_equals_a_dictionary(counts: list[int], asked: list[int]) -> None:
    log, rows = filled(FakeDisk(), counts)
    due_ms = dict(zip(rows.sequence.tolist(), rows.due_ms.tolist(), strict=True))
    for _ in range(2):  # the table of stretches is built, then kept up by an append
        found = log.find(KEY, np.array(asked, np.int64))
        assert found.mask.tolist() == [sequence in due_ms for sequence in asked]
        assert found.due_ms.tolist() == [due_ms.get(sequence, 0) for sequence in asked]
        more = messages(log.last_sequence(KEY) + 1, 5, due_ms=MINUTE)
        log.append(KEY, more)
        due_ms |= dict(zip(more.sequence.tolist(), more.due_ms.tolist(), strict=True))


def test_whole_messages_are_read_by_sequence() -> None:
    log, rows = filled(FakeDisk(), [30, 1, 400, 2, 500])
    picked = np.array([930, 5, 5, 300, 31, 99_999])
    expected = rows.take(np.flatnonzero(np.isin(rows.sequence, picked)))
    assert 3 <= len(expected) <= 4
    assert_same(log.read_rows(KEY, picked), expected)
    only_ids = log.read_ids(KEY, picked)
    assert bytes(only_ids.ids) == bytes(expected.ids) and not only_ids.bodies_length.any()


def test_an_id_is_found_by_its_bytes_and_not_by_its_hash() -> None:
    log = opened(FakeDisk())
    columns = {"due_ms": MINUTE, "subject": 3, "id_hash": 42, "ids_length": 3, "ids": b"oneTWOone"}
    log.append(KEY, MessageBatch.filled(3, sequence=np.array([4, 5, 6]), **columns))
    one = MessageName(3, MINUTE, b"one", 42)
    others = [
        MessageName(3, MINUTE, b"two", 42),
        MessageName(3, MINUTE, b"once", 42),
        MessageName(2, MINUTE, b"one", 42),
        MessageName(3, MINUTE + 1, b"one", 42),
    ]
    found = log.find_ids(KEY, [*others, one])
    assert found.last == {one: 6}
    assert found.hidden.keys() == {one, others[0]}, "bytes of another message, or damaged ones of this"
    assert [log.find_ids(KEY, [name]).last for name in others] == [{}] * 4


def test_many_ids_are_found_in_one_reading_of_their_file(disk: FakeDisk) -> None:
    log = opened(disk)
    ids = [b"%d" % number for number in range(400)]
    hashes = [hash_id(message_id) for message_id in ids]
    columns = {"subject": np.arange(400) % 2, "id_hash": np.array(hashes, np.uint64), "ids": b"".join(ids)}
    lengths = np.array([len(message_id) for message_id in ids])
    for start in (0, 400):  # the later ones take the place of the first, but for copies and internal records
        log.append(
            KEY,
            MessageBatch.filled(
                400,
                sequence=np.arange(400) + start + 1,
                due_ms=MINUTE + np.arange(400) % 3,
                ids_length=lengths,
                duplicate_of=np.where(np.arange(400) % 5 == 0, 1, 0) if start else 0,
                origin_sequence=np.where(np.arange(400) % 7 == 0, 1, 0) if start else 0,
                **columns,
            ),
        )
    names = [MessageName(n % 2, MINUTE + n % 3, ids[n], hashes[n]) for n in range(400)]
    strangers = [MessageName(1 - n % 2, MINUTE + n % 3, ids[n], hashes[n]) for n in range(400)]
    found = log.find_ids(KEY, names + strangers)
    assert found.last == {name: n + 1 if n % 5 == 0 or n % 7 == 0 else n + 401 for n, name in enumerate(names)}
    assert not found.hidden


def test_sequences_must_rise() -> None:
    log, _ = filled(FakeDisk(), [3])
    with pytest.raises(AssertionError, match="sequence order"):
        log.append(KEY, messages(3, 1))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans()), max_size=25), st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_after_a_crash_a_replay_above_the_high_water_marks_restores_each_message_once(
    steps: list[tuple[int, int, bool]], seed: int
) -> None:
    """The source is replayed from its start; each file skips what it has. Nothing is lost and nothing is doubled."""
    disk, keys = FakeDisk(), [ScheduleKey(MINUTE + 60_000 * minute, ScheduleSource.DIRECT) for minute in range(4)]
    log, source, sequence = opened(disk, 2), [], 1
    synced: dict[ScheduleKey, int] = {}
    marks = log.marks()
    for minute, count, sync in steps:
        source.append((keys[minute], messages(sequence, count)))
        log.append(*source[-1])
        sequence += count
        if sync:
            log.sync()
            synced = {key: log.last_sequence(key) for key in log}
            marks = log.marks()
        log.check_invariants()
    disk.crash(Random(seed))
    log = opened(disk, 2)
    log.recover_all(marks)
    assert log.damages == []
    for key, last in synced.items():
        assert log.last_sequence(key) >= last
    for key, batch in source:
        if int(batch.sequence[-1]) > log.last_sequence(key):
            log.append(key, batch)
    log.sync()
    log.check_invariants()
    for key in log:
        assert_same(whole(log, key), MessageBatch.concatenate([batch for owner, batch in source if owner == key]))
    scanned = opened(disk)
    scanned.recover_all({})
    assert scanned.marks() == log.marks()


@pytest.mark.parametrize("cut", [1, 7, 60, 130, 200])
def test_a_torn_tail_is_cut_off(cut: int, disk: FakeDisk) -> None:
    log, _ = filled(disk, [4])
    mark = log.mark(KEY)
    place = log.append(KEY, messages(10, 3))
    path = log.path(KEY)
    file = disk.open(path)
    file.truncate(place.end - cut if cut > 7 else place.end - cut - 8)
    again = opened(disk)
    again.recover_all({KEY: mark})
    assert (again.end(KEY), again.last_sequence(KEY), again.damages) == (mark.end, mark.last_sequence, [])
    assert disk.size(path) == mark.end


def test_only_files_behind_the_checkpoint_are_opened(disk: FakeDisk) -> None:
    log = opened(disk)
    for minute in range(20):
        log.append(ScheduleKey(MINUTE + 60_000 * minute, ScheduleSource.DIRECT), messages(1, 2))
    log.sync()
    marks = log.marks()
    log.append(KEY, messages(10, 2))
    log.close()
    again, before = opened(disk), disk.counts["open"]
    again.recover_all(marks)
    assert disk.counts["open"] - before == 2  # once to see that its header is whole, once to scan
    assert again.last_sequence(KEY) == 11 and len(again.keys()) == 20


def test_a_missing_and_a_shortened_file_are_reported(disk: FakeDisk) -> None:
    log, _ = filled(disk, [4, 4])
    other = ScheduleKey(MINUTE + 60_000, ScheduleSource.DIRECT)
    log.append(other, messages(1, 2))
    log.sync()
    marks = log.marks()
    disk.remove(log.path(other))
    first_end = next(iter(log.batches(KEY)))[0].end
    disk.open(log.path(KEY)).truncate(first_end)
    again = opened(disk)
    again.recover_all(marks)
    assert {(damage.key, damage.damage.start) for damage in again.damages} == {(KEY, first_end), (other, 0)}
    assert again.keys() == [KEY] and again.rows(KEY) == 4
    again.append(other, messages(5, 2))  # and it can be written again
    assert again.rows(other) == 2


@pytest.mark.parametrize("size", [0, 10, 64])
def test_a_file_without_its_header_is_removed(size: int, disk: FakeDisk) -> None:
    log, _ = filled(disk, [1], ScheduleKey(MINUTE + 60_000, ScheduleSource.DIRECT))
    path = f"{ROOT}/2026-11-21/0915.direct.log"
    disk.open(path, create=True).truncate(size)
    again = opened(disk)
    again.recover_all(log.marks())
    assert (disk.exists(path), KEY in again, again.damages) == (False, False, [])
    again.append(KEY, messages(1, 1))


def test_a_file_of_nothing_but_its_header_may_be_gone_later(disk: FakeDisk) -> None:
    """Its header is synced when it is taken over; where it was lost before that, a second start finds no file at all."""
    log = opened(disk)
    log.append(KEY, messages(1, 1))
    log.sync()
    disk.open(log.path(KEY)).truncate(64)
    disk.open(log.path(KEY)).pwrite(0, [disk.content(log.path(KEY))[:64]])
    syncs = disk.counts["datasync"]
    again = opened(disk)
    again.recover_all({})
    assert disk.counts["datasync"] > syncs
    marks = again.marks()
    assert marks[KEY].end == 64
    disk.remove(log.path(KEY))
    last = opened(disk)
    last.recover_all(marks)
    assert (last.damages, last.keys()) == ([], [])


def test_damage_of_synced_records_is_reported_and_the_rest_is_served(disk: FakeDisk) -> None:
    log, rows = filled(disk, [4, 5, 6])
    second = [header for header, _ in log.batches(KEY)][1]
    disk.flip_bit(log.path(KEY), second.blob_offset + 3)
    for reader in (log, opened(disk)):
        reader.recover_all({}) if reader is not log else None
        with pytest.raises(CorruptionError):
            list(reader.batches(KEY))
        damages: list[Damage] = []
        kept = [batch for _, batch in reader.batches(KEY, damages=damages)]
        assert_same(MessageBatch.concatenate(kept), rows.take(np.r_[0:4, 9:15]))
        assert [(damage.start, damage.stop) for damage in damages] == [(second.offset, second.end)]
        with pytest.raises(CorruptionError):
            reader.index(KEY)
        assert len(reader.index(KEY, damages=[])) == 10
    recovered = opened(disk)
    recovered.recover_all({})
    assert [damage.damage.start for damage in recovered.damages] == [second.offset]
    assert recovered.last_sequence(KEY) == log.last_sequence(KEY)


def test_damage_in_the_last_record_is_not_taken_for_a_torn_tail_while_running(disk: FakeDisk) -> None:
    log, _ = filled(disk, [4, 5])
    disk.flip_bit(log.path(KEY), log.end(KEY) - 20)
    with pytest.raises(CorruptionError):
        log.index(KEY)


def test_padding_that_is_not_zero_is_damage_to_a_reader_of_bodies(disk: FakeDisk) -> None:
    log = opened(disk)
    body = b"odd"
    log.append(KEY, MessageBatch.filled(1, sequence=1, due_ms=MINUTE, bodies_length=len(body), bodies=body))
    log.sync()
    log.append(KEY, messages(2, 3, due_ms=MINUTE))
    log.sync()
    [first, second] = [header for header, _ in log.batches(KEY)]
    disk.flip_bit(log.path(KEY), first.end - 1)
    damages: list[Damage] = []
    assert [header for header, _ in log.batches(KEY, damages=damages)] == [second]
    assert damages == [Damage(first.offset, first.end, "padding")]
    again = opened(disk)
    again.recover_all({})
    assert [damage.damage for damage in again.damages] == damages


@pytest.mark.parametrize("last", [False, True])
def test_a_record_whose_sequences_fall_is_damage_that_may_hide_any_missing_message(last: bool, disk: FakeDisk) -> None:
    log = opened(disk)
    log.append(KEY, messages(10, 3, due_ms=MINUTE))
    log.sync()
    segment = Segment.open(disk, log.path(KEY), FILE_SCHEDULE, 7)
    segment.recover()
    place = segment.append(messages(5, 2, due_ms=MINUTE))
    if not last:
        segment.append(messages(20, 3, due_ms=MINUTE))
    segment.sync()
    again = opened(disk)
    again.recover_all({})
    for damages in ([Damage(place.start, place.end, "its sequences do not rise")],) * 2:
        found = again.find(KEY, np.array([1, 11, 15, 30]))
        assert found.mask.tolist() == [False, True, False, False] and found.hidden.tolist() == [True, False, True, True]
        assert found.damages == damages or not last
    if not last:
        again.append(KEY, messages(30, 1, due_ms=MINUTE))
        assert again.find(KEY, np.array([21, 30])).mask.tolist() == [True, True]


def test_records_behind_a_damaged_file_header_are_served(disk: FakeDisk) -> None:
    log, rows = filled(disk, [4, 5])
    for offset in (2, 20):
        disk.flip_bit(log.path(KEY), offset)
        again = opened(disk, 1)
        again.recover_all({})
        assert [(damage.damage.start, damage.damage.stop) for damage in again.damages] == [(0, FILE_HEADER_BYTES)]
        assert_same(whole(again), rows)


def test_a_file_of_another_server_is_refused(disk: FakeDisk) -> None:
    filled(disk, [4])
    with pytest.raises(FormatError, match="belongs to server"):
        opened(disk, server_id=8).recover_all({})


def three_windows(disk: FakeDisk, rows: list[int]) -> tuple[ScheduleLog, list[ScheduleKey]]:
    log = opened(disk)
    keys = [ScheduleKey(MINUTE + 60_000 * minute, ScheduleSource.DIRECT) for minute in range(3)]
    for key, count in zip(keys, rows, strict=True):
        log.append(key, messages(1, count))
    log.sync()
    return log, keys


@pytest.mark.parametrize("known", [True, False])
def test_files_with_swapped_names_are_named_and_their_windows_get_new_files(known: bool, disk: FakeDisk) -> None:
    log, (first, second, third) = three_windows(disk, [3, 9, 3])
    paths, marks = [log.path(key) for key in (first, second, third)], log.marks()
    swap(disk, paths[0], paths[1])
    for _ in range(2):  # each reader reports it, and nothing is touched
        again = opened(disk)
        again.recover_all(marks if known else {})
        assert sorted({damage.path for damage in again.damages}) == paths[:2]
        named = {one.path for one in again.damages if "window starts at" in one.damage.detail}
        assert sorted(named) == paths[:2]
        assert again.keys() == [third] and len(whole(again, third)) == 3
    content = disk.content(paths[0])
    again.append(first, messages(9, 2))
    again.sync()
    assert disk.content(paths[0] + ".misplaced") == content
    later = opened(disk)
    later.recover_all(again.marks())
    assert sorted(damage.path for damage in later.damages) == [paths[0] + ".misplaced", paths[1]]
    assert (later.rows(first), later.last_sequence(first), later.strangers) == (2, 10, [])


def test_a_reader_and_a_writer_find_a_swapped_file_of_the_right_size(disk: FakeDisk) -> None:
    log, (first, second, third) = three_windows(disk, [3, 3, 3])
    paths, marks = [log.path(key) for key in (first, second, third)], log.marks()
    swap(disk, paths[0], paths[1])
    told: list[CorruptionError] = []
    again = opened(disk, on_damage=told.append)
    again.recover_all(marks)
    with pytest.raises(CorruptionError, match="window starts at"):
        again.index(first, damages=[])
    again.append(second, messages(9, 2))
    assert [error.path for error in told] == [paths[1]]
    assert whole(again, second).sequence.tolist() == [9, 10] and len(whole(again, third)) == 3
    assert paths[1] + ".misplaced" in disk.files()
    again.check_invariants()


def swap(disk: FakeDisk, one: str, other: str) -> None:
    for source, target in ((one, one + ".tmp"), (other, one), (one + ".tmp", other)):
        disk.replace(source, target)


def test_a_file_with_a_record_that_its_remover_has_not_seen_stays(disk: FakeDisk) -> None:
    log, rows = filled(disk, [4])
    seen = log.last_sequence(KEY)
    log.append(KEY, messages(seen + 1, 1))
    assert not log.remove(KEY, seen)
    assert len(whole(log)) == len(rows) + 1
    assert log.remove(KEY, seen + 1) and KEY not in log
    log.append(KEY, messages(seen + 2, 1))
    assert whole(log).sequence.tolist() == [seen + 2]


def test_names_that_are_not_ours_are_reported(disk: FakeDisk) -> None:
    filled(disk, [1])
    disk.open(f"{ROOT}/2026-11-21/0915.copy.log", create=True)
    log = opened(disk)
    log.recover_all({})
    assert log.strangers == [f"{ROOT}/2026-11-21/0915.copy.log"] and log.keys() == [KEY]


def test_the_writer_does_not_wait_for_the_first_lookup_in_another_file(disk: FakeDisk) -> None:
    log, rows = filled(disk, [1, 1])
    log.append(DAY, messages(1, 3, due_ms=DAY.start_ms))
    assert log.find(KEY, rows.sequence).mask.all()  # from here on appends keep the table of this file up
    begun, go_on = threading.Event(), threading.Event()

    def wait(operation: str, path: str) -> int:
        if operation == "pread" and path == log.path(DAY):
            begun.set()
            assert go_on.wait(20)
        return 0

    disk.refuse = wait
    with ThreadPoolExecutor(2) as pool:
        lookup = pool.submit(log.find, DAY, np.array([2]))
        try:
            assert begun.wait(10)
            pool.submit(log.append, KEY, messages(9, 1, due_ms=MINUTE)).result(5)
            pool.submit(log.append, DAY, messages(9, 1, due_ms=DAY.start_ms)).result(5)
        finally:
            go_on.set()
        assert lookup.result(10).mask.all()
    for key in (KEY, DAY):
        assert log.find(key, np.array([9])).mask.all()
