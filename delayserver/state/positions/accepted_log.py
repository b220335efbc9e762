"""What becomes of a record when it is durable in message_log, wherever it came from.

A group of clients' requests is one source. Another one is a log that several processes read: there a record is accepted when
it came back, and the one that this process did not write has nobody who waits for it. All of them take the same four steps.
"""

from __future__ import annotations

import numpy as np

from delayserver.state.counts.balance import Balance
from delayserver.state.positions.gathering import CommitGroup
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
    - Each group that began has ended, or is being made durable."""

    __slots__ = ("_balance", "_positions", "_queue")

    def __init__(self, queue: LogQueue, balance: Balance) -> None:
        self._positions = queue.positions
        self._queue = queue
        self._balance = balance

    def begin(self) -> None:
        """Counts a group that gets its sequences and time of acceptance in this step, and is accepted in a later one."""
        positions = self._positions
        positions.commits_begun.advance(positions.commits_begun.value + 1)

    def end(self) -> None:
        """Counts the first of these groups as accepted or refused."""
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
