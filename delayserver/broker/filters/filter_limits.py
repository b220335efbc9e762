"""The bounds of one filter. They bound the work for a message, which the event loop does."""

from __future__ import annotations

from typing import Final

EXPRESSION_CHARACTERS_MAX: Final = 4096
"""A longer expression is a program. Its parse takes at most about 20 ms, in a worker thread."""
DEPTH_MAX: Final = 32
"""Parentheses and NOTs within each other."""
LITERALS_MAX: Final = 256
"""Numbers and texts of an expression. A list of IN is a set, so a long one costs no more for each message."""
PREDICATES_MAX: Final = 64
"""Comparisons of an expression. Each is one or two passes over a column."""
PROPERTIES_MAX: Final = 32
"""Different properties of an expression. Each becomes a column."""
PATTERN_CHARACTERS_MAX: Final = 256
"""Characters of a LIKE pattern. A match takes at most as many steps as this times the characters of the text. `Filter`
counts them when it bounds the work of a step."""
TAGS_MAX: Final = 64
"""Tags of a subscription."""
TAGS_CHARACTERS_MAX: Final = 64 * 260
"""As many tags as a subscription may have, each of the greatest length."""
