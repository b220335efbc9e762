"""Patterns of subjects, as routes have them."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate


def matcher_of(pattern: str | None) -> Callable[[str], object]:
    """Says whether a name matches, as patterns of routes do. None: every name does.

    A `[` without a `]` behind it is that character. `translate` would look for the `]` once for each of them."""
    if pattern is None:
        return _any
    closed, bracket, rest = pattern.rpartition("]")
    return re.compile(translate(closed + bracket + rest.replace("[", "[[]"))).match


def _any(_name: str) -> object:
    return True
