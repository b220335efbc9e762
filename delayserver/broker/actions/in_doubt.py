"""Messages that are on their way into message_log when the process ends: as redeliveries, or as dead letters sent again.

The record in message_log and the ack of what it replaces are one decision. Before the record is written, the progress log
has a row that names these messages, and from which offset of message_log on the record would stand. A start that finds such
a row without an ack looks there. If the record is there, the message is done here. Otherwise nothing has happened.

It costs a nack or an ended lease one more sync of the broker. A place in the record itself would need a newer version
of its kind, which older programs refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from delayserver.broker.actions.dead_queue import Claim
from delayserver.broker.actions.retries import RetryBatch, origins, written_ids
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.queues.group_cursors import Cursor, GroupKey
from delayserver.broker.queues.places import Place
from delayserver.broker.queues.ranges import Range
from delayserver.broker.reads import having_read, read_at_once
from store.errors import UnreadableError
from store.records.batches import MessageBatch, StoredBatch

Message = tuple[int, int, bytes]
"""The code of the consumer group, the sequence of the origin, the message id."""


class MessagesInDoubt:
    """Notes such messages, and settles them at a start."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def _begin(self, key: GroupKey, main: Iterable[Range], retry: Iterable[Range], offset: int) -> None:
        group = self._state.groups.get(key)
        if group is None:
            return
        for of_retry, ranges in ((False, main), (True, retry)):
            cursor = group.cursor(of_retry)
            for span in ranges:
                for place in cursor.begin_return(*span, offset):
                    self._state.notes.returning(key, of_retry, place)

    def begin_retry(self, batch: RetryBatch, offset: int) -> None:
        """Notes a batch whose internal records are about to be written to message_log, at or behind this offset. They
        must not be there before the next sync has ended."""
        self._begin((batch.subject, batch.group), batch.main, batch.retry, offset)

    def begin_resend(self, claim: Claim, offset: int) -> None:
        """As `begin_retry`, for claimed dead letters."""
        self._begin(claim.key, [(part.start, part.stop) for part in claim.parts], (), offset)

    def first_offset(self) -> int | None:
        """From which offset of message_log on records may stand that replace messages here; None if there are none."""
        offsets = [place.until_ms for _, _, cursor in self._cursors() for place in cursor.returning]
        return min(offsets, default=None)

    def search(self, batches: Iterable[tuple[int, MessageBatch]]) -> Callable[[], dict[Message, int]]:
        """A call that finds the messages that such records replace, with the offset of the last one. It reads `batches`
        alone, in any thread."""
        return partial(_last_written, batches, {key[1] for key, _, _ in self._cursors()})

    def settle(self, batches: Iterable[tuple[int, MessageBatch]]) -> None:
        """Ack the messages that such records replace, and only these. `batches`: all of message_log from `first_offset` on,
        with their offsets. Reads the disk at once: to be called at a start, before anything is handed out."""
        self.settle_written(self.search(batches)())

    def settle_written(self, found: dict[Message, int]) -> None:
        """As `settle`. `found`: what `search` found."""
        for key, of_retry, cursor in self._cursors():
            for place in list(cursor.returning):
                self._settle(key, of_retry, cursor, place, found)
            cursor.end_returns()

    def _settle(self, key: GroupKey, of_retry: bool, cursor: Cursor, place: Place, found: dict[Message, int]) -> None:
        position = place.start
        while position < place.stop:
            try:
                stop, batch = self._read(key, of_retry, position, place.stop)
            except UnreadableError:  # it comes again
                return
            for at, message in enumerate(() if batch is None else _messages(batch, key[1]), position):
                if found.get(message, -1) >= place.until_ms:
                    for start, behind in cursor.ack(at, at + 1, at + 1):
                        self._state.notes.add_acked(key, of_retry, start, behind)
            position = stop

    def _read(self, key: GroupKey, of_retry: bool, position: int, stop: int) -> tuple[int, StoredBatch | None]:
        """The messages from a position on that are in one record, and where they end."""
        messages, reads = self._state.messages, self._state.files.reads
        queue_key = key if of_retry else (key[0], 0)
        run = read_at_once(reads, having_read(lambda: messages.run_at(queue_key, position)))
        stop = min(stop, run.position + run.row_count)
        batch = read_at_once(reads, having_read(lambda: messages.read(run)))
        row = run.row_start + position - run.position
        return stop, None if batch is None else batch.slice(row, row + stop - position)

    def _cursors(self) -> list[tuple[GroupKey, bool, Cursor]]:
        return [
            (key, of_retry, cursor)
            for key, group in self._state.groups.items()
            for of_retry, cursor in ((False, group.main), (True, group.retry))
            if cursor.returning
        ]


def _last_written(batches: Iterable[tuple[int, MessageBatch]], groups: set[int]) -> dict[Message, int]:
    return {message: offset for offset, batch in batches for message in _internal(batch, groups)}


def _internal(batch: MessageBatch, groups: set[int]) -> list[Message]:
    """The internal records for these groups."""
    rows = np.flatnonzero((batch.origin_sequence != 0) & np.isin(batch.target_group, list(groups)))
    if not len(rows):
        return []
    chosen = batch.take(rows)
    targets, sequences, lengths = chosen.target_group, chosen.origin_sequence, chosen.ids_length
    ids, ends = bytes(chosen.ids), np.cumsum(lengths.astype(np.int64)).tolist()
    return [
        (target, sequence, ids[end - length : end])
        for target, sequence, length, end in zip(
            targets.tolist(), sequences.tolist(), lengths.tolist(), ends, strict=True
        )
    ]


def _messages(stored: StoredBatch, group: int) -> list[Message]:
    lengths, blob = written_ids(stored)
    ids, ends = bytes(blob), np.cumsum(lengths.astype(np.int64)).tolist()
    return [
        (group, sequence, ids[end - length : end])
        for sequence, length, end in zip(origins(stored).tolist(), lengths.tolist(), ends, strict=True)
    ]
