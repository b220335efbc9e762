"""The consumer groups of redeliveries whose outcomes another member decided. Outcomes do not name them: the messages do."""

from __future__ import annotations

import numpy as np

from store.logs.due_windows import day_of, window_of
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import U32, OutcomeBatch
from store.records.column_batch import has_any


class OutcomeGroups:
    """Reads them in the files of messages."""

    def __init__(self, schedule: ScheduleLog, window_ms: int) -> None:
        self._schedule = schedule
        self._window_ms = window_ms

    def of(self, outcomes: OutcomeBatch) -> U32 | None:
        """The groups u32[n] of these messages, 0 for all; None: no message is for one. Reads the disk for internal records
        only. A group that damage hides is 0."""
        if not has_any(outcomes.origin_sequence):
            return None
        groups = np.zeros(len(outcomes), np.uint32)
        internal = np.flatnonzero(outcomes.origin_sequence)
        sequences = outcomes.sequence[internal]
        for file in self._files(outcomes.due_ms[internal].tolist()):
            found = self._schedule.read_ids(file, sequences, damages=[])  # whoever needs damaged ones reports it
            if len(found):
                places = np.searchsorted(found.sequence, sequences).clip(max=len(found) - 1)
                known = found.sequence[places] == sequences
                groups[internal[known]] = found.target_group[places[known]]
        return groups

    def _files(self, due_ms: list[int]) -> set[ScheduleKey]:
        windows = {window_of(each, self._window_ms) for each in due_ms}
        days = {ScheduleKey(day_of(start_ms), ScheduleSource.DAY) for start_ms in windows}
        minutes = {
            ScheduleKey(start_ms, source)
            for start_ms in windows
            for source in (ScheduleSource.DIRECT, ScheduleSource.FROM_DAY)
        }
        return {key for key in days | minutes if key in self._schedule}
