"""Places rows in their schedule files, each behind the high-water mark of its file. The only writer of schedule_log; in a
member of a cluster also of the ledger.

Runs in the task of the replayer alone: a round of message_log or of a draining day at a time, in a thread where that pays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import trio

from delayserver.replay.buckets import bucket
from delayserver.replay.deduplication import Deduplication, IdsNotInMemoryError, IdsUnreadableError
from delayserver.replay.placing_waits import PlacingWaits
from delayserver.runtime.runtime import Runtime
from delayserver.state.files import Files
from delayserver.state.positions.positions import Positions
from delayserver.state.replay_round import Placed, Round
from delayserver.state.windows.windows import Windows
from store.errors import DiskFullError
from store.indexes.schedule_index import batch_sums
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import LedgerBatch, MessageBatch


class Placing:
    """Rows → schedule files."""

    def __init__(
        self,
        files: Files,
        windows: Windows,
        deduplication: Deduplication,
        positions: Positions,
        waits: PlacingWaits,
        runtime: Runtime,
        *,
        count_skipped: bool,
    ) -> None:
        """`count_skipped`: whether rows are counted that are in the files already. Not without a checkpoint: then the start
        counts the files instead."""
        self._schedule = files.schedule
        self._days = files.days
        self._window_ms = windows.book.window_ms
        self._retired = windows.retired
        self._cursors = windows.cursors
        self._deduplication = deduplication
        self._positions = positions
        self._waits = waits
        self._workers = runtime.workers
        self.count_skipped = count_skipped
        self._backwards = False
        # Whether the rows of now are placed on the event loop.
        self._quick = False

    async def run(self, place: Callable[[Round], None], done: Round, *, quick: bool) -> None:
        """Place on the event loop if `quick`, and in a thread otherwise, or where ids have to be read. A full disk is waited
        for, and a short time for one that cannot read: what was placed stays in `done`, and the high-water marks of the
        files let a further attempt go on behind it."""
        while True:
            self._quick = quick
            try:
                if quick:
                    place(done)
                else:
                    with trio.CancelScope(shield=True):
                        await self._workers.run(partial(place, done))
            except DiskFullError as error:
                await self._waits.for_room(done, error)
            except IdsNotInMemoryError:
                quick = False
            except IdsUnreadableError:
                await self._waits.for_disk()
            else:
                self._waits.end()
                return

    async def place_drained(self, batch: MessageBatch) -> Round:
        """Place rows of a sealed day's file into its minutes; for `DrainedRows`."""
        marks, size_bytes = self._positions, len(batch.bodies) + len(batch.properties)
        done = Round(marks.replayed.value, marks.replayed_sequence.value, size_bytes=size_bytes)
        await self.run(partial(self.place_batch, batch, source=ScheduleSource.FROM_DAY), done, quick=False)
        return done

    def place_batch(self, batch: MessageBatch, done: Round, source: ScheduleSource) -> None:
        """Write rows to their files, skipping what is there already."""
        coarse = self._days.coarse_rows(batch.due_ms, batch.sequence) if source == ScheduleSource.DIRECT else None
        parts = [
            (part.key, rows)
            for part in bucket(batch, self._window_ms, coarse, source)
            if len(rows := self._behind_high_water(part.key, part.batch, done))
        ]
        # To and fro: of more files than may be open, those of the end of a round are open at the begin of the next one.
        self._backwards = not self._backwards
        if self._backwards:
            parts.reverse()
        if source == ScheduleSource.FROM_DAY:  # not what its minutes had before: that was published, or is a load's
            self._positions.begin_drained(
                np.concatenate([np.empty(0, np.int64), *[rows.sequence for _, rows in parts]])
            )
        self._schedule.prepare([key for key, _ in parts])
        for key, rows in parts:
            if source == ScheduleSource.DIRECT:
                marked = self._deduplication.mark(key, rows, may_read=not self._quick)
            else:
                marked = rows
                self._deduplication.forget_window(key.start_ms)
            row_sum = batch_sums(marked) if self._cursors.is_taken(key.start_ms) else None
            done.placed.append(Placed(key, self._schedule.append(key, marked), marked, row_sum))
            if not self.count_skipped and source == ScheduleSource.DIRECT:
                done.count(rows)

    def enter_retired(self, counted: LedgerBatch) -> None:
        """Enter windows in the ledger, whose messages are all placed. Raises DiskFullError, SyncFailedError."""
        self._retired.enter(counted)

    def _behind_high_water(self, key: ScheduleKey, rows: MessageBatch, done: Round) -> MessageBatch:
        """The rows that the file does not have yet. The round knows the others."""
        high_water = self._high_water(key)
        if int(rows.sequence[0]) > high_water:
            return rows
        new = int(np.searchsorted(rows.sequence, high_water, side="right"))
        with_id = np.flatnonzero(rows.id_hash[:new])
        if len(with_id):
            done.skipped.append((key, rows.sequence[with_id]))
        return rows.slice(new, len(rows))

    def _high_water(self, key: ScheduleKey) -> int:
        if key.source == ScheduleSource.DAY and self._days.is_drained(key.start_ms):
            return 1 << 62  # the minutes have all of it, and the day file may be gone
        if key.source == ScheduleSource.DAY and not self._days.is_whole(key.start_ms):
            return self._schedule.last_sequence(key)
        # Without the file that retention removed there is no other high-water mark.
        return max(self._schedule.last_sequence(key), self._retired.up_to(key.start_ms))
