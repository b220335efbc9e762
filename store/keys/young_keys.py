"""The rows of the key index that are in no run yet. In memory, for the event loop alone."""

from __future__ import annotations

from store.keys.key_rows import KeyRows, joined, matches
from store.records.batches import I64, U64

# A sorted part is merged with its elder when it is a quarter of it or more.
_MERGE_RATIO = 4


class YoungKeys:
    """Rows in the order in which they came. They are sorted when one is asked for."""

    __slots__ = ("_parts", "_sorted", "_unsorted", "rows")

    def __init__(self) -> None:
        self._parts: list[KeyRows] = []
        self._sorted: list[KeyRows] = []
        self._unsorted: list[KeyRows] = []
        self.rows = 0

    @property
    def parts(self) -> tuple[KeyRows, ...]:
        """All rows, as they came."""
        return tuple(self._parts)

    def add(self, rows: KeyRows) -> None:
        """Add rows, which must not change any more."""
        if len(rows):
            self._parts.append(rows)
            self._unsorted.append(rows)
            self.rows += len(rows)

    def find(self, keys: U64, newest: int) -> list[tuple[I64, KeyRows]]:
        """The last rows of each of n keys, in some parts: positions in `keys` and the rows."""
        if self._unsorted:
            self._sorted.append(joined(self._unsorted))
            self._unsorted = []
            while len(self._sorted) > 1 and len(self._sorted[-1]) * _MERGE_RATIO >= len(self._sorted[-2]):
                self._sorted[-2:] = [joined(self._sorted[-2:])]
        return [matches(part, keys, newest) for part in self._sorted]

    def taken_by(self, younger: YoungKeys) -> YoungKeys:
        """These rows and those that came later, together."""
        both = YoungKeys()
        for part in (*self._parts, *younger._parts):
            both.add(part)
        return both
