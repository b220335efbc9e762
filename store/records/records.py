"""Verified records of one file, many at a time, and their columns. No file is read here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64
from store.records.column_batch import ColumnBatch, MalformedColumnsError, Schema
from store.records.column_blocks import Columns, decode_blocks
from store.records.record import HEADER_BYTES, RecordHeader
from store.records.record_run import RecordRun
from store.records.versions import schema_at, with_newer_fields

_OFFSET, _KIND, _VERSION, _COUNT, _FIRST, _LAST, _COLUMNS, _BLOB, _PART, _START = range(10)
# Bytes of an encoding (0, 1, 2) that may be set, and the value that is none of them (3), eight fields at a time.
_ENCODING_BITS, _LOW_BITS = np.uint64(0x0303030303030303), np.uint64(0x0101010101010101)
_ALIGN: Final = 8


class Records:
    """m verified records. `offsets` in the file, `kinds`, `counts` of rows, `firsts` and `lasts` (sequences),
    `blob_offsets` and `blob_bytes`: i64[m] each. `rows` is the sum of the counts."""

    __slots__ = ("_parts", "_table", "blob_bytes", "counts", "firsts", "kinds", "lasts", "offsets", "rows")

    def __init__(self, table: I64, parts: Sequence[bytes]) -> None:
        self._table = table
        self._parts = parts
        self.offsets: I64 = table[_OFFSET]
        self.kinds: I64 = table[_KIND]
        self.counts: I64 = table[_COUNT]
        self.firsts: I64 = table[_FIRST]
        self.lasts: I64 = table[_LAST]
        self.blob_bytes: I64 = table[_BLOB]
        self.rows = int(self.counts.sum())

    def __len__(self) -> int:
        return int(self._table.shape[1])

    @property
    def blob_offsets(self) -> I64:
        """Where the blob block of each record starts in its file."""
        found: I64 = self.offsets + HEADER_BYTES + self._table[_COLUMNS]
        return found

    def of_kind(self, kind: int) -> Records:
        """Only the records of one kind."""
        mine = self._table[_KIND] == kind
        return self if bool(mine.all()) else Records(self._table[:, mine], self._parts)

    def columns(self, batch_type: type[ColumnBatch], names: Sequence[str]) -> Columns:
        """The named columns of all rows. Raises MalformedColumnsError; all records must be of this kind."""
        lengths = [f"{name}_length" for name in batch_type.schema.blobs]
        columns = self._decoded(batch_type.schema, list(dict.fromkeys([*names, *lengths])))
        total = sum([int(columns[name].sum(dtype=np.int64)) for name in lengths])
        if total != int(self.blob_bytes.sum()):
            raise MalformedColumnsError("lengths do not add up to the blobs")
        return columns

    def columns_alone(self, batch_type: type[ColumnBatch], names: Sequence[str]) -> Columns:
        """As `columns`, without a look at the blobs."""
        return self._decoded(batch_type.schema, names)

    def _decoded(self, schema: Schema, names: Sequence[str]) -> Columns:
        """The named columns of all rows; the records may have several versions."""
        versions = np.unique(self._table[_VERSION]).tolist()
        if versions in ([], [schema.version]):
            return self._of_version(schema, names)
        rows = np.repeat(self._table[_VERSION], self.counts)
        columns: Columns = {}
        for version in versions:
            old = schema_at(schema, version)
            known = [name for name, _ in old.fields if name in names]
            some = Records(self._table[:, self._table[_VERSION] == version], self._parts)
            found = with_newer_fields(schema, some._of_version(old, known), some.rows, names)
            for name in names:
                columns.setdefault(name, np.empty(self.rows, found[name].dtype))[rows == version] = found[name]
        return columns

    def _of_version(self, schema: Schema, names: Sequence[str]) -> Columns:
        """Records of one row have one value in 8 bytes for each field, whatever the encoding: one indexed read a column."""
        fields = len(schema.fields)
        single = (self.counts == 1) & (self._table[_COLUMNS] == _directory_bytes(fields) + _ALIGN * fields)
        if not single.any():
            return self._blocks(schema, np.arange(len(self)), names)
        if single.all():
            return self._singles(schema, np.arange(len(self)), names)
        row_starts = np.cumsum(self.counts) - self.counts
        alone, others = np.flatnonzero(single), np.flatnonzero(~single)
        first, rest = self._singles(schema, alone, names), self._blocks(schema, others, names)
        counts = self.counts[others]
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        places = np.repeat(row_starts[others], counts) + inside
        columns = {}
        for name in names:
            column = np.empty(self.rows, first[name].dtype)
            column[row_starts[alone]] = first[name]
            column[places] = rest[name]
            columns[name] = column
        return columns

    def _blocks(self, schema: Schema, chosen: NDArray[np.intp], names: Sequence[str]) -> Columns:
        starts, lengths = self._table[_START, chosen].tolist(), self._table[_COLUMNS, chosen].tolist()
        parts = self._table[_PART, chosen].tolist()
        blocks = [
            self._parts[part][start : start + length]
            for part, start, length in zip(parts, starts, lengths, strict=True)
        ]
        return decode_blocks(schema, blocks, self.counts[chosen].tolist(), names)

    def _singles(self, schema: Schema, chosen: NDArray[np.intp], names: Sequence[str]) -> Columns:
        parts, starts = self._table[_PART, chosen], self._table[_START, chosen]
        breaks = np.flatnonzero(np.diff(parts)) + 1
        found: list[Columns] = []
        for begin, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(chosen)], strict=True):
            found.append(_single_columns(schema, self._parts[int(parts[begin])], starts[begin:stop], names))
        return found[0] if len(found) == 1 else {n: np.concatenate([columns[n] for columns in found]) for n in names}

    def row_offsets(self) -> I64:
        """The offset of each row's record, i64[rows]."""
        return np.repeat(self.offsets, self.counts)

    def blob(self, batch_type: type[ColumnBatch], columns: Columns, name: str) -> bytes:
        """One blob of all rows, end to end. `columns` are those of `columns`; the records were read with their blobs.

        Raises MalformedColumnsError where the lengths of a record do not add up to its blobs.
        """
        first_rows = np.cumsum(self.counts) - self.counts
        lengths = [columns[f"{blob}_length"] for blob in batch_type.schema.blobs]
        sizes = np.array([np.add.reduceat(length, first_rows, dtype=np.int64) for length in lengths])
        if bool((sizes.sum(axis=0) != self.blob_bytes).any()):
            raise MalformedColumnsError("lengths do not add up to the blobs")
        place = batch_type.schema.blobs.index(name)
        starts = self._table[_START] + self._table[_COLUMNS] + sizes[:place].sum(axis=0)
        stops = starts + sizes[place]
        views = [memoryview(part) for part in self._parts]
        pieces = zip(self._table[_PART].tolist(), starts.tolist(), stops.tolist(), strict=True)
        return b"".join([views[part][start:stop] for part, start, stop in pieces])


def _directory_bytes(fields: int) -> int:
    return (fields + _ALIGN - 1) // _ALIGN * _ALIGN


def _single_columns(schema: Schema, data: bytes, starts: I64, names: Sequence[str]) -> Columns:
    """The columns of blocks of one row that start at these places (multiples of 8) of `data`."""
    directory = _directory_bytes(len(schema.fields))
    words = np.frombuffer(data, "<u8", len(data) // _ALIGN)
    places = starts // _ALIGN
    for word in range(directory // _ALIGN):
        encodings = words[places + word]
        if bool((encodings & ~_ENCODING_BITS | encodings & encodings >> np.uint64(1) & _LOW_BITS).any()):
            raise MalformedColumnsError("a column block with an unknown encoding")
    columns: Columns = {}
    for index, (name, dtype) in enumerate(schema.fields):
        if name in names:
            size = np.dtype(dtype).itemsize
            values = np.frombuffer(data, dtype, len(data) // size)
            columns[name] = values[(starts + directory + index * _ALIGN) // size]
    return columns


class RecordsBuilder:
    """Gathers records until `take` is called. `rows`, `records` and `blob_bytes` count what is gathered."""

    def __init__(self) -> None:
        self._tables: list[I64] = []
        self._single: list[tuple[int, ...]] = []
        self._parts: list[bytes] = []
        self.rows = self.records = self.blob_bytes = 0

    def add(self, header: RecordHeader, block: bytes) -> None:
        """Adds one record. `block` begins with its columns; its blobs may stand behind them."""
        self._single.append(
            (
                header.offset, header.kind, header.version, header.count, header.first_sequence, header.last_sequence,
                header.columns_bytes, header.blob_bytes, len(self._parts), 0,
            )
        )  # fmt: skip
        self._parts.append(block)
        self.rows += header.count
        self.records += 1
        self.blob_bytes += header.blob_bytes

    def add_run(self, run: RecordRun, buffer: bytes, offset: int) -> None:
        """Adds a run of records found in `buffer`, which stands at `offset` of the file."""
        self._flush()
        part = np.full(len(run.starts), len(self._parts), np.int64)
        table = (
            run.starts + offset, run.kinds, run.versions, run.counts, run.firsts, run.lasts, run.columns_bytes,
            run.blob_bytes, part, run.starts + HEADER_BYTES,
        )  # fmt: skip
        self._tables.append(np.stack(table))
        self._parts.append(buffer)
        self.rows += int(run.counts.sum())
        self.records += len(run.starts)
        self.blob_bytes += int(run.blob_bytes.sum())

    def _flush(self) -> None:
        if self._single:
            self._tables.append(np.array(self._single, np.int64).T)
            self._single = []

    def take(self) -> Records:
        """All that was gathered since the last call."""
        self._flush()
        table = self._tables[0] if len(self._tables) == 1 else np.concatenate(self._tables, axis=1)
        records = Records(table, self._parts)
        self._tables, self._parts, self.rows, self.records, self.blob_bytes = [], [], 0, 0, 0
        return records
