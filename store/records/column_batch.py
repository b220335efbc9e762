"""Batches of columns and their bytes. No files here: arrays in, bytes out, and back.

A batch is a frozen dataclass of numpy columns plus ragged blobs (each blob with a u32 length column). Its `Schema`
fixes order and types. A column that is the same on every row is stored once. A column that counts up by one is stored as
its first value. All others are plain little-endian arrays. So a batch of one subject and one body size costs hardly more
than its bodies. In memory a constant column is a broadcast view (stride 0), which costs nothing either. FORMAT.md draws
the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from store.disk.filesystem import Buffer

PLAIN, CONSTANT, STEP = 0, 1, 2
_ALIGN = 8
_ZERO = bytes(_ALIGN)
# The strides of a column that is the same on every row.
_SAME = (0,)
# Columns of up to so many rows are compared by their bytes, which costs a fifth of what numpy takes to begin.
_ROWS_FEW = 64


class MalformedColumnsError(ValueError):
    """The bytes of a column block contradict its schema. With a right checksum only a foreign writer can cause this."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of one kind of record. `kind` and `version` stand in the record header.

    `fields_before`: how many of the fields version 1 had, version 2, and so on up to the one before this one.
    """

    kind: int
    version: int
    fields: tuple[tuple[str, str], ...]
    blobs: tuple[str, ...] = ()
    steps: frozenset[str] = frozenset()
    fields_before: tuple[int, ...] = ()
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Column names, then blob names."""
    dtypes: dict[str, np.dtype[Any]] = field(init=False, repr=False, compare=False)
    """The type of each column, by name in the order of the fields."""
    blob_lengths: tuple[tuple[str, str], ...] = field(init=False, repr=False, compare=False)
    """The name of each blob, and that of the column with its lengths."""
    values_of: Callable[[ColumnBatch], tuple[Any, ...]] = field(init=False, repr=False, compare=False)
    """The columns of a batch, then its blobs: one call for all of them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple([name for name, _ in self.fields]) + self.blobs)
        object.__setattr__(self, "dtypes", {name: np.dtype(dtype) for name, dtype in self.fields})
        object.__setattr__(self, "blob_lengths", tuple([(name, f"{name}_length") for name in self.blobs]))
        object.__setattr__(self, "values_of", attrgetter(*self.names))

    def __hash__(self) -> int:  # the generated one would look at every field
        return self.kind << 8 | self.version


# The types that a column of a batch may be declared with. A blob is declared as a memoryview.
_DTYPES = {"I64": "<i8", "U64": "<u8", "U32": "<u4", "U8": "|u1"}


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """Base of all batches: `n` rows, all columns of that length (or broadcast to it).

    A batch states its columns, then its blobs, in the order of their bytes. Its schema is made of these and of the words
    behind its base: `kind`, `version`, `steps` and `fields_before` as in `Schema`.
    """

    schema: ClassVar[Schema]

    def __init_subclass__(
        cls, *, kind: int = 0, version: int = 1, steps: Set[str] = frozenset(), fields_before: tuple[int, ...] = ()
    ) -> None:
        if "schema" in cls.__dict__:
            return  # a dataclass with slots makes its class twice
        declared: dict[str, str] = cls.__annotations__
        assert {*declared.values()} <= {*_DTYPES, "memoryview"}, (
            f"{cls.__name__}: a column of another type has no bytes"
        )
        cls.schema = Schema(
            kind,
            version,
            tuple([(name, _DTYPES[type_]) for name, type_ in declared.items() if type_ in _DTYPES]),
            tuple([name for name, type_ in declared.items() if type_ == "memoryview"]),
            frozenset(steps),
            fields_before,
        )

    def __len__(self) -> int:
        return len(getattr(self, self.schema.fields[0][0]))

    @classmethod
    def filled(cls, count: int, **columns: Any) -> Self:
        """A batch of `count` rows; a column not given is zero, a scalar is broadcast, a blob not given is empty."""
        schema = cls.schema
        values = _zero_columns(schema, count).copy()
        for name, dtype in schema.dtypes.items():
            if name not in columns:
                continue
            value = columns.pop(name)
            if not isinstance(value, np.ndarray):
                value = constant_column(value, count, dtype)
            elif value.dtype != dtype:
                value = value.astype(dtype)
            assert value.shape == (count,), f"{name}: {value.shape} for {count} rows"
            values[name] = value
        for name in schema.blobs:
            if name in columns:
                values[name] = memoryview(columns.pop(name))
        assert not columns, f"unknown columns {sorted(columns)}"
        return cls(**values)

    def take(self, indices: NDArray[np.intp]) -> Self:
        """The rows at `indices`, in that order."""
        columns: dict[str, Any] = {}
        for name, _ in self.schema.fields:
            columns[name] = take_column(getattr(self, name), indices)
        for name in self.schema.blobs:
            columns[name] = gather_ragged(getattr(self, name), getattr(self, f"{name}_length"), indices)
        return type(self)(**columns)

    def pick(self, indices: NDArray[np.intp]) -> Self:
        """As `take` for different rows, but constant columns stay views of this batch: for rows that do not outlive it."""
        count = len(indices)
        columns: dict[str, Any] = {}
        for name, _ in self.schema.fields:
            column = getattr(self, name)
            columns[name] = column[:count] if column.strides == (0,) else column[indices]
        for name in self.schema.blobs:
            blob = getattr(self, name)
            columns[name] = gather_ragged(blob, getattr(self, f"{name}_length"), indices) if len(blob) else blob
        return type(self)(**columns)

    def slice(self, start: int, stop: int) -> Self:
        """The rows `start` to `stop`, without copying."""
        if start == 0 and stop == len(self):
            return self
        columns: dict[str, Any] = {}
        for name, _ in self.schema.fields:
            columns[name] = getattr(self, name)[start:stop]
        for name in self.schema.blobs:
            columns[name] = slice_ragged(getattr(self, name), getattr(self, f"{name}_length"), start, stop)
        return type(self)(**columns)

    @classmethod
    def concatenate(cls, batches: Sequence[Self]) -> Self:
        """All rows of all batches, in order."""
        if len(batches) == 1:
            return batches[0]
        parts = list(zip(*map(cls.schema.values_of, batches), strict=True))
        fields = cls.schema.fields
        columns = [concatenate_columns(arrays, dtype) for (_, dtype), arrays in zip(fields, parts, strict=False)]
        blobs = [memoryview(b"".join(each)) for each in parts[len(fields) :]]
        return cls(*columns, *blobs)

    def with_columns(self, **columns: Any) -> Self:
        """The same rows with some columns replaced (scalars are broadcast)."""
        count = len(self)
        schema = self.schema
        values = dict(zip(schema.names, schema.values_of(self), strict=True))
        types = schema.dtypes
        for name, value in columns.items():
            values[name] = value if isinstance(value, np.ndarray) else constant_column(value, count, types[name])
        return type(self)(**values)


def constant_column(value: Any, count: int, dtype: Any) -> NDArray[Any]:
    """The same value on `count` rows, as a read-only view of stride 0 (a tenth of the cost of np.broadcast_to)."""
    return np.ndarray((count,), dtype, np.array(value, dtype).tobytes(), 0, (0,))


@lru_cache(maxsize=256)
def zeros(count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """0 on `count` rows, as `constant_column` gives it. Batches of one size share it: most of their columns are 0."""
    return np.ndarray((count,), dtype, _ZERO, 0, (0,))


@lru_cache(maxsize=64)
def _zero_columns(schema: Schema, count: int) -> dict[str, Any]:
    """What `ColumnBatch.filled` puts where nothing is given. Not to be changed."""
    columns: dict[str, Any] = {name: zeros(count, dtype) for name, dtype in schema.dtypes.items()}
    return columns | dict.fromkeys(schema.blobs, memoryview(b""))


def integer_column(values: list[int], dtype: Any) -> NDArray[Any]:
    """A column of a non-empty list, constant where all values are the same."""
    first = values[0]
    if values.count(first) == len(values):
        return constant_column(first, len(values), dtype)
    return np.array(values, dtype)


def has_any(column: NDArray[Any]) -> bool:
    """Whether some row is not 0. A view of stride 0 costs one look."""
    if column.strides == (0,):
        return bool(len(column)) and bool(column[0])
    return bool(np.count_nonzero(column))  # on few rows a third of the cost of `any`


def take_column(column: NDArray[Any], indices: NDArray[np.intp]) -> NDArray[Any]:
    """`column[indices]`, staying a broadcast view if the column is one."""
    if column.strides == (0,) and len(column):
        return constant_column(column[0], len(indices), column.dtype)
    return column[indices]


def concatenate_columns(columns: Sequence[NDArray[Any]], dtype: str) -> NDArray[Any]:
    """Concatenate, staying a broadcast view if all parts are the same constant."""
    value = None
    for column in columns:
        if column.strides != (0,) or not len(column):
            return np.concatenate(columns)
        first = column.item(0)
        if value is None:
            value = first
        elif first != value:
            return np.concatenate(columns)
    return constant_column(value, sum(map(len, columns)), dtype)


def ragged_offsets(lengths: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Start of each row in its blob: i64[n + 1], the last is the blob's length."""
    count = len(lengths)
    if lengths.strides == (0,) and count:
        return np.arange(count + 1, dtype=np.int64) * int(lengths[0])
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ragged_rows(blob: Buffer, lengths: NDArray[np.uint32]) -> list[bytes]:
    """The bytes of each row."""
    data = bytes(blob)
    return [data[start:end] for start, end in pairwise(ragged_offsets(lengths).tolist())]


def slice_ragged(blob: Buffer, lengths: NDArray[np.uint32], start: int, stop: int) -> memoryview:
    """The bytes of rows `start` to `stop`."""
    view = memoryview(blob)
    if not view:
        return view
    if lengths.strides == (0,):
        width = int(lengths[0])
        return view[start * width : stop * width]
    first = int(lengths[:start].sum(dtype=np.int64))
    return view[first : first + int(lengths[start:stop].sum(dtype=np.int64))]


def gather_ragged(blob: Buffer, lengths: NDArray[np.uint32], indices: NDArray[np.intp]) -> memoryview:
    """The bytes of the rows at `indices`, in that order, as one blob."""
    view = memoryview(blob)
    count = len(indices)
    if not view or not count:
        return memoryview(b"")
    first = int(indices[0])
    if count == 1 or (int(indices[-1]) - first == count - 1 and bool((np.diff(indices) == 1).all())):
        return slice_ragged(view, lengths, first, first + count)
    if lengths.strides == (0,):
        rows = np.frombuffer(view, dtype=f"V{int(lengths[0])}")
        return rows[indices].data.cast("B")
    offsets = ragged_offsets(lengths)
    starts, ends = offsets[indices], offsets[indices + 1]
    return memoryview(b"".join([view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]))


def encode_columns(batch: ColumnBatch, schema: Schema | None = None) -> bytes:
    """The column block of a batch: one encoding byte a field, padded, then the data of each field, padded to 8.

    `schema` is that of the batch (the default), or an older version of it.
    """
    plan = _plan_of(type(batch), batch.schema if schema is None else schema)
    columns = plan.columns(batch)
    count = len(columns[0])
    if count == 1:  # a single send: every column is one value
        return plan.head + plan.values.pack(*[column.item(0) for column in columns])
    encodings = bytearray(plan.directory_bytes)
    parts: list[Buffer] = [encodings]
    for index, column in enumerate(columns):
        encoding = CONSTANT if column.strides == (0,) else _encoding(column, plan.may_step[index])
        if encoding == PLAIN:
            data = column.astype(plan.dtypes[index], copy=False).tobytes()
            parts.append(data)
            if len(data) % _ALIGN:
                parts.append(bytes(_ALIGN - len(data) % _ALIGN))
        else:
            encodings[index] = encoding
            parts.append((column.item(0) & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(_ALIGN, "little"))
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Facts about a schema that the encoder needs, made once, so that a batch of one message costs microseconds."""

    columns: Callable[[ColumnBatch], tuple[NDArray[Any], ...]]
    dtypes: tuple[np.dtype[Any], ...]
    may_step: tuple[bool, ...]
    directory_bytes: int
    head: bytes
    values: struct.Struct


# By the type of the batch and the version of its schema.
_PLANS: dict[tuple[type, int], _Plan] = {}


def _plan_of(batch_type: type[ColumnBatch], schema: Schema) -> _Plan:
    plan = _PLANS.get((batch_type, schema.version))
    if plan is None:
        plan = _PLANS[batch_type, schema.version] = _make_plan(schema)
    return plan


def _make_plan(schema: Schema) -> _Plan:
    dtypes = tuple(np.dtype(dtype) for _, dtype in schema.fields)
    directory = (len(dtypes) + _ALIGN - 1) // _ALIGN * _ALIGN
    # All fields constant: their encoding bytes, then eight bytes each. PLAIN is 0, so the padding is right as well.
    head = bytes([CONSTANT] * len(dtypes)) + bytes(directory - len(dtypes))
    values = "".join(["q" if dtype.kind == "i" else "Q" for dtype in dtypes])
    return _Plan(
        columns=attrgetter(*[name for name, _ in schema.fields]),
        dtypes=dtypes,
        may_step=tuple(name in schema.steps for name, _ in schema.fields),
        directory_bytes=directory,
        head=head,
        values=struct.Struct(f"<{values}"),
    )


def _encoding(column: NDArray[Any], may_step: bool) -> int:
    count, first, last = len(column), column.item(0), column.item(-1)
    if first == last:
        if count <= _ROWS_FEW:
            data = column.tobytes()
            return CONSTANT if data == data[: column.itemsize] * count else PLAIN
        return CONSTANT if bool((column == first).all()) else PLAIN
    if may_step and last - first == count - 1 and bool((column[1:] > column[:-1]).all()):
        return STEP
    return PLAIN


def decode_columns(schema: Schema, data: Buffer, count: int) -> dict[str, NDArray[Any]]:
    """The columns of a block, read-only views of `data` where plain. Raises MalformedColumnsError."""
    directory = (len(schema.fields) + _ALIGN - 1) // _ALIGN * _ALIGN
    view = memoryview(data)
    if count < 1 or len(view) < directory:
        raise MalformedColumnsError(f"{len(view)} bytes for {count} rows")
    position, end, shape = directory, len(view), (count,)
    columns: dict[str, NDArray[Any]] = {}
    for encoding, (name, dtype) in zip(bytes(view[:directory]), schema.dtypes.items(), strict=False):
        size = dtype.itemsize * count if encoding == PLAIN else _ALIGN
        if encoding > STEP or position + size > end:
            raise MalformedColumnsError(f"column {name}: encoding {encoding}, {size} bytes at {position}")
        if encoding == CONSTANT:
            columns[name] = np.ndarray(shape, dtype, view, position, _SAME)
            position += _ALIGN
            continue
        if encoding == PLAIN:
            columns[name] = np.frombuffer(view, dtype, count, position)
        else:
            first = int(np.frombuffer(view, dtype, 1, position)[0])
            if first > largest(dtype) - count:
                raise MalformedColumnsError(f"column {name}: {count} steps from {first}")
            columns[name] = np.arange(first, first + count, dtype=dtype)
        position += (size + _ALIGN - 1) // _ALIGN * _ALIGN
    if position != end:
        raise MalformedColumnsError(f"{end - position} bytes too many")
    return columns


@cache
def largest(dtype: np.dtype[Any]) -> int:
    """The highest value of a type of integers."""
    return int(np.iinfo(dtype).max)


def blob_sizes(schema: Schema, columns: dict[str, NDArray[Any]]) -> list[int]:
    """Bytes of each blob, in schema order."""
    return [blob_size(columns[f"{name}_length"]) for name in schema.blobs]


def blob_size(lengths: NDArray[np.uint32]) -> int:
    """Bytes of the blob whose rows have these lengths."""
    if lengths.strides == (0,) or len(lengths) == 1:  # the usual cases, ten times cheaper than a sum
        return int(lengths.item(0)) * len(lengths)
    return int(lengths.sum(dtype=np.int64))
