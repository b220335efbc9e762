"""Durable entries of message_log on their way from the accepted log to the replay, in order, up to a bound of bytes.

Past the bound the log itself is the queue: the queue has overflowed, and the replay reads from the file until it has caught
up. So it is at a start. The accepted log is the only writer, the replay the only reader.
"""

from __future__ import annotations

from collections import deque

import trio

from delayserver.runtime.clock import Clock
from delayserver.runtime.marks import Bell
from delayserver.state.positions.positions import Positions
from store.logs.message_log import LogEntry
from store.records.batches import FollowedBatch, MessageBatch
from store.records.column_batch import ColumnBatch
from store.records.message_rows import MessageRows

# Entries kept in memory between commit and replay; behind that they are read back from the log.
QUEUE_BYTES_MAX = 32 << 20
# Single sends that are not due soon share a round: it is put off by this much, unless a part waits for it or a row that is
# due soon comes. A round costs as much as a dozen sends, whatever is in it.
LINGER_MS = 50
LINGER_ROWS_MAX = 512
SOON_MS = 200
NO_END = 1 << 62


class LogQueue:
    """The entries that the next round of replay may take from memory."""

    def __init__(self, positions: Positions, clock: Clock, bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self.positions = positions
        self._clock = clock
        self._bytes_max = bytes_max
        self._entries: deque[LogEntry] = deque()
        self._size_bytes = 0
        self._lingering = False
        self._lingering_rows = 0
        # Offsets at which a round ends, in order.
        self._round_ends: deque[int] = deque()
        # Whether the log holds entries behind those that are here.
        self.overflowed = True
        # Rung when there is something to replay.
        self.arrived = Bell()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries that are here."""
        return self._size_bytes

    @property
    def bytes_max(self) -> int:
        """The bound of `size_bytes`."""
        return self._bytes_max

    def put(self, entries: list[LogEntry]) -> None:
        """Durable entries, in order, in the step that moves the mark `durable` behind them."""
        if not self.overflowed:
            for entry in entries:
                size = entry.end - entry.start
                if self._size_bytes + size > self._bytes_max:
                    self.overflowed = True
                    break
                self._entries.append(entry)
                self._size_bytes += size
                if self._lingering and not self._may_linger(entry):
                    self.positions.hurry.ring()
        self.arrived.ring()

    def end_round_at(self, offset: int) -> None:
        """Let a round end at an offset behind those that are replayed. Offsets come in order."""
        self._round_ends.append(offset)

    @property
    def round_end(self) -> int:
        """The next round takes nothing behind this offset."""
        ends = self._round_ends
        while ends and ends[0] <= self.positions.replayed.value:
            ends.popleft()
        return ends[0] if ends else NO_END

    def take(self, bytes_max: int, rows_max: int) -> list[LogEntry]:
        """The first entries: at least one if there is any, up to about so many bytes and rows, or to `round_end`."""
        entries: list[LogEntry] = []
        size, rows, end = 0, 0, self.round_end
        while self._entries and size < bytes_max and rows < rows_max and self._entries[0].start < end:
            entry = self._entries.popleft()
            entries.append(entry)
            size += entry.end - entry.start
            rows += len(entry.batch)
        self._size_bytes -= size
        return entries

    def catch_up(self) -> bool:
        """Whether the replay has read the log up to the mark `durable`. Then entries are put here from this step on."""
        if self.positions.replayed.value < self.positions.durable.value:
            return False
        assert not self._entries
        self.overflowed = False
        return True

    async def linger(self) -> None:
        """Let a few more rows gather, unless a part waits for the replay, or a row is due soon."""
        self._lingering_rows = 0
        waited_for = self.positions.replayed_sequence.awaited or self.positions.replayed.awaited
        if waited_for or not self._entries or not all(map(self._may_linger, self._entries)):
            return
        self.positions.hurry.hush()
        self._lingering = True
        with trio.move_on_after(LINGER_MS / 1000):
            await self.positions.hurry.rung()
        self._lingering = False

    def _may_linger(self, entry: LogEntry) -> bool:
        self._lingering_rows += len(entry.batch)
        return self._lingering_rows <= LINGER_ROWS_MAX and not self.is_urgent(entry)

    def is_urgent(self, entry: LogEntry) -> bool:
        """Whether the round of this entry is not to be put off: it cancels something, or a row is due soon. A place of the
        shared log, which stands behind each write of a member, is replayed with what comes before it."""
        batch = entry.batch
        if isinstance(batch, FollowedBatch):
            return False
        if not isinstance(batch, MessageBatch | MessageRows):
            return True
        return due_range(batch)[0] <= self._clock.now_ms() + SOON_MS

    def check_invariants(self) -> None:
        """The entries follow each other, are durable, and are not replayed."""
        assert self._size_bytes == sum(entry.end - entry.start for entry in self._entries)
        assert self._size_bytes <= self._bytes_max
        ends = [entry.end for entry in self._entries]
        starts = [entry.start for entry in self._entries]
        assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
        if self._entries:
            assert self.positions.replayed.value <= starts[0]
            assert ends[-1] <= self.positions.durable.value
            assert self.overflowed or ends[-1] == self.positions.durable.value


def due_range(batch: ColumnBatch | MessageRows) -> tuple[int, int]:
    """The first and the last due time of messages, in milliseconds."""
    if type(batch) is MessageRows:
        first = batch.rows[0][0]
        return (first, first) if len(batch.rows) == 1 else (min(batch.due_ms), max(batch.due_ms))
    assert isinstance(batch, MessageBatch)
    return int(batch.due_ms.min()), int(batch.due_ms.max())
