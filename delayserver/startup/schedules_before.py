"""The timers of schedules at the end of the last process: from its checkpoint, or else from the files.

A start replays on from there, and each later timer takes the place of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from delayserver.startup.directory_opening import FoundCheckpoint
from delayserver.state.files import Files
from delayserver.state.memory.schedule_timers import ScheduleTimerPlace
from store.errors import CorruptionError, FormatError
from store.logs.open_rows import Unit, read_open_rows, units_of
from store.records.batches import MessageBatch
from store.records.schedule_timer import SCHEDULES_SUBJECT, read_schedules
from store.tables.names import SCHEDULING

_NAMES = ("sequence", "subject", "origin_sequence")


def schedules_before(files: Files, found: FoundCheckpoint) -> Mapping[str, ScheduleTimerPlace]:
    """Timers by the names of their schedules."""
    subject = files.names.code(SCHEDULING, SCHEDULES_SUBJECT)
    if not subject:
        return {}
    known = found.checkpoint.schedules
    if not found.lost and known is not None:
        return {name: ScheduleTimerPlace(*place) for name, place in known.by_name().items()}
    timers: dict[str, ScheduleTimerPlace] = {}
    draining = [day.start_ms for day in files.days.draining()]
    for _, unit in units_of(files.schedule, files.dispatch, draining):
        for name, place in _timers_in(files, unit, subject):
            if name not in timers or place.sequence > timers[name].sequence:
                timers[name] = place
    return timers


def _timers_in(files: Files, unit: Unit, subject: int) -> list[tuple[str, ScheduleTimerPlace]]:
    """The timers of a unit that have no outcome. A part that needs a damaged file reports it."""
    try:
        rows = read_open_rows(files.schedule, files.dispatch, unit, _NAMES)
    except (CorruptionError, FormatError):
        return []
    wanted = rows["sequence"][(rows["subject"] == subject) & (rows["origin_sequence"] != 0)]
    if not len(wanted):
        return []
    found: list[tuple[str, ScheduleTimerPlace]] = []
    for key, _ in unit.schedule:
        batch: MessageBatch = files.schedule.read_rows(key, wanted, damages=[])
        for row, timer in enumerate(read_schedules(batch, np.arange(len(batch)))):
            if timer is not None:
                found.append((timer.name, ScheduleTimerPlace(int(batch.due_ms[row]), int(batch.sequence[row]))))
    return found
