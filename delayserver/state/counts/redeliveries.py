"""Redeliveries on their way through the delay pipeline: how many wait for each consumer group, and since when.

A redelivery is an internal record for one consumer group. It waits from the step in which its old delivery is settled
until a queue of the broker has it. That is exact in every step, and it is not durable. Beside it stands what the files say:
records that are placed and have no durable outcome. A checkpoint has that, and a start begins with it.

After a crash a redelivery whose hand-over has no durable outcome waits as well, although a queue may have it. The start
hands it over again at once, and the broker then says that it has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from delayserver.state.counts.waiting_ages import Key, WaitingAges
from store.records.batches import I64, U32, MessageBatch, StoredBatch
from store.records.column_batch import has_any


@dataclass(frozen=True, slots=True)
class RedeliveryRows:
    """Columns [n] of redeliveries: `since_us` is since when they wait, which their records have as `accepted_us`."""

    sequence: I64
    subject: U32
    group: U32
    since_us: I64

    @classmethod
    def of(cls, sequence: I64, subject: U32, group: U32, since_us: I64) -> RedeliveryRows | None:
        """The redeliveries among these rows; None without any. `group` 0: the row is for all groups."""
        if not has_any(group):
            return None
        rows = np.flatnonzero(group)
        return cls(sequence[rows], subject[rows], group[rows], since_us[rows])

    @classmethod
    def of_messages(cls, batch: MessageBatch | StoredBatch) -> RedeliveryRows | None:
        """The redeliveries of a batch; None without any."""
        return cls.of(batch.sequence, batch.subject, batch.target_group, batch.accepted_us)

    def take(self, rows: I64) -> RedeliveryRows:
        """The rows at these indices."""
        return RedeliveryRows(self.sequence[rows], self.subject[rows], self.group[rows], self.since_us[rows])


class Redeliveries:
    """The counts. For the event loop."""

    __slots__ = ("_before", "_ended", "_ended_before", "_landed", "_pending", "_waiting")

    def __init__(self) -> None:
        self._waiting = WaitingAges()
        # Those that a queue has and that are not decided: at most the rows in flight, and those of failed hand-overs.
        self._landed: set[int] = set()
        # Placed, without a durable outcome.
        self._pending = WaitingAges()
        # Those that ended durably since a checkpoint began.
        self._ended = WaitingAges()
        # Records up to this sequence are of the processes before.
        self._before = 0
        # Those of them that the replay brings, and that have an outcome.
        self._ended_before: frozenset[int] = frozenset()

    # -- writers

    def begin(self, before: int, ended: frozenset[int]) -> None:
        """Sequences up to `before` are of the processes before this one. Those in `ended` have an outcome already. Writer:
        the start."""
        self._before, self._ended_before = before, ended

    def start_from(self, pending: WaitingAges) -> None:
        """Takes those that were pending before the first round of the replay. Writer: the start."""
        self._pending.merge(pending)
        self._waiting.merge(pending)

    def place(self, batch: MessageBatch) -> None:
        """Records are in their schedule files, and published. Writer: the publisher."""
        rows = RedeliveryRows.of_messages(batch)
        if rows is None:
            return
        if self._ended_before:
            rows = _without(rows, self._ended_before)
        if not len(rows.sequence):
            return
        self._pending.add(rows.subject, rows.group, rows.since_us, 1)
        if int(rows.sequence[0]) <= self._before:
            old = rows.take(np.flatnonzero(rows.sequence <= self._before))
            self._waiting.add(old.subject, old.group, old.since_us, 1)

    def count_sent(self, batch: MessageBatch) -> None:
        """Counts committed redeliveries, in the step in which their old deliveries are settled. Writer: the
        redelivery."""
        self._waiting.add(batch.subject, batch.target_group, batch.accepted_us, 1)

    def count_arrived(self, batch: StoredBatch, taken: I64) -> None:
        """Counts the rows of a hand-over that the local broker has in its queues. Writer: the embedded node."""
        rows = RedeliveryRows.of_messages(batch.take(taken) if len(taken) < len(batch) else batch)
        if rows is None:
            return
        fresh = _without(rows, self._landed)
        self._landed.update(fresh.sequence.tolist())
        self._waiting.add(fresh.subject, fresh.group, fresh.since_us, -1)

    def count_decided(self, rows: RedeliveryRows) -> None:
        """Counts redeliveries that have an outcome: this broker has them, or another node, or they are given up.
        Writer: `Decided`."""
        fresh = _without(rows, self._landed)
        self._landed.difference_update(rows.sequence.tolist())
        self._waiting.add(fresh.subject, fresh.group, fresh.since_us, -1)

    def end(self, batches: Sequence[RedeliveryRows]) -> None:
        """Their outcomes are durable. Writer: `Decided`."""
        for rows in batches:
            self._pending.add(rows.subject, rows.group, rows.since_us, -1)
            self._ended.add(rows.subject, rows.group, rows.since_us, 1)

    def begin_checkpoint(self) -> WaitingAges:
        """A copy of what is placed and has no durable outcome, as of now. Writer: the checkpointing."""
        self._ended = WaitingAges()
        return self.pending()

    def rebase(self, pending: WaitingAges, known: WaitingAges) -> None:
        """Counts on from the files: `pending` were pending by them when `known` was copied from `pending`. Writer: the
        counting of the files."""
        for table in (self._pending, self._waiting):
            table.merge(pending)
            table.merge(known, -1)

    # -- readers

    def waiting(self, key: Key) -> int:
        """How many wait for a group. Below 0 for a moment, while a queue has one whose old delivery is not settled yet: both
        count there."""
        return self._waiting.count(key)

    def oldest_ms(self, key: Key) -> int | None:
        """Since when the oldest one waits for a group (some hundredth of the greatest age too early); None without any."""
        return self._waiting.oldest_ms(key)

    def total(self) -> int:
        """How many wait for all groups."""
        return max(0, self._waiting.total())

    def ended_ages(self) -> WaitingAges:
        """Returns a copy of those that ended durably since a checkpoint began."""
        return self._ended.copy()

    def pending(self) -> WaitingAges:
        """A copy of what is placed and has no durable outcome."""
        return self._pending.copy()

    def check_invariants(self) -> None:
        """The tables are in order."""
        self._waiting.check_invariants()
        self._pending.check_invariants()


def _without(rows: RedeliveryRows, sequences: AbstractSet[int]) -> RedeliveryRows:
    own = rows.sequence.tolist()
    if sequences.isdisjoint(own):
        return rows
    return rows.take(np.flatnonzero([sequence not in sequences for sequence in own]))
