"""The disk space that accepted messages still need, and the writers that may use the rest.

Accepted messages are in message_log, or in the file of a day, until they have room in a file of their minute. Sends
stop first. Then the growth of the broker's store and redeliveries stop, which are written to both logs again. Outcomes
and checkpoints are always written, to the space that sends leave and then to the reserve of dispatch_log.
"""

from __future__ import annotations

from delayserver.state.positions.positions import Positions
from delayserver.state.windows.drains import Drains
from store.disk.filesystem import FileSystem
from store.errors import DiskError, DiskFullError


class KeptRoom:
    """Reads the free space at each call, which takes about 2 µs."""

    __slots__ = ("_drains", "_free_bytes_min", "_fs", "_margin_bytes", "_path", "_positions")

    def __init__(self, fs: FileSystem, path: str, positions: Positions, drains: Drains, free_bytes_min: int) -> None:
        self._fs = fs
        self._path = path
        self._positions = positions
        self._drains = drains
        self._free_bytes_min = free_bytes_min
        # Files take whole blocks, and outcomes are written meanwhile.
        self._margin_bytes = free_bytes_min // 2

    @property
    def needed_bytes(self) -> int:
        """Space for messages of message_log that are not replayed, and of days that are being drained."""
        return self._positions.lag_bytes + self._drains.needed_bytes

    def require_beside(self, growth_bytes: int) -> None:
        """Returns if the broker's store may grow by this much. Raises DiskFullError if accepted messages need the room.
        If they do not fit anyway, the store may grow: the operator has to make room in any case."""
        needed, free = self.needed_bytes, self._free_bytes()
        if needed and needed <= free < needed + growth_bytes + self._margin_bytes:
            raise DiskFullError(
                f"{self._path}: {free} bytes are free, and accepted messages need {needed} of them; the broker's store "
                f"cannot grow by {growth_bytes}"
            )

    def has_spare(self, growth_bytes: int) -> bool:
        """Whether room may be taken before it is needed: sends must not be refused for it."""
        return self._free_bytes() >= self.needed_bytes + self._free_bytes_min + growth_bytes

    def require_redelivery(self, size_bytes: int) -> None:
        """Returns if there is room for a redelivery of this size in message_log and schedule_log.

        Raises DiskFullError."""
        needed, free = self.needed_bytes + 2 * size_bytes, self._free_bytes()
        if free < needed:
            raise DiskFullError(
                f"{self._path}: {free} bytes are free, and accepted messages need {needed} with this redelivery"
            )

    def _free_bytes(self) -> int:
        try:
            return self._fs.free_bytes(self._path)
        except DiskError:  # the writer meets the error itself
            return 1 << 62
