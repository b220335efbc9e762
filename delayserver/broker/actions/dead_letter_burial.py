"""Dead letters: messages whose last attempt failed, stored again in the dead-letter subject of their consumer group.

The letter is stored, and the message acked, in one step. One sync of the broker makes both durable: first the store, then
the ack. A crash between the two loses nothing: each letter holds the position of its message, and a start acks that.

The group that gave the messages up is also a group of the dead-letter subject. It has acked a letter that was sent again
or dropped.

The names of dead-letter subjects are ambiguous. So the table of policies has the code of each, durable before its
first letter. A letter names the moves of its group, so a start acks nothing for a group that was moved or removed
since.

Letters are outside the balance, which is about the hand-over: their message stays `delivered`. They hold the store
for `unconsumed_retention_ms` at most. One forgotten letter would hold all that came after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import msgpack
import numpy as np

from delayserver.broker.actions.arrivals import Arrivals
from delayserver.broker.actions.retries import GivenUp, RetryBatch, written_ids
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.files.store import StoredColumns
from delayserver.broker.queues.delivery_id import has_moves, moves_mark, places_of, unpack_place, unpack_places
from delayserver.broker.queues.group_cursors import Cursor, GroupKey
from delayserver.broker.queues.queue import QueueKey
from delayserver.broker.queues.ranges import Range, ranges_of
from store.records.batches import FLAG_DEAD_LETTER, FLAG_PUBLISHED, I64, U32, StoredBatch
from store.records.column_batch import ragged_offsets

REASON: Final = "dead_reason"
REASON_TEXT: Final = "dead_reason_text"
ATTEMPTS: Final = "dead_attempts"
SUBJECT: Final = "dead_subject"
GROUP: Final = "dead_group"
SEQUENCE: Final = "dead_sequence"
SERVER_ID: Final = "dead_server_id"
DUE_MS: Final = "dead_due_ms"
LETTERS_AT_ONCE: Final = 512
"""Dead letters that are made in one step on the event loop, which takes some milliseconds."""
PROPERTIES: Final = frozenset({REASON, REASON_TEXT, ATTEMPTS, SUBJECT, GROUP, SEQUENCE, SERVER_ID, DUE_MS})
"""The properties that a dead letter has besides those of its message."""


def property_maps(batch: StoredBatch) -> Iterator[dict[str, str]]:
    """The properties of each message."""
    blob = bytes(batch.properties)
    for start, stop in pairwise(ragged_offsets(batch.properties_length).tolist()):
        yield msgpack.unpackb(blob[start:stop]) if stop > start else {}


def without_marks(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that the message had before it became a dead letter."""
    return {name: value for name, value in properties.items() if name not in PROPERTIES}


def packed_properties(maps: list[dict[str, str]]) -> tuple[U32, bytes]:
    """Maps as a ragged column: lengths u32[n] and the blob."""
    packed = [msgpack.packb(each) if each else b"" for each in maps]
    return np.array([len(each) for each in packed], np.uint32), b"".join(packed)


def letters_of(batch: RetryBatch, subject: str, group: str, made: Made) -> StoredBatch:
    """The dead letters of the messages that a batch gives up. They are rare: a loop over them is no hot path."""
    assert batch.given_up is not None
    stored, given_up = batch.given_up.stored, batch.given_up
    origins = np.where(stored.origin_sequence != 0, stored.origin_sequence, stored.sequence).tolist()
    columns = (given_up.attempts.tolist(), origins, stored.server_id.tolist(), stored.due_ms.tolist())
    maps = []
    rows = zip(property_maps(stored), given_up.failures, *columns, strict=True)
    for properties, failure, attempts, sequence, server_id, due_ms in rows:
        marks = {
            REASON: failure.reason,
            ATTEMPTS: str(attempts),
            SUBJECT: subject,
            GROUP: group,
            SEQUENCE: str(sequence),
            SERVER_ID: f"{server_id:012x}",
            DUE_MS: str(due_ms),
        }
        maps.append(without_marks(properties) | marks | ({REASON_TEXT: failure.text} if failure.text else {}))
    properties_length, properties = packed_properties(maps)
    ids_length, ids = written_ids(stored)
    return StoredBatch.filled(
        len(stored),
        sequence=np.arange(made.first_sequence, made.first_sequence + len(stored)),
        due_ms=made.now_us // 1000,
        accepted_us=made.now_us,
        dispatched_us=made.now_us,
        origin_sequence=np.array(origins, np.int64),
        server_id=made.server_id,
        window_ms=given_up.places | moves_mark(made.moves),
        subject=made.dead_subject,
        ids_length=ids_length,
        properties_length=properties_length,
        bodies_length=stored.bodies_length,
        order_hash=stored.order_hash,
        tag=stored.tag,
        flags=FLAG_PUBLISHED | FLAG_DEAD_LETTER,
        order_keys_length=stored.order_keys_length,
        ids=ids,
        properties=properties,
        bodies=stored.bodies,
        order_keys=stored.order_keys,
    )


@dataclass(frozen=True, slots=True)
class Made:
    """Where and when dead letters are made. `moves`: the group's count of them."""

    server_id: int
    dead_subject: int
    first_sequence: int
    now_us: int
    moves: int


class Burial:
    """The messages that a batch gives up, in parts of LETTERS_AT_ONCE that are buried in steps of their own.

    Between two steps an operator may move the group or remove it, or another call may end its messages. A part has what is
    still to be given up."""

    def __init__(self, batch: RetryBatch, state: BrokerState) -> None:
        self._batch = batch
        self._state = state
        self._group = state.groups.get((batch.subject, batch.group))
        self._moves = None if self._group is None else self._group.main.moves
        self._row = 0

    def next_part(self) -> RetryBatch | None:
        """The batch with the next messages to give up, and no others; None behind the last ones."""
        given_up = self._batch.given_up
        while given_up is not None and self._row < len(given_up):
            rows = np.arange(self._row, min(self._row + LETTERS_AT_ONCE, len(given_up)))
            self._row += LETTERS_AT_ONCE
            part = self._still(given_up, rows)
            if part is not None:
                return replace(self._batch, given_up=part)
        return None

    def has_more(self) -> bool:
        """Whether messages come behind the part before."""
        return self._batch.given_up is not None and self._row < len(self._batch.given_up)

    def _still(self, given_up: GivenUp, rows: I64) -> GivenUp | None:
        group = self._group
        if group is None or self._state.groups.get((self._batch.subject, self._batch.group)) is not group:
            return None
        if group.main.moves != self._moves:
            return None
        main, retry = unpack_places(given_up.places[rows])
        left = (_retrying(group.main, main), _retrying(group.retry, retry))
        rows = rows[np.isin(given_up.places[rows], places_of(*left))]
        if not len(rows):
            return None
        return GivenUp(
            given_up.stored.take(rows),
            given_up.attempts[rows],
            given_up.places[rows],
            [given_up.failures[row] for row in rows.tolist()],
            tuple(left[0]),
            tuple(left[1]),
        )


def _retrying(cursor: Cursor, positions: I64) -> list[Range]:
    return [part for span in ranges_of(np.sort(positions)) for part in cursor.retrying.common(*span)]


class DeadLetters:
    """Stores dead letters, and counts them."""

    def __init__(self, state: BrokerState, arrivals: Arrivals) -> None:
        self._state = state
        self._arrivals = arrivals
        self.stored = 0

    def burial(self, batch: RetryBatch) -> Burial:
        """The messages that a batch gives up, in parts for `bury` or `Retries.keep_unburied`, each in a step of its own."""
        return Burial(batch, self._state)

    def bury(self, batch: RetryBatch, subject: str, group: str, first_sequence: int, now_us: int) -> list[QueueKey]:
        """Store the messages that a batch gives up as dead letters, and ack them; returns the queues that got messages.

        `subject` and `group` are their names. The letters get sequences from `first_sequence` on. One sync makes letters
        and acks durable. Raises DiskFullError (nothing changed; `Retries.keep_unburied` follows), StoreError."""
        state = self._state
        key = (batch.subject, batch.group)
        given_up = batch.given_up
        assert given_up is not None
        dead_subject = state.policies.rows[key].dead_subject
        moves = state.groups[key].main.moves
        made = Made(state.files.server_id, dead_subject, first_sequence, now_us, moves)
        letters = letters_of(batch, subject, group, made)
        store_offset = state.files.store.end
        arrived = self._arrivals.store_own(letters, now_us)
        state.letters.ack_is_behind(store_offset)
        state.groups.get_or_make((dead_subject, batch.group))
        for retry, ranges in ((False, given_up.main), (True, given_up.retry)):
            for span in ranges:
                for start, stop in state.groups[key].cursor(retry).settle(*span):
                    state.notes.add_acked(key, retry, start, stop)
        self.stored += len(letters)
        return arrived

    def waiting(self, key: GroupKey) -> int:
        """Dead letters of a group that were neither sent again nor dropped. `key`: its dead-letter subject, and the
        group. O(ranges)."""
        queue = self._state.queues.get((key[0], 0))
        if queue is None:
            return 0
        cursor = self.cursor(key)
        return queue.end - cursor.committed - cursor.acked.count()

    def cursor(self, key: GroupKey) -> Cursor:
        """The progress of a group in its dead-letter subject; of a new group, which is not kept, if there is none."""
        group = self._state.groups.get(key)
        if group is not None:
            return group.main
        queue = self._state.queues.get((key[0], 0))
        return Cursor(0 if queue is None else queue.first)


def has_letters(record: StoredColumns) -> bool:
    """Whether the messages of a record are dead letters: all of them are, or none."""
    return bool(int(record.columns["flags"][0]) & FLAG_DEAD_LETTER)


def ack_originals(state: BrokerState, records: Iterable[StoredColumns]) -> None:
    """Ack the messages of stored dead letters, since a crash may have lost these acks. For a start.

    A group that was moved or removed since then gets these messages again, as it was told."""
    for record in records:
        dead_subject = int(record.columns["subject"][0])
        key = state.policies.owner_of_dead(dead_subject)
        if key is None:
            state.damages.add(
                f"store offset {record.offset}: dead letters of an unknown group; their messages may come to it again"
            )
            continue
        known = state.groups.get(key)
        places = record.columns["window_ms"].tolist()
        if not has_moves(places[0], state.groups.moves if known is None else known.main.moves):
            continue
        group = state.groups.get_or_make(key)
        state.groups.get_or_make((dead_subject, key[1]))
        for packed in places:
            retry, position = unpack_place(packed)
            queue = state.queues.get(key if retry else (key[0], 0))
            for start, stop in group.cursor(retry).ack(position, position + 1, queue.end if queue else 0):
                state.notes.add_acked(key, retry, start, stop)
                state.letters.ack_is_behind(record.offset)
