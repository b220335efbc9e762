"""Writes the checkpoint: syncs the schedule files first, then says how far replay came and what the files hold (rule 6)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock

import numpy as np
import trio

from delayserver.attempt_horizon import AttemptHorizon
from delayserver.clock import Clock
from delayserver.day_tier import DayTier
from delayserver.outcome_recorder import OutcomeRecorder
from delayserver.publisher import Publisher
from delayserver.replayer import Replayer
from delayserver.settings import StorageSettings
from delayserver.window_book import WindowBook
from store import checkpoint as file
from store.checkpoint import Checkpoint, CoarseDays, DispatchFiles, OrphanedOutcomes, ScheduleFiles
from store.dispatch_log import DispatchKey, DispatchLog, DispatchMark
from store.errors import DiskFullError
from store.filesystem import FileSystem, keep_room
from store.schedule_log import ScheduleKey, ScheduleLog, Source
from store.window_state import FileMark

POLL_MS = 250


class Checkpointing:
    """Keeps the checkpoint young, so that a start replays little."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        server_id: int,
        schedule: ScheduleLog,
        dispatch: DispatchLog,
        replayer: Replayer,
        recorder: OutcomeRecorder,
        publisher: Publisher,
        tier: DayTier,
        book: WindowBook,
        horizon: AttemptHorizon,
        settings: StorageSettings,
        clock: Clock,
        saved: Checkpoint | None,
    ) -> None:
        """`saved`: the checkpoint that the start found, None where it found none."""
        self._fs = fs
        self._path = path
        self._server_id = server_id
        self._schedule = schedule
        self._dispatch = dispatch
        self._replayer = replayer
        self._recorder = recorder
        self._publisher = publisher
        self._tier = tier
        self._book = book
        self._horizon = horizon
        self._settings = settings
        self._clock = clock
        self._writing = trio.Lock()
        # What is on the disk, changed together with it; and the latest time that a checkpoint of this life was to tell.
        self._saved = saved
        self._peak_us = horizon.peak_us
        self._saving = Lock()
        recorder.on_disk_full = self._move_horizon
        self._written_position = -1
        self._written_outcomes = -1
        self.durable_position = 0
        self.written = 0
        self.disk_full = False

    async def run(self) -> None:
        """Write checkpoints until cancelled."""
        last_us = self._clock.monotonic_us()
        while True:
            if self._is_due(self._clock.monotonic_us() - last_us):
                try:
                    await self.write()
                    self.disk_full = False
                except DiskFullError:
                    self.disk_full = True
                    await self._move_horizon()
                last_us = self._clock.monotonic_us()
            left_ms = self._settings.checkpoint_interval_ms - (self._clock.monotonic_us() - last_us) // 1000
            await self._clock.sleep_ms(min(left_ms, POLL_MS) if left_ms > 0 else POLL_MS)

    def _is_due(self, waited_us: int) -> bool:
        if self._horizon.is_near(self._clock.now_ms()):
            return True
        if self._replayer.bytes_since_checkpoint >= self._settings.checkpoint_bytes:
            return True
        return waited_us >= self._settings.checkpoint_interval_ms * 1000 and self._changed()

    def _changed(self) -> bool:
        moved = self._replayer.position != self._written_position
        return moved or int(self._recorder.totals.sum()) != self._written_outcomes

    async def write(self, *, clean: bool = False) -> None:
        """Sync and write one checkpoint, after one that is being written. Raises DiskFullError; SyncFailedError is final."""
        async with self._writing:  # a clean stop comes beside the periodic one, and both would use one temporary file
            await self._write(clean)

    async def _write(self, clean: bool) -> None:
        # Captured in one step. What replay does meanwhile may be in the marks of files too; their high-water marks
        # make the next start skip it.
        position = self._replayer.position
        sequence = self._replayer.replayed_sequence
        totals = {"accepted": self._publisher.accepted, "internal": self._publisher.internal}
        drains = dict(self._tier.positions)
        outcomes = int(self._recorder.totals.sum())
        self._replayer.bytes_since_checkpoint = 0
        peak_us = self._clock.now_us()
        await self._recorder.flush()
        await self._run(
            partial(self._save, position, sequence, totals, drains, dict(self._book.orphans), peak_us, clean)
        )
        self._written_position, self._written_outcomes = position, outcomes
        self.durable_position = position
        self._horizon.move(peak_us)
        self.written += 1

    async def _run(self, work: Callable[[], None]) -> None:
        if self._fs.inline:
            work()
            return
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(work)

    async def _move_horizon(self) -> None:
        """On a full disk deliveries do not wait for the operator: write the last checkpoint again, with another horizon,
        over the room that was kept for it. May come while `_write` waits for room for outcomes, or is in its thread."""
        if self._horizon.is_near(self._clock.now_ms()):
            peak_us = self._clock.now_us()
            await self._run(partial(self._save_horizon, peak_us))
            self._horizon.move(peak_us)

    def _save_horizon(self, peak_us: int) -> None:
        with self._saving:
            if self._saved is not None:
                # Where even that finds no room (a file system that writes nothing in place, another process that took
                # it), a step back of the clock together with a crash makes an attempt look as if it lay ahead.
                with suppress(DiskFullError):
                    self._replace(replace(self._saved, clean=False), peak_us)

    def _replace(self, checkpoint: Checkpoint, peak_us: int) -> None:
        """Within `_saving`: of two that come at the same time none may take the horizon back."""
        self._peak_us = max(self._peak_us, peak_us)
        checkpoint = replace(checkpoint, written_us=self._peak_us)
        file.write(self._fs, self._path, checkpoint)
        self._saved = checkpoint
        if not checkpoint.clean:
            keep_room(self._fs, self._path, 2 * self._fs.size(self._path))

    def _save(
        self,
        position: int,
        sequence: int,
        totals: dict[str, int],
        drains: dict[int, int],
        orphans: dict[int, int],
        peak_us: int,
        clean: bool,
    ) -> None:
        # Before the syncs, which then make the message of each of these outcomes durable. Of outcomes that come meanwhile
        # the messages may be lost with the power, and a start looks only behind the marks for such.
        dispatch = self._dispatch.marks()
        self._replayer.sync_source()
        self._schedule.sync()
        schedule = self._schedule.marks()
        with self._saving:
            self._replace(
                Checkpoint(
                    server_id=self._server_id,
                    replay_offset=position,
                    replayed_sequence=sequence,
                    schedule=schedule_table(schedule),
                    dispatch=dispatch_table(dispatch),
                    coarse_days=CoarseDays.filled(
                        len(drains),
                        start_ms=np.array(list(drains), dtype=np.int64),
                        drain_offset=np.array(list(drains.values()), dtype=np.int64),
                    ),
                    totals=totals,
                    clean=clean,
                    orphans=OrphanedOutcomes.filled(
                        len(orphans),
                        start_ms=np.array(list(orphans), dtype=np.int64),
                        rows=np.array(list(orphans.values()), dtype=np.int64),
                    ),
                    window_ms=self._settings.window_ms,
                ),
                peak_us,
            )


def schedule_table(marks: dict[ScheduleKey, FileMark]) -> ScheduleFiles:
    """Marks of schedule files as the checkpoint's columns."""
    keys, values = list(marks), list(marks.values())
    return ScheduleFiles.filled(
        len(keys),
        start_ms=np.array([key.start_ms for key in keys], dtype=np.int64),
        source=np.array([int(key.source) for key in keys], dtype=np.uint8),
        end=np.array([mark.end for mark in values], dtype=np.int64),
        last_sequence=np.array([mark.last_sequence for mark in values], dtype=np.int64),
        rows=np.array([mark.rows for mark in values], dtype=np.int64),
    )


def dispatch_table(marks: dict[DispatchKey, DispatchMark]) -> DispatchFiles:
    """Marks of dispatch files as the checkpoint's columns."""
    keys, values = list(marks), list(marks.values())
    return DispatchFiles.filled(
        len(keys),
        start_ms=np.array([key.start_ms for key in keys], dtype=np.int64),
        coarse=np.array([key.coarse for key in keys], dtype=np.uint8),
        end=np.array([mark.end for mark in values], dtype=np.int64),
        outcomes=np.array([mark.counts for mark in values], dtype=np.int64).reshape(len(keys), file.OUTCOMES),
        internal_rows=np.array([sum(mark.internal_counts) for mark in values], dtype=np.int64),
    )


def schedule_marks(table: ScheduleFiles) -> dict[ScheduleKey, FileMark]:
    """The inverse of `schedule_table`."""
    columns = (table.start_ms, table.source, table.end, table.last_sequence, table.rows)
    return {
        ScheduleKey(start, Source(source)): FileMark(end, last, rows)
        for start, source, end, last, rows in zip(*[column.tolist() for column in columns], strict=True)
    }


def dispatch_marks(table: DispatchFiles) -> dict[DispatchKey, DispatchMark]:
    """The inverse of `dispatch_table`; internal rows are kept as one sum."""
    columns = (table.start_ms, table.coarse, table.end, table.outcomes, table.internal_rows)
    rest = (0,) * (file.OUTCOMES - 1)
    return {
        DispatchKey(start, bool(coarse)): DispatchMark(end, tuple(counts), (internal, *rest))
        for start, coarse, end, counts, internal in zip(*[column.tolist() for column in columns], strict=True)
    }
