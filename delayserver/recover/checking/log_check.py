"""Reads the message_log and asks of every message: is it where it must be by now?

Below the high-water mark of its file it must be in it; that is compared by fingerprints, and row by row only where they
differ. Above the mark it is pending if replay has not come so far yet, and missing if it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from delayserver.recover.checking.cancel_check import CancelLots, Cancels
from delayserver.recover.checking.window_check import NAMES, ScheduleRows, Visit, Visited
from delayserver.recover.reading.capture import Capture, LogPart
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.file_read import FileRead, Reader
from delayserver.recover.reading.findings import CONTRADICTORY, CORRUPT, MISSING, ORPHANED
from delayserver.recover.reading.fingerprint import Fingerprints
from delayserver.recover.reading.outcomes_of_file import OutcomeRows
from delayserver.recover.reading.subject_balances import ACCEPTED, INTERNAL, PENDING, SubjectBalances
from delayserver.recover.reading.unit_sequences import unit_sequences
from delayserver.recover.reading.window_units import Units
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import (
    I64,
    KIND_CANCELS,
    KIND_FOLLOWED,
    KIND_KEPT,
    KIND_LEDGER,
    KIND_MESSAGES,
    KIND_NAMES,
    KIND_OUTCOMES,
    KIND_PROGRESS,
    KIND_STORED,
    KIND_TABLE,
    CancelBatch,
    MessageBatch,
)
from store.records.column_batch import MalformedColumnsError
from store.records.records import Records

NOTHING_KEPT = 1 << 62
# Units whose messages are compared one by one at a time.
UNITS_AT_ONCE = 256
# What a message_log holds, and that of a cluster's member.
KINDS = (KIND_MESSAGES, KIND_CANCELS, KIND_NAMES)
MEMBER_KINDS = (*KINDS, KIND_OUTCOMES, KIND_STORED, KIND_PROGRESS, KIND_LEDGER, KIND_FOLLOWED, KIND_TABLE, KIND_KEPT)


def first_kept_sequence(taken: Capture) -> int:
    """The first message that message_log still has; all accepted after it are there too."""
    for _, read in Reader(taken).segments():
        for records in read.records(blobs=False):
            mine = records.of_kind(KIND_MESSAGES)
            if len(mine):
                return int(mine.firsts[0])
    return NOTHING_KEPT


class LogCheck:
    """One pass over the message_log, after the windows were read.

    Afterwards `waiting` has the balance of what no schedule file has yet, by unit.
    """

    def __init__(
        self,
        reader: Reader,
        units: Units,
        loose: OutcomeRows,
        span: Range,
        visit: Visit | None = None,
        cancels: CancelLots | None = None,
    ) -> None:
        """`visit` is called with the rows that no schedule file has; `cancels` gets those whose outcome must be durable."""
        self._reader = reader
        self._taken = reader.taken
        self._findings = reader.findings
        self._cancel_lots = cancels
        self._visit = visit
        self._units = units
        self._span = span
        self._logged = Fingerprints(len(units.codes))
        self.loose = loose
        self.waiting: dict[int, SubjectBalances] = {}
        # Messages that the ledger counts and that replay will meet again: the checkpoint does not count them yet.
        self.retired_waiting = 0
        self.highest_sequence = 0
        self._last_logged = 0
        self.subject_max = 0
        self.gaps: list[tuple[int, int]] = []
        # Sequences behind which a gap began whose end was not met yet.
        self._open_gaps: list[int] = []
        # By the base of each segment that was read: the gap (after, before) that its loss would leave.
        self._gaps_without: dict[int, tuple[int, int]] = {}
        self._missing: dict[int, list[tuple[int, str, int, int]]] = {}
        self.missing_codes: set[int] = set()
        # In the log of a cluster's member stands all that its shard has decided. Only the whole log says whose it is.
        self._is_members = False
        self._strange: list[tuple[str, int]] = []
        self._strange_to_members: list[tuple[str, int]] = []

    def run(self) -> None:
        """Read all segments, then compare."""
        self._verify_chain()
        for part, read in self._reader.segments():
            before = self._last_logged
            for records in read.records(blobs=self._visit is None):
                self._records(part, read, records)
            if read.gone:  # retention took it since the capture, with an unknown content
                self._open_gaps.append(before)
            else:
                self._gaps_without[part.base] = (before, self._last_logged + 1)
            self.gaps += [gap for gap in read.gaps if gap[1] != NOTHING_KEPT]
            self._open_gaps += [after for after, before in read.gaps if before == NOTHING_KEPT]
        self.gaps += [(after, NOTHING_KEPT) for after in self._open_gaps]
        if self._cancel_lots is not None:
            self._cancel_lots.settle()
        self._report_strange()
        self._report_missing()

    def _verify_chain(self) -> None:
        """Files that must have been there: between two segments, and up to the replayed position."""
        parts, replayed = self._taken.files.message_log, self._taken.marks.checkpoint.replay_offset
        folder = f"{self._taken.path}/message_log"
        if not parts:
            if replayed:
                self._findings.add(MISSING, folder, 0, "all segments are missing")
            return
        for before, after in itertools.pairwise(parts):
            if before.base + before.size < after.base:
                lost = after.base - before.base - before.size
                detail = f"{lost} bytes of the log are missing before {after.path.rpartition('/')[2]}"
                self._findings.add(MISSING, before.path, before.size, detail)
            elif before.base + before.size > after.base:
                detail = "bytes behind the end of a sealed segment"
                self._findings.add(CORRUPT, before.path, after.base - before.base, detail)
        if 0 < replayed < parts[0].base:
            detail = f"the segments from offset {replayed} to {parts[0].base} are missing"
            self._findings.add(MISSING, parts[0].path, 0, detail)

    # -- rows

    def _records(self, part: LogPart, read: FileRead, records: Records) -> None:
        for kind, batch_type in ((KIND_MESSAGES, MessageBatch), (KIND_CANCELS, CancelBatch)):
            mine = records.of_kind(kind)
            if not len(mine):
                continue
            try:
                if batch_type is MessageBatch:
                    columns = mine.columns(MessageBatch, (*NAMES, "replaces_sequence", "replaces_due_ms"))
                    offset = mine.row_offsets()
                    self._messages(part, read, ScheduleRows.of(mine, columns))
                    replaced = np.flatnonzero(columns["replaces_sequence"])
                    old, old_due_ms = columns["replaces_sequence"][replaced], columns["replaces_due_ms"][replaced]
                    cancelled = np.zeros(len(replaced), np.uint8)
                    self._cancels(part, Cancels.of(old, old_due_ms, cancelled, offset[replaced]))
                else:
                    columns = mine.columns(CancelBatch, ("sequence", "due_ms", "outcome"))
                    sequence, due_ms, outcome = columns["sequence"], columns["due_ms"], columns["outcome"]
                    self._cancels(part, Cancels.of(sequence, due_ms, outcome, mine.row_offsets()))
            except MalformedColumnsError as error:
                self._findings.add(
                    CORRUPT, read.path, int(mine.offsets[0]), f"columns that contradict each other: {error}"
                )
        self._note_placeholders(records)
        self._is_members |= KIND_FOLLOWED in records.kinds
        for kinds, found in ((KINDS, self._strange), (MEMBER_KINDS, self._strange_to_members)):
            found += [(read.path, int(offset)) for offset in records.offsets[~np.isin(records.kinds, kinds)][:1]]

    def _report_strange(self) -> None:
        for path, offset in self._strange_to_members if self._is_members else self._strange:
            self._findings.add(CORRUPT, path, offset, "records of a kind that has no place in message_log")

    def _note_placeholders(self, records: Records) -> None:
        """A record of names stands where `repair` took a corrupt range out; replay passes over it. The range held sequences
        between those of its neighbours."""
        if KIND_NAMES not in records.kinds and not self._open_gaps:
            if KIND_MESSAGES in records.kinds:
                self._last_logged = max(self._last_logged, self.highest_sequence)
            return
        columns = (records.kinds.tolist(), records.firsts.tolist(), records.lasts.tolist())
        for kind, first, last in zip(*columns, strict=True):
            if kind == KIND_NAMES:
                self._open_gaps.append(self._last_logged)
            elif kind == KIND_MESSAGES:
                self.gaps += [(after, first) for after in self._open_gaps]
                self._open_gaps = []
                self._last_logged = last

    def _messages(self, part: LogPart, read: FileRead, rows: ScheduleRows) -> None:
        ascending = bool((rows.sequence[1:] > rows.sequence[:-1]).all())
        if not ascending or int(rows.sequence[0]) <= self.highest_sequence:
            place = int(np.flatnonzero(np.diff(rows.sequence) <= 0)[0]) + 1 if not ascending else 0
            detail = f"sequence {rows.sequence[place]} stands behind a higher one: sequences are never used twice"
            self._findings.add(CONTRADICTORY, read.path, int(rows.offset[place]), detail)
        self.highest_sequence = max(self.highest_sequence, int(rows.sequence.max()))
        self.subject_max = max(self.subject_max, int(rows.subject.max()))
        retired = self._units.is_retired(rows.due_ms, rows.sequence)
        again = retired & (part.base + rows.offset >= self._taken.marks.checkpoint.replay_offset)
        self.retired_waiting += int(np.count_nonzero(again & (rows.origin_sequence == 0)))
        rows = rows.take(self._span.mask(rows.due_ms) & ~retired)
        if not len(rows.sequence):
            return
        codes = self._units.codes_of(rows.due_ms, rows.sequence)
        places, known = self._units.places_of(codes)
        high_water = np.where(known, self._units.high_water[places], 0) if len(self._units.codes) else places
        placed = known & (rows.sequence <= high_water)
        self._logged.add(places[placed], rows.hashes()[placed])
        rest = ~placed
        if len(self._units.codes):
            rest &= ~(known & self._units.skipped[places])
        if rest.any():
            self._not_placed(part, rows.take(rest), codes[rest])

    def _not_placed(self, part: LogPart, rows: ScheduleRows, codes: I64, *, passed: bool = False) -> None:
        """In no schedule file: waiting for replay, or missing where replay has passed."""
        replayed = (part.base + rows.offset < self._taken.marks.checkpoint.replay_offset) | passed
        own = rows.origin_sequence == 0
        place, there = self.loose.find(rows.sequence)
        self.loose.seen[place[there]] = True
        outcome = np.zeros(len(rows.sequence), np.uint8)
        outcome[there] = self.loose.outcome[place[there]]
        if self._visit is not None:
            self._visit(Visited(part.path, part.size, None, rows, outcome))
        for code in np.unique(codes).tolist():
            mine = codes == code
            balance = self.waiting.setdefault(code, SubjectBalances())
            subject, result = rows.subject[mine & own], outcome[mine & own]
            balance.add(ACCEPTED, subject)
            balance.add(PENDING, subject[result == 0])
            balance.add_outcomes(result[result != 0], subject[result != 0])
            balance.add(INTERNAL, rows.subject[mine & ~own])
            lost = np.flatnonzero(mine & replayed)
            if len(lost):
                self._note_missing(code, part, int(rows.offset[lost[0]]), int(rows.sequence[lost[0]]), len(lost))

    def _note_missing(self, code: int, part: LogPart, offset: int, sequence: int, count: int) -> None:
        self._missing.setdefault(code, []).append((sequence, part.path, offset, count))
        self.missing_codes.add(code)

    def _cancels(self, part: LogPart, cancels: Cancels) -> None:
        """Those whose outcome must be durable by now."""
        if self._cancel_lots is None:
            return
        cancels = replace(cancels, offset=part.base + cancels.offset)
        done = cancels.offset < self._taken.marks.checkpoint.replay_offset
        done &= self._span.mask(cancels.due_ms) & ~self._units.is_retired(cancels.due_ms, cancels.sequence)
        self._cancel_lots.add(cancels.take(done))

    # -- comparing

    def differing(self) -> NDArray[np.intp]:
        """Places of the units whose rows are not those of the log."""
        places = self._logged.differences(self._units.placed)
        return places[~self._units.skipped[places]]

    def compare(self, *, blobs: bool) -> None:
        """Compare the units whose rows are not those of the log row by row; with `blobs` the bytes of their messages must
        verify. A unit whose files went meanwhile is left out."""
        codes = self._units.codes[self.differing()].tolist()
        for begin in range(0, len(codes), UNITS_AT_ONCE):
            kept = first_kept_sequence(self._taken)
            held = {
                code: unit_sequences(self._taken, self._units, code, kept, blobs=blobs)
                for code in codes[begin : begin + UNITS_AT_ONCE]
            }
            self._compare_rows({code: sequences for code, sequences in held.items() if sequences is not None})

    def _compare_rows(self, scheduled: dict[int, I64]) -> None:
        """`scheduled`: the sequences i64[n] (ascending, those that message_log keeps) that each unit's files hold."""
        found: dict[int, list[I64]] = {code: [] for code in scheduled}
        lost = 0
        for part, rows, codes in self._logged_rows(np.array(sorted(scheduled), np.int64)):
            for code in np.unique(codes).tolist():
                mine = rows.take(codes == code)
                found[code].append(mine.sequence)
                absent = ~np.isin(mine.sequence, scheduled[code])
                if absent.any():
                    # Below the mark of its file no replay looks for a message again: it is lost there.
                    self._not_placed(part, mine.take(absent), np.full(int(absent.sum()), code), passed=True)
                    lost += int(absent.sum())
        strangers = 0
        for code, mine_scheduled in scheduled.items():
            logged = np.concatenate(found[code]) if found[code] else np.zeros(0, np.int64)
            strange = mine_scheduled[~np.isin(mine_scheduled, logged)]
            strange = strange[~_within(strange, self.gaps)]
            if len(strange):
                strangers += len(strange)
                detail = f"{len(strange)} messages that message_log does not have, the first sequence {strange[0]}"
                self._findings.add(ORPHANED, self._path_of(code), 0, detail, len(strange))
            elif not lost and not strangers and not self.gaps:
                detail = "due time, subject or time of acceptance of some messages differ from message_log"
                self._findings.add(CONTRADICTORY, self._path_of(code), 0, detail)
        self._report_missing()

    def _logged_rows(self, codes: I64) -> Iterator[tuple[LogPart, ScheduleRows, I64]]:
        """Placed rows of these units, with the unit of each row, segment by segment."""
        for part, read in Reader(self._taken).segments():
            for mine, columns in read.rows(MessageBatch, NAMES):
                rows = ScheduleRows.of(mine, columns)
                of_row = self._units.codes_of(rows.due_ms, rows.sequence)
                places, known = self._units.places_of(of_row)
                wanted = known & np.isin(of_row, codes) & ~self._units.is_retired(rows.due_ms, rows.sequence)
                wanted &= rows.sequence <= self._units.high_water[places]
                if wanted.any():
                    yield part, rows.take(wanted), of_row[wanted]
            if read.gone and part.base in self._gaps_without:
                self.gaps.append(self._gaps_without.pop(part.base))

    def _path_of(self, code: int) -> str:
        key = ScheduleKey(code >> 1, ScheduleSource.DAY if code & 1 else ScheduleSource.DIRECT)
        return self._taken.schedule_path(key)

    def _report_missing(self) -> None:
        for code, found in self._missing.items():
            found.sort()
            sequence, path, offset, _ = found[0]
            total = sum([count for *_, count in found])
            detail = (
                f"{total} accepted messages are not in {self._path_of(code)}, the first sequence {sequence}; "
                "`rebuild` restores them from here"
            )
            self._findings.add(MISSING, path, offset, detail, total)
        self._missing = {}


def _within(sequences: I64, gaps: list[tuple[int, int]]) -> NDArray[np.bool_]:
    """Whether a sequence may have stood in a damaged range, bool[n]."""
    mask = np.zeros(len(sequences), np.bool_)
    for after, before in gaps:
        mask |= (sequences > after) & (sequences < before)
    return mask
