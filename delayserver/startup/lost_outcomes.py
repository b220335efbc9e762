"""What a start can restore of outcomes that dispatch files lost with their bytes.

message_log still holds cancels. They are recorded once more, as `recover rebuild` has it done. Copies are known from the
schedule file. If nothing else was lost, all outcomes of the file are known again, and its window is not held back. That a
message was delivered, expired or dead-lettered only its row can prove: where such rows are lost the window is held back, and
of its messages those with a readable outcome alone have one. Reads files; may run in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from delayserver.state.decided import Decided
from delayserver.state.outcome_rows import replaced_messages
from store.errors import CorruptionError
from store.logs.dispatch_log import OUTCOMES, DispatchKey, DispatchLog
from store.logs.message_log import MessageLog
from store.logs.window_state import Loss
from store.logs.windows import DAY_MS, day_starts, window_starts
from store.records.batches import I64, CancelBatch, MessageBatch
from store.records.file_header import FILE_HEADER_BYTES
from store.tables.days import DayTable

logger = logging.getLogger("delayserver")

_READ_BYTES = 4 << 20
_CANCELLED = int(Outcome.CANCELLED)
# A cancel is in message_log, and what makes a message a copy is in its schedule file.
_IN_OTHER_FILES = (_CANCELLED, int(Outcome.DEDUPLICATED))
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class LoggedCancels:
    """Cancels in message_log, one a message, by sequence. `covered` bool[n]: a checkpoint has passed the record, so its
    outcome was durable before any file was lost. `whole`: message_log holds all that were ever made."""

    batch: CancelBatch
    covered: NDArray[np.bool_]
    whole: bool


def cancels_in(log: MessageLog, lost: Iterable[DispatchKey], window_ms: int, replay_offset: int) -> LoggedCancels:
    """Read message_log for the cancels of some windows and days. A cancel that came as a reschedule is one too."""
    windows = np.array([key.start_ms for key in lost if not key.coarse], dtype=np.int64)
    days = np.array([key.start_ms for key in lost if key.coarse], dtype=np.int64)
    parts, covered = [CancelBatch.filled(0)], [np.zeros(0, dtype=np.bool_)]
    whole, offset = not log.damages and log.first == FILE_HEADER_BYTES, log.first
    while offset < log.synced:
        try:
            entries = log.read(offset, log.synced, _READ_BYTES)
        except CorruptionError:
            whole, offset = False, log.skip_damage(offset)
            continue
        if not entries:
            break
        for entry in entries:
            batch = entry.batch
            if isinstance(batch, MessageBatch) and batch.replaces_sequence.any():
                batch = replaced_messages(batch)
            if isinstance(batch, CancelBatch):
                mine = np.isin(window_starts(batch.due_ms, window_ms), windows)
                mine |= np.isin(day_starts(batch.due_ms), days)
                parts.append(batch.take(np.flatnonzero(mine)))
                covered.append(np.full(len(parts[-1]), entry.end <= replay_offset))
        offset = entries[-1].end
    found = CancelBatch.concatenate(parts)
    _, first = np.unique(found.sequence, return_index=True)
    return LoggedCancels(found.take(first), np.concatenate(covered)[first], whole)


def is_restored(loss: Loss, cancels: LoggedCancels, left: I64) -> bool:
    """Whether other files tell every outcome that a file lost. `cancels` are those of the file's window or day, `left`
    i64[n] the sequences with an outcome that was not lost."""
    if not _is_in_other_files(loss):
        return False
    missing = ~np.isin(cancels.batch.sequence, left)
    lost = loss.counts[_CANCELLED]
    # A cancel that no checkpoint covers may have been lost with the file, or may not have reached it.
    known = missing if cancels.whole else missing & cancels.covered
    return bool(np.count_nonzero(known) >= lost)


def _is_in_other_files(loss: Loss) -> bool:
    others = [count for code, count in enumerate(loss.counts[:OUTCOMES]) if code not in _IN_OTHER_FILES]
    return not any(others) and not sum(loss.counts[OUTCOMES:])


class LostOutcomes:
    """Restores what can be restored, once a loss."""

    def __init__(
        self,
        dispatch: DispatchLog,
        days: DayTable,
        decided: Decided,
        record_missing: Callable[[CancelBatch], Awaitable[None]],
        window_ms: int,
    ) -> None:
        """`record_missing` records the cancels that have no outcome which can be read."""
        self._dispatch = dispatch
        self._days = days
        self._decided = decided
        self._record_missing = record_missing
        self._window_ms = window_ms

    def wanted(self) -> list[DispatchKey]:
        """Files that message_log was not searched for yet."""
        return [key for key, loss in self._dispatch.lost.items() if not loss.searched]

    async def restore(self, found: LoggedCancels) -> list[DispatchKey]:
        """Record the cancels that were lost, durably. Returns the files whose outcomes are all known again."""
        restored = []
        for key in self.wanted():
            loss = self._dispatch.lost[key]
            mine = self._of_file(key, found)
            try:
                left = self._dispatch.outcomes_left(key, loss.end)
            except CorruptionError:
                continue  # told; it is looked at again by the next start
            await self._record_missing(mine.batch)
            if is_restored(loss, mine, left.sequence):
                restored.append(key)
            else:
                self._dispatch.note_loss(key, loss._replace(searched=True))
        await self._decided.all_written()
        for key in restored:
            self._dispatch.forget_loss(key)
            logger.warning("window or day %d: all outcomes that its file had lost are restored", key.start_ms)
        return restored

    def _of_file(self, key: DispatchKey, found: LoggedCancels) -> LoggedCancels:
        span_ms = DAY_MS if key.coarse else self._window_ms
        due_ms = found.batch.due_ms
        rows = np.flatnonzero((due_ms >= key.start_ms) & (due_ms < key.start_ms + span_ms))
        covered = found.covered[rows]
        if self._days.is_draining(key.start_ms):
            covered[:] = False  # the outcome may stand in the file of the day or of the minute
        return LoggedCancels(found.batch.take(rows), covered, found.whole)
