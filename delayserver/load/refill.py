"""Reads rows back that left memory out of a full queue, when their group or a fallback group can take them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import trio

from delayserver.load.window_loads import STEP_ROWS
from delayserver.load.window_reader import WindowReader
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.loaded_rows import LoadedRows
from delayserver.state.memory.read_back import ReadBack
from delayserver.state.memory.residency import Residency
from delayserver.state.positions.positions import Positions
from delayserver.state.windows.window_book import WindowBook
from store.errors import CorruptionError, DiskError
from store.indexes.outcome_index import OutcomeIndex
from wheel.keys import KEY_HIGHEST, KEY_LOWEST, Key, before, behind

# While nothing waits to be read back, it is looked for this often. A bell rings before.
IDLE_S = 1.0
# While all that is read back goes to wheels, this is the pause after a read. It is no poll: from wheels the rows may leave
# memory again at once, and each such round reads a file.
PAUSE_S = 0.01
# Rows of a window that are read at once: each read goes through the whole window, and takes some 300 bytes a row.
READ_ROWS_MAX = 1 << 18


class Refill:
    """Schedule files → queues."""

    def __init__(
        self,
        reader: WindowReader,
        residency: Residency,
        read_back: ReadBack,
        book: WindowBook,
        decided: Decided,
        positions: Positions,
        runtime: Runtime,
    ) -> None:
        self._reader = reader
        self._residency = residency
        self._read_back = read_back
        self._book = book
        self._decided = decided
        self._positions = positions
        self._workers = runtime.workers
        self._damage = runtime.damage

    async def run(self) -> None:
        """Read back until cancelled."""
        emptied = self._read_back.emptied
        while True:
            emptied.hush()
            spilled = self._read_back.spilled()
            queued = [await self.read_back(group, route_number) for group, route_number in spilled]
            if not spilled:
                with trio.move_on_after(IDLE_S):
                    await emptied.rung()
            elif not any(queued):
                await trio.sleep(PAUSE_S)  # not for the bell: rows that leave memory again may ring it

    async def read_back(self, group: GroupRows, route_number: int | None) -> bool:
        """Read the first spilled window of a group; with a route number only rows of that route, for their fallback group.
        Returns whether a queue got rows."""
        if not self._read_back.may_read_back(group, route_number):
            return False
        # Before the ends are captured: rows that are dropped while the window is read may lie behind them.
        window, route_numbers = group.spilled.take(route_number)
        try:
            return await self._read(group, route_number, window, route_numbers)
        finally:
            group.spilled.end_read()

    async def _read(self, group: GroupRows, route_number: int | None, window: int, route_numbers: list[int]) -> bool:
        ends = self._reader.ends(window)
        if not any(ends.values()):
            return False  # all of it was decided meanwhile, and retention took the files
        first = group.spilled.reading
        read = partial(self._read_from, window, ends, KEY_LOWEST if first is None else before(first))
        try:
            async with self._decided.pinned(self._book.outcome_file(window)) as index:
                loaded = await self._workers.run(read)
                return await self._push_back(group, route_number, window, route_numbers, loaded, index)
        except (CorruptionError, DiskError) as error:
            self._damage.report(error)
            self._read_back.read_later(group, route_numbers, window, error)
        except KeyError:
            if self._reader.ends(window) == ends:
                raise
            for route in route_numbers:
                group.spilled.add(window, route)  # retention took a file during the read: what is left is read anew
        return False

    def _read_from(self, window_ms: int, ends: Mapping[str, int], from_key: Key) -> LoadedRows:
        """The first rows behind a key, in their order."""
        loaded = self._reader.read(window_ms, ends, from_key, KEY_HIGHEST, READ_ROWS_MAX).loaded
        return replace(loaded.by_key(), limit=loaded.limit)

    async def _push_back(
        self,
        group: GroupRows,
        route_number: int | None,
        window_ms: int,
        route_numbers: list[int],
        loaded: LoadedRows,
        index: OutcomeIndex,
    ) -> bool:
        residency, read_back, queued = self._residency, self._read_back, False
        taker = read_back.taker(group, route_number)
        left = behind(loaded.limit)
        for part in loaded.parts(STEP_ROWS):
            # One step: nothing can be released, delivered or cancelled between the checks and the push.
            # What is placed and not published is the publisher's, but for what a load has brought: a start loads files that
            # the crash left ahead of its replay.
            wanted = self._positions.has_published(part.sequence) | residency.was_loaded(part)
            wanted &= index.missing(part.sequence)
            wanted &= read_back.routed(group, route_number, part)
            went, no_room = read_back.take(group, route_number, taker, residency.admissible(part, wanted))
            queued |= went
            if no_room is not None:
                left = no_room
                break
            if part.limit < KEY_HIGHEST:
                await trio.lowlevel.checkpoint()
        if left is not None:
            for route in route_numbers:
                group.spilled.add(window_ms, route, left)
        return queued
