"""Redispatch while the server is stopped: internal records at the end of message_log, for the next start to deliver.

Messages that cannot be read or are missing are named and counted; the others are appended. An interrupted redispatch can be
run again: messages that an earlier run appended for the same next start are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from delayserver.config.settings import StorageSettings
from delayserver.recover.checking.survey import Surveyed, survey, touches
from delayserver.recover.checking.whole_rows import RowsAt, message_rows, readable_rows
from delayserver.recover.checking.window_check import Visited
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.findings import CORRUPT, MISSING, UNREADABLE, Findings
from delayserver.recover.reading.redispatch_records import (
    BYTES_MAX,
    MESSAGES_MAX,
    RedispatchSelection,
    Unread,
    deliveries_again,
)
from delayserver.runtime.clock import Clock
from store.errors import FormatError
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import day_starts, window_starts
from store.logs.message_log import MessageLog
from store.logs.schedule_log import ScheduleSource
from store.records.batches import I64, MessageBatch
from store.records.scan import ScanReport
from store.tables.identity import SequenceReservation
from store.tables.member_file import require_owner


class OfflineRedispatch:
    """Selects and appends. The caller holds the lock unless nothing is to be written."""

    def __init__(self, taken: Capture, wanted: RedispatchSelection, clock: Clock) -> None:
        self._taken = taken
        self._wanted = wanted
        self._clock = clock
        self._undecided: dict[int, int] = {}
        # Origins of the redispatched messages that the next start will deliver anyway.
        self._waiting: list[I64] = []
        self.messages = 0
        self.waiting = 0
        """How many of those asked for wait for the next start already; `messages` counts the others."""
        self.appended = 0
        """How many records are durable; less than `messages` where `run` raised."""
        self.unread = Unread()
        self.highest_sequence = 0

    def count(self) -> None:
        """Count only."""
        self._find()

    def run(self) -> None:
        """Append and sync, slice by slice. Raises DiskFullError (what was appended before stays), FormatError (a member of a
        cluster has the records of its log alone), StoreError."""
        taken = self._taken
        require_owner(taken.fs, taken.path, None)
        found = self._find()
        if not found:
            return
        log = MessageLog.open(
            taken.fs,
            f"{taken.path}/message_log",
            taken.server_id,
            segment_bytes=self._segment_bytes(),
            valid_to=taken.marks.checkpoint.replay_offset,
        )
        try:
            sequences = SequenceReservation.open(taken.fs, taken.path, taken.server_id, above=self.highest_sequence)
            for rows in found:
                self._append_rows(log, sequences, rows)
            if sequences.clean:
                sequences.close_clean()
        finally:
            log.close()

    def _segment_bytes(self) -> int:
        """The size of the newest segment: a file is allocated to the length that the server was configured with."""
        sizes = [part.size for part in self._taken.files.message_log]
        return max(sizes[-1:], default=StorageSettings().message_log_segment_bytes)

    def _find(self) -> list[RowsAt]:
        found: list[RowsAt] = []
        self._each(found.append)
        if not self._waiting:
            return found
        waiting, kept = np.concatenate(self._waiting), []
        for rows in found:
            rest = rows.sequences[~np.isin(rows.sequences, waiting)]
            self.waiting += len(rows.sequences) - len(rest)
            if len(rest):
                kept.append(replace(rows, sequences=rest))
        self.messages -= self.waiting
        return kept

    def _each(self, found: Callable[[RowsAt], None]) -> None:
        wanted = self._wanted

        def visit(visited: Visited) -> None:
            rows = visited.rows
            self.highest_sequence = max(self.highest_sequence, int(rows.sequence.max()))
            mask = wanted.mask(rows.due_ms, rows.subject, rows.origin_sequence)
            if visited.key is not None:
                undecided = mask & (visited.outcome == 0) & (rows.due_ms <= self._clock.now_us() // 1000)
                start_ms = visited.key.start_ms
                self._undecided[start_ms] = self._undecided.get(start_ms, 0) + int(undecided.sum())
            self._note_waiting(visited)
            mask &= wanted.decided(visited.outcome)
            if mask.any():
                self.messages += int(mask.sum())
                found(RowsAt.of(visited, np.flatnonzero(mask)))

        self._look_at_damage(survey(self._taken, Range(), visit))

    def _note_waiting(self, visited: Visited) -> None:
        """Redeliveries for no consumer group in particular that are not decided yet: in a schedule file, or in message_log
        behind what is replayed."""
        rows = visited.rows
        places = np.flatnonzero((rows.origin_sequence != 0) & (visited.outcome == 0))
        if visited.key is None and len(places):
            [base] = [part.base for part in self._taken.files.message_log if part.path == visited.path]
            places = places[base + rows.offset[places] >= self._taken.marks.checkpoint.replay_offset]
        if not len(places):
            return
        with suppress(FormatError):  # a newer record: the survey named it
            for batch in readable_rows(self._taken, RowsAt.of(visited, places), Findings()):
                self._waiting.append(batch.origin_sequence[batch.target_group == 0])

    def _look_at_damage(self, surveyed: Surveyed) -> None:
        """Name damage to files of windows in the range, and count the messages that it hides.

        A message counts if its outcome is wanted and its record is unreadable, or if it is due and its outcome may be
        unreadable. Where both files are missing, the checkpoint gives the number of wanted outcomes, of all subjects.
        """
        wanted, taken = self._wanted, self._taken
        asked = Range(wanted.from_ms, wanted.to_ms)
        damages = [finding for finding in surveyed.findings if finding.kind in (CORRUPT, MISSING, UNREADABLE)]
        damaged = {finding.file for finding in damages}
        schedule_keys = {taken.schedule_path(key): key for key in taken.files.schedule | taken.marks.schedule_known}
        dispatch_keys = {taken.dispatch_path(key): key for key in taken.files.dispatch | taken.marks.dispatch_known}
        schedule = {path: key for path, key in schedule_keys.items() if path in damaged and touches(asked, taken, key)}
        dispatch = {path: key for path, key in dispatch_keys.items() if path in damaged and touches(asked, taken, key)}
        rows = surveyed.unmatched
        lost = wanted.mask(rows.due_ms, rows.subject, rows.origin_sequence) & wanted.decided(rows.outcome)
        starts = [key.start_ms for key in schedule.values() if key.source != ScheduleSource.DAY]
        days = [key.start_ms for key in schedule.values() if key.source == ScheduleSource.DAY]
        lost &= ~rows.internal
        lost &= np.isin(window_starts(rows.due_ms, taken.files.window_ms), starts) | np.isin(
            day_starts(rows.due_ms), days
        )
        self.unread.count(int(lost.sum()))
        there = {(key.start_ms, key.source == ScheduleSource.DAY) for key in taken.files.schedule}
        for key in dispatch.values():
            counted = key in taken.files.dispatch or (key.start_ms, key.coarse) in there
            self.unread.count(self._undecided.get(key.start_ms, 0) if counted else self._wanted_of(key))
        for finding in damages:
            if finding.file in schedule or finding.file in dispatch:
                self.unread.add(finding.file, finding.offset, finding.detail)

    def _wanted_of(self, key: DispatchKey) -> int:
        counts = self._taken.marks.dispatch_known[key].counts
        return sum([counts[outcome] for outcome in self._wanted.outcomes])

    def _append_rows(self, log: MessageLog, sequences: SequenceReservation, rows: RowsAt) -> None:
        report = ScanReport(rows.first)
        left = len(rows.sequences)
        try:
            for batch in message_rows(self._taken, rows, report):
                self._append(log, sequences, batch)
                left -= len(batch)
        except FormatError as error:
            self.unread.add(rows.path, report.end, error.detail)
        # Damage that hides nothing of it was named already, or is no damage: all up to `size` is taken for durable here.
        for damage in report.damages if left else []:
            self.unread.add(rows.path, damage.start, damage.detail)
        self.messages -= left
        self.unread.count(left)

    def _append(self, log: MessageLog, sequences: SequenceReservation, batch: MessageBatch) -> None:
        start = 0
        while start < len(batch):
            stop = _slice_end(batch, start)
            part = deliveries_again(batch.slice(start, stop), self._taken.server_id, self._clock.now_us())
            first = sequences.take(len(part))
            log.append([part.with_columns(sequence=np.arange(first, first + len(part), dtype=np.int64))])
            log.sync()
            self.appended += len(part)
            start = stop


def _slice_end(batch: MessageBatch, start: int) -> int:
    stop = min(len(batch), start + MESSAGES_MAX)
    sizes = np.cumsum(batch.bodies_length[start:stop].astype(np.int64))
    return start + max(1, int(np.searchsorted(sizes, BYTES_MAX, side="right")))
