"""The pending messages of each subject at the end of the last process, from its checkpoint and the records behind it.

A checkpoint has the counts as of its replay position and its marks of dispatch_log. The start counts on from there: the
replay counts messages, and outcomes behind the marks are read here. Where that is not exact, the counts are unknown, and the
server counts its files once, beside its work (`SubjectCounting`).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from delayserver.startup.opening import Opened
from delayserver.state.counts.subject_counts import Tally, ended_subjects
from store.errors import CorruptionError, FormatError
from store.logs.dispatch_log import DispatchKey
from store.logs.schedule_log import Source
from store.logs.windows import DAY_MS, day_of
from store.records.batches import I64, OutcomeBatch
from store.tables.checkpoint import PendingSubjects
from store.tables.checkpoint_marks import dispatch_marks, schedule_marks


def pending_before(opened: Opened) -> I64 | None:
    """Pending messages by subject code, i64[n], without those that are still to be replayed; None where it is not known."""
    if opened.directory.created:
        return np.zeros(0, np.int64)
    table = opened.checkpoint.pending
    if opened.checkpoint_lost or table is None or opened.dispatch.lost:
        return None
    try:
        return _counted_on(opened, table) if _gone_were_complete(opened) else None
    except (CorruptionError, FormatError):  # who needs the file reports it
        return None


def _counted_on(opened: Opened, table: PendingSubjects) -> I64:
    pending, ended = Tally(), Tally()
    pending.add_counts(table.by_subject())
    marks = dispatch_marks(opened.checkpoint.dispatch)
    for key in opened.dispatch.keys():
        known = marks[key].end if key in marks else 0
        if opened.dispatch.end(key) > known:
            ended.add(ended_subjects(_not_moved(opened, key, opened.dispatch.outcomes(key, known or None, damages=[]))))
    pending.add_counts(-ended.copy())
    return pending.copy()


def _not_moved(opened: Opened, key: DispatchKey, outcomes: OutcomeBatch) -> OutcomeBatch:
    """The outcomes without those that came from the file of a draining day: they are counted there."""
    day = DispatchKey(day_of(key.start_ms), True)
    if key.coarse or not opened.days.is_draining(key.start_ms) or day not in opened.dispatch:
        return outcomes
    moved = np.isin(outcomes.sequence, opened.dispatch.outcomes_left(day).sequence)
    return outcomes.take(np.flatnonzero(~moved))


def _gone_were_complete(opened: Opened) -> bool:
    """Whether each window whose files went since the checkpoint had all its outcomes then, and got no message since. Of
    others the files do not tell any more what became pending or ended."""
    checkpoint = opened.checkpoint
    placed = schedule_marks(checkpoint.schedule)
    # Minutes of these days may have got messages of the day, whose sequences are old.
    days = {file.start_ms for file in placed if file.source == Source.DAY}
    rows: Counter[tuple[int, bool]] = Counter()
    for file, mark in placed.items():
        of_day = file.source == Source.DAY
        if (
            file in opened.schedule
            or file in opened.schedule.lost
            or (of_day and opened.days.is_drained(file.start_ms))
        ):
            continue
        if not of_day and day_of(file.start_ms) in days:
            return False
        rows[file.start_ms, of_day] += mark.rows
        end_ms = file.start_ms + (DAY_MS if of_day else 1)
        if opened.ledger.last_sequence_between(file.start_ms, end_ms) > checkpoint.replayed_sequence:
            return False
    for key, outcomes in dispatch_marks(checkpoint.dispatch).items():
        if key not in opened.dispatch:
            rows[key.start_ms, key.coarse] -= sum(outcomes.counts) + sum(outcomes.internal_counts)
    return not any(rows.values())
