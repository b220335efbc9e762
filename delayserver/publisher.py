"""Publishes what the replayer placed: counts, rows for the wheel, outcomes of cancels and of suppressed copies.

One call is one step on the event loop. So is the loader's `begin_load`; between them no record can fall (rule 7).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from delayserver.clock import Clock
from delayserver.dispatcher import Dispatcher
from delayserver.loader import LoadedRows, Loader, suppressed_outcomes
from delayserver.outcome_recorder import OutcomeRecorder
from delayserver.protocol.outcomes import Outcome
from delayserver.replayer import Placed, Replayer, Round
from delayserver.rows import make_rows
from delayserver.settings import WheelSettings
from delayserver.window_book import WindowBook
from store.batches import CancelBatch, OutcomeBatch
from store.dispatch_log import DispatchKey
from store.errors import CorruptionError
from store.outcome_index import OutcomeIndex
from store.schedule_index import ScheduleIndex, batch_sums, index_rows
from store.schedule_log import Source
from wheel.cursors import LoadCursors


class Publisher:
    """The step behind every round of replay."""

    def __init__(
        self,
        replayer: Replayer,
        book: WindowBook,
        cursors: LoadCursors,
        loader: Loader,
        dispatcher: Dispatcher,
        recorder: OutcomeRecorder,
        settings: WheelSettings,
        clock: Clock,
    ) -> None:
        self._replayer = replayer
        self._book = book
        self._cursors = cursors
        self._loader = loader
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._settings = settings
        self._clock = clock
        self.accepted = 0
        self.internal = 0
        recorder.replayed_sequence = lambda: replayer.replayed_sequence
        self.on_corruption: Callable[[CorruptionError], None] = lambda _error: None
        # While a start replays what a crash left, outcomes of cancels and of copies wait here: dispatch_log may have kept
        # them though the crash took the schedule file or the checkpoint, and each must be recorded once.
        self.recovered: list[OutcomeBatch] | None = []

    def count(self, accepted: int, internal: int) -> None:
        """Messages and internal records that are in their files now."""
        self.accepted += accepted
        self.internal += internal

    def publish(self, done: Round) -> None:
        """A round of the message_log."""
        self.count(done.accepted, done.internal)
        if done.messages is not None and self.recovered is None:  # what a start replays may have its outcome already
            self._recorder.opened(done.messages)
        self._publish_rows(done, {})
        for batch in done.cancels:
            self._settle(cancelled_outcomes(batch, self._clock.now_us()))
            self._recorder.release(batch.sequence)
        self._replayer.published(done)

    def publish_drained(self, done: Round, decided: dict[int, OutcomeIndex | None]) -> None:
        """A round of a sealed day: its rows were counted, and most of its copies recorded, when the day got them.
        `decided`: what the outcome files of their windows say, for those that are taken; None where they cannot be read."""
        self._publish_rows(done, decided)
        self._replayer.published_drained()

    def _publish_rows(self, done: Round, decided: dict[int, OutcomeIndex | None]) -> None:
        now_us = self._clock.now_us()
        ahead_ms = now_us // 1000 + self._settings.load_ahead_ms
        added = wanted = False
        touched = set()
        for placed in done.placed:
            if placed.key.source != Source.FROM_DAY:
                self._record_copies(placed, now_us)
            if placed.key.source == Source.DAY:
                continue
            start = placed.key.start_ms
            touched.add(start)
            # Whether a window is taken is for the cursors to say, not for the clock: after a step back it may lie far ahead.
            added |= self._add_owned(placed, decided.get(placed.key.start_ms), now_us)
            wanted |= start < ahead_ms and not self._cursors.is_loaded(start)
        self._book.refresh(touched)
        if added:
            self._loader.bound()
            self._dispatcher.wake()
        if wanted:
            self._loader.wake()

    def _add_owned(self, placed: Placed, decided: OutcomeIndex | None, now_us: int) -> bool:
        """Put the rows into the wheel that no load will bring; `decided` is asked for rows of a day."""
        batch = placed.batch
        owned = self._cursors.owner(
            placed.key.start_ms, placed.key.source.name, placed.appended.start, batch.due_ms, batch.sequence
        )
        if placed.key.source == Source.FROM_DAY and owned.any():
            owned &= decided.missing(batch.sequence) if decided is not None else False
            self._record_lost_copies(placed, owned, now_us)
        owned &= batch.duplicate_of == 0
        if not owned.any():
            return False
        if placed.key.source == Source.FROM_DAY:
            owned &= self._loader.not_done_elsewhere(placed.key.start_ms, batch.sequence)
            owned &= self._recorder.not_held(batch.sequence)
        index = index_rows(batch, placed.appended.blob_start)
        if placed.row_sum is not None:
            index = replace(index, row_sum=placed.row_sum)
        if not owned.all():
            mine = np.flatnonzero(owned)
            index, batch = index.take(mine), batch if placed.row_sum is not None else batch.take(mine)
        if placed.row_sum is None:  # its window was taken since it was placed
            index = replace(index, row_sum=batch_sums(batch))
        rows = make_rows(index, placed.key.start_ms, placed.key.source, now_us)
        if placed.key.source == Source.FROM_DAY:
            # Drained again after a crash: they may have been handed over before it.
            rows["uncertain"] = self._loader.maybe_attempted(index.sequence, index.due_ms)
        self._loader.add(LoadedRows(index.due_ms, index.sequence, rows, ScheduleIndex.empty()))
        return True

    def _record_copies(self, placed: Placed, now_us: int) -> None:
        copies = placed.batch.duplicate_of != 0
        if copies.any():
            index = index_rows(placed.batch, placed.appended.blob_start)
            self._settle(suppressed_outcomes(index.take(np.flatnonzero(copies)), now_us))

    def _record_lost_copies(self, placed: Placed, owned: NDArray[np.bool_], now_us: int) -> None:
        """A crash can lose the outcome row of a copy in a day's file. Where no load will find it, it is found here."""
        copies = np.flatnonzero(owned & (placed.batch.duplicate_of != 0))
        if len(copies):
            lost = copies[self._loader.not_done_elsewhere(placed.key.start_ms, placed.batch.sequence[copies])]
            index = index_rows(placed.batch, placed.appended.blob_start)
            self._recorder.record(suppressed_outcomes(index.take(lost), now_us))

    def _settle(self, batch: OutcomeBatch) -> None:
        if self.recovered is not None:
            self.recovered.append(batch)
        else:
            self._recorder.record(batch)

    async def finish_recovery(self) -> None:
        """Record what the first replay met again, as far as the outcomes are not in the files already."""
        batches, self.recovered = self.recovered or [], None
        if not batches:
            return
        met = OutcomeBatch.concatenate(batches)
        places: dict[DispatchKey, list[int]] = {}
        for place, due in enumerate(met.due_ms.tolist()):
            places.setdefault(self._recorder.key_of(due), []).append(place)
        for key in sorted(places):
            rows = met.take(np.array(places[key], dtype=np.intp))
            try:
                async with self._recorder.pinned(key) as index:
                    self._record_undone(key, rows, self._recorder.outcome_of(key, index, rows.sequence) == 0)
            except CorruptionError as error:
                self.on_corruption(error)
                # Which of them have their outcome cannot be told. Recorded once more rather than not at all: a cancel that
                # is forgotten would be delivered when the file is repaired.
                self._record_undone(key, rows, np.ones(len(rows), dtype=bool))

    def _record_undone(self, key: DispatchKey, rows: OutcomeBatch, open_rows: NDArray[np.bool_]) -> None:
        if not key.coarse:
            open_rows = open_rows & (rows.sequence > self._replayer.retired_up_to(key.start_ms))
        undone = np.flatnonzero(open_rows)
        _, first = np.unique(rows.sequence[undone], return_index=True)
        if len(first):
            self._recorder.record(rows.take(undone[first]))


def cancelled_outcomes(batch: CancelBatch, now_us: int) -> OutcomeBatch:
    """Outcome rows of cancels."""
    return OutcomeBatch.filled(
        len(batch),
        sequence=batch.sequence,
        due_ms=batch.due_ms,
        settled_us=now_us,
        subject=batch.subject,
        outcome=int(Outcome.CANCELLED),
    )
