"""The pending messages of each subject at the end of the last process, from its checkpoint and the records behind it.

A checkpoint has the counts as of its replay position and its marks of dispatch_log. The start counts on from there: the
replay counts messages, and outcomes behind the marks are read here. Where that is not exact, the counts are unknown, and the
server counts its files once, beside its work (`SubjectCounting`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from delayserver.startup.directory_opening import FoundCheckpoint
from delayserver.state.counts.redeliveries import RedeliveryRows
from delayserver.state.counts.subject_counts import Tally, ended_subjects
from delayserver.state.counts.waiting_ages import WaitingAges
from delayserver.state.files import Files
from store.errors import CorruptionError, FormatError
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import DAY_MS, day_of
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import I64, OutcomeBatch
from store.records.outcome_balance import in_balance
from store.tables.checkpoint import Checkpoint, PendingRedeliveries, PendingSubjects
from store.tables.checkpoint_marks import dispatch_marks, schedule_marks


@dataclass(frozen=True, slots=True)
class PendingBefore:
    """Pending messages by subject code, i64[n], and redeliveries by group, without those that are still to be replayed.
    `ended`: the redeliveries among the latter that have an outcome."""

    subjects: I64
    redeliveries: WaitingAges
    ended: frozenset[int] = frozenset()


def pending_before(files: Files, found: FoundCheckpoint, *, created: bool) -> PendingBefore | None:
    """What was pending; None where it is not known. `created`: the directory is new."""
    if created:
        return PendingBefore(np.zeros(0, np.int64), WaitingAges())
    checkpoint = found.checkpoint
    if found.lost or checkpoint.pending is None or checkpoint.redeliveries is None or files.dispatch.lost:
        return None
    try:
        if not _gone_were_complete(files, checkpoint):
            return None
        return _counted_on(files, checkpoint, checkpoint.pending, checkpoint.redeliveries)
    except (CorruptionError, FormatError, KeyError):  # who needs the file reports it
        return None


def _counted_on(
    files: Files, checkpoint: Checkpoint, subjects: PendingSubjects, redeliveries: PendingRedeliveries
) -> PendingBefore:
    pending, ended, waiting = Tally(), Tally(), WaitingAges()
    ended_early: list[int] = []
    pending.add_counts(subjects.by_subject())
    columns = (redeliveries.subject, redeliveries.consumer_group, redeliveries.step_ms, redeliveries.since_ms)
    for subject, group, step_ms, since_ms, rows in zip(
        *[column.tolist() for column in (*columns, redeliveries.rows)], strict=True
    ):
        waiting.add_steps((subject, group), step_ms, np.array([since_ms]), np.array([rows]))
    marks = dispatch_marks(checkpoint.dispatch)
    for key in files.dispatch.keys():
        known = marks[key].end if key in marks else 0
        if files.dispatch.end(key) > known:
            outcomes = _not_moved(files, key, files.dispatch.outcomes(key, known or None, damages=[]))
            ended.add(ended_subjects(outcomes))
            rows = np.flatnonzero(~in_balance(outcomes.origin_sequence, outcomes.outcome))
            # The replay brings these. A loss of power may have taken them from the schedule files.
            early = outcomes.sequence[rows] > checkpoint.replayed_sequence
            ended_early += outcomes.sequence[rows[early]].tolist()
            gone = _redeliveries_of(files, key, outcomes.take(rows[~early]))
            if gone is not None:
                waiting.add(gone.subject, gone.group, gone.since_us, -1)
    pending.add_counts(-ended.copy())
    return PendingBefore(pending.copy(), waiting, frozenset(ended_early))


def _redeliveries_of(files: Files, key: DispatchKey, outcomes: OutcomeBatch) -> RedeliveryRows | None:
    """The redeliveries among internal records with outcomes in a file. Outcomes do not name the group: the messages beside
    them do. Raises KeyError if one of them is gone."""
    if not len(outcomes):
        return None
    wanted = outcomes.sequence
    end_ms = key.start_ms + (DAY_MS if key.coarse else 1)
    groups = {
        sequence: group
        for file in files.schedule.keys()
        if key.start_ms <= file.start_ms < end_ms
        or (file.source == ScheduleSource.DAY and file.start_ms == day_of(key.start_ms))
        for sequence, group in _groups_in(files, file, wanted)
    }
    group = np.array([groups[sequence] for sequence in wanted.tolist()], np.uint32)
    return RedeliveryRows.of(wanted, outcomes.subject, group, outcomes.accepted_us)


def _groups_in(files: Files, file: ScheduleKey, wanted: I64) -> Iterator[tuple[int, int]]:
    columns = files.schedule.read_columns(file, ("sequence", "target_group"), damages=[])
    rows = np.flatnonzero(np.isin(columns["sequence"], wanted))
    return zip(columns["sequence"][rows].tolist(), columns["target_group"][rows].tolist(), strict=True)


def _not_moved(files: Files, key: DispatchKey, outcomes: OutcomeBatch) -> OutcomeBatch:
    """The outcomes without those that came from the file of a draining day: they are counted there."""
    day = DispatchKey(day_of(key.start_ms), True)
    if key.coarse or not files.days.is_draining(key.start_ms) or day not in files.dispatch:
        return outcomes
    moved = files.dispatch.index_left(day, damages=[])
    return outcomes.take(np.flatnonzero(moved.missing(outcomes.sequence)))


def _gone_were_complete(files: Files, checkpoint: Checkpoint) -> bool:
    """Whether each window whose files went since the checkpoint had all its outcomes then, and got no message since. For
    other windows, no file says any more which messages became pending or ended."""
    placed = schedule_marks(checkpoint.schedule)
    # Minutes of these days may have got messages of the day, whose sequences are old.
    days = {file.start_ms for file in placed if file.source == ScheduleSource.DAY}
    rows: Counter[tuple[int, bool]] = Counter()
    for file, mark in placed.items():
        of_day = file.source == ScheduleSource.DAY
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
