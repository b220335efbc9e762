"""Rows and columns are the same messages: the record of the one is, byte for byte, the record of the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.records.batches import MessageBatch
from store.records.id_hash import hash_id, hash_ids
from store.records.message_rows import MessageRows, Row, encode_rows, to_batch
from store.records.record import decode_record, encode_record
from store.records.segment import FILE_MESSAGE_LOG, FileHeader, Segment
from tests.fakes.disk import FakeDisk

ROW = st.tuples(
    st.integers(0, 1 << 47),
    st.integers(1, 3) | st.integers(1, (1 << 32) - 1),
    st.just(0) | st.integers(1, 1 << 61),
    st.just(b"") | st.binary(min_size=1, max_size=70),
    st.just(b"") | st.binary(min_size=1, max_size=9),
    st.binary(max_size=40),
    st.just(0) | st.integers(1, 5),
    st.just(b"") | st.binary(min_size=1, max_size=20),
)


def make_rows(rows: list[Row], first: int = 1, accepted_us: int = 5) -> MessageRows:
    return MessageRows(rows, first, accepted_us)


@settings(max_examples=300)
@given(st.lists(ROW, min_size=1, max_size=40), st.integers(1, 1 << 60), st.integers(0, 1 << 60), st.integers(0, 128))
def test_rows_and_columns_give_the_same_bytes(rows: list[Row], first: int, accepted_us: int, synced: int) -> None:
    numbered = make_rows(rows, first, accepted_us)
    straight = encode_rows(numbered, synced, 128)
    through_columns = encode_record(to_batch([numbered]), synced, 128)
    data = b"".join(map(bytes, straight.buffers))
    assert data == b"".join(map(bytes, through_columns.buffers))
    assert straight[1:] == through_columns[1:] and len(data) == straight.total_bytes
    read = decode_record(data, 128)
    assert isinstance(read, MessageBatch)
    assert read.due_ms.tolist() == [row[0] for row in rows]
    assert read.sequence.tolist() == list(range(first, first + len(rows)))
    blobs = [r[3] for r in rows] + [r[4] for r in rows] + [r[5] for r in rows] + [r[7] for r in rows]
    found = [bytes(blob) for blob in (read.ids, read.properties, read.bodies, read.order_keys)]
    assert b"".join(found) == b"".join(blobs)
    assert read.tag.tolist() == [row[6] for row in rows]
    assert read.order_hash.tolist() == [hash_id(row[7]) for row in rows]


@given(st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=8))
def test_groups_fold_into_the_columns_of_their_rows_in_order(
    groups: list[list[Row]],
) -> None:
    parts, first = [], 10
    for place, rows in enumerate(groups):
        parts.append(make_rows(rows, first, 100 + place))
        first += len(rows) + place  # sequences between them went to others
    folded = to_batch(parts)
    assert folded.sequence.tolist() == [part.first_sequence + row for part in parts for row in range(len(part))]
    assert folded.accepted_us.tolist() == [part.accepted_us for part in parts for _ in range(len(part))]
    alone = MessageBatch.concatenate([to_batch([part]) for part in parts])
    for name in MessageBatch.schema.names:
        assert bytes(getattr(folded, name)) == bytes(getattr(alone, name)), name


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=20))
def test_one_id_hashes_as_among_many(ids: list[bytes]) -> None:
    many = hash_ids(b"".join(ids), np.array([len(value) for value in ids], np.uint32))
    assert [hash_id(value) for value in ids] == many.tolist()


@pytest.mark.parametrize("count", [1, 3])
def test_rows_stand_in_a_file_among_batches(count: int, disk: FakeDisk) -> None:
    disk.make_directory("/d")
    segment = Segment.create(disk, "/d/f", FileHeader(FILE_MESSAGE_LOG, 1, 0))
    rows = make_rows([(7, 1, 0, b"", b"", b"body", 0, b"")] * count, first=1)
    batch = to_batch([make_rows([(9, 1, 0, b"i", b"", b"x", 0, b"")], first=1 + count)])
    segment.append_all([rows, batch])
    segment.sync()
    read = [found for _, found in segment.records()]
    assert [found.sequence.tolist() for found in read if isinstance(found, MessageBatch)] == [
        list(range(1, 1 + count)),
        [1 + count],
    ]
