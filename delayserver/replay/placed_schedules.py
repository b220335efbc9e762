"""The round step that notes where the timers of schedules lie."""

from __future__ import annotations

import numpy as np

from delayserver.state.memory.schedule_timers import ScheduleTimerPlace, ScheduleTimers
from delayserver.state.replay_round import Round
from store.records.batches import MessageBatch
from store.records.column_batch import has_any
from store.records.schedule_timer import SCHEDULES_SUBJECT, read_schedules
from store.tables.names import SCHEDULING, Names


class PlacedSchedules:
    """Round → timers of schedules."""

    def __init__(self, timers: ScheduleTimers, names: Names) -> None:
        self._timers = timers
        self._names = names

    def publish(self, done: Round) -> None:
        """Note the timers of a round, then the ends of timers: one that is replaced in its own round is known by then."""
        subject = self._names.code(SCHEDULING, SCHEDULES_SUBJECT)
        if not subject:
            return
        if done.messages is not None and has_any(done.messages.origin_sequence):
            self._place(done.messages, subject)
        for batch in done.cancels:
            for sequence in batch.sequence[batch.subject == subject].tolist():
                self._timers.end(sequence)

    def _place(self, messages: MessageBatch, subject: int) -> None:
        rows = np.flatnonzero((messages.subject == subject) & (messages.origin_sequence != 0))
        for row, timer in zip(rows.tolist(), read_schedules(messages, rows), strict=True):
            if timer is not None:
                self._timers.place(
                    timer.name, ScheduleTimerPlace(int(messages.due_ms[row]), int(messages.sequence[row]))
                )
