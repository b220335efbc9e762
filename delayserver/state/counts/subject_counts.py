"""How many messages of each subject are pending, by rule 3: accepted, without a durable outcome.

Three counters go with each subject: messages accepted, messages placed in schedule_log, and messages that ended durably, all
since the start. `base` is what was pending before. Batches are counted where they pass anyway, one numpy call each; the rows
of single sends by plain integers, since numpy calls would cost more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from delayserver.state.counts.redeliveries import Redeliveries, RedeliveryRows
from delayserver.state.counts.waiting_ages import WaitingAges
from store.records.batches import I64, U32, MessageBatch, OutcomeBatch
from store.records.column_batch import has_any
from store.records.message_rows import Row
from store.records.outcome_balance import in_balance

_SUBJECTS_FIRST = 1024


class Tally:
    """One number for each subject code.

    Only writers grow it. Its length is the power of two above the highest code that was counted, so tallies of the same
    codes have the same length, however often the counts of one are added to another. A reader gets what there is:
    `total_of` adds tallies of different lengths.
    """

    __slots__ = ("_counts", "_quick")

    def __init__(self) -> None:
        # Two views of the same numbers: plain integers of one are quick to change, the other takes whole batches.
        self._quick = array("q", bytes(8 * _SUBJECTS_FIRST))
        self._counts: I64 = np.frombuffer(self._quick, np.int64)

    def __len__(self) -> int:
        return len(self._counts)

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Count a few messages."""
        quick = self._quick
        for row in rows:
            code = row[1]
            if code >= len(quick):
                self._grow(code)
                quick = self._quick
            quick[code] += 1

    def add(self, subjects: U32) -> None:
        """Count messages by their subject codes, u32[n]."""
        if not len(subjects):
            return
        if subjects.strides == (0,):
            self._require(int(subjects[0]))
            self._counts[subjects[0]] += len(subjects)
            return
        self._require(int(subjects.max()))
        np.add.at(self._counts, subjects.astype(np.intp), 1)

    def add_counts(self, counts: I64) -> None:
        """Add a number for each code from 0 on, i64[n]."""
        if len(counts):
            self._require(len(counts) - 1)
            self._counts[: len(counts)] += counts

    def copy(self) -> I64:
        """The numbers by code."""
        return self._counts.copy()

    @property
    def counts(self) -> I64:
        """The numbers by code, for reading in this step."""
        return self._counts

    def of(self, code: int) -> int:
        """The number of one code."""
        return self._quick[code] if code < len(self._quick) else 0

    def _require(self, code: int) -> None:
        if code >= len(self._counts):
            self._grow(code)

    def _grow(self, code: int) -> None:
        quick = array("q", bytes(8 << code.bit_length()))
        grown: I64 = np.frombuffer(quick, np.int64)
        grown[: len(self._counts)] = self._counts
        self._quick, self._counts = quick, grown


def total_of(*tallies: Tally, less: Tally | None = None) -> I64:
    """The sums of some tallies by code, without the counts of `less`: i64[n], n of the longest. It changes none of them."""
    longest = max(map(len, tallies)) if less is None else max(len(less), *map(len, tallies))
    total: I64 = np.zeros(longest, np.int64)
    for tally in tallies:
        total[: len(tally)] += tally.counts
    if less is not None:
        total[: len(less)] -= less.counts
    return total


class SubjectCounts:
    """The counters of all subjects. For the event loop."""

    __slots__ = ("_accepted", "_base", "_ended", "_is_found", "_placed", "is_counted", "redeliveries")

    def __init__(self) -> None:
        self._base = Tally()
        self._accepted = Tally()
        self._placed = Tally()
        self._ended = Tally()
        # Internal records for a consumer group, which are counted apart and stand in the same files.
        self.redeliveries = Redeliveries()
        # Whether `_base` is known. Until then the counts are unknown.
        self.is_counted = False
        # Whether the start knows it, as far as it came.
        self._is_found = False

    # -- writers

    def accept_rows(self, rows: Sequence[Row]) -> None:
        """Single messages were committed. Writer: the accepted log."""
        self._accepted.add_rows(rows)

    def accept(self, batch: MessageBatch) -> None:
        """Messages were committed. Writer: the accepted log."""
        self._accepted.add(counted_subjects(batch))

    def place(self, batch: MessageBatch) -> None:
        """Messages are in their schedule files, and published. Writer: the publisher."""
        self._placed.add(counted_subjects(batch))
        self.redeliveries.place(batch)

    def end(self, batches: Sequence[OutcomeBatch], redeliveries: Sequence[RedeliveryRows]) -> None:
        """Outcomes are durable, none of which was counted before; those of redeliveries also by their groups. Writer:
        `Decided`."""
        self.redeliveries.end(redeliveries)
        if len(batches) == 1:
            self._ended.add(ended_subjects(batches[0]))
        elif batches:
            self._ended.add(np.concatenate([ended_subjects(batch) for batch in batches]))

    def start_from(self, pending: I64, redeliveries: WaitingAges) -> None:
        """Takes the messages that were pending before the first round of the replay, i64[n] by code, and the
        redeliveries. Writer: the start."""
        self._base.add_counts(pending)
        self.redeliveries.start_from(redeliveries)
        self._is_found = True

    def doubt(self) -> None:
        """The start has met something that makes its counts inexact: the files have to be counted. Writer: the start."""
        self._base, self._is_found = Tally(), False

    @property
    def is_found(self) -> bool:
        """Whether the counts of the start are exact so far."""
        return self._is_found

    def end_replay(self) -> None:
        """Ends the replay of the start: all that was accepted before it is placed. Writer: the start."""
        self._accepted = Tally()
        self._accepted.add_counts(self._placed.copy())
        self.is_counted = self._is_found

    def rebase(self, pending: I64, placed: I64, ended: I64, redeliveries: WaitingAges, known: WaitingAges) -> None:
        """Counts on from the files. `pending`, i64[n] by code: the messages that were placed and had no durable outcome
        when `placed` and `ended` were copied. `redeliveries`: those that were pending when `known` was copied."""
        base = Tally()
        base.add_counts(pending)
        base.add_counts(-placed)
        base.add_counts(ended)
        self._base, self.is_counted = base, True
        self.redeliveries.rebase(redeliveries, known)

    # -- readers

    def placed_and_ended(self) -> tuple[I64, I64]:
        """Copies of two counters, for `rebase`."""
        return self._placed.copy(), self._ended.copy()

    def placed_pending(self) -> I64 | None:
        """Messages by subject code that are placed, without those that had ended before the start; None until counted."""
        if not self.is_counted:
            return None
        return total_of(self._base, self._placed)

    def ended_counts(self) -> I64:
        """Returns a copy of the messages that ended since the start, i64[n] by code."""
        return self._ended.copy()

    def pending(self) -> I64:
        """Pending messages by subject code. Only if `is_counted`."""
        assert self.is_counted
        return total_of(self._base, self._accepted, less=self._ended)

    def pending_of(self, subject: int) -> int:
        """Pending messages of one subject code. Only if `is_counted`."""
        assert self.is_counted
        return self._base.of(subject) + self._accepted.of(subject) - self._ended.of(subject)

    def check_invariants(self) -> None:
        """Nothing is placed that was not accepted, and no message ends twice."""
        self.redeliveries.check_invariants()
        assert self.is_counted or self._is_found or not self._base.counts.any()
        if self.is_counted:
            placed = self._placed.counts
            assert (placed[: len(self._accepted)] <= self._accepted.counts[: len(placed)]).all()
            assert not placed[len(self._accepted) :].any()
            assert (self.pending() >= 0).all()


def counted_subjects(batch: MessageBatch) -> U32:
    """Subjects of the messages that count: internal records do not."""
    if not has_any(batch.origin_sequence):
        return batch.subject
    subjects: U32 = batch.subject[batch.origin_sequence == 0]
    return subjects


def ended_subjects(batch: OutcomeBatch) -> U32:
    """Subjects of the outcomes that count: those of internal records do not."""
    if not has_any(batch.origin_sequence):
        return batch.subject
    subjects: U32 = batch.subject[in_balance(batch.origin_sequence, batch.outcome)]
    return subjects
