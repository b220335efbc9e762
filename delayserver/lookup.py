"""Answers what became of a message. Looks at durable outcomes first, then at what is in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import trio

from delayserver.broker_group import BrokerGroup
from delayserver.cancellation import Cancellation
from delayserver.outcome_recorder import OutcomeRecorder
from delayserver.protocol.errors import MessageDamaged
from delayserver.protocol.outcomes import Outcome
from delayserver.retention import Retention
from store.batches import I64, OutcomeBatch
from store.dispatch_log import DispatchKey, DispatchLog
from store.errors import CorruptionError, FormatError
from store.names import Names
from store.scan import Damage
from store.windows import window_of

# A larger file of outcomes is read in a thread.
INLINE_READ_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Found:
    """One answer. `message` is the sequence of the original; 0 where nothing was found."""

    outcome: Outcome
    message: int = 0
    subject: str = ""
    dispatched_us: int = 0
    attempts: int = 0
    broker_group: str = ""
    has_row: bool = False

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

    async def find(self, sequence: int, due_ms: int) -> Found:
        """The state of one message by its receipt's numbers. Raises MessageDamaged where damage hides it."""
        sequences, due = np.array([sequence], dtype=np.int64), np.array([due_ms], dtype=np.int64)
        located = await self._cancellation.locate(sequences, due)
        if not located.found[0]:
            retired = self._retention.is_retired(window_of(due_ms, self._window_ms), sequence)
            if located.hidden[0] and not retired:
                raise MessageDamaged("the part of the schedule file that may hold it is damaged")
            return Found(Outcome.RETIRED if retired else Outcome.UNKNOWN)
        message = int(located.message[0])
        subject = self._names.name(int(located.subject[0]))
        if message != sequence:
            return Found(Outcome.DEDUPLICATED, message, subject)
        while True:
            key = self._recorder.key_of(due_ms)
            try:
                async with self._recorder.pinned(key) as index:
                    if not self._recorder.any_held(located.message):
                        code = int(self._recorder.outcome_of(key, index, located.message)[0])
                        break
            except CorruptionError:  # reported; what became of it is not known
                code = int(Outcome.TOO_LATE)
                break
            await self._recorder.wait_released()
        if code == 0 and self._retention.is_retired(window_of(due_ms, self._window_ms), message):
            return Found(Outcome.RETIRED)  # since it was located
        if code in (0, int(Outcome.TOO_LATE)):
            return Found(self._in_memory(message, due_ms), message, subject)
        await self._cancellation.durable(located.message, np.array([code], dtype=np.uint8))
        return Found(Outcome(code), message, subject, has_row=True)

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
            batches.append(await self._written(key, np.array(messages, dtype=np.int64)))
        asked = np.array([message for messages in wanted.values() for message in messages], dtype=np.int64)
        rows: dict[int, OutcomeBatch] = {}
        for batch in batches:
            for row in np.flatnonzero(np.isin(batch.sequence, asked)).tolist():
                rows.setdefault(int(batch.sequence[row]), batch.slice(row, row + 1))
        return [self._with_row(each, rows.get(each.message)) if each.has_row else each for each in found]

    def _with_row(self, found: Found, row: OutcomeBatch | None) -> Found:
        if row is None:
            return found
        group = int(row.broker_group[0])
        return replace(
            found,
            dispatched_us=int(row.dispatched_us[0]),
            attempts=int(row.attempts[0]),
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

    def _in_memory(self, message: int, due_ms: int) -> Outcome:
        for group in self._groups:
            if group.attempts(message, due_ms):
                return Outcome.IN_FLIGHT
            if (group.queue.uncertain() == message).any() or (group.queue.retrying() == message).any():
                return Outcome.RETRYING
        return Outcome.PENDING
