"""Writes what is decided to dispatch_log, many rows at a time. It waits for `Decided`, and is the only writer of the log.

Nobody waits for an outcome as for an acknowledgement, so the outcomes of a hot moment are written when it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from delayserver.config.settings import DispatchSettings
from delayserver.runtime.runtime import Runtime
from delayserver.state.decided import Decided
from delayserver.state.window_book import WindowBook
from store.errors import DiskFullError, StoreError
from store.logs.dispatch_log import DispatchKey, DispatchLog
from store.records.batches import OutcomeBatch

# The outcomes of a hot moment are written when it is over, which is when none came for a while, or at the latest after
# that: a writing thread competes for the GIL with what consumers wait for.
QUIET_MS = 20
HOT_MS_MAX = 100


class OutcomeRecorder:
    """Decided → dispatch_log."""

    def __init__(
        self,
        decided: Decided,
        log: DispatchLog,
        book: WindowBook,
        settings: DispatchSettings,
        hot_ms_max: int,
        runtime: Runtime,
    ) -> None:
        """`hot_ms_max`: how long the outcomes of a hot moment may gather."""
        self._decided = decided
        self._log = log
        self._book = book
        self._workers = runtime.workers
        self._settings = settings
        self._hot_ms_max = hot_ms_max
        self._clock = runtime.clock
        self._flushing = False
        self._flushed = trio.Event()
        self._failure: StoreError | None = None
        self.disk_full = False

    async def run(self) -> None:
        """Flush until cancelled. A failed sync is raised: the server must stop."""
        decided = self._decided
        while True:
            if not decided.is_waiting and not decided.gave_up:
                decided.arrived.hush()
                await decided.arrived.rung()
            await self._hot_moment_over()
            decided.wanted.hush()
            await self.flush()
            # Outcomes that come within this time share the next sync, unless a part waits for them.
            with trio.move_on_after(self._settings.outcome_flush_ms / 1000):
                await decided.wanted.rung()

    async def _hot_moment_over(self) -> None:
        decided = self._decided
        decided.hurry.hush()
        for _ in range(self._hot_ms_max // QUIET_MS):
            full = decided.rows_waiting > self._settings.outcome_rows_max // 2
            waited_for = decided.hurry.is_rung or decided.written.awaited
            if not decided.was_hot() or waited_for or full:
                break
            with trio.move_on_after(QUIET_MS / 1000):
                await decided.hurry.rung()
        decided.was_hot()

    async def flush(self) -> None:
        """Write and sync what is decided. One at a time; a second caller waits for the first, and is told of its failure: a
        checkpoint must not go past outcomes that were lost."""
        while self._flushing and not self._decided.gave_up:
            await self._flushed.wait()
        if self._failure is not None:
            raise self._failure
        if self._decided.gave_up:
            await trio.sleep_forever()  # the server ends: nothing may be written as if those were durable
        if not self._decided.is_waiting:
            return
        batches = self._decided.begin_write()
        totals = self._decided.totals.copy()
        self._flushing, self._flushed = True, trio.Event()
        keys = None
        try:
            keys = await self._write(batches)
        except StoreError as error:
            self._failure = error
            raise
        finally:
            if keys is None:
                self._decided.give_up()
            self._flushed.set()
        self._flushing = False
        self._decided.wrote(totals)
        self._book.outcomes_durable(keys)

    async def _write(self, batches: list[OutcomeBatch]) -> set[DispatchKey]:
        """No part waits for an outcome as for an ack, so the disk is never waited for on the event loop."""
        parts: list[tuple[DispatchKey, OutcomeBatch]] = await self._run(
            lambda: self._decided.by_file(OutcomeBatch.concatenate(batches))
        )
        done = 0
        while True:
            try:
                await self._run(partial(self._append_and_sync, parts, done))
                self.disk_full = False
                return {key for key, _ in parts}
            except _PartlyWrittenError as error:
                done += error.parts
                self.disk_full = True
                self._decided.disk_full.ring()
                # Not shielded: a stop must not wait for room that nobody makes. The next start finds these undone.
                await self._clock.sleep_ms(200)

    async def _run(self, work: Callable[[], Any]) -> Any:
        with trio.CancelScope(shield=True):
            return await self._workers.run(work)

    def _append_and_sync(self, parts: list[tuple[DispatchKey, OutcomeBatch]], done: int) -> None:
        """Go on behind the parts an earlier try wrote before the disk was full, and sync those as well."""
        try:
            self._log.prepare([key for key, _ in parts[done:]])
        except DiskFullError as error:
            raise _PartlyWrittenError(0) from error
        for count, (key, part) in enumerate(parts[done:]):
            try:
                self._log.append(key, part)
            except DiskFullError as error:
                raise _PartlyWrittenError(count) from error
        self._log.sync([key for key, _ in parts])


class _PartlyWrittenError(Exception):
    """The disk is full; the first `parts` files were written."""

    def __init__(self, parts: int) -> None:
        super().__init__(parts)
        self.parts = parts
