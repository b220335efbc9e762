"""The operation `send`: makes messages in rows or in columns durable, then answers.

The answer is a callback. It is called in the step in which the group commit ends its sync.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from delayserver.operations.sending.admission import Admission
from delayserver.operations.sending.placed_intake import ChecksMessages
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.message_columns import MessageColumns
from delayserver.protocol.receipts import receipt_and_id
from delayserver.receive.group_commit import GroupCommit
from delayserver.receive.intake import Rejection
from delayserver.state.positions.gathering import Committed
from store.records.batches import I64
from store.records.message_rows import Row
from store.tables.names import Names

SentMessage: TypeAlias = tuple[str, str, str, int, int]
"""One accepted message: receipt, message_id (the sender's, or the derived id), subject, due_ms and sequence.

A plain tuple: a named one would be a third of the cost of a message in a large `send`."""


class SentRows(NamedTuple):
    """The accepted messages in order, and the rejected ones by their places in the request."""

    messages: list[SentMessage]
    rejections: list[Rejection]


@dataclass(frozen=True, slots=True)
class SentColumns:
    """The accepted messages in order, and the rejected rows. `due_ms` i64[n]; sequences count from `first_sequence`."""

    due_ms: I64
    first_sequence: int
    rejections: list[Rejection]


class Sending(Protocol):
    """Takes messages in rows or in columns, and answers when they are durable."""

    def rows(self, messages: list[Any], answer: Callable[[SentRows | DelayServerError], None]) -> None:
        """See `Send.rows`."""

    def columns(self, messages: MessageColumns, answer: Callable[[SentColumns | DelayServerError], None]) -> None:
        """See `Send.columns`."""


class Send:
    """Checks messages and hands them to the group commit."""

    def __init__(
        self, server_id: str, admission: Admission, intake: ChecksMessages, commit: GroupCommit, names: Names
    ) -> None:
        self._server_id = server_id
        self._admission = admission
        self._intake = intake
        self._commit = commit
        self._names = names

    def rows(self, messages: list[Any], answer: Callable[[SentRows | DelayServerError], None]) -> None:
        """Accepts messages in rows, each a map of its fields. Calls `answer` once: after the sync, or with its error.

        If every row is refused, calls `answer` at once. Raises for the whole request: NotReady, ShuttingDown, DiskFull,
        QueueFull, StorageFailed, InvalidArgument, BatchTooLarge."""
        self._admission.require()
        rows, rejections = self._intake.rows(messages)

        def done(first: int | DelayServerError) -> None:
            answer(first if isinstance(first, DelayServerError) else SentRows(self.answer_for(rows, first), rejections))

        if rows:
            self._commit.submit_rows(rows, done)
        else:
            done(0)

    def answer_for(self, rows: list[Row], sequence: int) -> list[SentMessage]:
        """Returns the answer for accepted rows. Their sequences begin with `sequence`."""
        server_id, name_of, sent = self._server_id, self._names.name, []
        for due_ms, subject, _, message_id, _, _, _, _ in rows:
            receipt, derived_id = receipt_and_id(server_id, due_ms, sequence)
            own_id = message_id.decode() if message_id else derived_id
            sent.append((receipt, own_id, name_of(subject), due_ms, sequence))
            sequence += 1
        return sent

    def columns(self, messages: MessageColumns, answer: Callable[[SentColumns | DelayServerError], None]) -> None:
        """Accepts messages in columns; all rows that pass the checks, or none. `answer` and errors as for `rows`."""
        self._admission.require()
        batch, rejections = self._intake.columns(messages)
        if batch is None:
            answer(SentColumns(np.empty(0, np.int64), 0, rejections))
            return
        due_ms = batch.due_ms

        def done(result: Committed | DelayServerError) -> None:
            answer(
                result
                if isinstance(result, DelayServerError)
                else SentColumns(due_ms, result.first_sequence, rejections)
            )

        self._commit.submit(batch, done)
