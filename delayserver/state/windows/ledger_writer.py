"""The door through which retirement enters windows in the ledger: one form for a single server, one for a member."""

from __future__ import annotations

from typing import Protocol

from store.records.batches import LedgerBatch


class LedgerWriter(Protocol):
    """Makes counts of windows durable in the ledger."""

    @property
    def decides(self) -> bool:
        """Whether this process decides now which windows are retired."""

    def append(self, counted: LedgerBatch) -> None:
        """Take a window; for any thread. Raises DiskFullError (nothing was taken), SyncFailedError."""

    async def finish(self) -> None:
        """Return when all that was taken is durable in the ledger."""
