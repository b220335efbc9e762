"""A single row of the progress log is, byte for byte, the record that its columns give."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.records.batches import ProgressBatch
from store.records.progress_row import SingleProgressRow
from store.records.record import decode_record, encode_record

NUMBER = st.integers(0, (1 << 32) - 1)


@given(st.integers(0, 1 << 44), st.integers(0, 1 << 44), NUMBER, NUMBER, NUMBER, st.integers(0, 1), st.integers(0, 8))
def test_a_row_and_its_columns_give_the_same_bytes(
    start: int, stop: int, subject: int, group: int, times: int, retry: int, change: int
) -> None:
    columns = ProgressBatch.filled(
        1,
        start=start,
        stop=stop,
        subject=subject,
        consumer_group=group,
        times=times,
        retry=retry,
        change=change,
    )
    straight = SingleProgressRow((start, stop, subject, group, times, retry, change)).encode(64, 128)
    through_columns = encode_record(columns, 64, 128)
    data = b"".join(map(bytes, straight.buffers))
    assert data == b"".join(map(bytes, through_columns.buffers)) and straight[1:] == through_columns[1:]
    assert decode_record(data, 128).start.tolist() == [start]  # type: ignore[attr-defined]
