"""Records of which some columns and rows are read: the same bytes as from the whole record, and the same refusals."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from store.records.batches import StoredBatch
from store.records.lazy_record import LazyRecord, RowGatherer
from store.records.record import HEADER_BYTES, BadRecordError, decode_header, decode_record, encode_record


def stored(random: Random) -> StoredBatch:
    """Messages with a random choice of columns that vary, count up or stay the same, in either version of the record."""
    count = random.choice([1, 2, 3, 40])
    draw = np.random.default_rng(random.randrange(1 << 30))
    columns: dict[str, object] = {}
    for name, dtype in StoredBatch.schema.dtypes.items():
        manner = random.randrange(4)
        old = name not in ("order_hash", "tag", "flags", "order_keys_length")
        if name.endswith("_length"):
            columns[name] = draw.integers(0, 5, count).astype(dtype) if manner else random.randrange(4)
        elif manner == 0 and old:
            columns[name] = np.arange(7, 7 + count).astype(dtype)
        elif manner == 1:
            info = np.iinfo(dtype)
            columns[name] = draw.integers(info.min, info.max, count, dtype, endpoint=True)
        else:
            columns[name] = -random.randrange(9) if dtype.kind == "i" else random.randrange(9)
    for name, length in StoredBatch.schema.blob_lengths:
        lengths = columns[length]
        total = int(lengths.sum()) if isinstance(lengths, np.ndarray) else int(str(lengths)) * count
        columns[name] = random.randbytes(total)
    return StoredBatch.filled(count, **columns)


def encoded(batch: StoredBatch, offset: int = 0) -> bytes:
    return b"".join(encode_record(batch, 0, offset).buffers)


def lazy(data: bytes, offset: int = 0) -> LazyRecord:
    return LazyRecord(decode_header(data, offset), memoryview(data)[HEADER_BYTES:])


def same(one: StoredBatch, other: StoredBatch) -> None:
    for name in StoredBatch.schema.names:
        left, right = getattr(one, name), getattr(other, name)
        if isinstance(left, memoryview):
            assert bytes(left) == bytes(right), name
        else:
            assert left.dtype == right.dtype and left.tolist() == right.tolist(), name


def test_rows_gathered_over_many_records_are_those_of_the_whole_records() -> None:
    random = Random(5)
    for _ in range(60):
        batches = [stored(random) for _ in range(random.choice([1, 2, 7]))]
        gatherer, wanted = RowGatherer(StoredBatch), []
        for batch in batches:
            data = encoded(batch)
            rows = np.flatnonzero([random.random() < 0.5 for _ in range(len(batch))])
            rows = rows if len(rows) else np.array([len(batch) - 1])
            wanted.append(batch.take(rows))
            if random.random() < 0.7:
                gatherer.add_record(lazy(data), rows)
            else:
                gatherer.add_batch(decode_record(data), rows)  # type: ignore[arg-type]
        assert gatherer.rows == sum([len(each) for each in wanted])
        same(gatherer.batch(), StoredBatch.concatenate(wanted))


def test_a_column_and_a_blob_are_those_of_the_whole_record() -> None:
    random = Random(6)
    for _ in range(20):
        batch = stored(random)
        record = lazy(encoded(batch))
        for name in StoredBatch.schema.dtypes:
            assert record.column(name).tolist() == getattr(batch, name).tolist(), name
        assert {name: bytes(blob) for name, blob in record.blobs().items()} == {
            name: bytes(getattr(batch, name)) for name in StoredBatch.schema.blobs
        }


@pytest.mark.parametrize(("place", "refused"), [("columns", "columns"), ("blob", "blob"), ("padding", "padding")])
def test_damage_is_refused_when_the_damaged_part_is_needed(place: str, refused: str) -> None:
    batch = StoredBatch.filled(3, sequence=np.arange(3), tag=np.array([1, 2, 1]), bodies_length=3, bodies=b"aaabbbccc")
    data = bytearray(encoded(batch))
    header = decode_header(data, 0)
    at = {"columns": HEADER_BYTES + 40, "blob": header.blob_offset + 4, "padding": header.end - 1}[place]
    data[at] ^= 1
    if place == "columns":
        with pytest.raises(BadRecordError, match=refused):
            lazy(bytes(data))
        return
    record = lazy(bytes(data))
    assert record.column("tag").tolist() == [1, 2, 1]
    gatherer = RowGatherer(StoredBatch)
    with pytest.raises(BadRecordError, match=refused):
        gatherer.add_record(record, np.array([0]))
    assert gatherer.rows == 0


def test_a_record_that_is_cut_off_is_refused() -> None:
    data = encoded(StoredBatch.filled(3, bodies_length=3, bodies=b"aaabbbccc"))
    with pytest.raises(BadRecordError):
        LazyRecord(decode_header(data, 0), data[HEADER_BYTES:-8])
