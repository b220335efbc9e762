"""Reads the cancels in the part of message_log that a start still has to replay. Reads files; for any thread.

A start normally replays all of message_log before it delivers. While the replay waits for room, it delivers messages
that are placed already. Cancels in the rest of message_log must count for these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from store.logs.log_scan import LogScan
from store.logs.message_log import MessageLog
from store.records.batches import I64, CancelBatch, MessageBatch


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
