"""Delivers messages once more that have an outcome already, for brokers that lost what they were given.

Nothing of the past is changed: each delivery is an internal record (`origin_sequence` the message, for no consumer group
in particular, due at once) that goes through the pipeline like a retry, outside the balance. One request handles a
bounded slice and says where the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.clock import Clock
from delayserver.connection import Connection
from delayserver.group_commit import GroupCommit
from delayserver.outcome_recorder import OutcomeRecorder
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import Request
from delayserver.protocol.outcomes import OUTCOMES_BY_LABEL, Outcome
from delayserver.protocol.receipts import derived_message_ids
from store.batches import I64, U32, MessageBatch
from store.columns import ragged_offsets
from store.dispatch_log import DispatchKey
from store.filesystem import FileSystem
from store.names import SUBJECT, Names
from store.schedule_log import ScheduleKey, ScheduleLog, Source

# One request: some ten milliseconds of reading, and one group commit of bounded memory.
MESSAGES_MAX = 8192
BYTES_MAX = 4 << 20
# What was cancelled or suppressed is never delivered, whoever asks.
ALLOWED = (Outcome.DELIVERED, Outcome.EXPIRED, Outcome.DEAD_LETTERED)
_COLUMNS = ("sequence", "due_ms", "subject", "origin_sequence", "ids_length", "properties_length", "bodies_length")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages: due in [from_ms, to_ms), of a subject code (0: all), with one of these outcome codes."""

    from_ms: int
    to_ms: int
    subject: int
    outcomes: tuple[int, ...]

    def mask(self, due_ms: I64, subject: U32, origin_sequence: I64) -> NDArray[np.bool_]:
        """Messages of the balance in the range, bool[n], whatever became of them."""
        mask: NDArray[np.bool_] = (due_ms >= self.from_ms) & (due_ms < self.to_ms) & (origin_sequence == 0)
        return mask & (subject == self.subject) if self.subject else mask


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
        recorder: OutcomeRecorder,
        commit: GroupCommit,
        names: Names,
        admit: Callable[[], None],
        fs: FileSystem,
        window_ms: int,
        clock: Clock,
    ) -> None:
        self._server_id = server_id
        self._schedule = schedule
        self._recorder = recorder
        self._commit = commit
        self._names = names
        self._admit = admit
        self._inline = fs.inline
        self._window_ms = window_ms
        self._clock = clock

    async def redispatch(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """One slice. Raises InvalidArgument, and the errors of a send."""
        self._admit()
        arguments = request.arguments
        wanted = self._wanted(arguments)
        after = _cursor(arguments.get("after"))
        for key in self._files(wanted):
            position = (key.start_ms, int(key.source))
            if position < after[:2]:
                continue
            floor = after[2] if position == after[:2] else 0
            sequences, more = await self._select(key, wanted, floor)
            if not len(sequences):
                continue
            if not arguments.get("dry_run"):
                await self._deliver(key, sequences)
            following = [*position, int(sequences[-1]) if more else 1 << 62]
            return {"messages": len(sequences), "next": following}
        return {"messages": 0, "next": None}

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

    async def _select(self, key: ScheduleKey, wanted: Wanted, floor: int) -> tuple[I64, bool]:
        """Sequences i64[n], ascending, behind `floor`, as many as one slice may hold; whether the file has more."""
        read = partial(self._schedule.read_columns, key, _COLUMNS, None, self._schedule.end(key))
        columns = read() if self._inline else await trio.to_thread.run_sync(read)
        mask = wanted.mask(columns["due_ms"], columns["subject"], columns["origin_sequence"])
        rows = np.flatnonzero(mask & (columns["sequence"] > floor))
        file = DispatchKey(key.start_ms, False)
        async with self._recorder.pinned(file) as index:
            outcome = self._recorder.outcome_of(file, index, columns["sequence"][rows])
        rows = rows[np.isin(outcome, np.array(wanted.outcomes, np.uint8))]
        sizes = sum([columns[name][rows].astype(np.int64) for name in _COLUMNS[-3:]], np.zeros(len(rows), np.int64))
        fitting = int(np.searchsorted(np.cumsum(sizes), BYTES_MAX, side="right"))
        count = min(len(rows), MESSAGES_MAX, max(fitting, 1))
        return columns["sequence"][rows[:count]], count < len(rows)

    async def _deliver(self, key: ScheduleKey, sequences: I64) -> None:
        read = partial(self._schedule.read_rows, key, sequences)
        batch = read() if self._inline else await trio.to_thread.run_sync(read)
        await self._commit.commit(deliveries_again(batch, self._server_id, self._clock.now_us()))


def _cursor(after: object) -> tuple[int, int, int]:
    if after is None:
        return (-1, 0, 0)
    if type(after) is not list or len(after) != 3 or not all(type(part) is int for part in after):
        raise InvalidArgument("after must be the `next` of the reply before")
    return (after[0], after[1], after[2])
