"""Which texts read as numbers."""

from __future__ import annotations

import math
import re
from typing import Final

UNSIGNED: Final = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_is_number = re.compile(f"[+-]?{UNSIGNED}").fullmatch

# Python reads longer texts too, in a time that grows with their length.
NUMBER_CHARACTERS_MAX: Final = 64


def number_of(text: str) -> float:
    """The 64-bit float nearest to the number that `text` reads as; NaN if it reads as none.

    It reads as a number if all of it is an optional sign, ASCII digits with an optional point, and an optional exponent,
    of at most 64 characters, and the number is below the largest float. So neither `" 1"`, `"1_000"`, `"0x10"`, `"NaN"`
    nor `"1e999"` does.
    """
    if len(text) > NUMBER_CHARACTERS_MAX or _is_number(text) is None:
        return math.nan
    value = float(text)
    return value if math.isfinite(value) else math.nan
