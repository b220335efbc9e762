"""The fault of a filter, with its place in the text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextPosition:
    """A place in a text: `offset` in characters from 0, `line` and `column` from 1."""

    offset: int
    line: int
    column: int

    @classmethod
    def at(cls, text: str, offset: int) -> TextPosition:
        """The place of a character of `text`, or of its end."""
        before = text[:offset]
        return cls(offset, before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


class FilterError(ValueError):
    """A filter cannot be used. `what` says why, `place` where; the caller corrects the text. `part`: which text it is."""

    def __init__(self, what: str, place: TextPosition, part: str = "") -> None:
        super().__init__(f"{part}{' at ' if part else ''}line {place.line}, column {place.column}: {what}")
        self.what = what
        self.place = place
