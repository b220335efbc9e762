"""Records of which only some columns and rows are needed: columns are decoded when asked for, and rows are gathered over
many records with a few numpy calls a record.

Decoding a whole record costs as much as checking its bytes. Of a record in which few rows are wanted, most of that is lost.
The checksums are those of `store.records.record`: of the columns always, of the blobs before the first byte of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from store.disk.filesystem import Buffer
from store.records.column_batch import (
    CONSTANT,
    PLAIN,
    STEP,
    ColumnBatch,
    MalformedColumnsError,
    Schema,
    blob_size,
    constant_column,
    gather_ragged,
    largest,
    zeros,
)
from store.records.record import BadRecordError, RecordHeader, known_batch
from store.records.versions import schema_at

_ALIGN = 8
_checksum: Callable[[Any], int] = google_crc32c.value

B = TypeVar("B", bound=ColumnBatch)
Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the fields of a column block stand. `places`: encoding and byte of each field that the version has.

    `words` i64[fields] is the 8-byte word of each field that has one value, and `constant` u64[fields] all ones there;
    elsewhere both are 0. `varying` are the other fields."""

    places: tuple[tuple[int, int], ...]
    words: NDArray[np.int64]
    constant: NDArray[np.uint64]
    varying: tuple[int, ...]


@lru_cache(maxsize=1024)
def _layout(schema: Schema, version: int, directory: bytes, count: int, size: int) -> _Layout:
    fields = schema_at(schema, version).fields
    position = len(directory)
    places = []
    words = np.zeros(len(schema.fields), np.int64)
    constant = np.zeros(len(schema.fields), np.uint64)
    for index, (name, dtype) in enumerate(fields):
        encoding = directory[index]
        if encoding > STEP:
            raise MalformedColumnsError(f"column {name}: encoding {encoding}")
        places.append((encoding, position))
        if encoding == CONSTANT:
            words[index], constant[index] = position // _ALIGN, ~np.uint64(0)
        width = np.dtype(dtype).itemsize * count if encoding == PLAIN else _ALIGN
        position += (width + _ALIGN - 1) // _ALIGN * _ALIGN
    if position != size:
        raise MalformedColumnsError(f"{size} bytes for {count} rows, which take {position}")
    varying = tuple([index for index, (encoding, _) in enumerate(places) if encoding != CONSTANT])
    return _Layout(tuple(places), words, constant, varying)


@cache
def _index_of(schema: Schema, name: str) -> int:
    return list(schema.dtypes).index(name)


class LazyRecord:
    """One record with a verified header, whose bytes behind the header are `body`. Raises BadRecordError."""

    __slots__ = ("_blobs", "_block", "_body", "_layout", "_schema", "header")

    def __init__(self, header: RecordHeader, body: Buffer) -> None:
        batch_type = known_batch(header)
        self.header = header
        self._schema = batch_type.schema
        self._body = memoryview(body)
        if len(self._body) != header.body_bytes:
            raise BadRecordError("cut off")
        self._block = bytes(self._body[: header.columns_bytes])
        if _checksum(self._block) != header.columns_crc:
            raise BadRecordError("columns checksum")
        fields = len(schema_at(self._schema, header.version).fields)
        directory = self._block[: (fields + _ALIGN - 1) // _ALIGN * _ALIGN]
        if len(directory) < fields:
            raise BadRecordError("cut off within the columns")
        try:
            self._layout = _layout(self._schema, header.version, directory, header.count, header.columns_bytes)
        except MalformedColumnsError as error:
            raise BadRecordError(str(error)) from error
        self._blobs: dict[str, memoryview] | None = None

    def __len__(self) -> int:
        return self.header.count

    def column(self, name: str) -> NDArray[Any]:
        """One column, a view of the record where that is possible; zeros if the record's version lacks it."""
        return self._column(_index_of(self._schema, name))

    def _column(self, index: int) -> NDArray[Any]:
        count = self.header.count
        dtype = np.dtype(self._schema.fields[index][1])
        if index >= len(self._layout.places):
            return zeros(count, dtype)
        encoding, position = self._layout.places[index]
        if encoding == PLAIN:
            return np.frombuffer(self._block, dtype, count, position)
        if encoding == CONSTANT:
            return np.ndarray((count,), dtype, self._block, position, (0,))
        first = self._first_of(dtype, position)
        return np.arange(first, first + count, dtype=dtype)

    def _first_of(self, dtype: np.dtype[Any], position: int) -> int:
        """The first value of a column that counts up."""
        first = int.from_bytes(self._block[position : position + dtype.itemsize], "little", signed=dtype.kind == "i")
        if first > largest(dtype) - self.header.count:
            raise BadRecordError(f"{self.header.count} steps from {first}")
        return first

    def blobs(self) -> dict[str, memoryview]:
        """All blobs by name. The first call verifies them. Raises BadRecordError."""
        if self._blobs is None:
            self._blobs = self._verified_blobs()
        return self._blobs

    def _verified_blobs(self) -> dict[str, memoryview]:
        header = self.header
        sizes = [self._sum_of(_index_of(self._schema, length)) for _, length in self._schema.blob_lengths]
        if sum(sizes) != header.blob_bytes:
            raise BadRecordError("lengths do not add up to the blob")
        start, stop = header.columns_bytes, header.columns_bytes + header.blob_bytes
        # An array, since the checksum takes no view and a copy would cost as much.
        if header.blob_bytes and _checksum(np.frombuffer(self._body[start:stop], np.uint8)) != header.blob_crc:
            raise BadRecordError("blob checksum")
        if any(self._body[stop:]):
            raise BadRecordError("padding")
        blobs = {}
        for name, size in zip(self._schema.blobs, sizes, strict=True):
            blobs[name] = self._body[start : start + size]
            start += size
        return blobs

    def _sum_of(self, index: int) -> int:
        """The sum of a column of lengths."""
        if index >= len(self._layout.places):
            return 0
        encoding, position = self._layout.places[index]
        if encoding == CONSTANT:
            return int.from_bytes(self._block[position : position + 4], "little") * self.header.count
        return blob_size(self._column(index))

    def words(self) -> NDArray[np.uint64]:
        """The value of each column that has the same on every row, u64[fields]; 0 for the others."""
        found: NDArray[np.uint64] = np.frombuffer(self._block, "<u8")[self._layout.words] & self._layout.constant
        return found

    def varying(self, rows: Rows) -> list[tuple[int, NDArray[Any]]]:
        """The values of some rows in the columns that `words` does not have, by the number of the field."""
        return [(index, self._values(index, rows)) for index in self._layout.varying]

    def _values(self, index: int, rows: Rows) -> NDArray[Any]:
        encoding, position = self._layout.places[index]
        if encoding == PLAIN:
            return self._column(index)[rows]
        dtype = np.dtype(self._schema.fields[index][1])
        values: NDArray[Any] = (rows + self._first_of(dtype, position)).astype(dtype, copy=False)
        return values


class RowGatherer(Generic[B]):
    """Gathers rows of many records, and makes one batch of them. `rows` and `blob_bytes` count what it has."""

    def __init__(self, batch_type: type[B]) -> None:
        self._type = batch_type
        self._words: list[NDArray[np.uint64]] = []
        self._counts: list[int] = []
        self._varying: dict[int, list[tuple[int, NDArray[Any]]]] = {}
        self._blobs: dict[str, list[Buffer]] = {name: [] for name in batch_type.schema.blobs}
        self.rows = 0
        self.blob_bytes = 0

    def add_record(self, record: LazyRecord, rows: Rows) -> None:
        """Adds some rows of a record, at least one. Verifies its blobs. Raises BadRecordError (nothing added)."""
        found = record.blobs()
        names = self._type.schema.blob_lengths
        blobs = [(name, found[name], record.column(length)) for name, length in names if len(found[name])]
        self._add(record.words(), record.varying(rows), rows, blobs)

    def add_batch(self, batch: B, rows: Rows) -> None:
        """Adds some rows of a batch, at least one."""
        schema = self._type.schema
        words = np.zeros(len(schema.fields), np.uint64)
        varying = []
        for index, (name, _) in enumerate(schema.fields):
            column = getattr(batch, name)
            if column.strides == (0,):
                words[index] = column.item(0) & 0xFFFF_FFFF_FFFF_FFFF
            else:
                varying.append((index, column[rows]))
        names = [(name, length) for name, length in schema.blob_lengths if len(getattr(batch, name))]
        blobs = [(name, getattr(batch, name), getattr(batch, length)) for name, length in names]
        self._add(words, varying, rows, blobs)

    def _add(
        self,
        words: NDArray[np.uint64],
        varying: list[tuple[int, NDArray[Any]]],
        rows: Rows,
        blobs: list[tuple[str, memoryview, NDArray[Any]]],
    ) -> None:
        number = len(self._counts)
        self._words.append(words)
        self._counts.append(len(rows))
        for index, values in varying:
            self._varying.setdefault(index, []).append((number, values))
        for name, blob, lengths in blobs:
            gathered = gather_ragged(blob, lengths, rows)
            self._blobs[name].append(gathered)
            self.blob_bytes += len(gathered)
        self.rows += len(rows)

    def batch(self) -> B:
        """All that was gathered, at least one row."""
        counts = np.array(self._counts, np.int64)
        starts = np.cumsum(counts) - counts
        words = np.stack(self._words, axis=1)
        columns: dict[str, Any] = {}
        for index, (name, dtype) in enumerate(self._type.schema.fields):
            varying = self._varying.get(index, ())
            values = words[index].astype(dtype)
            if len(varying) == len(counts):
                columns[name] = np.concatenate([part for _, part in varying])
            elif not varying and bool((values == values[0]).all()):
                columns[name] = constant_column(values[0], self.rows, dtype)
            else:
                columns[name] = np.repeat(values, counts)
                for number, part in varying:
                    columns[name][starts[number] : starts[number] + len(part)] = part
        for name, parts in self._blobs.items():
            columns[name] = memoryview(b"".join(parts))
        return self._type(**columns)
