"""Turns chunks of numpy columns into Arrow record batches, without a step per row and usually without a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from delayserver.protocol.outcomes import OUTCOME_LABELS
from ops.audit.capture import Part
from ops.audit.fields import Field, arrow_type
from ops.audit.part_reader import Chunk
from store.disk.filesystem import RealFileSystem
from store.errors import CorruptionError
from store.logs.due_windows import DAY_MS
from store.records.batches import FLAG_PREPARED, FLAG_PUBLISHED, CancelBatch
from store.records.column_batch import ragged_offsets, take_column
from store.records.shared_column import ATTEMPTS, REDELIVERY
from store.tables.names import Names

# Spark has no unsigned types. Codes, counts and lengths stay far below the sign bit, so their bytes serve as signed.
_SIGNED = {"<u8": "<i8", "<u4": "<i4", "|u1": "|i1"}
# Columns of a message that have another name in a cancel.
_OF_CANCEL = {"accepted_us": "requested_us"}


class ArrowRows:
    """Makes record batches of the rows of one part. `schema` must match Spark's schema column by column."""

    def __init__(self, part: Part, fields: Sequence[Field], names: Names) -> None:
        self._part = part
        self._fields = fields
        self._names = names
        self.schema = pa.schema([pa.field(field.name, arrow_type(field)) for field in fields])

    def batch(self, chunk: Chunk, rows: NDArray[np.bool_] | None) -> pa.RecordBatch:
        """A record batch of the chunk's rows, or of those where `rows` is True."""
        indices = None if rows is None else np.flatnonzero(rows)
        count = len(chunk) if indices is None else len(indices)
        arrays = []
        for field in self._fields:
            array = self._array(field, chunk, count, indices)
            arrays.append(array if array.type == arrow_type(field) else array.cast(arrow_type(field)))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, field: Field, chunk: Chunk, count: int, indices: NDArray[np.intp] | None) -> pa.Array:
        if field.made in _CONSTANTS:
            return _repeat(_CONSTANTS[field.made](self._part), count)
        if field.made == "offset" or field.name == "offset":
            return _plain(chunk.offsets, indices)
        if field.made == "log_offset":
            return _plain(chunk.offsets + self._part.base, indices)
        if field.made == "cancel":
            return _repeat(chunk.batch_type is CancelBatch, count)
        if field.made in ("blob", "blob_text"):
            return _blob(field, chunk, count, indices)
        column = chunk.columns.get(stored_name(field, chunk.batch_type))
        if column is None:
            return pa.nulls(count, arrow_type(field))
        if field.made == "name":
            return self._texts(column, indices)
        if field.made == "outcome":
            return _dictionary(column, indices, list(OUTCOME_LABELS))
        if field.made == "origin_id":
            servers, index = np.unique(column if indices is None else column[indices], return_inverse=True)
            return _dictionary(index.astype(np.int32), None, [f"{server:012x}" for server in servers.tolist()])
        if field.made in _PARTS:
            column = _PARTS[field.made](column)
        return _plain(column, indices)

    def _texts(self, codes: NDArray[Any], indices: NDArray[np.intp] | None) -> pa.Array:
        """The names of codes; code 0 is null."""
        used, index = np.unique(codes if indices is None else codes[indices], return_inverse=True)
        try:
            texts = [name or None for name in self._names.names_of(used)]
        except IndexError:
            raise CorruptionError(
                self._part.path, self._part.start, "a row has a name that names.log does not"
            ) from None
        return _dictionary(index.astype(np.int32), None, texts)


# Numbers that are packed into one column with another number.
_PARTS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "attempts": ATTEMPTS.number,
    "attempts_elsewhere": ATTEMPTS.unanswered,
    "redelivery": REDELIVERY.number,
    "unanswered_elsewhere": REDELIVERY.unanswered,
    "prepared": lambda flags: (flags & FLAG_PREPARED) != 0,
    "published": lambda flags: (flags & FLAG_PUBLISHED) != 0,
}

_CONSTANTS: dict[str, Callable[[Part], Any]] = {
    "server_id": lambda part: f"{part.server_id:012x}",
    "server": lambda part: part.server_id,
    "file": lambda part: part.path,
    "coarse": lambda part: part.span_ms == DAY_MS,
}


def stored_name(field: Field, batch_type: type[Any]) -> str:
    """The name of the stored column for the field, in this kind of record."""
    return _OF_CANCEL.get(field.stored, field.stored) if batch_type is CancelBatch else field.stored


def stored_columns(fields: Sequence[Field], batch_type: type[Any], more: Sequence[str]) -> list[str]:
    """The columns of a kind of record that these fields and `more` need; at least one, for the row count."""
    there = {name for name, _ in batch_type.schema.fields}
    wanted = [*[stored_name(field, batch_type) for field in fields], *more]
    return [name for name in dict.fromkeys(wanted) if name in there] or [batch_type.schema.fields[0][0]]


def blob_names(fields: Sequence[Field]) -> list[str]:
    """The blobs that these fields need."""
    return list(dict.fromkeys([field.blob for field in fields if field.blob]))


def _repeat(value: Any, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), count)


def _plain(column: NDArray[Any], indices: NDArray[np.intp] | None) -> pa.Array:
    column = column if indices is None else take_column(column, indices)
    signed = _SIGNED.get(column.dtype.str)
    column = np.ascontiguousarray(column)
    return pa.array(column.view(signed) if signed else column)


def _dictionary(codes: NDArray[Any], indices: NDArray[np.intp] | None, texts: Sequence[str | None]) -> pa.Array:
    # Spark reads no dictionaries, so Arrow expands the texts, which takes nanoseconds per row.
    index = _plain(codes, indices)
    return pa.array(list(texts), pa.string()).take(index)


def _blob(field: Field, chunk: Chunk, count: int, indices: NDArray[np.intp] | None) -> pa.Array:
    data = chunk.blobs.get(field.blob)
    if data is None:
        return pa.nulls(count, arrow_type(field))
    lengths = chunk.columns[f"{field.blob}_length"]
    offsets = ragged_offsets(lengths).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    array = pa.Array.from_buffers(arrow_type(field), len(lengths), buffers)
    if field.made == "blob_text":
        # Null for a message without an id of the client. Its derived id follows from its receipt.
        array = pa.Array.from_buffers(pa.string(), len(lengths), [_bitmap(lengths > 0), *buffers[1:]])
    return array if indices is None else array.take(pa.array(indices))


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())


def open_names(directory: str, server_id: int) -> Names:
    """The table of names of a data directory, cached until the file grows."""
    fs = RealFileSystem()
    path = f"{directory}/names.log"
    return _names(directory, server_id, fs.size(path) if fs.exists(path) else 0)


@lru_cache(maxsize=256)  # a table of some thousand names takes 1 MB, and a job reads some dozen servers
def _names(directory: str, server_id: int, _size_bytes: int) -> Names:
    names = Names.open(RealFileSystem(), directory, server_id, write=False)
    names.close()
    return names
