"""Counts the pending messages of each subject, and the redeliveries of each group, once in the files, where no checkpoint
has the counts.

It runs beside the server, in slices in worker threads. Messages that are placed or end meanwhile are counted as it happens
(`SubjectCounts`): the files are read as they were in one step of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import trio

from delayserver.logs.events import EventLogger
from delayserver.runtime.runtime import Runtime
from delayserver.state.counts.subject_counts import SubjectCounts, Tally
from delayserver.state.counts.waiting_ages import WaitingAges
from delayserver.state.decisions.decided import Decided
from delayserver.state.files import Files
from delayserver.state.positions.positions import Positions
from delayserver.state.windows.windows import Windows
from store.errors import StoreError
from store.logs.due_windows import day_of
from store.logs.open_rows import Unit, read_open_rows, units_of
from store.records.batches import I64, U32

# Rows read in one hop to a thread: some 10 ms. A stop waits no longer.
ROWS_AT_ONCE = 1 << 16
# Pause before a count that another part interrupted, such as the removal of a file, begins anew.
AGAIN_MS = 1_000

_NAMES = ("sequence", "subject", "origin_sequence", "target_group", "accepted_us")

T = TypeVar("T")
events = EventLogger()


class _FilesChanged(Exception):
    """A file was removed, or its day was sealed or drained, while it was to be read."""


class SubjectCounting:
    """Counts until it has succeeded once."""

    def __init__(
        self,
        files: Files,
        windows: Windows,
        decided: Decided,
        positions: Positions,
        counts: SubjectCounts,
        runtime: Runtime,
    ) -> None:
        self._schedule = files.schedule
        self._dispatch = files.dispatch
        self._days = files.days
        self._book = windows.book
        self._decided = decided
        self._positions = positions
        self._counts = counts
        self._clock = runtime.clock
        self._workers = runtime.workers

    async def run(self) -> None:
        """Count, unless all is counted; then return."""
        while not self._counts.is_counted:
            try:
                await self._count()
            except (FileNotFoundError, KeyError, _FilesChanged):
                await self._clock.sleep_ms(AGAIN_MS)
            except StoreError as error:
                events.warning(
                    "subjects_not_counted",
                    "pending messages by subject are not counted yet: {reason}",
                    reason=str(error),
                )
                await self._clock.sleep_ms(AGAIN_MS)

    async def _count(self) -> None:
        async with self._decided.writes:  # the ends of outcome files are those of what is counted
            highest = self._positions.replayed_sequence.value
            placed, ended = self._counts.placed_and_ended()
            known = self._counts.redeliveries.pending()
            version = self._days.version
            draining = frozenset(day.start_ms for day in self._days.draining())
            units = await self._run(partial(self._units, draining))
        pending, redeliveries = Tally(), WaitingAges()
        for some in units:
            began_us = self._clock.monotonic_us()
            subjects, groups, since_us = await self._run(partial(self._pending_in, some, highest))
            pending.add(subjects[groups == 0])
            redeliveries.add(subjects[groups != 0], groups[groups != 0], since_us[groups != 0], 1)
            if any(self._schedule.end(key) < end for unit in some for key, end in unit.schedule):
                raise _FilesChanged
            # As much time again is for the others: reading columns holds the interpreter.
            await self._clock.sleep_ms((self._clock.monotonic_us() - began_us) / 1000)
        if self._days.version != version:  # what is in two files of a day that was sealed meanwhile was counted twice
            raise _FilesChanged
        self._counts.rebase(pending.copy(), placed, ended, redeliveries, known)

    async def _run(self, work: Callable[[], T]) -> T:
        scope = trio.CancelScope(shield=True)
        with scope:
            result = await self._workers.run(work)
        return result

    def _units(self, draining: frozenset[int]) -> list[list[Unit]]:
        """The reads, in units that share no message, some units for each hop."""
        parts: list[list[Unit]] = []
        room = 0
        # There equal counts prove nothing. Orphans of a day are noted by the windows to which they will move.
        lost = [key.start_ms for key in self._schedule.lost] + [key.start_ms for key in self._dispatch.lost]
        doubtful = {place for start_ms in (*self._book.orphans, *lost) for place in (start_ms, day_of(start_ms))}
        for start_ms, unit in units_of(self._schedule, self._dispatch, draining):
            rows = sum([self._schedule.rows(key) for key, _ in unit.schedule])
            ended = sum([self._dispatch.rows(key) for key, _ in unit.dispatch])
            if not rows or (rows == ended and start_ms not in doubtful and start_ms not in draining):
                continue
            if room <= 0:
                parts.append([])
                room = ROWS_AT_ONCE
            parts[-1].append(unit)
            room -= rows
        return parts

    def _pending_in(self, units: list[Unit], highest: int) -> tuple[U32, U32, I64]:
        """The messages and redeliveries in some units up to the sequence `highest` that have no outcome: their subjects,
        u32[n], the groups of redeliveries (0: a message), u32[n], and when they were accepted, i64[n]."""
        parts = [read_open_rows(self._schedule, self._dispatch, unit, _NAMES) for unit in units]
        found = {name: np.concatenate([part[name] for part in parts]) for name in _NAMES}
        counts = (found["origin_sequence"] == 0) | (found["target_group"] != 0)
        counts &= found["sequence"] <= highest
        return found["subject"][counts], found["target_group"][counts], found["accepted_us"][counts]
