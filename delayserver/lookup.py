"""Answers what became of a message. Looks at durable outcomes first, then at what is in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from delayserver.broker_group import BrokerGroup
from delayserver.cancellation import Cancellation
from delayserver.outcome_recorder import OutcomeRecorder
from delayserver.protocol.errors import MessageDamaged
from delayserver.protocol.outcomes import Outcome
from delayserver.retention import Retention
from store.batches import OutcomeBatch
from store.dispatch_log import DispatchKey, DispatchLog
from store.errors import CorruptionError, FormatError
from store.names import Names
from store.scan import Damage
from store.windows import window_of


@dataclass(frozen=True, slots=True)
class Found:
    """One answer. `message` is the sequence of the original; 0 where nothing was found."""

    outcome: Outcome
    message: int = 0
    subject: str = ""
    dispatched_us: int = 0
    attempts: int = 0
    broker_group: str = ""

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
        row = self._row(due_ms, message)
        if row is None:
            return Found(Outcome(code), message, subject)
        group = int(row.broker_group[0])
        return Found(
            Outcome(code),
            message,
            subject,
            int(row.dispatched_us[0]),
            int(row.attempts[0]),
            self._names.name(group) if group else "",
        )

    def _row(self, due_ms: int, message: int) -> OutcomeBatch | None:
        """The outcome row, from the file or from what is about to be written."""
        for batch in [*self._recorder.unwritten(), self._written(self._recorder.key_of(due_ms))]:
            rows = np.flatnonzero(batch.sequence == message)
            if len(rows):
                return batch.take(rows[:1])
        return None

    def _written(self, key: DispatchKey) -> OutcomeBatch:
        """The rows of a file, as far as they can be read: their codes are in memory, so the answer stands without them."""
        damages: list[Damage] = []
        try:
            written = self._dispatch.outcomes(key, damages=damages)
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
