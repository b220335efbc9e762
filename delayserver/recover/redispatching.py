"""Redispatch while the server is stopped: internal records at the end of message_log, for the next start to deliver."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from delayserver.clock import Clock
from delayserver.recover.capture import Capture
from delayserver.recover.survey import survey
from delayserver.recover.whole_rows import message_rows
from delayserver.recover.window_check import Range, Visited
from delayserver.redispatch import BYTES_MAX, MESSAGES_MAX, Wanted, deliveries_again
from delayserver.settings import StorageSettings
from store.batches import I64, MessageBatch
from store.identity import SequenceReservation
from store.message_log import MessageLog


class OfflineRedispatch:
    """Selects and appends. The caller holds the lock unless nothing is to be written."""

    def __init__(self, taken: Capture, wanted: Wanted, clock: Clock) -> None:
        self._taken = taken
        self._wanted = wanted
        self._clock = clock
        self.messages = 0
        self.highest_sequence = 0

    def count(self) -> None:
        """Count only."""
        self._each(lambda _path, _size, _sequences: None)

    def run(self) -> None:
        """Append and sync, slice by slice. Raises DiskFullError (what was appended before stays), StoreError."""
        found: list[tuple[str, int, I64]] = []
        self._each(lambda path, size, sequences: found.append((path, size, sequences)))
        if not found:
            return
        taken = self._taken
        log = MessageLog.open(
            taken.fs,
            f"{taken.path}/message_log",
            taken.server_id,
            segment_bytes=self._segment_bytes(),
            valid_to=taken.checkpoint.replay_offset,
        )
        try:
            sequences = SequenceReservation.open(taken.fs, taken.path, taken.server_id, above=self.highest_sequence)
            for path, size, wanted in found:
                for _, batch in message_rows(taken, path, size, np.unique(wanted)):
                    self._append(log, sequences, batch)
            if sequences.clean:
                sequences.close_clean()
        finally:
            log.close()

    def _segment_bytes(self) -> int:
        """As large as the segments there are; what a file is allocated to is the server's setting."""
        sizes = [part.size for part in self._taken.message_log]
        return max(sizes[-1:], default=StorageSettings().message_log_segment_bytes)

    def _each(self, found: Callable[[str, int, I64], None]) -> None:
        wanted = self._wanted

        def visit(visited: Visited) -> None:
            rows = visited.rows
            self.highest_sequence = max(self.highest_sequence, int(rows.sequence.max()))
            mask = wanted.mask(rows.due_ms, rows.subject, rows.origin_sequence)
            mask &= np.isin(visited.outcome, np.array(wanted.outcomes, np.uint8))
            if mask.any():
                self.messages += int(mask.sum())
                found(visited.path, visited.size, rows.sequence[mask])

        survey(self._taken, Range(), visit)

    def _append(self, log: MessageLog, sequences: SequenceReservation, batch: MessageBatch) -> None:
        start = 0
        while start < len(batch):
            stop = _slice_end(batch, start)
            part = deliveries_again(batch.slice(start, stop), self._taken.server_id, self._clock.now_us())
            first = sequences.take(len(part))
            log.append([part.with_columns(sequence=np.arange(first, first + len(part), dtype=np.int64))])
            log.sync()
            start = stop


def _slice_end(batch: MessageBatch, start: int) -> int:
    stop = min(len(batch), start + MESSAGES_MAX)
    sizes = np.cumsum(batch.bodies_length[start:stop].astype(np.int64))
    return start + max(1, int(np.searchsorted(sizes, BYTES_MAX, side="right")))
