"""A record that a shared log carried is written to a file as if its batch had been encoded there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.records.batches import CancelBatch, MessageBatch, StoredBatch
from store.records.column_batch import ColumnBatch
from store.records.message_rows import MessageRows
from store.records.progress_row import SingleProgressRow
from store.records.record import BATCHES, HEADER_BYTES, BadRecordError, UnknownRecordError, decode_record
from store.records.record_image import RecordImage, placed_header, record_images
from store.records.segment import Appendable, encode_appendable
from store.records.stored_rows import StoredRows
from tests.fakes.disk import FakeDisk
from tests.store.message_logs import batch as message
from tests.store.message_logs import opened

ROW = (5, 1, 0, b"id", b"", b"body", 0, b"")


def encoded(batch: Appendable, synced_before: int = 0, offset: int = 0) -> bytes:
    return b"".join(map(bytes, encode_appendable(batch, synced_before, offset).buffers))


def of_kind(kind: type[ColumnBatch], count: int, blob: bytes) -> ColumnBatch:
    """Rows of a kind of record. Each has the same bytes in each blob."""
    blobs = {name: blob * count for name, _ in kind.schema.blob_lengths}
    lengths = {length: np.full(count, len(blob)) for _, length in kind.schema.blob_lengths}
    return kind.filled(count, **{kind.schema.fields[0][0]: np.arange(3, 3 + count)}, **lengths, **blobs)


APPENDABLES = [
    *[of_kind(kind, 3, b"abc") for kind in BATCHES.values()],
    MessageRows([ROW, ROW], 7, 9),
    StoredRows([ROW], [4], [5], 6, 7),
    SingleProgressRow((0, 1, 2, 3, 4, 0, 0)),
]


@given(st.sampled_from(APPENDABLES), st.integers(0, 1 << 40), st.data())
def test_an_image_gives_the_bytes_that_encoding_anew_gives(batch: Appendable, place: int, more: st.DataObject) -> None:
    synced_before = more.draw(st.integers(0, place * 8))
    image = RecordImage(memoryview(encoded(batch)))
    straight = encode_appendable(batch, synced_before, place * 8)
    again = image.encode(synced_before, place * 8)
    assert b"".join(map(bytes, again.buffers)) == b"".join(map(bytes, straight.buffers))
    assert again[1:] == straight[1:] and len(image) == len(batch)


@given(st.lists(st.sampled_from(APPENDABLES), min_size=1, max_size=5))
def test_records_behind_each_other_are_read_one_by_one(batches: list[Appendable]) -> None:
    data = b"".join(map(encoded, batches))
    images = record_images(data)
    assert b"".join(encoded(image) for image in images) == data
    assert [type(image.to_batch()) for image in images] == [type(decode_record(encoded(each))) for each in batches]


def test_a_message_log_takes_images_as_it_takes_batches() -> None:
    group: list[Appendable] = [message(1), CancelBatch.filled(1, sequence=1, due_ms=5), message(2), message(3)]
    images: list[Appendable] = [RecordImage(memoryview(encoded(each))) for each in group]
    files = []
    for appended in (group, images):
        disk = FakeDisk()
        log = opened(disk, segment_bytes=1 << 16)
        entries = [*log.append(appended[:2]), *log.append_durably(appended[2:])]
        assert entries[-1].end == log.end == log.synced
        assert [entry.start for entry in log.read(log.first, log.end, 1 << 20)] == [entry.start for entry in entries]
        files.append(disk.open(log.segments()[0][2]).pread(0, log.end))
        log.close()
        assert len(opened(disk, segment_bytes=1 << 16).read(entries[0].start, entries[-1].end, 1 << 20)) == len(group)
    assert files[0] == files[1]


@pytest.mark.parametrize("batch", APPENDABLES)
def test_a_record_that_is_cut_off_is_refused(batch: Appendable) -> None:
    data = encoded(batch)
    for length in range(len(data)):
        with pytest.raises(BadRecordError):
            record_images(data[:length])


def test_each_changed_byte_outside_the_blobs_is_refused() -> None:
    batch = of_kind(MessageBatch, 3, b"abc")
    data, blob_start = encoded(batch), encode_appendable(batch, 0, 0).blob_start
    blob_bytes = len(b"abc") * 3 * 4
    for place in [*range(blob_start), *range(blob_start + blob_bytes, len(data))]:
        changed = bytearray(data)
        changed[place] ^= 0x40
        with pytest.raises(BadRecordError):
            for image in record_images(bytes(changed)):
                image.to_batch()


def test_a_record_of_another_place_is_no_image() -> None:
    with pytest.raises(BadRecordError, match="another place"):
        record_images(encoded(of_kind(StoredBatch, 1, b""), 0, 64))


def test_a_record_of_a_newer_program_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(of_kind(CancelBatch, 1, b""))
    monkeypatch.delitem(BATCHES, CancelBatch.schema.kind)
    with pytest.raises(UnknownRecordError, match="kind 2"):
        record_images(data)


def test_a_header_claims_no_durable_bytes_behind_its_record() -> None:
    header = encoded(of_kind(CancelBatch, 1, b""))[:HEADER_BYTES]
    with pytest.raises(AssertionError, match="not durable before it"):
        placed_header(header, 80, 72)
