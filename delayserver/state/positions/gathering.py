"""Messages and cancels that were taken and are not in message_log yet, in the groups in which they will be committed.

The group commit puts items in and takes groups out. Retention reads which due times are on their way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from delayserver.config.settings import StorageSettings
from delayserver.protocol.errors import DelayServerError
from delayserver.runtime.clock import Clock
from store.logs.message_log import LogEntry
from store.records.batches import I64, CancelBatch, MessageBatch
from store.records.message_rows import Row

Done = Callable[["Committed | DelayServerError"], None]
# Gets the first sequence of its rows.
RowsDone = Callable[[int | DelayServerError], None]


class Committed(NamedTuple):
    """A durable batch: its rows have the sequences from `first_sequence` on, and were accepted at `accepted_us`."""

    first_sequence: int
    accepted_us: int
    batch: MessageBatch | CancelBatch


class CommitGroup:
    """The rows of one commit: those of many sends, which become one record, and batches of one record each. Writer: the
    group commit."""

    __slots__ = ("accepted_us", "batches", "dones", "first_sequence", "gathered_us", "rows", "rows_dones", "size_bytes")

    def __init__(self, gathered_us: int) -> None:
        # When its first item came, on the monotonic clock.
        self.gathered_us = gathered_us
        self.rows: list[Row] = []
        # How many of the rows are whose, in order.
        self.rows_dones: list[tuple[int, RowsDone]] = []
        self.batches: list[MessageBatch | CancelBatch] = []
        self.dones: list[Done] = []
        self.size_bytes = 0
        # Set when the group is numbered. The sequence is that of the rows, which come first in the log.
        self.first_sequence = 0
        self.accepted_us = 0

    def grow(self, size_bytes: int) -> None:
        """An item of this size comes into the group."""
        self.size_bytes += size_bytes

    def add_rows(self, rows: list[Row], done: RowsDone) -> None:
        """Rows of one send: a part of the one record that all rows of the group become."""
        self.rows += rows
        self.rows_dones.append((len(rows), done))

    def add(self, batch: MessageBatch | CancelBatch, done: Done) -> None:
        """A batch that becomes a record of its own."""
        self.batches.append(batch)
        self.dones.append(done)

    def number(self, first_sequence: int, accepted_us: int) -> None:
        """The rows have the sequences from `first_sequence` on."""
        self.first_sequence, self.accepted_us = first_sequence, accepted_us

    def tell(self, entries: list[LogEntry]) -> None:
        """Tell all who wait that their item is durable; `entries` are the records of the group."""
        sequence = self.first_sequence
        for count, rows_done in self.rows_dones:
            rows_done(sequence)
            sequence += count
        if self.dones:
            for done, (_, _, batch) in zip(self.dones, entries[-len(self.dones) :], strict=True):
                assert isinstance(batch, MessageBatch | CancelBatch)
                first = int(batch.sequence[0]) if isinstance(batch, MessageBatch) else 0
                done(Committed(first, self.accepted_us, batch))

    def fail(self, error: DelayServerError) -> None:
        """Tell all who wait."""
        for _, rows_done in self.rows_dones:
            rows_done(error)
        for done in self.dones:
            done(error)


class Gathering:
    """Groups in the order of their commits: those that gather, and those on their way into the log. For the event loop.
    Writers: the group commit, and the accepted log for groups on their way."""

    __slots__ = ("_clock", "_groups", "_on_their_way", "_settings", "size_bytes")

    def __init__(self, settings: StorageSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._groups: deque[CommitGroup] = deque()
        self._on_their_way: deque[CommitGroup] = deque()
        # Bytes of the groups that gather.
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was taken that is not in the log yet."""
        return not self._on_their_way and not self._groups

    def take(self, size_bytes: int) -> CommitGroup | None:
        """The group for an item of this size, whose bytes count from now on; None where too much waits."""
        groups = self._groups
        if groups and self.size_bytes + size_bytes > self._settings.gather_bytes_max:
            return None
        if not groups or groups[-1].size_bytes + size_bytes > self._settings.group_bytes_max:
            groups.append(CommitGroup(self._clock.monotonic_us()))
        group = groups[-1]
        group.grow(size_bytes)
        self.size_bytes += size_bytes
        return group

    def next(self) -> CommitGroup:
        """Take the first group out."""
        group = self._groups.popleft()
        self.size_bytes -= group.size_bytes
        return group

    def send_off(self) -> CommitGroup:
        """Take the first group out; it counts as on its way until `arrived`."""
        group = self.next()
        self._on_their_way.append(group)
        return group

    def arrived(self, group: CommitGroup) -> bool:
        """The group is in the log, or never will be. False if it was not on its way: then its step began with `next`. Groups
        come in the order in which they were sent off."""
        if not self._on_their_way or self._on_their_way[0] is not group:
            return False
        self._on_their_way.popleft()
        return True

    @property
    def on_their_way(self) -> list[CommitGroup]:
        """The groups that were sent off and have not arrived, the first one first."""
        return list(self._on_their_way)

    def check_invariants(self) -> None:
        """The sum is that of the groups, no group is empty, and each item has somebody who waits for it."""
        assert self.size_bytes == sum([group.size_bytes for group in self._groups])
        for group in [*self._on_their_way, *self._groups]:
            assert group.rows or group.batches
            assert len(group.rows) == sum([count for count, _ in group.rows_dones])
            assert len(group.batches) == len(group.dones)

    def due_ms(self) -> Iterator[I64]:
        """The due times i64[n] of all messages that were taken and are not in the log yet, in parts."""
        for group in [*self._on_their_way, *self._groups]:
            yield np.fromiter([row[0] for row in group.rows], np.int64, len(group.rows))
            yield from [batch.due_ms for batch in group.batches if isinstance(batch, MessageBatch)]
