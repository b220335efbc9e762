"""The messages that a pull hands out, cut to size without work per message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.reads import ReadPlan
from store.records.batches import I64, U32, StoredBatch
from store.records.column_batch import constant_column
from store.records.shared_column import attempts_before

# One row of a reply without its id, properties and body: nine columns.
ROW_BYTES = 64


@dataclass(frozen=True, slots=True)
class PulledBatch:
    """Messages handed out: `delivery` (i64[n]) names them in an ack, `attempt` (u32[n]) counts from 1.

    `following`: the read that the messages behind these need; None if they are in memory, or there are none yet."""

    batch: StoredBatch
    delivery: I64
    attempt: U32
    following: ReadPlan | None = None

    def __len__(self) -> int:
        return len(self.delivery)


@dataclass(slots=True)
class PullBudget:
    """The messages and bytes that a pull may still take, and the parts that it has taken.

    `look_rows` and `look_bytes` bound the messages passed over, such as expired ones: a pull is one event-loop step.
    `look_ns` bounds the work of a filter.
    """

    messages: int
    bytes: int
    look_rows: int = 1 << 62
    look_bytes: int = 1 << 62
    look_ns: int = 1 << 62
    parts: list[StoredBatch] = field(default_factory=list)
    deliveries: list[I64] = field(default_factory=list)
    attempts: list[NDArray[Any]] = field(default_factory=list)
    fresh: bool = False
    """Whether the pull has taken messages that the group had never looked at."""
    wanted: tuple[int, int] = field(init=False)
    """The messages and bytes that the pull asked for."""

    def __post_init__(self) -> None:
        self.wanted = (self.messages, self.bytes)

    def take(self, part: StoredBatch, delivery: I64, before: I64, size: int) -> None:
        """Take rows. `before` i64[n]: how often each message was handed out since it was stored here."""
        self.parts.append(part)
        self.deliveries.append(delivery)
        earlier = attempts_before(part.redelivery)
        if len(earlier) == 1 and before.strides == (0,):
            self.attempts.append(constant_column(int(earlier[0]) + int(before[0]) + 1, len(part), np.uint32))
        else:
            self.attempts.append(earlier + (before + 1))
        self.messages -= len(part)
        self.bytes -= size

    def mark_fresh(self) -> None:
        """Sets `fresh`: the last part has messages that the group had never looked at."""
        self.fresh = True

    @property
    def may_look(self) -> bool:
        """Whether the pull may pass over more messages."""
        return self.look_rows > 0 and self.look_bytes > 0 and self.look_ns > 0

    def pass_over(self, count: int, size: int) -> None:
        """Note messages that are not handed out."""
        self.look_rows -= count
        self.look_bytes -= size

    def look(self, work_ns: int) -> None:
        """Note the work of a filter."""
        self.look_ns -= work_ns

    def fitting_rows(self, batch: StoredBatch, rows: NDArray[np.intp]) -> tuple[int, int]:
        """How many of the first `rows` of a record fit, and their bytes. The first message of a pull always fits."""
        lengths = (batch.ids_length, batch.properties_length, batch.bodies_length, batch.order_keys_length)
        if all(column.strides == (0,) for column in lengths):
            size = ROW_BYTES + sum([int(column[0]) for column in lengths])
            fit = max(min(len(rows), self.messages, self.bytes // size), 0 if self.parts else min(1, len(rows)))
            return fit, fit * size
        sizes = np.cumsum(sum([column[rows].astype(np.int64) for column in lengths]) + ROW_BYTES)
        fit = min(self.messages, int(np.searchsorted(sizes, self.bytes, side="right")))
        fit = max(fit, 0 if self.parts else min(1, len(rows)))
        return fit, int(sizes[fit - 1]) if fit else 0

    def fitting(self, batch: StoredBatch, row: int, count: int) -> tuple[int, int]:
        """How many of `count` rows from `row` on fit, and their bytes. The first message of a pull always fits."""
        count = min(count, self.messages)
        if row == 0 and count == len(batch):  # the whole record, as a consumer that keeps up takes it: no look at rows
            size = (
                count * ROW_BYTES + len(batch.ids) + len(batch.properties) + len(batch.bodies) + len(batch.order_keys)
            )
            if size <= self.bytes:
                return count, size
        lengths = (batch.ids_length, batch.properties_length, batch.bodies_length, batch.order_keys_length)
        if all(column.strides == (0,) for column in lengths):
            size = ROW_BYTES + sum([int(column[0]) for column in lengths])
            fit = min(count, self.bytes // size)
            fit = max(fit, 0 if self.parts else 1)
            return fit, fit * size
        sizes = np.cumsum(sum([column[row : row + count].astype(np.int64) for column in lengths]) + ROW_BYTES)
        fit = int(np.searchsorted(sizes, self.bytes, side="right"))
        fit = max(fit, 0 if self.parts else 1)
        return fit, int(sizes[fit - 1]) if fit else 0

    def pulled(self, following: ReadPlan | None = None) -> PulledBatch | None:
        """The batch; None if nothing was taken."""
        if not self.parts:
            return None
        attempts = [part.astype(np.uint32, copy=False) for part in self.attempts]
        if len(self.parts) == 1:
            return PulledBatch(self.parts[0], self.deliveries[0], attempts[0], following)
        return PulledBatch(
            StoredBatch.concatenate(self.parts), np.concatenate(self.deliveries), np.concatenate(attempts), following
        )
