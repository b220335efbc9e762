"""Writes the checkpoint: syncs the schedule files, then records the replay position and the file contents (rule 6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import numpy as np
import trio

from delayserver.config.settings import StorageSettings
from delayserver.runtime.runtime import Runtime
from delayserver.state.counts.waiting_ages import WaitingAges
from delayserver.state.files import Files, sync_sources
from delayserver.state.memory.attempt_horizon import AttemptHorizon
from delayserver.upkeep.checkpoint_file import CheckpointFile
from delayserver.upkeep.progress import Captured, Progress
from store.errors import DiskFullError
from store.logs.dispatch_log import DispatchKey, DispatchMark
from store.records.batches import I64
from store.tables.checkpoint import (
    Checkpoint,
    CoarseDays,
    OrphanedOutcomes,
    PendingRedeliveries,
    PendingSchedules,
    PendingSubjects,
    Uncertain,
)
from store.tables.checkpoint_marks import dispatch_table, lost_table, schedule_table

POLL_MS = 250

T = TypeVar("T")


class Checkpointing:
    """Writes checkpoints often enough that a start replays little."""

    def __init__(
        self,
        file: CheckpointFile,
        files: Files,
        progress: Progress,
        horizon: AttemptHorizon,
        settings: StorageSettings,
        runtime: Runtime,
    ) -> None:
        self._file = file
        self._files = files
        self._progress = progress
        self._positions = progress.positions
        self._decided = progress.decided
        self._horizon = horizon
        self._settings = settings
        self._clock = runtime.clock
        self._workers = runtime.workers
        self._writing = trio.Lock()
        self._before: list[Callable[[], Awaitable[None]]] = []
        self._written_position = -1
        self._written_outcomes = -1
        # Where replay stood when the last checkpoint was begun.
        self._begun_position = self._positions.replayed.value
        self.written = 0
        self.disk_full = False

    def call_before(self, work: Callable[[], Awaitable[None]]) -> None:
        """Has other files made durable before each checkpoint, as far as its position at least."""
        self._before.append(work)

    async def run(self) -> None:
        """Writes checkpoints until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deliver_on_a_full_disk)
            await self._write_when_due()

    async def _deliver_on_a_full_disk(self) -> None:
        """Moves the horizon while a checkpoint waits for outcomes that have no room on the disk."""
        while True:
            self._decided.disk_full.hush()
            await self._decided.disk_full.rung()
            await self._move_horizon()

    async def _write_when_due(self) -> None:
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

    async def run_horizon(self) -> None:
        """Moves only the horizon until cancelled, for a start that delivers before its replay is complete. A whole
        checkpoint would claim that cancels are recorded, although they wait for the end of the replay."""
        while True:
            await self._move_horizon()
            await self._clock.sleep_ms(POLL_MS)

    def _is_due(self, waited_us: int) -> bool:
        if self._horizon.is_near(self._clock.now_ms()):
            return True
        if self._positions.replayed.value - self._begun_position >= self._settings.checkpoint_bytes:
            return True
        return waited_us >= self._settings.checkpoint_interval_ms * 1000 and self._changed()

    def _changed(self) -> bool:
        moved = self._positions.replayed.value != self._written_position
        return moved or self._progress.outcomes != self._written_outcomes

    async def write(self, *, clean: bool = False, uncertain: Uncertain | None = None) -> None:
        """Syncs and writes a checkpoint, after any in progress. Raises DiskFullError; SyncFailedError is final."""
        async with self._writing:  # a clean stop and the periodic checkpoint use the same temporary file
            await self._write(clean, uncertain)

    async def _write(self, clean: bool, uncertain: Uncertain | None) -> None:
        captured, peak_us = self._progress.capture(), self._clock.now_us()
        self._begun_position = captured.position
        for work in self._before:
            await work()
        await self._decided.wait_all_written()
        async with self._decided.writes:  # so that marks and counts are of the same outcomes
            ended = self._progress.ended_subjects()
            captured.redeliveries.merge(self._progress.ended_redeliveries(), -1)
            marks = await self._run(self._files.dispatch.marks)
        pending = None if captured.subjects is None else _difference(captured.subjects, ended)
        await self._run(partial(self._save, captured, marks, pending, peak_us, clean, uncertain))
        self._written_position, self._written_outcomes = captured.position, captured.outcomes
        self._positions.checkpointed.advance(captured.position)
        self._horizon.move(peak_us)
        self.written += 1

    async def _run(self, work: Callable[[], T]) -> T:
        scope = trio.CancelScope(shield=True)
        with scope:
            result = await self._workers.run(work)
        return result

    async def _move_horizon(self) -> None:
        """Writes the last checkpoint again with a new horizon, so that deliveries go on while the disk is full. Uses
        the room that was kept for it. May run while `_write` waits for room for outcomes, or is in its thread."""
        if self._horizon.is_near(self._clock.now_ms()):
            peak_us = self._clock.now_us()
            await self._run(partial(self._file.move_horizon, peak_us))
            self._horizon.move(peak_us)

    def _save(
        self,
        captured: Captured,
        dispatch_marks: dict[DispatchKey, DispatchMark],
        pending: I64 | None,
        peak_us: int,
        clean: bool,
        uncertain: Uncertain | None,
    ) -> None:
        # The marks of outcomes were taken before the syncs, which then make the message of each of these outcomes durable.
        # Of outcomes that come meanwhile the messages may be lost with the power, and a start looks only behind the marks
        # for such.
        schedule, dispatch = self._files.schedule, self._files.dispatch
        sync_sources(self._files)
        schedule.sync()
        drains, orphans = captured.drains, captured.orphans
        self._file.write(
            Checkpoint(
                server_id=self._files.server_id,
                replay_offset=captured.position,
                replayed_sequence=captured.sequence,
                schedule=schedule_table(schedule.marks()),
                dispatch=dispatch_table(dispatch_marks),
                coarse_days=CoarseDays.filled(
                    len(drains),
                    start_ms=np.array(list(drains), dtype=np.int64),
                    drain_offset=np.array(list(drains.values()), dtype=np.int64),
                ),
                totals=captured.totals,
                clean=clean,
                orphans=OrphanedOutcomes.filled(
                    len(orphans),
                    start_ms=np.array(list(orphans), dtype=np.int64),
                    rows=np.array(list(orphans.values()), dtype=np.int64),
                ),
                window_ms=self._settings.window_ms,
                lost=lost_table(schedule.lost, dispatch.lost),
                believable_us=captured.believable_us,
                pending=None if pending is None else PendingSubjects.of(pending),
                redeliveries=None if pending is None else _redeliveries_table(captured.redeliveries),
                uncertain=uncertain,
                schedules=PendingSchedules.of(captured.schedules),
            ),
            peak_us,
        )


def _redeliveries_table(pending: WaitingAges) -> PendingRedeliveries:
    rows = [
        (*key, step_ms, start_ms, count)
        for key, step_ms, counts in pending.steps()
        for start_ms, count in counts.items()
    ]
    subject, group, step_ms, since_ms, count = np.array(rows, np.int64).reshape(-1, 5).T
    return PendingRedeliveries.filled(
        len(rows), subject=subject, consumer_group=group, step_ms=step_ms, since_ms=since_ms, rows=count
    )


def _difference(placed: I64, ended: I64) -> I64:
    difference = np.zeros(max(len(placed), len(ended)), np.int64)
    difference[: len(placed)] += placed
    difference[: len(ended)] -= ended
    return difference
