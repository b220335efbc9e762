"""What becomes of a record when it is durable in message_log, wherever it came from.

A group of clients' requests is one source. Another one is a log that several processes read: there a record is accepted when
it came back, and the one that this process did not write has nobody who waits for it. All of them take the same four steps.
"""

from __future__ import annotations

import numpy as np

from delayserver.protocol.errors import DelayServerError
from delayserver.state.counts.balance import Balance
from delayserver.state.positions.gathering import CommitGroup, Gathering
from delayserver.state.positions.log_queue import LogQueue
from store.logs.message_log import LogEntry
from store.records.batches import MessageBatch
from store.records.message_rows import MessageRows


class AcceptedLog:
    """The accepted records: answers who waits, counts, moves the marks, feeds the replay. For the event loop.

    Its one writer is the part that makes records durable (`RecordWriter`). Invariants:

    - Each record comes once, in the order of message_log, and is durable: the end of the last one is the mark `durable`.
    - Sequences of messages ascend: the last one is the mark `accepted_sequence`, and `Balance` counts each message once.
    - The four steps are one step of the event loop, so no part sees an answer without its count, or a mark without both.
    - Each group that began has ended, or is on its way (`Gathering`)."""

    __slots__ = ("_balance", "_gathering", "_positions", "_queue")

    def __init__(self, queue: LogQueue, balance: Balance, gathering: Gathering) -> None:
        self._positions = queue.positions
        self._queue = queue
        self._balance = balance
        self._gathering = gathering

    def begin(self) -> CommitGroup:
        """The first group that gathers. It gets its sequences and time of acceptance in this step. A later one accepts or
        refuses it. Groups end in the order in which they begin."""
        positions = self._positions
        positions.commits_begun.advance(positions.commits_begun.value + 1)
        return self._gathering.send_off()

    def lead(self) -> None:
        """What comes from here on was decided by this process."""
        self._positions.lead()

    def follow(self) -> None:
        """What comes from here on was decided by another process."""
        self._positions.follow()

    def refuse(self, group: CommitGroup, error: DelayServerError) -> None:
        """Tells all who wait for a group that it will not be accepted."""
        group.fail(error)
        self._end(group)

    def _end(self, group: CommitGroup) -> None:
        if self._gathering.arrived(group):
            positions = self._positions
            positions.commits_ended.advance(positions.commits_ended.value + 1)

    def accept(self, entries: list[LogEntry], group: CommitGroup | None = None) -> None:
        """Takes durable records, at least one. `group` waits for them, and is told; None if nobody of this process does."""
        positions, balance = self._positions, self._balance
        assert entries[0].start >= positions.durable.value, "a record comes a second time"
        # Answers first, so that the clients go on during the rest of this step.
        if group is not None:
            group.tell(entries)
        for entry in entries:
            batch = entry.batch
            if type(batch) is MessageRows:
                positions.accepted_sequence.advance(batch.last_sequence)
                balance.commit(len(batch))
                balance.subjects.accept_rows(batch.rows)
            elif isinstance(batch, MessageBatch):
                positions.accepted_sequence.advance(int(batch.sequence[-1]))
                balance.commit(len(batch) - int(np.count_nonzero(batch.origin_sequence)))
                balance.subjects.accept(batch)
        positions.durable.advance(entries[-1].end)
        self._queue.put(entries)
        if group is not None:
            self._end(group)
