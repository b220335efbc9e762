"""Removes old windows whose messages all have an outcome, and old segments of message_log that are replayed.

Age alone removes nothing. The counts of a window are durable in the ledger before it is removed, so the balance can
still be proven.
"""

from __future__ import annotations

import trio

from delayserver.config.settings import StorageSettings
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.runtime import Runtime
from delayserver.state.windows.windows import Windows
from delayserver.upkeep.ledger_entries import LedgerEntries
from delayserver.upkeep.on_their_way import OnTheirWay
from delayserver.upkeep.window_removal import WindowRemoval
from store.logs.due_windows import window_of

INTERVAL_MS = 5_000
# Windows that enter the ledger in one hop to a thread, for which a stop waits. Then one step of the event loop removes their
# files, which takes some milliseconds.
RETIRED_AT_ONCE = 16
# Whole days that one pass removes. Each closes 1,440 minutes at once.
WHOLE_DAYS_AT_ONCE = 16


class Retention:
    """Retires windows."""

    def __init__(
        self,
        windows: Windows,
        coming: OnTheirWay,
        entries: LedgerEntries,
        removal: WindowRemoval,
        settings: StorageSettings,
        believable: BelievableClock,
        runtime: Runtime,
    ) -> None:
        self._book = windows.book
        self._cursors = windows.cursors
        self._coming = coming
        self._entries = entries
        self._removal = removal
        self._retired = windows.retired
        self._settings = settings
        self._believable = believable
        self._clock = runtime.clock
        self.closed = windows.closed

    def oldest_due_ms(self) -> int:
        """The oldest due time that is accepted; earlier ones are `too_old`. Their window, which proves duplicates, may
        be removed at any time. Later windows refuse if they are `closed`."""
        return window_of(self._clock.now_ms() - self._settings.retention_ms, self._settings.window_ms)

    async def run(self) -> None:
        """Retires windows until cancelled. A standby retires what the log says."""
        while True:
            await self._clock.sleep_ms(INTERVAL_MS)
            if self._entries.writer.decides:
                await self.retire_windows()
            await self._remove_entered()
            await self._entries.compact()

    async def _remove_entered(self) -> None:
        """Removes the files of windows that the log of a shard has retired, once they are complete here too."""
        entered = sorted(self._retired.entered)
        if not entered:
            return
        await self._entries.wait_all_written()
        for start in sorted({self._book.start_of(start) for start in entered}):
            if self._may_go(start) and self._removal.remove(start):
                self._retired.entered.difference_update(self._minutes(start))
        await self._removal.sync()

    async def retire_windows(self) -> None:
        """One pass over complete windows past retention, by the believable time."""
        end_ms = self._believable.now_ms() - self._settings.retention_ms
        starts = {start for start in self._book.starts(end_ms) if self._book.end(start) <= end_ms}
        # An empty minute has a cursor but no files, so its cursor is removed here.
        for start in self._cursors.windows(end_ms - self._settings.window_ms):
            if start not in starts and not self._book.is_whole(start) and not self._cursors.is_loading(start):
                self._cursors.forget(start)
        done = [start for start in sorted(starts) if self._may_go(start)]
        days = [start for start in done if self._book.is_whole(start)]
        if len(days) > WHOLE_DAYS_AT_ONCE:
            later = set(days[WHOLE_DAYS_AT_ONCE:])
            done = [start for start in done if start not in later]
        if not done:
            return
        # From here on messages for these windows are refused, also if the clock goes back.
        closing = [minute for start in done for minute in self._minutes(start)]
        self.closed.close(closing)
        try:
            await self._retire(done)
        finally:
            self.closed.reopen([start for start in closing if not self._entries.has(start)])

    def _minutes(self, start_ms: int) -> range:
        return range(start_ms, self._book.end(start_ms), self._settings.window_ms)

    async def _retire(self, done: list[int]) -> None:
        coming = {self._book.start_of(start) for start in await self._coming.windows()}
        done = [start for start in done if start not in coming]
        for first in range(0, len(done), RETIRED_AT_ONCE):
            entered = await self._entries.enter(done[first : first + RETIRED_AT_ONCE], self._may_go)
            self._removal.remove_retired(entered)
            await trio.lowlevel.checkpoint()
        # A crash before this may bring files back. The ledger has their windows, and the next start removes them.
        await self._removal.sync()

    def _may_go(self, start_ms: int) -> bool:
        if self._book.is_draining(start_ms) or self._entries.is_damaged(start_ms):
            return False  # the drain brings more of its messages, or it is damaged
        return self._book.is_complete(start_ms) and not self._cursors.is_loading(start_ms)
