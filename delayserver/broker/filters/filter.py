"""The filter of a consumer group: its tags and its expression, over stored messages. Columns in, row numbers out.

A filter belongs to its group, not to a pull: consumers of one group share its position, so two filters would lose
messages of each other.

An expression looks at the different values of a column, then at its rows. Properties repeat: 16,384 messages often
have a handful of different values, so a pattern is tried a handful of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.filters.fault import FilterError, TextPosition
from delayserver.broker.filters.program import Program, compile_expression
from delayserver.broker.filters.tags import OR, parse_tags
from store.records.column_batch import gather_ragged, slice_ragged

Rows = NDArray[np.intp]

# About what filters cost, for the bound of a step: a record of the store, a tag, and the unpacking of properties with each
# of their bytes. Measured on a core at 3 GHz, rounded up. `Program` knows what its steps cost.
_RECORD_NS: Final = 40_000
_TAG_NS: Final = 10
_PROPERTIES_NS: Final = 1_500
_BYTE_NS: Final = 2.0

_NONE: Final[Rows] = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class FilterText:
    """A filter as consumers give it: a tag subscription and an expression, None where there is none."""

    tags: str | None = None
    where: str | None = None

    def __bool__(self) -> bool:
        return self.tags is not None or self.where is not None

    @property
    def characters(self) -> int:
        """The length of both."""
        return len(self.tags or "") + len(self.where or "")


@dataclass(frozen=True, slots=True)
class ParsedFilter:
    """A filter whose tags have no codes yet. `text` is the same for filters that differ only in spaces around tags and
    expression, or in the order of tags."""

    text: FilterText
    tags: tuple[str, ...]
    where: Program | None


def parse_filter(text: FilterText, tag_bytes_max: int) -> ParsedFilter:
    """Parse and compile a filter. Takes up to 20 ms. Raises FilterError; its text says which of the two is at fault."""
    tags: tuple[str, ...] = ()
    program = None
    if text.tags is not None:
        with _naming("tags"):
            tags = tuple(sorted(parse_tags(text.tags, tag_bytes_max)))
    if text.where is not None:
        with _naming("where"):
            program = compile_expression(text.where)
            if program.never_matches:
                raise FilterError("it never matches, whatever the properties are", TextPosition.at(text.where, 0))
    where = None if text.where is None else text.where.strip()
    return ParsedFilter(FilterText(f" {OR} ".join(tags) or None, where), tags, program)


@contextmanager
def _naming(part: str) -> Iterator[None]:
    try:
        yield
    except FilterError as error:
        raise FilterError(error.what, error.place, part) from None


class Filterable(Protocol):
    """The columns of some messages, for a filter. Properties may raise the errors of reading them."""

    @property
    def tag(self) -> NDArray[np.uint32]: ...

    @property
    def properties(self) -> memoryview: ...

    @property
    def properties_length(self) -> NDArray[np.uint32]: ...


class Filter:
    """Tells which rows of a stored batch a group gets. `tags` are codes of names; none of them: all tags, and none."""

    __slots__ = ("_byte_ns", "_codes", "_row_ns", "_tags", "_where")

    def __init__(self, tags: Iterable[int], where: Program | None) -> None:
        self._tags = frozenset(tags)
        self._codes = np.array(sorted(self._tags), np.uint32)
        self._where = where
        self._row_ns = _TAG_NS
        self._byte_ns = 0.0
        if where is not None:
            self._row_ns += _PROPERTIES_NS + where.row_ns
            self._byte_ns = _BYTE_NS + where.byte_ns

    @property
    def is_dear(self) -> bool:
        """Whether it unpacks properties."""
        return self._where is not None

    def rows_within(self, work_ns: int, lengths: NDArray[np.uint32]) -> int:
        """How many of the first rows of a record it can look at in so much work, at least one. `lengths` u32[n]: the bytes
        of their properties."""
        left_ns = work_ns - _RECORD_NS
        if len(lengths) and (not self._byte_ns or lengths.strides == (0,)):
            fit = left_ns // max(1, int(self._row_ns + self._byte_ns * int(lengths[0])))
        else:
            fit = int(np.searchsorted(np.cumsum(self._row_ns + self._byte_ns * lengths), left_ns, side="right"))
        return min(max(1, fit), len(lengths))

    def rows_at_most(self, work_ns: int) -> int:
        """How many rows with short properties it can look at in so much work, at least one."""
        return max(1, (work_ns - _RECORD_NS) // self._row_ns)

    def work_ns(self, count: int, properties_bytes: int) -> int:
        """About how long it takes for so many rows of one record, with so many bytes of properties."""
        return _RECORD_NS + self._row_ns * count + int(self._byte_ns * properties_bytes)

    def rows(self, batch: Filterable, start: int, stop: int) -> Rows | None:
        """Which of the rows from `start` to `stop` match, counted from `start`, ascending; None: all of them."""
        rows = self._tagged(batch.tag[start:stop]) if self._tags else None
        if self._where is None or (rows is not None and not len(rows)):
            return rows
        lengths = batch.properties_length[start:stop]
        properties = slice_ragged(batch.properties, batch.properties_length, start, stop)
        if rows is None:
            mask = self._where.mask(properties, lengths)
            return None if bool(mask.all()) else np.flatnonzero(mask)
        return rows[self._where.mask(gather_ragged(properties, lengths, rows), lengths[rows])]

    def _tagged(self, tag: NDArray[np.uint32]) -> Rows | None:
        if tag.strides == (0,) or len(tag) == 1:
            return None if int(tag[0]) in self._tags else _NONE
        if len(self._codes) == 1:
            return np.flatnonzero(tag == self._codes[0])
        return np.flatnonzero(np.isin(tag, self._codes))
