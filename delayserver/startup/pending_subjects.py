"""The pending messages of each subject at the end of the last process, from its checkpoint and the records behind it.

A checkpoint has the counts as of its replay position and its marks of dispatch_log. The start counts on from there: the
replay counts messages, and outcomes behind the marks are read here. Where that is not exact, the counts are unknown, and the
server counts its files once, beside its work (`SubjectCounting`).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from delayserver.startup.opening import FoundCheckpoint
from delayserver.state.counts.subject_counts import Tally, ended_subjects
from delayserver.state.files import Files
from store.errors import CorruptionError, FormatError
from store.logs.dispatch_log import DispatchKey
from store.logs.schedule_log import Source
from store.logs.windows import DAY_MS, day_of
from store.records.batches import I64, OutcomeBatch
from store.tables.checkpoint import Checkpoint, PendingSubjects
from store.tables.checkpoint_marks import dispatch_marks, schedule_marks


def pending_before(files: Files, found: FoundCheckpoint, *, created: bool) -> I64 | None:
    """Pending messages by subject code, i64[n], without those that are still to be replayed; None where it is not known.
    `created`: the directory is new."""
    if created:
        return np.zeros(0, np.int64)
    table = found.checkpoint.pending
    if found.lost or table is None or files.dispatch.lost:
        return None
    try:
        return _counted_on(files, found.checkpoint, table) if _gone_were_complete(files, found.checkpoint) else None
    except (CorruptionError, FormatError):  # who needs the file reports it
        return None


def _counted_on(files: Files, checkpoint: Checkpoint, table: PendingSubjects) -> I64:
    pending, ended = Tally(), Tally()
    pending.add_counts(table.by_subject())
    marks = dispatch_marks(checkpoint.dispatch)
    for key in files.dispatch.keys():
        known = marks[key].end if key in marks else 0
        if files.dispatch.end(key) > known:
            ended.add(ended_subjects(_not_moved(files, key, files.dispatch.outcomes(key, known or None, damages=[]))))
    pending.add_counts(-ended.copy())
    return pending.copy()


def _not_moved(files: Files, key: DispatchKey, outcomes: OutcomeBatch) -> OutcomeBatch:
    """The outcomes without those that came from the file of a draining day: they are counted there."""
    day = DispatchKey(day_of(key.start_ms), True)
    if key.coarse or not files.days.is_draining(key.start_ms) or day not in files.dispatch:
        return outcomes
    moved = np.isin(outcomes.sequence, files.dispatch.outcomes_left(day).sequence)
    return outcomes.take(np.flatnonzero(~moved))


def _gone_were_complete(files: Files, checkpoint: Checkpoint) -> bool:
    """Whether each window whose files went since the checkpoint had all its outcomes then, and got no message since. For
    other windows, no file says any more which messages became pending or ended."""
    placed = schedule_marks(checkpoint.schedule)
    # Minutes of these days may have got messages of the day, whose sequences are old.
    days = {file.start_ms for file in placed if file.source == Source.DAY}
    rows: Counter[tuple[int, bool]] = Counter()
    for file, mark in placed.items():
        of_day = file.source == Source.DAY
        if file in files.schedule or file in files.schedule.lost or (of_day and files.days.is_drained(file.start_ms)):
            continue
        if not of_day and day_of(file.start_ms) in days:
            return False
        rows[file.start_ms, of_day] += mark.rows
        end_ms = file.start_ms + (DAY_MS if of_day else 1)
        if files.ledger.last_sequence_between(file.start_ms, end_ms) > checkpoint.replayed_sequence:
            return False
    for key, outcomes in dispatch_marks(checkpoint.dispatch).items():
        if key not in files.dispatch:
            rows[key.start_ms, key.coarse] -= sum(outcomes.counts) + sum(outcomes.internal_counts)
    return not any(rows.values())
