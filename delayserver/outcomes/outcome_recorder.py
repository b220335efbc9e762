"""Writes the outcomes of `Decided` to dispatch_log, many rows at a time. The only writer of the log.

Clients do not wait for outcomes as they do for acks, so the outcomes of a burst are written when it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from delayserver.config.settings import DispatchSettings
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.windows.window_book import WindowBook
from store.errors import DiskFullError, StoreError
from store.logs.dispatch_log import DispatchKey, DispatchLog
from store.records.batches import OutcomeBatch

# The outcomes of a burst are written when none came for so long.
QUIET_MS = 20


class OutcomeRecorder:
    """Writes outcomes from `Decided` to dispatch_log."""

    def __init__(
        self,
        decided: Decided,
        log: DispatchLog,
        book: WindowBook,
        settings: DispatchSettings,
        late_ms_max: int,
        runtime: Runtime,
    ) -> None:
        """`late_ms_max`: the longest time in which the outcomes of a burst may gather."""
        self._decided = decided
        self._log = log
        self._book = book
        self._workers = runtime.workers
        self._settings = settings
        self._late_ms_max = late_ms_max
        self._clock = runtime.clock
        self._flushing = False
        self._flushed = trio.Event()
        self._failure: StoreError | None = None
        self.disk_full = False

    async def run(self) -> None:
        """Flushes until cancelled. Raises StoreError if a sync fails; the server must then stop."""
        decided = self._decided
        while True:
            if not decided.is_waiting and not decided.gave_up:
                decided.arrived.hush()
                await decided.arrived.rung()
            await self._hot_moment_over()
            decided.wanted.hush()
            await self.flush()
            # Outcomes that come within this time share the next sync, unless a caller waits for them.
            with trio.move_on_after(self._settings.outcome_flush_ms / 1000):
                await decided.wanted.rung()

    async def _hot_moment_over(self) -> None:
        decided = self._decided
        decided.hurry.hush()
        for _ in range(self._late_ms_max // QUIET_MS):
            full = decided.rows_waiting > self._settings.outcome_rows_max // 2
            waited_for = decided.hurry.is_rung or decided.written.awaited
            if not decided.was_hot() or waited_for or full:
                break
            with trio.move_on_after(QUIET_MS / 1000):
                await decided.hurry.rung()
        decided.was_hot()

    async def flush(self) -> None:
        """Writes and syncs all decided outcomes. A second caller waits for the first. Raises the StoreError of this or
        an earlier flush: a checkpoint must not cover lost outcomes."""
        while self._flushing and not self._decided.gave_up:
            await self._flushed.wait()
        if self._failure is not None:
            raise self._failure
        if self._decided.gave_up:
            await trio.sleep_forever()  # the server ends: a write must not suggest that the lost outcomes are durable
        if not self._decided.is_waiting:
            return
        self._flushing, self._flushed = True, trio.Event()
        keys = None
        try:
            keys = await self._write_all()
        except StoreError as error:
            self._failure = error
            raise
        finally:
            if keys is None:
                self._decided.give_up()
            self._flushed.set()
        self._flushing = False
        self._book.outcomes_durable(keys)

    async def _write_all(self) -> set[DispatchKey]:
        """Make all that waits durable, and count it so. Returns the files."""
        decided, writes = self._decided, self._decided.writes
        if writes.locked():
            await writes.acquire()
        else:
            writes.acquire_nowait()  # an event-loop iteration less
        try:
            batches, totals = decided.begin_write(), decided.totals.copy()
            keys = await self._write(batches)
            decided.wrote(totals)
        finally:
            writes.release()
        return keys

    async def _write(self, batches: list[OutcomeBatch]) -> set[DispatchKey]:
        """Writes and syncs outcomes in a thread, as they are not urgent. Returns the files. Retries on a full disk."""
        parts: list[tuple[DispatchKey, OutcomeBatch]] = []
        done = 0

        def write() -> None:
            if not parts:  # the first try; a hop to a thread costs as much as sorting them
                parts.extend(self._decided.by_file(OutcomeBatch.concatenate(batches)))
            self._append_and_sync(parts, done)

        while True:
            try:
                await self._run(write)
                self.disk_full = False
                return {key for key, _ in parts}
            except _PartlyWrittenError as error:
                done += error.parts
                self.disk_full = True
                self._decided.disk_full.ring()
                # Not shielded: a stop must not wait for free space. The next start finds these messages undecided.
                await self._clock.sleep_ms(200)

    async def _run(self, work: Callable[[], Any]) -> Any:
        with trio.CancelScope(shield=True):
            return await self._workers.run(work)

    def _append_and_sync(self, parts: list[tuple[DispatchKey, OutcomeBatch]], done: int) -> None:
        """Writes the parts behind the first `done`, which an earlier try wrote, and syncs all parts."""
        try:
            self._log.prepare([key for key, _ in parts[done:]])
        except DiskFullError as error:
            raise _PartlyWrittenError(0) from error
        for count, (key, part) in enumerate(parts[done:]):
            try:
                self._log.append(key, part)
            except DiskFullError as error:
                raise _PartlyWrittenError(count) from error
        try:
            self._log.sync([key for key, _ in parts])
        except DiskFullError as error:  # no descriptor to open a file again with: no sync has failed
            raise _PartlyWrittenError(len(parts) - done) from error


class _PartlyWrittenError(Exception):
    """The disk is full; the first `parts` files of this try were written."""

    def __init__(self, parts: int) -> None:
        super().__init__(parts)
        self.parts = parts
