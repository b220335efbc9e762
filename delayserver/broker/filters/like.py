"""LIKE patterns of SQL-92: `%` stands for any characters, `_` for one. A match never tries a place twice."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

MANY: Final = "%"
ONE: Final = "_"


class PatternError(ValueError):
    """A pattern with a wrong escape."""


def pattern_parts(pattern: str, escape: str | None) -> list[str | None]:
    """The pattern as regular expressions of fixed length, with None for each `%`. Raises PatternError."""
    parts: list[str | None] = []
    fixed: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in (MANY, ONE, escape) or not escaped:
                raise PatternError(f"the escape character {escape!r} stands before {MANY}, {ONE} or itself")
            fixed.append(re.escape(escaped))
        elif character == MANY:
            parts += ["".join(fixed), None] if fixed else [None]
            fixed = []
        else:
            fixed.append("." if character == ONE else re.escape(character))
    return [*parts, "".join(fixed)] if fixed else parts


def like(pattern: str, escape: str | None = None) -> Callable[[str], bool]:
    """A function that is true for a text that matches the whole pattern. Case counts. Raises PatternError.

    Each part between two `%` is looked for once, from the left, in an atomic group. A text that matches at all also
    matches so, hence the search never goes back: it takes at most len(text) * len(pattern) steps.
    """
    parts = pattern_parts(pattern, escape)
    if None not in parts:
        expression = "".join([part for part in parts if part])
    else:
        first = parts.index(None)
        last = len(parts) - 1 - parts[::-1].index(None)
        head = "".join([part for part in parts[:first] if part])
        tail = "".join([part for part in parts[last + 1 :] if part])
        middle = "".join([f"(?>.*?{part})" for part in parts[first:last] if part])
        expression = f"{head}{middle}.*{tail}"
    matches = re.compile(expression, re.DOTALL).fullmatch
    return lambda text: matches(text) is not None
