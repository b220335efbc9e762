"""The operation `publish`: stores messages that are due now straight in this node's store, then answers.

The answer is a callback. It is called in the step in which the messages are known to be durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from delayserver.broker.service.publishing import Publishing, StoredPart
from delayserver.operations.nodes.routing import Routing
from delayserver.operations.sending.admission import Admission
from delayserver.operations.sending.placed_intake import ChecksMessages
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.message_columns import MessageColumns
from delayserver.protocol.receipts import derived_message_id
from delayserver.receive.intake import NO_TIMES, Rejection
from store.records.batches import I64
from store.records.message_rows import Row
from store.tables.names import Names

__all__ = ["NO_TIMES", "Publish", "PublishedColumns", "PublishedMessage", "PublishedRows"]


PublishedMessage: TypeAlias = tuple[str, str, int]
"""One stored message: its id (the producer's, or the derived id), its subject and its place in the subject's queue."""


class PublishedRows(NamedTuple):
    """The stored messages in order, and the rejected ones by their places in the request."""

    messages: list[PublishedMessage]
    rejections: list[Rejection]


@dataclass(frozen=True, slots=True)
class PublishedColumns:
    """The stored messages in order, and the rejected rows. `position` i64[n]; sequences count from `first_sequence`."""

    position: I64
    first_sequence: int
    rejections: list[Rejection]


class Publish:
    """Checks messages and hands them to the broker."""

    def __init__(
        self,
        server_id: str,
        admission: Admission,
        intake: ChecksMessages,
        routing: Routing,
        publishing: Publishing,
        names: Names,
    ) -> None:
        self._server_id = server_id
        self._admission = admission
        self._intake = intake
        self._routing = routing
        self._publishing = publishing
        self._names = names

    def rows(self, messages: list[Any], answer: Callable[[PublishedRows | DelayServerError], None]) -> None:
        """Stores messages in rows, each a map of its fields. Calls `answer` once: after the sync, or with its error.

        If every row is refused, calls `answer` at once. Raises for the whole request: NotReady, ShuttingDown, DiskFull,
        QueueFull, StorageFailed, InvalidArgument, BatchTooLarge."""
        self._admission.require()
        rows, rejections = self._intake.rows_of_now(messages, self._require_here())
        if not rows:
            answer(PublishedRows([], rejections))
            return

        def done(stored: StoredPart | DelayServerError) -> None:
            answer(
                stored if isinstance(stored, DelayServerError) else PublishedRows(self._told(rows, stored), rejections)
            )

        self._publishing.submit_rows(rows, done)

    def _told(self, rows: list[Row], stored: StoredPart) -> list[PublishedMessage]:
        sequence, server_id, name_of, told = stored.first_sequence, self._server_id, self._names.name, []
        positions = stored.positions if isinstance(stored.positions, list) else stored.positions.tolist()
        for (_, subject, _, own_id, _, _, _, _), position in zip(rows, positions, strict=True):
            message_id = own_id.decode() if own_id else derived_message_id(server_id, sequence)
            told.append((message_id, name_of(subject), position))
            sequence += 1
        return told

    def columns(self, messages: MessageColumns, answer: Callable[[PublishedColumns | DelayServerError], None]) -> None:
        """Stores messages in columns; all rows that pass the checks, or none. `answer` and errors as for `rows`."""
        self._admission.require()
        batch, rejections = self._intake.columns(messages, self._require_here())
        if batch is None:
            answer(PublishedColumns(np.empty(0, np.int64), 0, rejections))
            return

        def done(stored: StoredPart | DelayServerError) -> None:
            if isinstance(stored, DelayServerError):
                answer(stored)
            else:
                answer(PublishedColumns(np.asarray(stored.positions), stored.first_sequence, rejections))

        self._publishing.submit(batch, done)

    def _require_here(self) -> Callable[[str], None] | None:
        """None where every subject is stored here: then no name is looked at."""
        return None if self._routing.all_here else self._routing.require_here
