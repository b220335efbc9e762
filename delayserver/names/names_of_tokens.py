"""How many names each token has added to the table of names: subjects, tags, consumer groups. One of them must not take all.

A code stands in records that may be kept for years, so the place of a name is never given back, and neither is its count.
The counts outlive a restart. The table itself has them, as names of the server's own such as ``added 0 128 3f2a…``: the
kind, the total, the id of the token. A total is written when it passes a multiple of `STEP`.
"""

from __future__ import annotations

from typing import Final

from store.tables.names import OWN, Names

STEP: Final = 64
"""A stop forgets fewer names than this of each kind and token. So the totals take a sixty-fourth of the table at most."""
_WORD: Final = "added"


class NamesOfTokens:
    """The totals by token and kind. There are at most as many as tokens that have ever added a name."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._totals: dict[tuple[str, int], int] = {}
        self._written: dict[tuple[str, int], int] = {}
        self.read()

    def read(self) -> None:
        """Take the totals of the table: at the start, and where a member of a cluster leads, which followed it."""
        for text in self._names.names_of(self._names.codes(OWN)):
            word, *rest = text.split(" ")
            if word == _WORD and len(rest) == 3:
                # Totals of one token and kind grow, so the last one counts.
                self._totals[rest[2], int(rest[0])] = int(rest[1])
        self._written = dict(self._totals)

    def added(self, token_id: str, kind: int) -> int:
        """How many names of a kind the token has added."""
        return self._totals.get((token_id, kind), 0)

    def add(self, token_id: str, kind: int, names: int) -> None:
        """The token has added so many more."""
        self._totals[token_id, kind] = self.added(token_id, kind) + names

    def to_write(self, token_id: str, kind: int) -> list[str]:
        """The name that keeps the total, if it has passed a multiple of `STEP` since the last one was written."""
        total = self.added(token_id, kind)
        if total // STEP == self._written.get((token_id, kind), 0) // STEP:
            return []
        return [f"{_WORD} {kind} {total} {token_id}"]

    def mark_written(self, token_id: str, kind: int) -> None:
        """Marks the present total as durable."""
        self._written[token_id, kind] = self.added(token_id, kind)
