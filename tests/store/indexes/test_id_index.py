from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from store.errors import CorruptionError
from store.indexes.id_index import IdIndex, confirm_by_bytes, id_keys
from store.indexes.index_cache import IndexCache
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.logs.window_ids import load_id_index, read_stored_ids
from store.records.batches import I64, MessageBatch
from store.records.id_hash import hash_id, hash_ids
from tests.fakes.disk import FakeDisk
from tests.fakes.rows import messages

KEY = ScheduleKey(1_795_252_500_000, ScheduleSource.DIRECT)
Identity = tuple[bytes, int, int]
IDENTITIES = st.lists(
    st.tuples(st.sampled_from([b"", b"a", b"b", b"ab", b"ba"]), st.integers(1, 2), st.integers(5, 6)), max_size=10
)


def unexpected(error: CorruptionError) -> None:
    """For files without damage."""
    raise error


def batch_of(rows: list[Identity], first_sequence: int) -> MessageBatch:
    lengths = np.array([len(row[0]) for row in rows], np.uint32)
    ids = b"".join(row[0] for row in rows)
    return MessageBatch.filled(
        len(rows),
        sequence=first_sequence + np.arange(len(rows)),
        subject=np.array([row[1] for row in rows], np.uint32),
        due_ms=KEY.start_ms + np.array([row[2] for row in rows], np.int64),
        ids=ids,
        ids_length=lengths,
        id_hash=hash_ids(ids, lengths),
    )


@pytest.mark.parametrize("collide", [False, True])
@given(st.lists(IDENTITIES, max_size=8))
@settings(max_examples=60, deadline=None)
def test_copies_are_found_as_a_dictionary_would_even_if_all_hashes_collide(
    collide: bool, batches: list[list[Identity]]
) -> None:
    log, index, sequence = ScheduleLog(FakeDisk(), "/schedule_log", 7, 60_000), IdIndex(), 1
    originals: dict[Identity, int] = {}

    def keys_of(batch: MessageBatch) -> NDArray[Any]:
        keys = id_keys(batch.id_hash, batch.subject, batch.due_ms)
        return np.where(keys != 0, np.uint64(9), keys) if collide else keys

    for rows in batches:
        if not rows:
            continue
        batch = batch_of(rows, sequence)
        confirm = confirm_by_bytes(batch, lambda sequences: read_stored_ids(log, [KEY], sequences, unexpected))
        duplicate_of = index.probe_and_add(keys_of(batch), batch.sequence, confirm)
        expected = []
        for number, row in zip(batch.sequence.tolist(), rows, strict=True):
            first = originals.setdefault(row, number) if row[0] else number
            expected.append(first if first != number else 0)
        assert duplicate_of.tolist() == expected
        log.append(KEY, batch.with_columns(duplicate_of=duplicate_of))
        sequence += len(rows)
        index.check_invariants()
    assert len(index) == len(originals)
    rebuilt = load_id_index(log, [KEY], unexpected)
    assert len(rebuilt) == len(index)
    if originals and not collide:
        asked = batch_of(list(originals), 10_000)
        confirm = confirm_by_bytes(asked, lambda sequences: read_stored_ids(log, [KEY], sequences, unexpected))
        assert rebuilt.probe(keys_of(asked), confirm).tolist() == list(originals.values())


def test_a_message_whose_record_is_gone_makes_no_duplicate() -> None:
    log, index = ScheduleLog(FakeDisk(), "/schedule_log", 7, 60_000), IdIndex()
    batch = batch_of([(b"a", 1, 5)], 50)
    keys = id_keys(batch.id_hash, batch.subject, batch.due_ms)
    index.add(keys, np.array([3]))
    confirm = confirm_by_bytes(batch, lambda sequences: read_stored_ids(log, [KEY], sequences, unexpected))
    assert index.probe_and_add(keys, batch.sequence, confirm).tolist() == [0]


def test_rows_without_an_id_are_never_copies() -> None:
    def confirm(_rows: I64, _candidates: I64) -> NDArray[Any]:
        raise AssertionError("nothing to confirm")

    index = IdIndex()
    keys = id_keys(np.zeros(3, np.uint64), np.ones(3, np.uint32), np.ones(3, np.int64))
    assert index.probe_and_add(keys, np.arange(1, 4), confirm).tolist() == [0, 0, 0]
    assert len(index) == 0


def test_the_smallest_sequence_is_the_original_in_any_order_of_the_rows() -> None:
    keys = np.full(3, 5, np.uint64)
    same = IdIndex().probe_and_add(keys, np.array([9, 7, 8]), lambda rows, _: np.ones(len(rows), np.bool_))
    assert same.tolist() == [7, 0, 7]


def test_copies_and_internal_records_are_left_out_of_a_rebuilt_index() -> None:
    log = ScheduleLog(FakeDisk(), "/schedule_log", 7, 60_000)
    batch = messages(1, 500, due_ms=KEY.start_ms)
    log.append(KEY, batch)
    own = (batch.duplicate_of == 0) & (batch.origin_sequence == 0) & (batch.ids_length > 0)
    assert 0 < len(load_id_index(log, [KEY], unexpected)) == int(own.sum()) < 500


def test_a_damaged_message_is_reported_and_is_no_original_any_more(disk: FakeDisk) -> None:
    log = ScheduleLog(disk, "/schedule_log", 7, 60_000)
    rows = [(b"a", 1, 5), (b"b", 1, 5), (b"c", 1, 5)]
    places = [log.append(KEY, batch_of([row], 1 + index)) for index, row in enumerate(rows)]
    disk.flip_bit(log.path(KEY), places[1].start + 70)
    told: list[CorruptionError] = []
    index = load_id_index(log, [KEY], told.append)
    assert (len(index), [error.offset for error in told]) == (2, [places[1].start])
    stored = read_stored_ids(log, [KEY], np.array([1, 2, 3]), told.append)
    assert stored.sequence.tolist() == [1, 3] and bytes(stored.ids) == b"ac"
    assert len(read_stored_ids(log, [KEY], np.array([2]), told.append).sequence) == 0
    assert {error.offset for error in told} == {places[1].start}


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_the_hash_of_an_id_does_not_depend_on_its_neighbours(ids: list[bytes]) -> None:
    hashes = hash_ids(b"".join(ids), np.array([len(each) for each in ids], np.uint32))
    assert hashes.tolist() == [hash_id(each) for each in ids]
    assert [bool(value) for value in hashes] == [bool(each) for each in ids]
    assert len(set(hashes.tolist())) == len(set(ids))


def test_the_hash_of_ids_is_part_of_the_format() -> None:
    assert [hash_id(each) for each in (b"", b"a", b"order-4711", b"\0" * 8, b"\0" * 9)] == [
        0,
        0x5E025F9ADE9EAF3E,
        0x990D2653B52579A1,
        0x4442E4266C0AC966,
        0x685964CD58E9AE17,
    ]


def test_the_cache_of_ids_is_bounded_by_bytes() -> None:
    def load(key: int) -> IdIndex:
        index = IdIndex()
        index.add(np.arange(1, key + 1).astype(np.uint64), np.arange(1, key + 1))
        return index

    cache = IndexCache(16 * 10, load)
    for key in (4, 5, 6):
        assert len(cache.get(key)) == key
        cache.check_invariants()
    assert (4 in cache, cache.nbytes <= 160) == (False, True)
