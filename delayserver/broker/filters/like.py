"""LIKE patterns of SQL-92: `%` stands for any characters, `_` for one. A match never goes back in the text.

A pattern is cut at each `%` into fragments of fixed length. `str.find` looks for a fragment without `_`. The places of
another fragment are found in an array of the text's characters. So no call works for longer than about half a
millisecond, and a thread that matches gives up the GIL between two calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

MANY: Final = "%"
ONE: Final = "_"

# Places that one call looks at. The first calls look at few, because most fragments stand near the place of the search.
_PLACES_MIN: Final = 256
_PLACES_MAX: Final = 16_384
# What a search takes for each character of the text, at most, measured on a core at 3 GHz. `str.find` compares each
# character of a fragment again, up to the length from which CPython's search is linear. Elsewhere each character of the
# fragment is one pass over an array.
_AGAIN_NS: Final = 0.3
_AGAIN_CHARACTERS_MAX: Final = 100
_PASS_NS: Final = 0.3
# What each fragment takes in a short text, and each pass over a short array.
_FRAGMENT_NS: Final = 400
_SHORT_PASS_NS: Final = 2_000

_Characters: TypeAlias = list[str | None]


class PatternError(ValueError):
    """A pattern with a wrong escape."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Characters between two `%`, with any character where a `_` stands.

    `pieces`: the texts between the `_`, each with its place. `text`: all of it, None if it has a `_`."""

    length: int
    pieces: tuple[tuple[int, str], ...]
    text: str | None

    @classmethod
    def of(cls, characters: _Characters) -> Fragment:
        """The fragment of these characters. None stands for `_`."""
        pieces: list[tuple[int, str]] = []
        start = 0
        for place, character in enumerate([*characters, None]):
            if character is None:
                if start < place:
                    pieces.append((start, "".join([each for each in characters[start:place] if each])))
                start = place + 1
        text = None if None in characters else "".join([each for each in characters if each])
        return cls(len(characters), tuple(pieces), text)

    @property
    def _passes(self) -> int:
        return sum([len(piece) for _, piece in self.pieces])

    @property
    def work_ns(self) -> int:
        """About how long a search in a short text takes, at most."""
        return _FRAGMENT_NS + (0 if self.text is not None else _SHORT_PASS_NS * (1 + self._passes))

    @property
    def again_ns(self) -> float:
        """About how long `str.find` takes for each character that it looks at, at most; 0 if another search is used."""
        return _AGAIN_NS * min(self.length, _AGAIN_CHARACTERS_MAX) if self.text is not None else 0.0

    @property
    def passes_ns(self) -> float:
        """About how long the passes over an array take for each character of the text, at most."""
        return _PASS_NS * (1 + self._passes) if self.text is None else 0.0

    def stands_at(self, text: str, start: int) -> bool:
        """Whether it stands in the text at `start`. So many characters must be there."""
        return all(text.startswith(piece, start + place) for place, piece in self.pieces)

    def find(self, text: str, start: int, stop: int) -> int:
        """The first place from `start` on where it stands in the text, and ends at `stop` or before; -1 for none."""
        places = _PLACES_MIN
        while start + self.length <= stop:
            found = self._find(text, start, min(stop, start + places + self.length - 1))
            if found >= 0:
                return found
            start, places = start + places, min(4 * places, _PLACES_MAX)
        return -1

    def _find(self, text: str, start: int, stop: int) -> int:
        if self.text is not None:
            return text.find(self.text, start, stop)
        codes = _codes(text[start:stop])
        places = len(codes) - self.length + 1
        here = np.ones(places, bool)
        for place, piece in self.pieces:
            for offset, code in enumerate(_codes(piece).tolist(), place):
                here &= codes[offset : offset + places] == code
        return start + int(here.argmax()) if here.any() else -1


@dataclass(frozen=True, slots=True)
class Pattern:
    """A LIKE pattern: `head`, then `middle` with any characters around each, then `tail`. No `tail`: it is `head` alone."""

    head: Fragment
    middle: tuple[Fragment, ...] = ()
    tail: Fragment | None = None

    @property
    def work_ns(self) -> int:
        """About how long a match with a short text takes, at most."""
        return sum([part.work_ns for part in self.middle]) + 2 * _FRAGMENT_NS

    @property
    def character_ns(self) -> float:
        """About how long a match takes for each character of a long text, at most."""
        # The searches of `str.find` look at different parts of the text.
        again_ns = max([part.again_ns for part in self.middle], default=0.0)
        return again_ns + sum([part.passes_ns for part in self.middle])

    def matches(self, text: str) -> bool:
        """Whether all of the text matches. Case counts.

        Each fragment takes the first place behind the one before it. A text that matches at all also matches so."""
        head, tail = self.head, self.tail
        if tail is None:
            return len(text) == head.length and head.stands_at(text, 0)
        start, stop = head.length, len(text) - tail.length
        if start > stop or not head.stands_at(text, 0) or not tail.stands_at(text, stop):
            return False
        for part in self.middle:
            found = part.find(text, start, stop)
            if found < 0:
                return False
            start = found + part.length
        return True


def like(pattern: str, escape: str | None = None) -> Pattern:
    """Read a pattern. Raises PatternError."""
    fragments: list[_Characters] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in (MANY, ONE, escape) or not escaped:
                raise PatternError(f"the escape character {escape!r} stands before {MANY}, {ONE} or itself")
            fragments[-1].append(escaped)
        elif character == MANY:
            fragments.append([])
        else:
            fragments[-1].append(None if character == ONE else character)
    head, *others = map(Fragment.of, fragments)
    if not others:
        return Pattern(head)
    return Pattern(head, tuple([part for part in others[:-1] if part.length]), others[-1])


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
