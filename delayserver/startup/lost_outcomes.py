"""Restores outcomes at a start that damaged dispatch files have lost.

message_log still holds cancels, which are recorded again, as for `recover rebuild`. The schedule file proves
duplicates. If nothing else was lost, all outcomes of the file are known again, and its window is not held back. Only
its outcome row proves that a message was delivered, expired or dead-lettered. If such rows are lost, the window is held
back, and only readable outcomes count. Reads files; may run in a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from delayserver.logs.events import EventLogger
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.workers import Workers
from delayserver.state.decisions.decided import Decided
from delayserver.state.decisions.outcome_rows import cancels_of_replacements
from delayserver.state.files import Files
from store.errors import CorruptionError
from store.logs.dispatch_log import OUTCOMES, DispatchKey
from store.logs.due_windows import DAY_MS, day_starts, window_starts
from store.logs.log_scan import LogScan
from store.logs.message_log import MessageLog
from store.logs.window_state import Loss
from store.records.batches import I64, CancelBatch, MessageBatch
from store.records.file_header import FILE_HEADER_BYTES

events = EventLogger()

_CANCELLED, _ROLLED_BACK = int(Outcome.CANCELLED), int(Outcome.ROLLED_BACK)
# Cancels and rollbacks are also in message_log, and duplicates are marked in schedule files.
_IN_OTHER_FILES = (_CANCELLED, _ROLLED_BACK, int(Outcome.DEDUPLICATED))
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class LoggedCancels:
    """Cancels in message_log, one per message, by sequence.

    `covered` bool[n]: a checkpoint covers the record, so the outcome was durable before any file was lost.
    `whole`: message_log still holds all cancels ever made."""

    batch: CancelBatch
    covered: NDArray[np.bool_]
    whole: bool


def cancels_in(log: MessageLog, lost: Iterable[DispatchKey], window_ms: int, replay_offset: int) -> LoggedCancels:
    """Reads the cancels of some windows and days from message_log, also those of reschedules."""
    windows = np.array([key.start_ms for key in lost if not key.coarse], dtype=np.int64)
    days = np.array([key.start_ms for key in lost if key.coarse], dtype=np.int64)
    parts, covered = [CancelBatch.filled(0)], [np.zeros(0, dtype=np.bool_)]
    scan = LogScan(log, log.first, log.synced)
    for entry in scan:
        batch = entry.batch
        if isinstance(batch, MessageBatch) and batch.replaces_sequence.any():
            batch = cancels_of_replacements(batch)
        if isinstance(batch, CancelBatch):
            mine = np.isin(window_starts(batch.due_ms, window_ms), windows)
            mine |= np.isin(day_starts(batch.due_ms), days)
            parts.append(batch.take(np.flatnonzero(mine)))
            covered.append(np.full(len(parts[-1]), entry.end <= replay_offset))
    whole = not log.damages and not scan.has_gaps and log.first == FILE_HEADER_BYTES
    found = CancelBatch.concatenate(parts)
    _, first = np.unique(found.sequence, return_index=True)
    return LoggedCancels(found.take(first), np.concatenate(covered)[first], whole)


def is_restored(loss: Loss, cancels: LoggedCancels, left: I64) -> bool:
    """True if other files prove every outcome that a file lost. `cancels` are those of the file's window or day; `left`
    i64[n] are the sequences whose outcome was not lost."""
    if not _is_in_other_files(loss):
        return False
    missing = ~np.isin(cancels.batch.sequence, left) & (cancels.batch.origin_sequence == 0)
    lost = loss.counts[_CANCELLED] + loss.counts[_ROLLED_BACK]
    # A cancel that no checkpoint covers may have been lost with the file, or may not have reached it.
    known = missing if cancels.whole else missing & cancels.covered
    return bool(np.count_nonzero(known) >= lost)


def _is_in_other_files(loss: Loss) -> bool:
    others = [count for code, count in enumerate(loss.counts[:OUTCOMES]) if code not in _IN_OTHER_FILES]
    return not any(others) and not sum(loss.counts[OUTCOMES:])


class LostOutcomes:
    """Restores lost outcomes, once per loss."""

    def __init__(
        self,
        files: Files,
        decided: Decided,
        record_missing: Callable[[CancelBatch], Awaitable[None]],
        replay_offset: int,
        window_ms: int,
        workers: Workers,
    ) -> None:
        """`record_missing` records those of the cancels that have no readable outcome. `replay_offset`: that of the
        checkpoint."""
        self._dispatch = files.dispatch
        self._days = files.days
        self._log = files.log
        self._decided = decided
        self._record_missing = record_missing
        self._replay_offset = replay_offset
        self._window_ms = window_ms
        self._workers = workers

    def wanted(self) -> list[DispatchKey]:
        """Files whose lost outcomes were not searched for in message_log yet."""
        return [key for key, loss in self._dispatch.lost.items() if not loss.searched]

    async def restore(self) -> list[DispatchKey]:
        """Searches for the lost cancels, and records them durably. Returns the files whose outcomes are all known again."""
        wanted, restored = self.wanted(), []
        if not wanted:
            return []
        found = await self._workers.run(partial(cancels_in, self._log, wanted, self._window_ms, self._replay_offset))
        for key in wanted:
            loss = self._dispatch.lost[key]
            mine = self._of_file(key, found)
            try:
                left = self._dispatch.outcomes_left(key, loss.end)
            except CorruptionError:
                continue  # reported; the next start tries again
            await self._record_missing(mine.batch)
            if is_restored(loss, mine, left.sequence):
                restored.append(key)
            else:
                self._dispatch.note_loss(key, loss._replace(searched=True))
        await self._decided.wait_all_written()
        for key in restored:
            self._dispatch.forget_loss(key)
            events.warning(
                "lost_outcomes_restored",
                "window or day {start_ms}: all outcomes that its file had lost are restored",
                start_ms=key.start_ms,
            )
        return restored

    def _of_file(self, key: DispatchKey, found: LoggedCancels) -> LoggedCancels:
        span_ms = DAY_MS if key.coarse else self._window_ms
        due_ms = found.batch.due_ms
        rows = np.flatnonzero((due_ms >= key.start_ms) & (due_ms < key.start_ms + span_ms))
        covered = found.covered[rows]
        if self._days.is_draining(key.start_ms):
            covered[:] = False  # the outcome may be in the file of the day or of the minute
        return LoggedCancels(found.batch.take(rows), covered, found.whole)
