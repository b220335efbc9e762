"""Has the outcomes of `Decided` written to dispatch_log (`OutcomeWriter`), many rows at a time.

Clients do not wait for outcomes as they do for acks, so the outcomes of a burst are written when it is over.
"""

from __future__ import annotations

import trio

from delayserver.config.settings import DispatchSettings
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.decisions.outcome_writer import OutcomeWriter
from delayserver.state.windows.window_book import WindowBook
from store.errors import StoreError
from store.logs.dispatch_log import DispatchKey

# The outcomes of a burst are written when none came for so long.
QUIET_MS = 20


class OutcomeRecorder:
    """Chooses when the outcomes of `Decided` are written, and tells it and the windows when they are durable."""

    def __init__(
        self,
        decided: Decided,
        writer: OutcomeWriter,
        book: WindowBook,
        settings: DispatchSettings,
        late_ms_max: int,
        runtime: Runtime,
    ) -> None:
        """`late_ms_max`: the longest time in which the outcomes of a burst may gather."""
        self._decided = decided
        self._writer = writer
        self._book = book
        self._settings = settings
        self._late_ms_max = late_ms_max
        self._clock = runtime.clock
        self._flushing = False
        self._flushed = trio.Event()
        self._failure: StoreError | None = None

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
            keys = await self._writer.write(batches, decided.writing_new)
            decided.end_write(totals)
        finally:
            writes.release()
        return keys
