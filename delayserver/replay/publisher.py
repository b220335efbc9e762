"""Publishes what the replayer placed: counts, rows for the wheel, outcomes of cancels and of suppressed copies.

One call is one step on the event loop. So is the loader's `begin_load`; between them no record can fall (rule 7).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from delayserver.config.settings import WheelSettings
from delayserver.protocol.outcomes import Outcome
from delayserver.replay.placing import Placed, Round
from delayserver.runtime.runtime import Runtime
from delayserver.state.counts.balance import Balance
from delayserver.state.decisions.decided import Decided
from delayserver.state.decisions.outcome_rows import cancelled_outcomes, suppressed_outcomes
from delayserver.state.memory.loaded_rows import LoadedRows
from delayserver.state.memory.residency import Residency
from delayserver.state.memory.rows import make_rows
from delayserver.state.positions.positions import Positions
from delayserver.state.windows.windows import Windows
from store.errors import CorruptionError
from store.indexes.outcome_index import OutcomeIndex
from store.indexes.schedule_index import batch_sums, index_rows
from store.logs.dispatch_log import DispatchKey
from store.logs.schedule_log import Source
from store.logs.windows import window_starts
from store.records.batches import FLAG_PREPARED, U8, CancelBatch, MessageBatch, OutcomeBatch
from store.records.columns import has_any
from wheel.keys import Key


class Publisher:
    """The step behind every round of replay."""

    def __init__(
        self,
        positions: Positions,
        balance: Balance,
        windows: Windows,
        residency: Residency,
        decided: Decided,
        settings: WheelSettings,
        runtime: Runtime,
    ) -> None:
        self._positions = positions
        self._balance = balance
        self._retired = windows.retired
        self._book = windows.book
        self._cursors = windows.cursors
        self._residency = residency
        self._decided = decided
        self._settings = settings
        self._clock = runtime.clock
        self._stages = runtime.stages
        self._damage = runtime.damage
        # While a start replays what a crash left, outcomes of cancels and of copies wait here: dispatch_log may have kept
        # them though the crash took the schedule file or the checkpoint, and each must be recorded once.
        self.recovered: list[OutcomeBatch] | None = []

    def publish(self, done: Round) -> None:
        """A round of the message_log."""
        self._balance.place(done.accepted, done.internal, done.replaced)
        if done.messages is not None:
            self._balance.subjects.place(done.messages)
            self._note_timers(done.messages)
            if self.recovered is not None and self._balance.subjects.is_found and self._has_retired(done.messages):
                self._balance.subjects.doubt()
        if done.messages is not None and self.recovered is None:  # what a start replays may have its outcome already
            self._decided.opened(done.messages)
            self._stages.replay_lag.add(self._clock.now_us() - int(done.messages.accepted_us[0]))
        self._publish_rows(done, {})
        for batch in done.cancels:
            self._settle(cancelled_outcomes(batch, self._clock.now_us()))
            self._decided.holds.release(batch.sequence)
        self._positions.replayed_sequence.advance(done.last_sequence)
        self._positions.replayed.advance(done.end)

    def _note_timers(self, messages: MessageBatch) -> None:
        """Timers are internal records for no group. A few other records that look so make the time too late, not wrong."""
        if has_any(messages.origin_sequence):
            timers = (messages.origin_sequence != 0) & (messages.target_group == 0)
            if timers.any():
                self._balance.timed(int(messages.due_ms[timers].max()))

    def _has_retired(self, messages: MessageBatch) -> bool:
        """Whether a window of these messages is retired: its outcomes are not in its files any more."""
        starts = np.unique(window_starts(messages.due_ms, self._book.window_ms)).tolist()
        return any(self._retired.has(start) for start in starts)

    def publish_drained(self, done: Round, decided: dict[int, OutcomeIndex | None]) -> None:
        """A round of a sealed day: its rows were counted, and most of its copies recorded, when the day got them.
        `decided`: what the outcome files of their windows say, for those that are taken; None where they cannot be read."""
        self._publish_rows(done, decided)
        self._positions.published_drained()

    def leave_to_load(self, start_ms: int) -> None:
        """The window leaves memory: a load brings its rows, and looks at all that is decided."""
        self._residency.evict_between(Key(start_ms, 0), start_ms + self._book.window_ms)
        self._residency.loadable.ring()

    def _publish_rows(self, done: Round, decided: dict[int, OutcomeIndex | None]) -> None:
        now_us = self._clock.now_us()
        ahead_ms = now_us // 1000 + self._settings.load_ahead_ms
        added = wanted = False
        touched = set()
        if self.recovered is not None:
            self._leave_to_loads(done)
        for placed in done.placed:
            if placed.key.source != Source.FROM_DAY:
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
            self._residency.bound()
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
        from_day = placed.key.source == Source.FROM_DAY
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
            self._settle(suppressed_outcomes(index.take(np.flatnonzero(copies)), now_us))

    def _record_lost_copies(self, placed: Placed, owned: NDArray[np.bool_]) -> None:
        """A crash can lose the outcome row of a copy in a day's file. Where no load will find it, it is found here."""
        copies = np.flatnonzero(owned & (placed.batch.duplicate_of != 0))
        if len(copies):
            index = index_rows(placed.batch, placed.appended.blob_start).take(copies)
            self._decided.add_lost_copies(placed.key.start_ms, index, np.ones(len(copies), dtype=bool))

    def _settle(self, batch: OutcomeBatch) -> None:
        if self.recovered is not None:
            self.recovered.append(batch)
        else:
            self._decided.add(batch)

    async def finish_recovery(self) -> None:
        """Record what the first replay met again, as far as the outcomes are not in the files already."""
        batches, self.recovered = self.recovered or [], None
        if batches:
            await self._record_missing(OutcomeBatch.concatenate(batches))

    async def record_missing_cancels(self, cancels: CancelBatch) -> None:
        """Record those of these cancels that have no outcome which can be read."""
        await self._record_missing(cancelled_outcomes(cancels, self._clock.now_us()))

    async def _record_missing(self, met: OutcomeBatch) -> None:
        places: dict[DispatchKey, list[int]] = {}
        for place, due in enumerate(met.due_ms.tolist()):
            places.setdefault(self._decided.key_of(due), []).append(place)
        for key in sorted(places):
            rows = met.take(np.array(places[key], dtype=np.intp))
            try:
                async with self._decided.pinned(key) as index:
                    self._record_undone(key, rows, self._decided.outcome_of(key, index, rows.sequence))
            except CorruptionError as error:
                self._damage.report(error)
                self._record_undone(key, rows, await self._decided.told(key, rows.sequence))

    def _record_undone(self, key: DispatchKey, rows: OutcomeBatch, known: U8) -> None:
        """`known`: outcome codes u8[n], TOO_LATE where damage hides whether there is one. Those are recorded once more
        rather than not at all: a cancel that is forgotten would be delivered when the file is repaired."""
        open_rows = (known == 0) | (known == int(Outcome.TOO_LATE))
        if self._book.is_outcome_file(key):
            open_rows = open_rows & (rows.sequence > self._retired.up_to(key.start_ms))
        undone = np.flatnonzero(open_rows)
        _, first = np.unique(rows.sequence[undone], return_index=True)
        if len(first):
            self._decided.add(rows.take(undone[first]))
