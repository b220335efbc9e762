"""The values that clients take and return: messages, keys, and the results of every operation.

Plain frozen data. Times are integers with their unit in the name; ``due_ms`` and all ``*_us`` count from 1970 UTC, by the
server's clock. The ``*_calls`` modules translate these values to and from the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from delayserver.client.values.timing import Instant, Span
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.outcomes import Outcome
from delayserver.protocol.receipts import derived_message_ids, format_receipt, format_receipts


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send. Exactly one of ``due_ms``, ``delay_ms``, ``at`` (with a time zone) and ``delay`` says
    when it is due.

    If ``message_id`` is None, the client may make one (see `Client.send`). The server does not deliver the message from
    ``expires_ms`` on. ``tag`` names its kind. Messages of one ``order_key`` belong together.
    """

    subject: str
    body: bytes | str
    due_ms: Instant | None = None
    delay_ms: Span | None = None
    at: datetime | None = None
    delay: timedelta | None = None
    message_id: str | None = None
    properties: Mapping[str, str] | None = None
    expires_ms: Instant | None = None
    tag: str | None = None
    order_key: str | None = None


@dataclass(frozen=True, slots=True)
class MessageKey:
    """Names a message by the fields that its sender chose, for a caller without a receipt.

    Without ``due_ms`` it is the message with this id that waits, the newest one of several, or else the last one that
    did."""

    subject: str
    message_id: str
    due_ms: int | None = None


Told: TypeAlias = tuple[bool | None, str | None, Outcome | None]
"""The last three fields of a `SendResult`."""
NEVER_DELIVERED: Final = frozenset({Outcome.CANCELLED, Outcome.EXPIRED, Outcome.DEAD_LETTERED, Outcome.ROLLED_BACK})
"""Outcomes of messages that no consumer gets."""


class SendResult(NamedTuple):
    """An accepted message. It is durable on the server, and ``receipt`` names it. A tuple, because a client makes one for
    every message.

    ``duplicate``: the server has a message with this id, subject and due time already, the original. It delivers that one,
    with its own body, and not this one. None: the caller did not ask (``tell_duplicates``), or it was not known in time.
    ``outcome`` is that of the original, such as pending or cancelled, and ``original_receipt`` its receipt.
    """

    receipt: str
    message_id: str
    subject: str
    due_ms: int
    sequence: int
    duplicate: bool | None = None
    original_receipt: str | None = None
    outcome: Outcome | None = None

    @property
    def never_comes(self) -> bool:
        """Whether the message has ended without being delivered: its original did before this send."""
        return self.outcome in NEVER_DELIVERED


class PublishResult(NamedTuple):
    """A published message. It is durable on its node. ``position`` is its place in the queue of its subject there."""

    message_id: str
    subject: str
    position: int


@dataclass(frozen=True, slots=True)
class DuplicateRow:
    """An accepted row of a columnar send that repeats an earlier message: its sequence, and the sequence and outcome of the
    original."""

    sequence: int
    original_sequence: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A refused row of a columnar send: its index in the request, and the error."""

    index: int
    error: DelayServerError


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Where the accepted rows of a columnar request are that went to several shards of a cluster.

    ``server_index`` u32[accepted] points into ``server_ids``, and ``sequence`` i64[accepted] has the sequences there.
    ``duplicates`` has the place of each duplicate among the accepted rows.
    """

    server_ids: list[str]
    server_index: NDArray[np.uint32]
    sequence: NDArray[np.int64]
    duplicates: list[int]

    def texts(self, made: Callable[[str, NDArray[np.intp]], list[str]]) -> list[str]:
        """A text for each accepted row. ``made`` gets the server and the places of its rows."""
        texts = [""] * len(self.sequence)
        for index, server_id in enumerate(self.server_ids):
            places = np.flatnonzero(self.server_index == index)
            for place, text in zip(places.tolist(), made(server_id, places), strict=True):
                texts[place] = text
        return texts


@dataclass(frozen=True, slots=True)
class ColumnsSent:
    """The answer to a columnar send.

    ``accepted`` rows got the sequences from ``first_sequence`` on, in row order; ``due_ms`` is i64[accepted]. All other
    rows are in ``rejected``. ``message_ids`` are the ids of all rows that were sent (None: the server derives ids).
    ``duplicates``: the accepted rows that the server has already (None: not asked, or not known in time).
    ``placed``: the servers and sequences of rows that went to several shards of a cluster. ``server_id`` is empty then, and
    ``first_sequence`` -1.
    """

    server_id: str
    accepted: int
    first_sequence: int
    due_ms: NDArray[np.int64]
    rejected: list[RejectedRow]
    message_ids: list[str] | None
    duplicates: list[DuplicateRow] | None = None
    placed: RowPlaces | None = None

    @property
    def sequence(self) -> NDArray[np.int64]:
        """i64[accepted]: the sequences of the accepted rows."""
        if self.placed is not None:
            return self.placed.sequence
        return np.arange(self.first_sequence, self.first_sequence + self.accepted, dtype=np.int64)

    def receipts(self) -> list[str]:
        """The receipts of the accepted rows. Each call makes them anew: about 0.2 µs each."""
        if self.placed is not None:
            due_ms, sequence = self.due_ms, self.placed.sequence
            return self.placed.texts(lambda server, rows: format_receipts(server, due_ms[rows], sequence[rows]))
        return format_receipts(self.server_id, self.due_ms, self.sequence)

    def derived_ids(self) -> list[str]:
        """The ids of the accepted rows that have none from the client."""
        return _derived_ids(self)

    def told(self) -> list[Told]:
        """For each accepted row whether it is a duplicate, and of which message."""
        if self.duplicates is None:
            return [(None, None, None)] * self.accepted
        rows: list[Told] = [(False, None, None)] * self.accepted
        for number, each in enumerate(self.duplicates):
            server_id, place = self.server_id, each.sequence - self.first_sequence
            if self.placed is not None:
                place = self.placed.duplicates[number]
                server_id = self.placed.server_ids[self.placed.server_index[place]]
            original = format_receipt(server_id, int(self.due_ms[place]), each.original_sequence)
            rows[place] = (True, original, each.outcome)
        return rows


@dataclass(frozen=True, slots=True)
class ColumnsPublished:
    """The answer to a columnar publish.

    ``accepted`` rows are durable. ``position`` i64[accepted] has their places in the queues of their subjects, in row
    order; their sequences count from ``first_sequence``. All other rows are in ``rejected``. ``placed`` as in
    `ColumnsSent`.
    """

    server_id: str
    accepted: int
    first_sequence: int
    position: NDArray[np.int64]
    rejected: list[RejectedRow]
    placed: RowPlaces | None = None

    @property
    def sequence(self) -> NDArray[np.int64]:
        """i64[accepted]: the sequences of the accepted rows."""
        if self.placed is not None:
            return self.placed.sequence
        return np.arange(self.first_sequence, self.first_sequence + self.accepted, dtype=np.int64)

    def derived_ids(self) -> list[str]:
        """The ids of the accepted rows that have none from the client."""
        return _derived_ids(self)


def _derived_ids(answer: ColumnsSent | ColumnsPublished) -> list[str]:
    placed, sequence = answer.placed, answer.sequence
    if placed is None:
        return derived_message_ids(answer.server_id, sequence)
    return placed.texts(lambda server, rows: derived_message_ids(server, sequence[rows]))


@dataclass(frozen=True, slots=True)
class AckResult:
    """``acked``: deliveries settled now, durably. ``unknown``: deliveries settled before, or whose leases ended: by the ack
    timeout, a restart of their node, or a seek. The latter come again.
    """

    acked: int
    unknown: int


@dataclass(frozen=True, slots=True)
class NackResult:
    """``nacked``: deliveries taken back, to come again. But ``expired`` of them have expired, and do not come again; nor do
    ``dead_lettered`` ones, which had their last attempt. ``unknown``: as in `AckResult`.
    """

    nacked: int
    unknown: int
    expired: int = 0
    dead_lettered: int = 0


@dataclass(frozen=True, slots=True)
class ExtendResult:
    """``extended``: deliveries whose leases go on. ``unknown``: deliveries that were settled, or whose leases ended. The
    messages of the latter come again, perhaps to another consumer.
    """

    extended: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message handed to a consumer. ``delivery`` names this delivery for ack and nack.

    ``attempt`` counts from 1. From 2 on the message may have come before, perhaps from another node. It then has the same
    ``message_id``, and if it is a first delivery, the same (``server_id``, ``sequence``). Its lateness in microseconds is
    ``dispatched_us`` - max(``due_ms`` * 1000, ``accepted_us``). The message does not come again from ``expires_ms`` on;
    0 means that it never expires. ``tag`` and ``order_key`` are None where the sender gave none.
    """

    message_id: str
    subject: str
    sequence: int
    server_id: str
    due_ms: int
    accepted_us: int
    dispatched_us: int
    attempt: int
    body: bytes
    properties: dict[str, str]
    delivery: int
    expires_ms: int = 0
    tag: str | None = None
    order_key: str | None = None
    position: int | None = None
    """The place in the subject's queue at its node. None: a redelivery through the delay pipeline, or an older server."""


Status = dict[str, Any]
"""The status map as the server sends it. Later servers may add keys."""
