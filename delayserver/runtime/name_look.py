"""Whether the end of a log still has its name on the disk, asked at most once in a millisecond."""

from __future__ import annotations

from collections.abc import Callable

LOOK_US = 1_000
"""How long the name counts as seen. A look costs a fiftieth of a quick sync, for each send of a client that waits for it."""


class NameLook:
    """One for each log whose appends are acknowledged. All that was acknowledged to a file that somebody deletes is gone
    with it. A look stops the server soon after."""

    __slots__ = ("_require_name", "_until_us")

    def __init__(self, require_name: Callable[[], None]) -> None:
        """`require_name` raises StoreError if the file has lost its name."""
        self._require_name = require_name
        self._until_us = 0

    def require(self, now_us: int) -> None:
        """To be called between a sync and its acknowledgement, with the time of the monotonic clock. Raises StoreError."""
        if now_us >= self._until_us:
            self._require_name()
            self._until_us = now_us + LOOK_US
