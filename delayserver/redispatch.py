"""Delivers messages once more that have an outcome already, for brokers that lost what they were given.

Nothing of the past is changed: each delivery is an internal record (`origin_sequence` the message, for no consumer group
in particular, due at once) that goes through the pipeline like a retry, outside the balance. One request handles a
bounded slice and says where the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from delayserver.clock import Clock
from delayserver.connection import Connection
from delayserver.group_commit import GroupCommit
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import Request
from delayserver.protocol.outcomes import OUTCOMES_BY_LABEL, Outcome
from delayserver.protocol.receipts import derived_message_ids
from delayserver.redispatch_reading import RedispatchReader, Unread, Wanted
from store.batches import I64, U32, MessageBatch
from store.columns import ragged_offsets
from store.names import SUBJECT, Names
from store.schedule_log import ScheduleKey, ScheduleLog, Source

# What was cancelled or suppressed is never delivered, whoever asks.
ALLOWED = (Outcome.DELIVERED, Outcome.EXPIRED, Outcome.DEAD_LETTERED)


def deliveries_again(batch: MessageBatch, server_id: int, now_us: int) -> MessageBatch:
    """Internal records for messages: same subject, id, properties and body, due at once, without an expiry.

    Every id is written out, because a derived one would be derived from the new record's own sequence. Sequences are 0:
    whoever appends the batch gives them.
    """
    ids_length, ids = _written_ids(batch, server_id)
    again = batch.with_columns(
        sequence=0,
        due_ms=-(-now_us // 1000),
        accepted_us=now_us,
        expires_ms=0,
        origin_sequence=batch.sequence,
        duplicate_of=0,
        replaces_sequence=0,
        replaces_due_ms=0,
        target_group=0,
        redelivery=1,
    )
    return replace(again, ids_length=ids_length, ids=ids)


def _written_ids(batch: MessageBatch, server_id: int) -> tuple[U32, memoryview]:
    lengths = batch.ids_length
    if bool(lengths.all()):
        return lengths, batch.ids
    # Redispatch is the exception, so a loop over its messages is no hot path.
    derived = derived_message_ids(f"{server_id:012x}", batch.sequence)
    places = ragged_offsets(lengths).tolist()
    ids = [
        bytes(batch.ids[places[row] : places[row + 1]]) if length else derived[row].encode()
        for row, length in enumerate(lengths.tolist())
    ]
    return np.array([len(one) for one in ids], np.uint32), memoryview(b"".join(ids))


class Redispatch:
    """The operation `redispatch` of a running server."""

    def __init__(
        self,
        server_id: int,
        schedule: ScheduleLog,
        reader: RedispatchReader,
        commit: GroupCommit,
        names: Names,
        admit: Callable[[], None],
        window_ms: int,
        clock: Clock,
    ) -> None:
        self._server_id = server_id
        self._schedule = schedule
        self._reader = reader
        self._commit = commit
        self._names = names
        self._admit = admit
        self._window_ms = window_ms
        self._clock = clock

    async def redispatch(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """One slice; what damage hides is passed over, named and counted. Raises InvalidArgument, and the errors of a
        send."""
        self._admit()
        unread = Unread()
        arguments = request.arguments
        wanted, dry = self._wanted(arguments), arguments.get("dry_run") or False
        if type(dry) is not bool:  # what it does cannot be undone
            raise InvalidArgument("dry_run must be a bool")
        after = _cursor(arguments.get("after"))
        for key in self._files(wanted):
            position = (key.start_ms, int(key.source))
            if position < after[:2]:
                continue
            floor = after[2] if position == after[:2] else 0
            sequences, more = await self._reader.select(key, wanted, floor, unread)
            if not len(sequences):
                continue
            count = len(sequences) if dry else await self._deliver(key, sequences, unread)
            following = [*position, int(sequences[-1]) if more else 1 << 62]
            return {"messages": count, "next": following, **unread.to_map()}
        return {"messages": 0, "next": None, **unread.to_map()}

    def _wanted(self, arguments: dict[str, Any]) -> Wanted:
        from_ms, to_ms = arguments.get("from_ms"), arguments.get("to_ms")
        if type(from_ms) is not int or type(to_ms) is not int or not 0 <= from_ms < to_ms < 1 << 62:
            raise InvalidArgument("from_ms and to_ms must be times in milliseconds, the first before the second")
        subject = arguments.get("subject")
        code = 0
        if subject is not None:
            code = self._names.code(SUBJECT, subject) if type(subject) is str else 0
            if not code:
                raise InvalidArgument(f"no message of the subject {subject!r:.80} was ever accepted here")
        labels = arguments.get("outcomes", ["delivered"])
        known = {outcome.label for outcome in ALLOWED}
        if type(labels) is not list or not labels or not all(type(label) is str and label in known for label in labels):
            raise InvalidArgument(f"outcomes must be some of {sorted(known)}")
        return Wanted(from_ms, to_ms, code, tuple(int(OUTCOMES_BY_LABEL[label]) for label in labels))

    def _files(self, wanted: Wanted) -> list[ScheduleKey]:
        """Windows only: nothing of a coarse day was delivered."""
        first_ms = wanted.from_ms - wanted.from_ms % self._window_ms
        keys = self._schedule.keys_between(first_ms, wanted.to_ms)
        return [key for key in keys if key.source != Source.DAY]

    async def _deliver(self, key: ScheduleKey, sequences: I64, unread: Unread) -> int:
        batch = await self._reader.read(key, sequences, unread)
        if len(batch):
            await self._commit.commit(deliveries_again(batch, self._server_id, self._clock.now_us()))
        return len(batch)


def _cursor(after: object) -> tuple[int, int, int]:
    if after is None:
        return (-1, 0, 0)
    if type(after) is not list or len(after) != 3 or not all(type(part) is int for part in after):
        raise InvalidArgument("after must be the `next` of the reply before")
    return (after[0], after[1], after[2])
