"""Answers timers of schedules that are due: each firing is an ordinary message.

A timer that is due is answered by one record, which holds the messages of its moments and the next timer. That one replaces
it. So a crash leaves either both or none, and each moment is decided once. Timers go through wheel and queue like any row,
to an internal group (`SCHEDULES`). `DueTask` takes them from its queue.

Requests replace timers too. They and the firing take turns (`turn`), so a timer in flight is not replaced twice.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.logs.events import EventLogger
from delayserver.operations.messages.cancellation import PENDING, Cancellation, Ends
from delayserver.operations.messages.check_backs import Pipeline
from delayserver.operations.messages.locator import Located
from delayserver.operations.messages.schedule_records import NextTimer, Replaced, ScheduleRecords
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.outcomes import DeliverOutcome
from delayserver.state.decisions.holds import Holds
from delayserver.state.memory.due_records import RECORDED
from delayserver.state.memory.schedule_timers import ScheduleTimers
from store.errors import DiskFullError
from store.records.batches import I64, U8, StoredBatch
from store.records.schedule_timer import ScheduleTimer, read_schedules

RECORD_BYTES_MAX: Final = 4 << 20
"""Messages and timers of one record."""

_STORED, _REFUSED = int(DeliverOutcome.STORED), int(DeliverOutcome.REFUSED)

events = EventLogger()


class ScheduleFiring:
    """Fires."""

    def __init__(
        self,
        records: ScheduleRecords,
        timers: ScheduleTimers,
        cancellation: Cancellation,
        pipeline: Pipeline,
        holds: Holds,
    ) -> None:
        self._records = records
        self._timers = timers
        self._cancellation = cancellation
        self._pipeline = pipeline
        self._holds = holds
        self.turn = trio.Lock()
        # Messages so far.
        self.fired = 0

    async def answer(self, batch: StoredBatch) -> U8:
        """See `DueWork.answer`."""
        async with self.turn:
            timers = read_schedules(batch, np.arange(len(batch)))
            answer, fires = await self._sorted_out(batch, timers)
            await self._fire(answer, np.flatnonzero(fires), batch, timers)
            return answer

    async def _sorted_out(self, batch: StoredBatch, timers: list[ScheduleTimer | None]) -> tuple[U8, NDArray[np.bool_]]:
        """The answers u8[n], and which timers fire, bool[n]. One that this program cannot read comes again, after an
        upgrade. One that a request has replaced meanwhile has its outcome, or gets it from the replay and is held. One
        beside a later one of its schedule, which only lost outcomes leave behind, fires nothing."""
        answer = np.full(len(batch), RECORDED, np.uint8)
        unreadable = np.array([timer is None for timer in timers])
        places = [None if timer is None else self._timers.get(timer.name) for timer in timers]
        newest = np.array([0 if place is None else place.sequence for place in places], np.int64)
        answer[unreadable] = _REFUSED
        for sequence in batch.sequence[unreadable].tolist():
            events.warning(
                "schedule_unreadable",
                "the timer {sequence} of a schedule is none that this program reads: upgrade it",
                sequence=sequence,
            )
        free = ~unreadable & self._holds.not_held(batch.sequence)
        fires = free & (newest == batch.sequence)
        doubtful = np.flatnonzero(free & ~fires)
        if len(doubtful):
            ended = await self._ended(batch.sequence[doubtful], batch.due_ms[doubtful], batch.subject[doubtful])
            is_last = newest[doubtful] < batch.sequence[doubtful]
            fires[doubtful] = ~ended & is_last
            answer[doubtful[~ended & ~is_last]] = _STORED
        return answer, fires

    async def _ended(self, sequence: I64, due_ms: I64, subject: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Whether timers have an outcome, bool[n]."""
        none = np.zeros(len(sequence), np.bool_)
        located = Located(~none, sequence, subject, none, none.copy())
        state = await self._cancellation.decide(located, sequence, due_ms, Ends.NONE)
        ended: NDArray[np.bool_] = state != PENDING
        return ended

    async def _fire(
        self, answer: U8, places: NDArray[np.intp], batch: StoredBatch, timers: list[ScheduleTimer | None]
    ) -> None:
        """Commits what follows from timers, in records of a bounded size.

        A record that is durable has answered its timers. So once there is one, no error and no cancel ends the others: those
        that cannot fire now are refused, and come again alone."""
        begun = False
        while len(places):
            following = self._following(places, batch, timers)
            mine = places[: len(following)]
            replaced = Replaced(batch.sequence[mine], batch.due_ms[mine], batch.origin_sequence[mine])
            try:
                with trio.CancelScope(shield=begun):
                    await self._pipeline.ask(None, [self._records.batch(following, replaced)], replaced.sequence)
            except (DelayServerError, DiskFullError):
                if not begun:
                    raise
                answer[places] = _REFUSED
                return
            self.fired += sum(len(each.rows) for each in following)
            places, begun = places[len(following) :], True

    def _following(
        self, places: NDArray[np.intp], batch: StoredBatch, timers: list[ScheduleTimer | None]
    ) -> list[NextTimer]:
        """What follows from the first of some timers."""
        following: list[NextTimer] = []
        size_bytes = 0
        for row in places.tolist():
            timer = timers[row]
            assert timer is not None
            each = self._records.fired(timer, int(batch.origin_sequence[row]))
            size_bytes += each.size_bytes
            if following and size_bytes > RECORD_BYTES_MAX:
                break
            following.append(each)
        return following
