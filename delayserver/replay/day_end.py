"""The end of a drained day: its outcomes move to its minutes, then its files go."""

from __future__ import annotations

from functools import partial

import numpy as np
import trio

from delayserver.replay.day_outcomes import DayOutcomes
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.files import Files
from delayserver.state.windows.windows import Windows
from store.errors import CorruptionError, DiskError, UnreadableError
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import DAY_MS
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import OutcomeBatch


class DayEnd:
    """What follows the last row of a day."""

    def __init__(
        self, files: Files, windows: Windows, decided: Decided, outcomes: DayOutcomes, runtime: Runtime
    ) -> None:
        self._days = files.days
        self._schedule = files.schedule
        self._dispatch = files.dispatch
        self._drains = windows.drains
        self._retired = windows.retired
        self._decided = decided
        self._outcomes = outcomes
        self._workers = runtime.workers
        self._damage = runtime.damage
        self._drained_again: set[int] = set()

    def remove_left(self) -> None:
        """After a start: a crash may have come after a day was drained and before its files were gone. Their rows would
        count twice."""
        coarse = {key.start_ms for key in self._schedule.keys() if key.source == ScheduleSource.DAY}
        coarse |= {key.start_ms for key in self._dispatch.keys() if key.coarse}
        for start in coarse:
            if self._days.is_drained(start):
                self._remove(start)

    async def reach(self, start_ms: int) -> None:
        """The minutes were given all rows of the day that can be read. If they have every row, move the outcomes, sync, and
        only then say so and remove the day's files. If not, the day is drained again, or held back."""
        if not self._has_all(ScheduleKey(start_ms, ScheduleSource.DAY)):
            return
        try:
            await self._move_outcomes(start_ms)
        except (CorruptionError, DiskError) as error:
            self._hold(start_ms, error, refused=isinstance(error, (DiskError, UnreadableError)))
            return
        await self._workers.run(partial(self._schedule.sync, self._minutes(start_ms)))
        self._days.mark_drained(start_ms)
        self._decided.overlays.remove(start_ms)
        self._drains.end(start_ms)
        self._retired.remove([ScheduleKey(start_ms, ScheduleSource.DAY)])
        self._remove(start_ms)

    def _has_all(self, key: ScheduleKey) -> bool:
        """Whether the minutes have every row of the day. If not, once more from the beginning: damage is met again, and
        reported, and what a minute lost is put there once more. A day whose file lost messages, or lies under another name,
        stays open: the operator may bring them back."""
        hiding = self._schedule.hiding(key)
        if hiding is not None:
            self._hold(key.start_ms, hiding)
            return False
        drained = sum([self._schedule.rows(minute) for minute in self._minutes(key.start_ms)])
        missing = self._schedule.rows(key) - drained
        if missing <= 0:
            return True
        if key.start_ms in self._drained_again:
            detail = f"{missing} messages of the day did not reach their minutes; the file is kept"
            self._hold(key.start_ms, CorruptionError(self._schedule.path(key), 0, detail))
        self._drained_again.add(key.start_ms)
        self._drains.positions.pop(key.start_ms, None)
        return False

    def _hold(self, start_ms: int, error: CorruptionError | DiskError, *, refused: bool = False) -> None:
        self._drains.hold(start_ms, refused=refused)
        self._damage.report(error)

    def _minutes(self, start_ms: int) -> list[ScheduleKey]:
        keys = self._schedule.keys_between(start_ms, start_ms + DAY_MS)
        return [key for key in keys if key.source == ScheduleSource.FROM_DAY]

    async def _move_outcomes(self, start_ms: int) -> None:
        read = partial(self._outcomes_by_file, start_ms)
        moved = 0
        for key, mine in await self._workers.run(read):
            async with self._decided.pinned(key) as index:
                self._decided.add(mine.take(np.flatnonzero(index.missing(mine.sequence))), moved=True)
            moved += len(mine)
            await trio.lowlevel.checkpoint()
        if moved:
            await self._decided.wait_all_written()
            self._drains.moved[start_ms] = moved

    def _outcomes_by_file(self, start_ms: int) -> list[tuple[DispatchKey, OutcomeBatch]]:
        return self._decided.by_file(self._outcomes.of(DispatchKey(start_ms, True)))

    def _remove(self, start_ms: int) -> None:
        if ScheduleKey(start_ms, ScheduleSource.DAY) in self._schedule:
            self._schedule.remove(ScheduleKey(start_ms, ScheduleSource.DAY))
        if DispatchKey(start_ms, True) in self._dispatch:
            self._dispatch.remove(DispatchKey(start_ms, True))
            self._decided.forget(DispatchKey(start_ms, True))
