"""Reads the cancels in the part of message_log that a start still has to replay. Reads files; for any thread.

A start normally replays all of message_log before it delivers. While the replay waits for room, it delivers messages
that are placed already. Cancels in the rest of message_log must count for these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from delayserver.runtime.workers import Workers
from delayserver.state.counts.balance import Balance
from delayserver.state.decisions.holds import Holds
from store.logs.log_scan import LogScan
from store.logs.message_log import MessageLog
from store.records.batches import I64, CancelBatch, MessageBatch
from store.tables.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class ReplayAhead:
    """The cancelled sequences of a range of message_log, i64[n] ascending, and the number of its accepted messages.

    `replay_lag_bytes_max` bounds the sequences; each has 8 bytes. `accepted` counts messages of the balance only."""

    cancelled: I64
    accepted: int


def read_ahead(log: MessageLog, position: int, stop: int) -> ReplayAhead:
    """Reads the records from `position` (a logical offset) to `stop`. Skips damage, which the replayer reports."""
    cancelled = [np.zeros(0, np.int64)]
    accepted = 0
    for entry in LogScan(log, position, stop):
        batch = entry.batch
        if isinstance(batch, CancelBatch):
            cancelled.append(np.array(batch.sequence))
        elif isinstance(batch, MessageBatch):
            accepted += len(batch) - int(np.count_nonzero(batch.origin_sequence))
            if batch.replaces_sequence.any():
                cancelled.append(batch.replaces_sequence[batch.replaces_sequence != 0])
    return ReplayAhead(np.unique(np.concatenate(cancelled)), accepted)


class HeldCancels:
    """Cancels that are not replayed yet hold their messages, so that the rest may be delivered before they are."""

    def __init__(
        self, log: MessageLog, checkpoint: Checkpoint, holds: Holds, balance: Balance, workers: Workers
    ) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._holds = holds
        self._balance = balance
        self._workers = workers

    async def hold(self) -> None:
        """Reads them ahead of the replay, and counts what was accepted beside them."""
        position = max(self._checkpoint.replay_offset, self._log.first)
        ahead = await self._workers.run(
            partial(read_ahead, self._log, position, self._log.synced), abandon_on_cancel=True
        )
        self._holds.hold_at_start(ahead.cancelled)
        self._balance.start_from(self._checkpoint.totals.get("accepted", 0) + ahead.accepted)

    def release(self) -> None:
        """All of message_log is replayed."""
        self._holds.release_start()
