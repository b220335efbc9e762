"""Writes the checkpoint: syncs the schedule files, then records the replay position and the file contents (rule 6)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock

import numpy as np
import trio

from delayserver.config.settings import StorageSettings
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.runtime import Runtime
from delayserver.state.attempt_horizon import AttemptHorizon
from delayserver.state.balance import Balance
from delayserver.state.decided import Decided
from delayserver.state.drains import Drains
from delayserver.state.positions import Positions
from delayserver.state.window_book import WindowBook
from store.disk.filesystem import FileSystem, keep_room
from store.errors import DiskFullError
from store.logs.dispatch_log import DispatchLog
from store.logs.message_log import MessageLog
from store.logs.schedule_log import ScheduleLog
from store.tables import checkpoint as file
from store.tables.checkpoint import Checkpoint, CoarseDays, OrphanedOutcomes
from store.tables.checkpoint_marks import dispatch_table, lost_table, schedule_table
from store.tables.identity import SequenceReservation

POLL_MS = 250


class Checkpointing:
    """Writes checkpoints often enough that a start replays little."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        server_id: int,
        schedule: ScheduleLog,
        dispatch: DispatchLog,
        log: MessageLog,
        positions: Positions,
        balance: Balance,
        decided: Decided,
        drains: Drains,
        book: WindowBook,
        horizon: AttemptHorizon,
        sequences: SequenceReservation,
        believable: BelievableClock,
        settings: StorageSettings,
        saved: Checkpoint | None,
        runtime: Runtime,
    ) -> None:
        """`saved`: the checkpoint that the start found, or None."""
        self._fs = fs
        self._path = path
        self._server_id = server_id
        self._schedule = schedule
        self._dispatch = dispatch
        self._log = log
        self._positions = positions
        self._balance = balance
        self._decided = decided
        self._drains = drains
        self._book = book
        self._horizon = horizon
        self._sequences = sequences
        self._believable = believable
        self._settings = settings
        self._clock = runtime.clock
        self._workers = runtime.workers
        self._writing = trio.Lock()
        # `_saved` is the checkpoint on the disk. `_peak_us` is the latest time that this process meant to write to one.
        self._saved = saved
        self._peak_us = horizon.peak_us
        self._saving = Lock()
        self._written_position = -1
        self._written_outcomes = -1
        # The replay position at the beginning of the last checkpoint.
        self._begun_position = positions.replayed.value
        self.written = 0
        self.disk_full = False

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
        return moved or int(self._decided.totals.sum()) != self._written_outcomes

    async def write(self, *, clean: bool = False) -> None:
        """Syncs and writes a checkpoint, after any in progress. Raises DiskFullError; SyncFailedError is final."""
        async with self._writing:  # a clean stop and the periodic checkpoint use the same temporary file
            await self._write(clean)

    async def _write(self, clean: bool) -> None:
        # Captured in one step. The marks of files may also cover rows that are replayed meanwhile. The next start skips
        # these because of the high-water marks.
        position = self._begun_position = self._positions.replayed.value
        sequence = self._positions.replayed_sequence.value
        totals = {"accepted": self._balance.placed, "internal": self._balance.internal}
        drains = dict(self._drains.positions)
        outcomes = int(self._decided.totals.sum())
        believable_us = self._believable.now_us()
        peak_us = self._clock.now_us()
        await self._decided.all_written()
        await self._run(
            partial(
                self._save, position, sequence, totals, drains, dict(self._book.orphans), believable_us, peak_us, clean
            )
        )
        self._written_position, self._written_outcomes = position, outcomes
        self._positions.checkpointed.advance(position)
        self._horizon.move(peak_us)
        self.written += 1

    async def _run(self, work: Callable[[], None]) -> None:
        with trio.CancelScope(shield=True):
            await self._workers.run(work)

    async def _move_horizon(self) -> None:
        """Writes the last checkpoint again with a new horizon, so that deliveries go on while the disk is full. Uses
        the room that was kept for it. May run while `_write` waits for room for outcomes, or is in its thread."""
        if self._horizon.is_near(self._clock.now_ms()):
            peak_us = self._clock.now_us()
            await self._run(partial(self._save_horizon, peak_us))
            self._horizon.move(peak_us)

    def _save_horizon(self, peak_us: int) -> None:
        with self._saving:
            if self._saved is None:
                self._reserve_clock(peak_us)
            else:
                # Even this may find no room, on a copy-on-write file system or because another process took it. Then
                # after a crash and a step back of the clock, an attempt may look like one in the future.
                with suppress(DiskFullError):
                    self._replace(replace(self._saved, clean=False), peak_us)

    def _replace(self, checkpoint: Checkpoint, peak_us: int) -> None:
        """Writes a checkpoint; call with `_saving` held. The horizon never moves back."""
        self._peak_us = max(self._peak_us, peak_us)
        checkpoint = replace(checkpoint, written_us=self._peak_us)
        file.write(self._fs, self._path, checkpoint)
        self._saved = checkpoint
        self._reserve_clock(self._peak_us)
        if not checkpoint.clean:
            keep_room(self._fs, self._path, 2 * self._fs.size(self._path))

    def _reserve_clock(self, peak_us: int) -> None:
        """Also stores the horizon in the reservation, in case the checkpoint is lost. A full disk is no error here."""
        with suppress(DiskFullError):
            self._sequences.reserve_clock(peak_us)

    def _save(
        self,
        position: int,
        sequence: int,
        totals: dict[str, int],
        drains: dict[int, int],
        orphans: dict[int, int],
        believable_us: int,
        peak_us: int,
        clean: bool,
    ) -> None:
        # Marks first: the syncs then make the message of each marked outcome durable. Messages of later outcomes may be
        # lost with the power, and a start searches for such outcomes only behind the marks.
        dispatch = self._dispatch.marks()
        self._log.sync_assumed()  # the checkpoint must not point at records that a power loss takes (durability `os`)
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
                    lost=lost_table(self._schedule.lost, self._dispatch.lost),
                    believable_us=believable_us,
                ),
                peak_us,
            )
