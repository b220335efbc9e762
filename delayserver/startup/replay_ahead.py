"""What a start still has to replay, as far as deliveries must know of it before: the cancels. Reads files; for any thread.

A start normally replays all of message_log before it delivers anything. Where the replay waits for room, messages that are
placed already are delivered meanwhile, and a cancel that lies in the rest must count all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from store.errors import CorruptionError
from store.logs.message_log import MessageLog
from store.records.batches import I64, CancelBatch, MessageBatch

READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ReplayAhead:
    """Of a stretch of message_log: the sequences that it cancels (i64, ascending, 8 bytes each; `replay_lag_bytes_max`
    bounds them), and how many messages of the balance it accepts."""

    cancelled: I64
    accepted: int


def read_ahead(log: MessageLog, position: int, stop: int) -> ReplayAhead:
    """Read the records from `position` (a logical offset) to `stop`. Damage is passed over, as the replayer does, which
    reports it."""
    cancelled = [np.zeros(0, np.int64)]
    accepted = 0
    while position < stop:
        try:
            entries = log.read(position, stop, READ_BYTES)
        except CorruptionError:
            position = log.skip_damage(position)
            continue
        if not entries:
            break
        for entry in entries:
            batch = entry.batch
            if isinstance(batch, CancelBatch):
                cancelled.append(np.array(batch.sequence))
            elif isinstance(batch, MessageBatch):
                accepted += len(batch) - int(np.count_nonzero(batch.origin_sequence))
                if batch.replaces_sequence.any():
                    cancelled.append(batch.replaces_sequence[batch.replaces_sequence != 0])
        position = entries[-1].end
    return ReplayAhead(np.unique(np.concatenate(cancelled)), accepted)
