"""Properties of a batch as columns: each column has the different texts of one property once, and a code for each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import NoneType
from typing import Any, Final, TypeAlias

import msgpack
import numpy as np
from numpy.typing import NDArray

from delayserver.broker.filters.number import number_of
from store.records.columns import ragged_offsets

Mask: TypeAlias = NDArray[np.bool_]
Properties: TypeAlias = dict[str, Any]

_NONE: Final[Properties] = {}
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
    data = bytes(blob)
    rows = [data[start:end] for start, end in pairwise(ragged_offsets(lengths).tolist())]
    codes = {row: code for code, row in enumerate(dict.fromkeys(rows))}
    maps = [_unpack(row) for row in codes]
    code_of_rows = np.fromiter(map(codes.__getitem__, rows), np.int64, len(rows))
    return {name: PropertyColumn(_texts(maps, name), code_of_rows) for name in names}


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
