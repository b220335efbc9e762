"""The port through which sequences are given out."""

from __future__ import annotations

from typing import Protocol


class SequenceSource(Protocol):
    """Gives out each sequence once."""

    def take(self, count: int) -> int:
        """The first of `count` sequences, which are the caller's alone. May have to reserve some, on a disk that is full:
        raises StoreError then, and nothing is taken."""

    def needs_extension(self) -> bool:
        """Whether `extend` is to be called soon."""

    def extend(self, count: int = 0) -> None:
        """Reserve more, durable on return. For any thread. Raises DiskFullError, SyncFailedError."""
