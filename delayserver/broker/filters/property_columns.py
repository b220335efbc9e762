"""Properties of a batch as columns: each column has the different texts of one property once, and a code for each row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import NoneType
from typing import Any, Final, TypeAlias

import msgpack
import numpy as np
from numpy.typing import NDArray

from delayserver.broker.filters.number import number_of
from store.records.column_batch import ragged_offsets

Mask: TypeAlias = NDArray[np.bool_]
Properties: TypeAlias = dict[str, Any]

_NONE: Final[Properties] = {}
# With fewer rows (of one length), an object for each costs less than calls of numpy.
_ROWS_MIN: Final = 64
# Longer rows seldom repeat. Their words take memory.
_WIDTH_MAX: Final = 256
# Lengths, and groups of equal rows of one length, that are looked for.
_LENGTHS_MAX: Final = 8
_GROUPS_MAX: Final = 16
_TEXT_OR_NONE: Final = {str, NoneType}


class PropertyColumn:
    """One property of `n` rows.

    `values`: the different texts, and None if some rows do not have the property. `codes` i64[n]: which of them each
    row has. Predicates look at each different text once.
    """

    __slots__ = ("_index", "_numbers", "codes", "values")

    def __init__(self, texts: Sequence[str | None], rows: NDArray[np.int64]) -> None:
        """`rows` i64[n]: which of `texts` each row has. A text may stand there several times."""
        self._index = {text: code for code, text in enumerate(dict.fromkeys(texts))}
        self.values = list(self._index)
        self.codes = np.fromiter(map(self._index.__getitem__, texts), np.int64, len(texts))[rows]
        self._numbers: NDArray[np.float64] | None = None

    @property
    def numbers(self) -> NDArray[np.float64]:
        """Each of `values` as a number, f64; NaN where it is no number, or None."""
        if self._numbers is None:
            self._numbers = np.array([np.nan if text is None else number_of(text) for text in self.values])
        return self._numbers

    def code_of(self, text: str | None) -> int:
        """The code of a text (or of None); -1 if no row has it."""
        return self._index.get(text, -1)

    def present(self) -> Mask:
        """Which of `values` are texts, bool."""
        mask = np.ones(len(self.values), bool)
        none = self.code_of(None)
        if none >= 0:
            mask[none] = False
        return mask


def property_columns(blob: memoryview, lengths: NDArray[np.uint32], names: Iterable[str]) -> dict[str, PropertyColumn]:
    """The named properties of rows: msgpack maps end to end, with the length of each in `lengths` (u32[n], 0: none).

    Rows with the same bytes are unpacked once. Bytes that are no map have no properties, and a value that is no text is
    none.
    """
    rows, codes = distinct_rows(bytes(blob), lengths)
    maps = [_unpack(row) for row in rows]
    return {name: PropertyColumn(_texts(maps, name), codes) for name in names}


def distinct_rows(data: bytes, lengths: NDArray[np.uint32]) -> tuple[list[bytes], NDArray[np.int64]]:
    """Different rows of a blob, and which of them each row is, i64[n]. A few of them may be there twice.

    Rows that repeat cost no object each: those of a length are compared with the first of them, as words, then the others
    with the first of the others, and so on."""
    offsets = ragged_offsets(lengths)
    codes = np.full(len(lengths), -1, np.int64)
    found: list[bytes] = []
    if len(lengths) >= _ROWS_MIN:
        for length in _usual_lengths(lengths):
            rows = np.arange(len(lengths)) if lengths.strides == (0,) else np.flatnonzero(lengths == length)
            for same in _repeated(data, offsets[rows], length):
                codes[rows[same]] = len(found)
                start = int(offsets[rows[same[0]]])
                found.append(data[start : start + length])
    others = np.flatnonzero(codes < 0)
    if len(others):
        bounds = zip(offsets[others].tolist(), offsets[others + 1].tolist(), strict=True)
        texts = [data[start:end] for start, end in bounds]
        code_of = {text: code for code, text in enumerate(dict.fromkeys(texts), len(found))}
        codes[others] = np.fromiter(map(code_of.__getitem__, texts), np.int64, len(texts))
        found += code_of
    return found, codes


def _usual_lengths(lengths: NDArray[np.uint32]) -> list[int]:
    """The lengths that many rows have, if they are few; the rows of others cost as much one by one."""
    if lengths.strides == (0,):
        return [int(lengths[0])] if int(lengths[0]) <= _WIDTH_MAX else []
    counts = np.bincount(lengths[lengths <= _WIDTH_MAX])
    usual = np.flatnonzero(counts >= _ROWS_MIN)
    return [] if len(usual) > _LENGTHS_MAX else usual.tolist()


def _repeated(data: bytes, starts: NDArray[np.int64], width: int) -> Iterator[NDArray[np.intp]]:
    """Groups of equal rows, among rows of one length, until too few are left or too many differ."""
    left = np.arange(len(starts))
    words = _words(data, starts, width)
    for _ in range(_GROUPS_MAX):
        if not len(left):
            return
        same = np.ones(len(left), bool)
        for column in words:
            same &= column == column[0]
        yield left[same]
        if np.count_nonzero(same) * _GROUPS_MAX < len(left):
            return
        left, words = left[~same], [column[~same] for column in words]


def _words(data: bytes, starts: NDArray[np.int64], width: int) -> list[NDArray[np.uint64]]:
    """The bytes of rows of one length as columns of words, filled up with zeros."""
    padded = np.zeros((len(starts), -(-width // 8) * 8), np.uint8)
    windows: NDArray[np.uint8] = np.ndarray((len(data) - width + 1, width), np.uint8, data, strides=(1, 1))
    padded[:, :width] = windows[starts]
    return list(np.ascontiguousarray(padded.view("<u8").T))


def _texts(maps: list[Properties], name: str) -> list[str | None]:
    texts = [properties.get(name) for properties in maps]
    if not {*map(type, texts)} <= _TEXT_OR_NONE:
        return [text if type(text) is str else None for text in texts]
    return texts


def _unpack(data: bytes) -> Properties:
    if not data:
        return _NONE
    try:
        value = msgpack.unpackb(data, max_ext_len=0)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return _NONE
    return value if type(value) is dict else _NONE
