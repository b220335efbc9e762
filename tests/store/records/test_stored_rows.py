"""Published rows and their columns are the same messages: the record of the one is, byte for byte, that of the other."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from store.records.batches import FLAG_PUBLISHED, StoredBatch
from store.records.message_rows import Row
from store.records.record import decode_record, encode_record
from store.records.stored_rows import StoredRows

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


@settings(max_examples=300)
@given(
    st.lists(ROW, min_size=1, max_size=40),
    st.integers(1, 1 << 47),
    st.integers(0, 1 << 40),
    st.integers(1, 3),
    st.integers(0, 128),
)
def test_rows_and_columns_give_the_same_bytes(
    rows: list[Row], first: int, position: int, step: int, synced: int
) -> None:
    sequences = list(range(first, first + len(rows)))
    positions = [position + step * place for place in range(len(rows))]
    stored = StoredRows(rows, sequences, positions, 5, 7)
    straight, through_columns = stored.encode(synced, 128), encode_record(stored.to_batch(), synced, 128)
    data = b"".join(map(bytes, straight.buffers))
    assert data == b"".join(map(bytes, through_columns.buffers))
    assert straight[1:] == through_columns[1:] and len(data) == straight.total_bytes
    read = decode_record(data, 128)
    assert isinstance(read, StoredBatch)
    assert read.position.tolist() == positions and read.sequence.tolist() == sequences
    assert set(read.flags.tolist()) == {FLAG_PUBLISHED} and set(read.server_id.tolist()) == {7}
    assert [read.due_ms.tolist(), read.subject.tolist(), read.tag.tolist()] == [
        [row[field] for row in rows] for field in (0, 1, 6)
    ]
