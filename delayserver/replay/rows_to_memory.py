"""The round step that hands rows to memory: those that no load will bring go to the wheel. Copies get their outcomes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from delayserver.config.settings import WheelSettings
from delayserver.replay.round_outcomes import RoundOutcomes
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.decisions.outcome_rows import suppressed_outcomes
from delayserver.state.memory.loaded_rows import LoadedRows
from delayserver.state.memory.overflow import Overflow
from delayserver.state.memory.residency import Residency
from delayserver.state.memory.rows import make_rows
from delayserver.state.replay_round import Placed, Round
from delayserver.state.windows.windows import Windows
from store.indexes.outcome_index import OutcomeIndex
from store.indexes.schedule_index import batch_sums, index_rows
from store.logs.schedule_log import ScheduleSource
from store.records.batches import FLAG_PREPARED
from store.records.column_batch import has_any
from wheel.keys import Key


class RowsToMemory:
    """Placed rows → residency: those of a round of message_log, and those of a draining day."""

    def __init__(
        self,
        windows: Windows,
        residency: Residency,
        overflow: Overflow,
        decided: Decided,
        outcomes: RoundOutcomes,
        settings: WheelSettings,
        runtime: Runtime,
    ) -> None:
        self._book = windows.book
        self._cursors = windows.cursors
        self._residency = residency
        self._overflow = overflow
        self._decided = decided
        self._outcomes = outcomes
        self._settings = settings
        self._clock = runtime.clock

    def publish(self, done: Round) -> None:
        """Hand on the rows of a round of message_log."""
        self._publish_rows(done, {})

    def publish_drained(self, done: Round, decided: dict[int, OutcomeIndex | None]) -> None:
        """Hand on rows of a sealed day: they were counted, and most of its copies recorded, when the day got them.
        `decided`: what the outcome files of their windows say, for those that are taken; None where they cannot be read."""
        self._publish_rows(done, decided)

    def leave_to_load(self, start_ms: int) -> None:
        """The window leaves memory: a load brings its rows, and looks at all that is decided."""
        self._residency.evict_between(Key(start_ms, 0), start_ms + self._book.window_ms)
        self._residency.loadable.ring()

    def _publish_rows(self, done: Round, decided: dict[int, OutcomeIndex | None]) -> None:
        now_us = self._clock.now_us()
        ahead_ms = now_us // 1000 + self._settings.load_ahead_ms
        added = wanted = False
        touched = set()
        if self._outcomes.recovering:
            self._leave_to_loads(done)
        for placed in done.placed:
            if placed.key.source != ScheduleSource.FROM_DAY:
                self._record_copies(placed, now_us)
            if not self._book.is_delivered_from(placed.key):
                continue
            start = placed.key.start_ms
            touched.add(start)
            # Whether a window is taken is for the cursors to say, not for the clock: after a step back it may lie far ahead.
            added |= self._add_owned(placed, decided.get(placed.key.start_ms), now_us)
            wanted |= start < ahead_ms and not self._cursors.is_loaded(start)
        self._book.refresh(touched)
        if added:
            self._overflow.enforce_bound()
        if wanted:
            self._residency.loadable.ring()

    def _leave_to_loads(self, done: Round) -> None:
        """A start delivers while it replays, and what it replays may have its outcome already, or may have been attempted:
        a load looks at all that, and a row that goes straight to the wheel is not looked at. So the windows of this
        round leave memory from its first row on, and are loaded again."""
        due_ms = [
            int(placed.batch.due_ms.min())
            for placed in done.placed
            if self._book.is_delivered_from(placed.key) and self._cursors.is_taken(placed.key.start_ms)
        ]
        if due_ms:
            self._residency.evict_after(Key(min(due_ms), 0))
            self._residency.loadable.ring()

    def _add_owned(self, placed: Placed, decided: OutcomeIndex | None, now_us: int) -> bool:
        """Put the rows into the wheel that no load will bring; `decided` is asked for rows of a day."""
        batch = placed.batch
        owned = self._cursors.owner(
            placed.key.start_ms, placed.key.source.name, placed.appended.start, batch.due_ms, batch.sequence
        )
        from_day = placed.key.source == ScheduleSource.FROM_DAY
        if from_day and owned.any():
            owned &= decided.missing(batch.sequence) if decided is not None else False
            self._record_lost_copies(placed, owned)
        owned &= batch.duplicate_of == 0
        if has_any(batch.flags):
            owned &= batch.flags & FLAG_PREPARED == 0
        if not owned.any():
            return False
        index = index_rows(batch, placed.appended.blob_start)
        if placed.row_sum is not None:
            index = replace(index, row_sum=placed.row_sum)
        if not owned.all():
            mine = np.flatnonzero(owned)
            index, batch = index.take(mine), batch if placed.row_sum is not None else batch.take(mine)
        if placed.row_sum is None:  # its window was taken since it was placed
            index = replace(index, row_sum=batch_sums(batch))
        rows = make_rows(index, placed.key.start_ms, placed.key.source, now_us)
        loaded = LoadedRows(index.due_ms, index.sequence, rows)
        if from_day:
            # Drained again after a crash: they may have been handed over before it, or decided.
            rows["uncertain"] = self._residency.may_have_been_attempted(index.sequence, index.due_ms)
            loaded = self._residency.admissible(loaded, np.ones(len(loaded), dtype=bool))
        self._residency.add(loaded)
        return len(loaded) > 0

    def _record_copies(self, placed: Placed, now_us: int) -> None:
        copies = placed.batch.duplicate_of != 0
        if copies.any():
            index = index_rows(placed.batch, placed.appended.blob_start)
            self._outcomes.derive(suppressed_outcomes(index.take(np.flatnonzero(copies)), now_us))

    def _record_lost_copies(self, placed: Placed, owned: NDArray[np.bool_]) -> None:
        """A crash can lose the outcome row of a copy in a day's file. Where no load will find it, it is found here."""
        copies = np.flatnonzero(owned & (placed.batch.duplicate_of != 0))
        if len(copies):
            index = index_rows(placed.batch, placed.appended.blob_start).take(copies)
            self._decided.add_lost_copies(placed.key.start_ms, index, np.ones(len(copies), dtype=bool))
