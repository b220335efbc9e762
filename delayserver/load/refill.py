"""Reads rows back that left memory out of a full queue, when their group or a fallback group can take them again."""

from __future__ import annotations

from functools import partial

import trio

from delayserver.load.window_reader import WindowReader, WindowRows
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.residency import Residency
from delayserver.state.positions.positions import Positions
from delayserver.state.windows.window_book import WindowBook
from store.errors import CorruptionError, DiskError
from store.indexes.outcome_index import OutcomeIndex
from wheel.keys import KEY_HIGHEST, KEY_LOWEST

# While nothing waits to be read back, it is looked for this often. A bell rings before.
IDLE_S = 1.0
# And this often while all that is read back goes to wheels: from there it may leave memory again.
LOOK_S = 0.01


class Refill:
    """Schedule files → queues."""

    def __init__(
        self,
        reader: WindowReader,
        residency: Residency,
        book: WindowBook,
        decided: Decided,
        positions: Positions,
        runtime: Runtime,
    ) -> None:
        self._reader = reader
        self._residency = residency
        self._book = book
        self._decided = decided
        self._positions = positions
        self._workers = runtime.workers
        self._damage = runtime.damage

    async def run(self) -> None:
        """Read back until cancelled."""
        emptied = self._residency.emptied
        while True:
            emptied.hush()
            spilled = self._residency.spilled()
            queued = [await self.read_back(group, place) for group, place in spilled]
            if not any(queued):
                with trio.move_on_after(LOOK_S if spilled else IDLE_S):
                    await emptied.rung()

    async def read_back(self, group: GroupRows, place: int | None) -> bool:
        """Read the first spilled window of a group; with the place of a route only its rows, for their fallback group.
        Returns whether a queue got rows."""
        if not self._residency.may_read_back(group, place):
            return False
        # Before the ends are captured: rows that are dropped while the window is read may lie behind them.
        window, places = group.spilled.take(place)
        try:
            return await self._read(group, place, window, places)
        finally:
            group.spilled.was_read()

    async def _read(self, group: GroupRows, place: int | None, window: int, places: list[int]) -> bool:
        ends = self._reader.ends(window)
        if not any(ends.values()):
            return False  # all of it was decided meanwhile, and retention took the files
        read = partial(self._reader.read, window, ends, KEY_LOWEST, KEY_HIGHEST)
        try:
            async with self._decided.pinned(self._book.outcome_file(window)) as index:
                found = await self._workers.run(read)
                # One step: nothing can be released, delivered or cancelled between the checks and the push.
                return self._push_back(group, place, window, found, index)
        except (CorruptionError, DiskError) as error:
            self._damage.report(error)
            self._residency.read_later(group, places, window, error)
        except KeyError:
            if self._reader.ends(window) == ends:
                raise
            for route in places:
                group.spilled.add(window, route)  # retention took a file during the read: what is left is read anew
        return False

    def _push_back(
        self, group: GroupRows, place: int | None, window_ms: int, found: WindowRows, index: OutcomeIndex
    ) -> bool:
        loaded = found.loaded
        wanted = index.missing(loaded.sequence) & self._positions.has_published(loaded.sequence)
        wanted &= self._residency.routed(group, place, loaded)
        return self._residency.read_back(group, place, window_ms, self._residency.admissible(loaded, wanted))
