"""Derives the states of the days from the files of the days, where the table of days is lost."""

from __future__ import annotations

import numpy as np

from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.file_read import Expected, Reader
from store.logs.due_windows import DAY_MS, day_of
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.file_header import FILE_SCHEDULE
from store.tables.days import DayTable, SealedDay


def rebuild_days(taken: Capture) -> DayTable:
    """Write the table anew, durably."""
    fine_until_ms, sealed = _derive(taken)
    return DayTable.rebuild(taken.fs, f"{taken.path}/days", fine_until_ms, sealed)


def derive_days(taken: Capture) -> DayTable:
    """The table as it must have been, in memory only: for a check of a directory that lost it."""
    fine_until_ms, sealed = _derive(taken)
    return DayTable(taken.fs, f"{taken.path}/days", fine_until_ms, {day.start_ms: day for day in sealed})


def _derive(taken: Capture) -> tuple[int, list[SealedDay]]:
    """`fine_until_ms`, and the days that were sealed.

    A day with files of minutes is fine; one that has a file of its own as well is being drained, and its sequences end
    where that file ends; one whose minutes came from a day's file that is gone was drained.
    """
    last: dict[int, int] = {}
    fine: set[int] = set()
    own: set[int] = set()
    for key, size in taken.files.schedule.items():
        day = day_of(key.start_ms)
        if key.source == ScheduleSource.DAY:
            own.add(day)
        else:
            fine.add(day)
        if key.source != ScheduleSource.DIRECT:
            last[day] = max(last.get(day, 0), _last_sequence(taken, key, size))
    fine_until_ms = max(fine, default=min(own, default=0) - DAY_MS) + DAY_MS
    sealed = [SealedDay(day, last[day], day not in own) for day in sorted(last) if day < fine_until_ms]
    return max(fine_until_ms, 0), sealed


def _last_sequence(taken: Capture, key: ScheduleKey, size: int) -> int:
    path = taken.schedule_path(key)
    read = Reader(taken).file(path, size, Expected(FILE_SCHEDULE, synced=size))
    return max([int(np.max(records.lasts)) for records in read.records(blobs=False)], default=0)
