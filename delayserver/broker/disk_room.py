"""The disk space that the broker's store may take. The broker does not know the other users of the disk."""

from __future__ import annotations

from typing import Protocol


class DiskRoom(Protocol):
    """The store asks it before it takes new blocks of the disk, not for bytes that fit into an allocated segment."""

    def require_beside(self, growth_bytes: int) -> None:
        """Raises DiskFullError if the store must not grow by this much."""

    def has_spare(self, growth_bytes: int) -> bool:
        """Whether so many bytes may be taken before they are needed."""


class _AllRoom:
    def require_beside(self, growth_bytes: int) -> None:
        pass

    def has_spare(self, growth_bytes: int) -> bool:
        return True


ALL_ROOM: DiskRoom = _AllRoom()
"""Refuses nothing."""
