"""Brings a piece of a draining day into its minutes, and hands over those of its rows that no load will bring."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import numpy as np

from delayserver.replay.rounds import Rounds
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.positions.positions import Positions
from delayserver.state.replay_round import Round
from delayserver.state.windows.windows import Windows
from store.errors import CorruptionError, DiskError, UnreadableError
from store.indexes.outcome_index import OutcomeIndex
from store.indexes.schedule_index import index_rows
from store.logs.dispatch_log import DispatchKey
from store.logs.schedule_log import ScheduleLog
from store.records.batches import MessageBatch


class DrainedRows:
    """Rows of a day → files of minutes and memory. They were counted and published when the day got them."""

    def __init__(
        self,
        schedule: ScheduleLog,
        windows: Windows,
        decided: Decided,
        rounds: Rounds,
        positions: Positions,
        runtime: Runtime,
    ) -> None:
        self._schedule = schedule
        self._cursors = windows.cursors
        self._decided = decided
        self._placing = rounds.placing
        self._memory = rounds.memory
        self._positions = positions
        self._workers = runtime.workers
        self._damage = runtime.damage

    async def add(self, batch: MessageBatch) -> None:
        """Returns when the rows are durable. Raises DiskFullError; the piece may be added again then."""
        done = await self._placing.place_drained(batch)
        async with AsyncExitStack() as stack:
            decided: dict[int, OutcomeIndex | None] = {}
            refused = []
            for start in {placed.key.start_ms for placed in done.placed if self._cursors.is_taken(placed.key.start_ms)}:
                decided[start] = None
                try:
                    decided[start] = await stack.enter_async_context(self._decided.pinned(DispatchKey(start, False)))
                except (CorruptionError, DiskError) as error:
                    if self._is_refusal(error):
                        refused.append(start)
            # In the step that publishes: no other round brings these rows again. Where the outcomes are damaged, messages
            # that may be cancelled are not handed over.
            for start in refused:
                self._memory.leave_to_load(start)
            self._memory.publish_drained(done, decided)
            self._positions.end_drained()
        await self._record_lost_copies(done)
        # Now, and not all of them at the end: a round of replay would wait for that.
        await self._workers.run(partial(self._schedule.sync, [placed.key for placed in done.placed]))

    async def _record_lost_copies(self, done: Round) -> None:
        """A crash can lose the outcome row of a suppressed copy; a window that is loaded already does not look again."""
        for placed in done.placed:
            copies = np.flatnonzero(placed.batch.duplicate_of)
            if not len(copies):
                continue
            rows = index_rows(placed.batch, placed.appended.blob_start).take(copies)
            try:
                async with self._decided.pinned(DispatchKey(placed.key.start_ms, False)) as index:
                    self._decided.add_lost_copies(placed.key.start_ms, rows, index.missing(rows.sequence))
            except (CorruptionError, DiskError) as error:
                if self._is_refusal(error):
                    self._memory.leave_to_load(placed.key.start_ms)

    def _is_refusal(self, error: CorruptionError | DiskError) -> bool:
        """Whether the disk may give the outcomes of a minute soon. As long as they are damaged, none is added."""
        if isinstance(error, DiskError):
            self._damage.report(error)  # of the others `pinned` has reported
        return isinstance(error, (DiskError, UnreadableError))
