"""A round of replay, and the steps that publish it.

The replay places the messages of a round in schedule files. Then each step takes the round, all in one step of the event
loop. An index over all messages is one more step: a class with `publish`, in the room that it belongs to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from store.logs.message_log import LogEntry
from store.logs.schedule_log import ScheduleKey
from store.records.batches import I64, U32, CancelBatch, LedgerBatch, MessageBatch, NameBatch, OutcomeBatch, TableBatch
from store.records.column_batch import has_any
from store.records.row_sums import U64
from store.records.segment import Appended


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows written to one schedule file."""

    key: ScheduleKey
    appended: Appended
    batch: MessageBatch
    row_sum: U64 | None = None
    """The sum of each row, if the rows are likely to go straight to the wheel: made in the thread that places them."""


@dataclass(slots=True)
class Round:
    """The result of one round of replay, to be published."""

    end: int
    last_sequence: int
    # What it replays, as it stands in message_log.
    entries: Sequence[LogEntry] = ()
    # All messages of the round; copies are marked in `placed` only.
    messages: MessageBatch | None = None
    placed: list[Placed] = field(default_factory=list)
    cancels: list[CancelBatch] = field(default_factory=list)
    # Sequences (i64[n]) with ids that a file of messages had already.
    skipped: list[tuple[ScheduleKey, I64]] = field(default_factory=list)
    # Of a member of a cluster: names, the outcomes that another process decided, windows that were retired, tables.
    names: list[NameBatch] = field(default_factory=list)
    outcomes: list[OutcomeBatch] = field(default_factory=list)
    # The consumer groups u32[n] of the messages of each of these outcomes; None: none is for one.
    outcome_groups: list[U32 | None] = field(default_factory=list)
    retired: list[LedgerBatch] = field(default_factory=list)
    # Records that the broker of another process has made, in order.
    of_broker: deque[LogEntry] = field(default_factory=deque)
    tables: list[TableBatch] = field(default_factory=list)
    # How many steps were done with it.
    published: int = 0
    size_bytes: int = 0
    accepted: int = 0
    internal: int = 0
    replaced: int = 0

    def end_step(self) -> None:
        """One step more was done with it."""
        self.published += 1

    def count(self, batch: MessageBatch) -> None:
        """Add the messages and the internal records of a batch to the counts."""
        internal = int(np.count_nonzero(batch.origin_sequence))
        self.internal += internal
        self.accepted += len(batch) - internal
        if has_any(batch.replaces_sequence):
            self.replaced += int(np.count_nonzero((batch.replaces_sequence != 0) & (batch.origin_sequence == 0)))

    def recount(self, batch: MessageBatch) -> None:
        """Count this batch alone: a round that met a full disk is placed again."""
        self.accepted = self.internal = self.replaced = 0
        self.count(batch)

    def begin(
        self,
        messages: MessageBatch | None,
        cancels: list[CancelBatch],
        size_bytes: int,
        names: list[NameBatch] | None = None,
        outcomes: list[OutcomeBatch] | None = None,
        retired: list[LedgerBatch] | None = None,
        of_broker: list[LogEntry] | None = None,
        tables: list[TableBatch] | None = None,
    ) -> None:
        """Know what the round has to place; once more where it met a full disk."""
        self.messages, self.cancels, self.size_bytes = messages, cancels, size_bytes
        self.names, self.outcomes, self.outcome_groups = names or [], outcomes or [], []
        self.retired, self.of_broker, self.tables = retired or [], deque(of_broker or ()), tables or []
        if messages is not None:
            self.last_sequence = int(messages.sequence[-1])


class RoundStep(Protocol):
    """Something that is done with every round. `server/parts.py` has the list of steps, with the reasons of their order."""

    def publish(self, done: Round) -> None:
        """Take a round of message_log; rounds come in the order of their sequences. It must not wait, and go over no
        message by itself. A start brings rounds again from the last checkpoint on."""
