"""The room on the disk that accepted messages still need, and who may take of the rest.

Accepted messages lie in message_log, or in the file of a day, until they have room in a file of their minute. Sends stop
first, then what can wait: growth of the broker's store, and redeliveries, which are written to both logs once more.
Outcomes and checkpoints are written in any case: they draw on what sends leave, then on the reserve of dispatch_log.
"""

from __future__ import annotations

from delayserver.state.drains import Drains
from delayserver.state.positions import Positions
from store.disk.filesystem import FileSystem
from store.errors import DiskError, DiskFullError


class KeptRoom:
    """Looks at the disk when it is asked: about two microseconds."""

    __slots__ = ("_drains", "_fs", "_margin_bytes", "_path", "_positions")

    def __init__(self, fs: FileSystem, path: str, positions: Positions, drains: Drains, free_bytes_min: int) -> None:
        self._fs = fs
        self._path = path
        self._positions = positions
        self._drains = drains
        # Files take whole blocks, and outcomes are written meanwhile.
        self._margin_bytes = free_bytes_min // 2

    @property
    def needed_bytes(self) -> int:
        """What accepted messages still need: those of message_log that are not replayed, those of days that are drained."""
        return self._positions.lag_bytes + self._drains.needed_bytes

    def require_beside(self, growth_bytes: int) -> None:
        """Whether the broker's store may grow by this much. Raises DiskFullError where accepted messages need that room.

        Where they do not fit anyway, what is delivered takes nothing from them: room has to come from outside."""
        needed, free = self.needed_bytes, self._free_bytes()
        if needed and needed <= free < needed + growth_bytes + self._margin_bytes:
            raise DiskFullError(
                f"{self._path}: {free} bytes are free, and accepted messages need {needed} of them; the broker's store "
                f"cannot grow by {growth_bytes}"
            )

    def require_redelivery(self, size_bytes: int) -> None:
        """Whether a redelivery of this size may be written to message_log, from where it needs room in schedule_log too.
        Raises DiskFullError."""
        needed, free = self.needed_bytes + 2 * size_bytes, self._free_bytes()
        if free < needed:
            raise DiskFullError(
                f"{self._path}: {free} bytes are free, and accepted messages need {needed} with this redelivery"
            )

    def _free_bytes(self) -> int:
        try:
            return self._fs.free_bytes(self._path)
        except DiskError:  # whatever is written meets the error itself
            return 1 << 62
