"""A record is whole or it is refused: no changed byte passes."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.records.batches import MessageBatch, OutcomeBatch
from store.records.column_batch import ColumnBatch
from store.records.record import (
    BATCHES,
    HEADER_BYTES,
    BadRecordError,
    UnknownRecordError,
    build_batch,
    decode_header,
    decode_record,
    encode_record,
    verify_columns,
)


def whole(batch: ColumnBatch, synced_before: int = 64, offset: int = 128) -> bytes:
    return b"".join(map(bytes, encode_record(batch, synced_before, offset).buffers))


def message_batch(body: bytes = b"hello") -> MessageBatch:
    return MessageBatch.filled(
        3,
        sequence=np.arange(10, 13),
        due_ms=np.array([5, 9, 7]),
        ids_length=np.array([1, 0, 2]),
        bodies_length=len(body),
        ids=b"abb",
        bodies=body * 3,
    )


@given(st.sampled_from(tuple(BATCHES.values())), st.integers(1, 30), st.integers(0, 1 << 30), st.data())
def test_every_kind_survives_its_bytes(kind: type[ColumnBatch], count: int, place: int, more: st.DataObject) -> None:
    synced = more.draw(st.integers(0, place * 8))
    batch = kind.filled(count, **{kind.schema.fields[0][0]: np.arange(3, 3 + count)})
    data = whole(batch, synced, place * 8)
    header = decode_header(data, place * 8)
    assert (header.kind, header.count, header.synced_before) == (kind.schema.kind, count, synced)
    assert (header.first_sequence, header.last_sequence) == (3, 2 + count)
    assert header.end == place * 8 + len(data) and len(data) % 8 == 0
    decoded = decode_record(data, place * 8)
    assert type(decoded) is kind
    for name, _ in kind.schema.fields:
        assert getattr(decoded, name).tolist() == getattr(batch, name).tolist()


@given(
    st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=3), st.binary(max_size=50)), min_size=1, max_size=9)
)
def test_blobs_of_a_record_are_read_as_they_were_written(rows: list[tuple[bytes, bytes, bytes]]) -> None:
    ids, properties, bodies = zip(*rows, strict=True)
    batch = MessageBatch.filled(
        len(rows),
        sequence=1,
        ids_length=np.array([len(part) for part in ids]),
        properties_length=np.array([len(part) for part in properties]),
        bodies_length=np.array([len(part) for part in bodies]),
        ids=b"".join(ids),
        properties=b"".join(properties),
        bodies=b"".join(bodies),
    )
    decoded = decode_record(whole(batch), 128)
    assert isinstance(decoded, MessageBatch)
    assert bytes(decoded.ids) == b"".join(ids) and bytes(decoded.properties) == b"".join(properties)
    assert bytes(decoded.bodies) == b"".join(bodies)


@pytest.mark.parametrize("batch", [message_batch(), message_batch(b""), OutcomeBatch.filled(5, outcome=np.arange(5))])
def test_every_single_changed_byte_is_detected(batch: ColumnBatch) -> None:
    data = whole(batch)
    decode_record(data, 128)
    for offset in range(len(data)):
        for flip in (1, 0x80, 0xFF):
            mutated = bytearray(data)
            mutated[offset] ^= flip
            with pytest.raises(BadRecordError):
                decode_record(bytes(mutated), 128)


def test_every_cut_is_detected() -> None:
    data = whole(message_batch(b"hello!!"))

    for length in range(len(data)):
        with pytest.raises(BadRecordError):
            decode_record(data[:length], 128)


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_garbage_is_never_a_record(data: bytes) -> None:
    with pytest.raises(BadRecordError):
        decode_record(data, 0)


def test_zeros_are_not_a_record() -> None:
    with pytest.raises(BadRecordError, match="no record magic"):
        decode_record(bytes(4096), 0)


def test_a_record_at_another_place_is_not_a_record() -> None:
    with pytest.raises(BadRecordError, match="written for another place"):
        decode_header(whole(message_batch(), offset=128), 136)


def test_a_record_that_claims_durable_bytes_behind_its_start_is_refused() -> None:
    decode_header(whole(message_batch(), synced_before=128, offset=128), 128)
    data = bytearray(whole(message_batch(), synced_before=128, offset=128))
    data[40:48] = (136).to_bytes(8, "little")
    data[4:8] = google_crc32c.value(bytes(data[8:64])).to_bytes(4, "little")
    with pytest.raises(BadRecordError, match="up to 136 were durable before the record at 128"):
        decode_header(data, 128)


def test_lengths_beyond_the_bounds_are_refused_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    data = whole(message_batch())
    monkeypatch.setattr("store.records.record.RECORD_BYTES_MAX", len(data) - 8)
    with pytest.raises(BadRecordError, match="bounds"):
        decode_header(data, 128)
    monkeypatch.undo()
    monkeypatch.setattr("store.records.record.RECORD_ROWS_MAX", 2)
    with pytest.raises(BadRecordError, match="bounds"):
        decode_header(data, 128)


def test_an_unknown_version_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    data = whole(message_batch())
    monkeypatch.delitem(BATCHES, MessageBatch.schema.kind)
    with pytest.raises(UnknownRecordError, match="kind 1 version 1"):
        decode_record(data, 128)


def test_columns_are_read_without_the_blob_and_the_blob_without_its_checksum() -> None:
    data = bytearray(whole(message_batch()))
    header = decode_header(data, 128)
    columns = verify_columns(header, data[HEADER_BYTES : HEADER_BYTES + header.columns_bytes])
    assert columns["due_ms"].tolist() == [5, 9, 7]
    start = header.blob_offset - 128
    data[start] ^= 1
    blob = bytes(data[start : start + header.blob_bytes])
    assert build_batch(header, columns, blob, verify=False)
    with pytest.raises(BadRecordError, match="blob checksum"):
        build_batch(header, columns, blob)


def test_lengths_that_do_not_add_up_are_a_bug_of_the_writer() -> None:
    batch = MessageBatch.filled(2, sequence=1, bodies_length=3, bodies=b"abc")
    with pytest.raises(AssertionError):
        encode_record(batch, 0)


def test_an_encoded_record_knows_where_its_blob_starts() -> None:
    record = encode_record(message_batch(), 64, 128)
    data = b"".join(map(bytes, record.buffers))
    assert len(data) == record.total_bytes
    assert data[record.blob_start :].startswith(b"abb" + b"hello" * 3)
