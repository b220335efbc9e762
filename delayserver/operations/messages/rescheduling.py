"""Reschedule: cancels messages and accepts others in their place, each pair in one record of message_log.

The old messages are read before the cancel is decided. So no read delays the commit after the decision, and damage is
found while no message is held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.operations.messages.cancellation import (
    CANCELLED,
    INLINE_MESSAGES_MAX,
    Cancellation,
    Ends,
    distinct_messages,
)
from delayserver.operations.messages.locator import Located, Locator
from delayserver.protocol.errors import DelayServerError, MessageDamaged, kept
from delayserver.protocol.outcomes import Outcome
from delayserver.receive.intake import Intake
from delayserver.runtime.fair_turns import SLICE_ITEMS, Work
from delayserver.runtime.runtime import Runtime
from store.records.batches import I64, U8, MessageBatch
from store.records.column_batch import ragged_offsets

Places = NDArray[np.intp]

# Messages of one record. More would delay other requests and gain no speed.
MESSAGES_AT_ONCE = 1024
# Bytes of old messages that one request holds in memory at a time.
READ_BYTES_MAX = 8 << 20
_ALREADY_CANCELLED = int(Outcome.ALREADY_CANCELLED)


@dataclass(frozen=True, slots=True)
class Moves:
    """n messages to move: `sequence` i64[n] and `due_ms` i64[n] name them; `new_due_ms` i64[n] are the new due times.

    By place the `bodies` (bytes), `properties` (a msgpack map) and `expires_ms` that change; other fields are kept.
    """

    sequence: I64
    due_ms: I64
    new_due_ms: I64
    bodies: dict[int, bytes] = field(default_factory=dict)
    properties: dict[int, bytes] = field(default_factory=dict)
    expires_ms: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MovedColumns:
    """The answers to n moves: `outcome` u8[n] of the cancels, and `new_sequence` i64[n], 0 unless `cancelled`.

    By place the `errors` of refused moves, and the `message_ids` of new messages with an id of the client. `message` i64[n]
    is the sequence of each original, 0 where nothing was found, and `prepared` bool[n] says which are transactions.
    """

    outcome: U8
    new_sequence: I64
    errors: dict[int, DelayServerError]
    message_ids: dict[int, bytes]
    message: I64
    prepared: NDArray[np.bool_]

    @classmethod
    def nothing(cls, count: int) -> MovedColumns:
        """No answers yet."""
        return cls(
            np.zeros(count, np.uint8),
            np.zeros(count, np.int64),
            {},
            {},
            np.zeros(count, np.int64),
            np.zeros(count, bool),
        )


@dataclass(frozen=True, slots=True)
class _Held:
    """n held messages: `message` i64[n] are their sequences, ascending, `due_ms` i64[n] their due times, and `place` intp[n]
    the move of each."""

    message: I64
    due_ms: I64
    place: Places

    def take(self, rows: Places) -> _Held:
        """Some of them."""
        return _Held(self.message[rows], self.due_ms[rows], self.place[rows])


class Rescheduling:
    """Moves messages in parts. Other tasks run between the parts."""

    def __init__(self, cancellation: Cancellation, locator: Locator, intake: Intake, runtime: Runtime) -> None:
        self._cancellation = cancellation
        self._locator = locator
        self._intake = intake
        self._workers = runtime.workers

    async def move(
        self, moves: Moves, places: Places, moved: MovedColumns, work: Work, ends: Ends = Ends.MESSAGES
    ) -> None:
        """Moves the messages at some places and enters the answers in `moved`. A transaction that is moved is committed."""
        while len(places):
            done = await self.move_some(moves, places[:MESSAGES_AT_ONCE], moved, ends)
            places = places[done:]
            if len(places):
                await work.items(SLICE_ITEMS)

    async def move_some(self, moves: Moves, places: Places, moved: MovedColumns, ends: Ends) -> int:
        """Moves the first of these messages with one commit. Returns their number.

        `places` are numbers of moves. The columns of this function have a row for each of them."""
        located = await self._cancellation.locate(moves.sequence[places], moves.due_ms[places])
        count, old = await self._read(located, moves.due_ms[places])
        places, located = places[:count], located.first(count)
        sequence, due_ms = moves.sequence[places], moves.due_ms[places]
        moved.message[places], moved.prepared[places] = located.message, located.prepared
        answer = await self._cancellation.decide(located, sequence, due_ms, ends)
        cancelled = np.flatnonzero(answer == CANCELLED)
        if len(cancelled):
            # No await from here to the commit, because the messages are held.
            message, first = distinct_messages(located.message, cancelled)
            await self._replace(_Held(message, due_ms[first], places[first]), old, moves, moved, ends)
            if len(first) < len(cancelled):
                # The request names a message again: it has moved once, or is refused again.
                again = np.setdiff1d(cancelled, first)
                named_first = places[first[np.searchsorted(message, located.message[again])]]
                refused = _repeat_errors(moved.errors, places[again], named_first)
                answer[again[~refused]] = _ALREADY_CANCELLED
        await self._cancellation.durable(located.message, answer)
        moved.outcome[places] = answer
        return count

    async def _replace(self, held: _Held, old: MessageBatch, moves: Moves, moved: MovedColumns, ends: Ends) -> None:
        """Commits a new message for each held one, and gives back those that cannot be sent. Enters both in `moved`."""
        found, row = _rows_of(old, held.message)
        refused = self._refused(moves.new_due_ms[held.place], found)
        if refused:
            back = held.take(np.array(list(refused)))
            self._cancellation.give_back(back.message, back.due_ms, ends)
            moved.errors.update(zip(back.place.tolist(), refused.values(), strict=True))
            others = np.setdiff1d(np.arange(len(row)), list(refused))
            held, row = held.take(others), row[others]
        if len(row):
            await self._commit(_replacing(old.take(row), moves, held.place), held, moved, ends)

    async def _commit(self, batch: MessageBatch, held: _Held, moved: MovedColumns, ends: Ends) -> None:
        try:
            committed = await self._cancellation.commit_held(batch, held.message, held.due_ms, ends)
        except DelayServerError as error:
            moved.errors.update(dict.fromkeys(held.place.tolist(), kept(error)))
            return
        moved.new_sequence[held.place] = committed.first_sequence + np.arange(len(batch))
        _note_ids(moved, batch, held.place)

    async def _read(self, located: Located, due_ms: I64) -> tuple[int, MessageBatch]:
        message = np.where(located.found, located.message, 0)
        read = partial(self._locator.read_first, message, due_ms, READ_BYTES_MAX)
        if len(message) <= INLINE_MESSAGES_MAX:
            return read()
        return await self._workers.run(read)

    def _refused(self, new_due_ms: I64, found: NDArray[np.bool_]) -> dict[int, DelayServerError]:
        """Errors of messages that cannot be sent: damaged bytes, or a new due time in a window closed meanwhile."""
        refused: dict[int, DelayServerError] = self._intake.check_due_again(new_due_ms)
        for index in np.flatnonzero(~found).tolist():
            refused[index] = MessageDamaged("the part of the schedule file that holds it is damaged")
        return refused


def _repeat_errors(errors: dict[int, DelayServerError], repeated: Places, first: Places) -> NDArray[np.bool_]:
    """Messages that a request names again, at the places `repeated`, get the error of their `first` place: one that was not
    moved is not cancelled either. True where there is an error, bool[n]."""
    again = {
        place: errors[before]
        for place, before in zip(repeated.tolist(), first.tolist(), strict=True)
        if before in errors
    }
    errors.update(again)
    return np.isin(repeated, list(again))


def _rows_of(old: MessageBatch, message: I64) -> tuple[NDArray[np.bool_], Places]:
    """True for messages that were read, bool[n], and their rows in `old`."""
    if not len(old):
        return np.zeros(len(message), np.bool_), np.zeros(len(message), np.intp)
    order = np.argsort(old.sequence, kind="stable")
    row = order[np.minimum(np.searchsorted(old.sequence, message, sorter=order), len(old) - 1)]
    return old.sequence[row] == message, row


def _replacing(old: MessageBatch, moves: Moves, places: Places) -> MessageBatch:
    """The new messages for some old ones, in the same order."""
    columns: dict[str, Any] = {
        "ids": old.ids,
        "ids_length": old.ids_length,
        "id_hash": old.id_hash,
        "subject": old.subject,
        "tag": old.tag,
        "order_hash": old.order_hash,
        "order_keys": old.order_keys,
        "order_keys_length": old.order_keys_length,
        **_changed(old, "properties", moves.properties, places),
        **_changed(old, "bodies", moves.bodies, places),
    }
    expires_ms = old.expires_ms
    if moves.expires_ms:
        changed = [moves.expires_ms.get(place) for place in places.tolist()]
        kept = expires_ms.tolist()
        expires_ms = np.array([old if new is None else new for new, old in zip(changed, kept, strict=True)], np.int64)
    return MessageBatch.filled(
        len(old),
        **columns,
        expires_ms=expires_ms,
        due_ms=moves.new_due_ms[places],
        replaces_sequence=old.sequence,
        replaces_due_ms=old.due_ms,
    )


def _changed(old: MessageBatch, blob: str, changes: dict[int, bytes], places: Places) -> dict[str, Any]:
    """A blob column of the old messages and its lengths, with the changes applied."""
    data, lengths = getattr(old, blob), getattr(old, f"{blob}_length")
    if changes:
        offsets = ragged_offsets(lengths).tolist()
        kept = bytes(data)
        parts = [
            changes[place] if place in changes else kept[offsets[row] : offsets[row + 1]]
            for row, place in enumerate(places.tolist())
        ]
        data, lengths = b"".join(parts), np.fromiter(map(len, parts), np.uint32, len(parts))
    return {blob: data, f"{blob}_length": lengths}


def _note_ids(moved: MovedColumns, batch: MessageBatch, places: Places) -> None:
    own = np.flatnonzero(batch.ids_length)
    if len(own):
        offsets, data = ragged_offsets(batch.ids_length).tolist(), bytes(batch.ids)
        for row in own.tolist():
            moved.message_ids[int(places[row])] = data[offsets[row] : offsets[row + 1]]
