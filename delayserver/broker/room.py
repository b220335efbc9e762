"""The room on the disk that the broker's store may take. What else needs the disk, the broker does not know."""

from __future__ import annotations

from typing import Protocol


class Room(Protocol):
    """Asked before the store takes blocks of the disk; not for what fits into a segment that is allocated."""

    def require_beside(self, growth_bytes: int) -> None:
        """Raises DiskFullError where the store must not grow by this much."""


class _AllRoom:
    def require_beside(self, growth_bytes: int) -> None:
        pass


ALL_ROOM: Room = _AllRoom()
"""All that the disk has."""
