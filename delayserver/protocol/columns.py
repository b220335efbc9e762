"""Columns on the wire: numbers of many messages as one value, and ragged bytes as one blob with a column of lengths.

A column has one of three forms. A bin is a plain little-endian array. An integer is the same on every row. An array of one
integer counts up: it holds the value of the first row. The operation decides dtype and row count.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.arguments import invalid, shown
from delayserver.protocol.errors import InvalidArgument

WireColumn: TypeAlias = bytes | int | list[int]

I64: Final[np.dtype[np.int64]] = np.dtype("<i8")
U32: Final[np.dtype[np.uint32]] = np.dtype("<u4")
U8: Final[np.dtype[np.uint8]] = np.dtype("u1")

_RANGES: Final = {
    dtype: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for dtype in (np.dtype(code) for code in ("i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"))
}


@dataclass(frozen=True, slots=True)
class Ragged:
    """Byte strings of many rows: ``blob`` holds them end to end, ``lengths`` is u32[count],
    ``offsets`` is i64[count + 1].
    """

    blob: bytes | memoryview
    lengths: NDArray[np.uint32]
    offsets: NDArray[np.int64]

    def row(self, index: int) -> bytes:
        """The bytes of one row, copied."""
        return bytes(self.blob[self.offsets[index] : self.offsets[index + 1]])

    def rows(self) -> list[bytes]:
        """The bytes of every row, copied: about 100 ns a row."""
        blob = bytes(self.blob)
        bounds = self.offsets.tolist()
        return [blob[start:end] for start, end in pairwise(bounds)]


def pack_column(array: NDArray[Any], dtype: np.dtype[Any] | None = None) -> WireColumn:
    """Encode a one-dimensional integer array as a column, in the shortest of the three forms.

    The reader expects ``dtype`` (default: the array's own); values must fit it. Two scalar reads mostly rule out the
    short forms. Where the ends allow one, it costs one pass over the array.
    """
    count = len(array)
    if count == 0:
        return b""
    first = int(array[0])
    if count == 1 or array.strides[0] == 0:
        return first
    span = int(array[-1]) - first
    if span == 0 and bool((array == array[0]).all()):
        return first
    if span == count - 1 and bool((array[1:] > array[:-1]).all()):
        return [first]
    if dtype is None:
        dtype = array.dtype.newbyteorder("<")
    return np.ascontiguousarray(array, dtype=dtype).tobytes()


def unpack_column(value: object, count: int, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Read a column of ``count`` rows as a read-only array of ``dtype``. A constant column has stride 0 and takes no
    memory. A plain column is a view of ``value``.

    The caller has bounded ``count`` before. Raises `InvalidArgument`, which names the field, if the value is not a
    column, has another length, or leaves the range of ``dtype``.
    """
    kind = type(value)
    if kind is bytes or kind is memoryview:
        if len(value) != count * dtype.itemsize:  # type: ignore[arg-type]
            expected = f"{count} x {dtype.itemsize}"
            raise InvalidArgument(f"{name} has {len(value)} bytes, expected {expected}")  # type: ignore[arg-type]
        return np.frombuffer(value, dtype) if count else _empty(dtype)  # type: ignore[call-overload]
    if kind is int:
        _check_range(value, value, dtype, name)
        # The buffer of a bytes object is read-only. np.broadcast_to does the same, ten times slower.
        return np.ndarray((count,), dtype, np.array(value, dtype).tobytes(), 0, (0,))
    if kind is list and len(value) == 1 and type(value[0]) is int:  # type: ignore[arg-type, index]
        first = value[0]  # type: ignore[index]
        _check_range(first, first + max(count - 1, 0), dtype, name)
        column = np.arange(count, dtype=dtype)
        column += dtype.type(first)
        column.flags.writeable = False
        return column
    raise invalid(name, "a column: bytes, an integer, or an array of one integer", value)


def unpack_ragged(blob: object, lengths: object, count: int, name: str, lengths_name: str) -> Ragged:
    """Read ragged bytes: a blob and its column of lengths. Raises `InvalidArgument` unless the lengths add up to the blob
    exactly.
    """
    if type(blob) is not bytes and type(blob) is not memoryview:
        raise invalid(name, "bytes", blob)
    length_column = unpack_column(lengths, count, U32, lengths_name)
    ragged = make_ragged(blob, length_column)
    if ragged.offsets[-1] != len(blob):
        raise InvalidArgument(f"{lengths_name} adds up to {int(ragged.offsets[-1])}, but {name} has {len(blob)} bytes")
    return ragged


def make_ragged(blob: bytes | memoryview, lengths: NDArray[np.uint32]) -> Ragged:
    """Ragged bytes of a blob and its u32 lengths. The caller knows that the lengths add up to the blob."""
    count = len(lengths)
    if count and lengths.strides == (0,):
        return Ragged(blob, lengths, np.arange(count + 1, dtype=I64) * int(lengths.item(0)))
    offsets = np.empty(count + 1, I64)
    offsets[0] = 0
    np.cumsum(lengths, dtype=I64, out=offsets[1:])
    return Ragged(blob, lengths, offsets)


def pack_ragged(rows: list[bytes]) -> tuple[bytes, WireColumn]:
    """Encode byte strings as a blob and the column of their lengths."""
    return b"".join(rows), pack_column(np.fromiter(map(len, rows), U32, len(rows)))


def unpack_count(value: object, maximum: int, name: str = "count") -> int:
    """Read a row count from 0 to ``maximum``. Raises `InvalidArgument`."""
    if type(value) is not int or not 0 <= value <= maximum:
        raise invalid(name, f"an integer from 0 to {maximum}", value)
    return value


def _check_range(lowest: object, highest: object, dtype: np.dtype[Any], name: str) -> None:
    minimum, maximum = _RANGES[dtype]
    if lowest < minimum or highest > maximum:  # type: ignore[operator]
        wrong = lowest if lowest < minimum else highest  # type: ignore[operator]
        raise InvalidArgument(f"{name} must lie within {minimum} and {maximum}, not {shown(wrong)}")


def _empty(dtype: np.dtype[Any]) -> NDArray[Any]:
    column = np.empty(0, dtype)
    column.flags.writeable = False
    return column
