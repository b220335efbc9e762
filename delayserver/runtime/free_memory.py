"""Memory that the C library keeps after a burst, given back to the operating system."""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""A call of glibc. Other C libraries give memory back by themselves."""


def give_back() -> None:
    """Give free memory back. It takes some milliseconds for each 100 MiB, without the GIL."""
    if _TRIM is not None:
        _TRIM(0)
