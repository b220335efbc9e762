"""Answers what became of a message. Looks at durable outcomes first, then at what is in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.broker_group import BrokerGroup
from delayserver.cancellation import Cancellation
from delayserver.outcome_recorder import OutcomeRecorder
from delayserver.protocol.errors import MessageDamaged
from delayserver.protocol.outcomes import Outcome
from delayserver.retention import Retention
from delayserver.turns import between_items
from store.batches import I64, U8, U32, OutcomeBatch
from store.dispatch_log import DispatchKey, DispatchLog
from store.errors import CorruptionError, FormatError
from store.names import Names
from store.scan import Damage
from store.windows import window_starts
from wheel.keys import groups

Mask = NDArray[np.bool_]

# So many messages are looked for together, and the rows that wait in memory gone through once for all of them.
MESSAGES_AT_ONCE = 1024
TOO_LATE = int(Outcome.TOO_LATE)
# A larger file of outcomes is read in a thread.
INLINE_READ_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Found:
    """One answer. `message` is the sequence of the original; 0 where nothing was found, with an `error` if damage may
    hide it."""

    outcome: Outcome
    message: int = 0
    subject: str = ""
    dispatched_us: int = 0
    attempts: int = 0
    broker_group: str = ""
    has_row: bool = False
    error: MessageDamaged | None = None

    def to_map(self) -> dict[str, Any]:
        """The fields of the reply that are known."""
        fields: dict[str, Any] = {"outcome": self.outcome.label}
        if self.subject:
            fields["subject"] = self.subject
        if self.dispatched_us:
            fields["dispatched_us"] = self.dispatched_us
        if self.attempts:
            fields["attempts"] = self.attempts
        if self.broker_group:
            fields["broker_group"] = self.broker_group
        return fields


class Lookup:
    """Message → state."""

    def __init__(
        self,
        cancellation: Cancellation,
        recorder: OutcomeRecorder,
        dispatch: DispatchLog,
        groups: list[BrokerGroup],
        retention: Retention,
        names: Names,
        window_ms: int,
    ) -> None:
        self._cancellation = cancellation
        self._recorder = recorder
        self._dispatch = dispatch
        self._groups = groups
        self._retention = retention
        self._names = names
        self._window_ms = window_ms

    async def find(self, sequence: I64, due_ms: I64) -> list[Found]:
        """The states of n messages by the numbers of their receipts, some at a time: others run in between."""
        found: list[Found] = []
        for start in range(0, len(sequence), MESSAGES_AT_ONCE):
            some = slice(start, start + MESSAGES_AT_ONCE)
            found += await self._find(sequence[some], due_ms[some])
        return found

    async def _find(self, sequence: I64, due_ms: I64) -> list[Found]:
        located = await self._cancellation.locate(sequence, due_ms)
        message, own = located.message, located.found & (located.message == sequence)
        # All of one moment, since it is a look at every row that waits. What has no outcome later had none at that moment.
        waiting = self._in_memory(message, due_ms)
        code, retired = np.zeros(len(sequence), dtype=np.uint8), np.zeros(len(sequence), dtype=bool)
        starts = window_starts(due_ms, self._window_ms)
        order = np.argsort(starts, kind="stable")
        for start, begin, end in groups(starts[order]):
            rows = order[begin:end]
            mine = rows[own[rows]]
            if len(mine):
                code[mine] = await self._outcomes(start, message[mine])
            retired[rows] = self._retention.are_retired(start, sequence[rows])
            await trio.lowlevel.checkpoint()
        has_row = own & (code != 0) & (code != TOO_LATE)
        await self._cancellation.durable(message[has_row], code[has_row])
        outcome = np.full(len(sequence), int(Outcome.UNKNOWN), dtype=np.uint8)
        outcome[located.found] = int(Outcome.DEDUPLICATED)
        outcome[own] = waiting[own]
        outcome[has_row] = code[has_row]
        # One that was found, since then.
        gone = retired & (code == 0) & (own | ~located.found)
        outcome[gone] = int(Outcome.RETIRED)
        message[gone] = 0
        return await self._found(outcome, message, located.subject, has_row, located.hidden & ~retired)

    async def _found(self, outcome: U8, message: I64, subject: U32, has_row: Mask, hidden: Mask) -> list[Found]:
        found = []
        columns = [column.tolist() for column in (outcome, message, subject, has_row, hidden)]
        for place, (code, sequence, subject_code, decided, damaged) in enumerate(zip(*columns, strict=True)):
            await between_items(place)
            error = MessageDamaged("the part of the schedule file that may hold it is damaged") if damaged else None
            name = self._names.name(subject_code) if sequence else ""
            found.append(Found(Outcome(code), sequence, name, has_row=decided, error=error))
        return found

    async def _outcomes(self, start_ms: int, message: I64) -> U8:
        """Codes u8[n] of messages of one window, 0 where there is no outcome, TOO_LATE where the file does not tell. What
        is being cancelled is waited for."""
        code = np.zeros(len(message), dtype=np.uint8)
        rest = np.arange(len(message))
        while True:
            key = self._recorder.key_of(start_ms)
            try:
                async with self._recorder.pinned(key) as index:
                    free = self._recorder.not_held(message[rest])
                    code[rest[free]] = self._recorder.outcome_of(key, index, message[rest[free]])
            except CorruptionError:  # reported; what became of them is not known
                code[rest] = TOO_LATE
                return code
            rest = rest[~free]
            if not len(rest):
                return code
            await self._recorder.wait_released()

    def _in_memory(self, message: I64, due_ms: I64) -> U8:
        """One step: what is known of n messages without an outcome, codes u8[n]."""
        state = np.full(len(message), int(Outcome.PENDING), dtype=np.uint8)
        for group in self._groups:
            for sequences in (group.queue.uncertain(), group.queue.retrying()):
                state[np.isin(message, sequences)] = int(Outcome.RETRYING)
        for group in self._groups:
            for place in np.flatnonzero(np.isin(message, group.in_flight())).tolist():
                if group.attempts(int(message[place]), int(due_ms[place])):
                    state[place] = int(Outcome.IN_FLIGHT)
        return state

    async def with_rows(self, found: Sequence[Found], due_ms: Sequence[int]) -> list[Found]:
        """The same answers, and what their outcome rows say: when and by which group they were dispatched. A file is read
        once for all of them."""
        wanted: dict[DispatchKey, list[int]] = {}
        for each, due in zip(found, due_ms, strict=True):
            if each.has_row:
                wanted.setdefault(self._recorder.key_of(due), []).append(each.message)
        # From the files, or from what is about to be written: looked at first, since it goes from here to there.
        batches = self._recorder.unwritten()
        for key, messages in wanted.items():
            await trio.lowlevel.checkpoint()
            batches.append(await self._written(key, np.array(messages, dtype=np.int64)))
        asked = np.array([message for messages in wanted.values() for message in messages], dtype=np.int64)
        rows: dict[int, tuple[OutcomeBatch, int]] = {}
        for batch in batches:
            await trio.lowlevel.checkpoint()
            for row in np.flatnonzero(np.isin(batch.sequence, asked)).tolist():
                rows.setdefault(int(batch.sequence[row]), (batch, row))
        answers = []
        for place, each in enumerate(found):
            await between_items(place)
            answers.append(self._with_row(each, *rows[each.message]) if each.has_row and each.message in rows else each)
        return answers

    def _with_row(self, found: Found, batch: OutcomeBatch, row: int) -> Found:
        group = int(batch.broker_group[row])
        return replace(
            found,
            dispatched_us=int(batch.dispatched_us[row]),
            attempts=int(batch.attempts[row]),
            broker_group=self._names.name(group) if group else "",
        )

    async def _written(self, key: DispatchKey, messages: I64) -> OutcomeBatch:
        """Rows of a file, as far as they can be read: their codes are in memory, so the answer stands without them."""
        damages: list[Damage] = []
        read = partial(self._dispatch.rows_of, key, messages, damages)
        try:
            large = key in self._dispatch and self._dispatch.end(key) > INLINE_READ_BYTES_MAX
            written = await trio.to_thread.run_sync(read) if large else read()
        except KeyError:  # retired, or moved with its day
            return OutcomeBatch.filled(0)
        except (CorruptionError, FormatError) as error:
            self._recorder.on_corruption(CorruptionError(error.path, 0, error.detail))
            return OutcomeBatch.filled(0)
        for damage in damages:
            self._recorder.on_corruption(CorruptionError(self._dispatch.path(key), damage.start, damage.detail))
        return written
