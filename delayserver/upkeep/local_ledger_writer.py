"""Enters retired windows in the ledger of a single server."""

from __future__ import annotations

from store.records.batches import LedgerBatch
from store.tables.ledger import Ledger


class LocalLedgerWriter:
    """Counts → ledger, durably."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def decides(self) -> bool:
        """Always."""
        return True

    def append(self, counted: LedgerBatch) -> None:
        """As `LedgerWriter.append`: durable on return."""
        self._ledger.append(counted)

    async def finish(self) -> None:
        """Nothing is left to do."""
