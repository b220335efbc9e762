"""The port through which decided outcomes become durable. What they are made durable in is the writer's own matter."""

from __future__ import annotations

from typing import Protocol

from store.logs.dispatch_log import DispatchKey
from store.records.batches import OutcomeBatch


class OutcomeWriter(Protocol):
    """Makes outcomes durable, one call at a time. A writer may hand them to a log that other processes read too."""

    async def write(self, batches: list[OutcomeBatch], new: list[OutcomeBatch]) -> set[DispatchKey]:
        """`new`: those of them that do not only move from the file of a day. Returns the files when all are durable.

        Waits for room on a full disk, and may be cancelled while it waits. Raises StoreError if a sync fails, for good."""
