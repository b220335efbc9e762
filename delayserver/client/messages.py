"""What goes into the clients and comes out of them: messages, keys, and the results of every operation.

Plain frozen data. Times are integers with their unit in the name; ``due_ms`` and all ``*_us`` are by the server's
clock, since 1970 UTC. How they travel is the business of the ``*_calls`` modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.limits import Limits
from delayserver.protocol.outcomes import Outcome
from delayserver.protocol.receipts import format_receipts


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send. Exactly one of ``due_ms``, ``delay_ms``, ``at`` (with a time zone) and ``delay`` says
    when it is due.

    ``message_id`` None lets the client make one (see `Client.send`). ``expires_ms`` is the moment from which
    delivery is useless.
    """

    subject: str
    body: bytes | str
    due_ms: int | None = None
    delay_ms: int | None = None
    at: datetime | None = None
    delay: timedelta | None = None
    message_id: str | None = None
    properties: Mapping[str, str] | None = None
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class MessageKey:
    """Names a message by what its sender knows, for whoever has no receipt."""

    subject: str
    message_id: str
    due_ms: int


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the server said at hello. ``role`` is ``server`` or ``broker``; ``server_id`` is 12 hex digits."""

    server_id: str
    version: int
    role: str
    software: str
    limits: Limits


class SendResult(NamedTuple):
    """An accepted message: it is durable on the server and ``receipt`` names it. A tuple, being made once a message."""

    receipt: str
    message_id: str
    subject: str
    due_ms: int
    sequence: int


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row of a columnar send that was refused: its index in the request, and why."""

    index: int
    error: DelayServerError


@dataclass(frozen=True, slots=True)
class ColumnsSent:
    """The answer to a columnar send.

    ``accepted`` rows got the sequences from ``first_sequence`` on, in row order; ``due_ms`` is i64[accepted]; every
    other row is in ``rejected``. ``message_ids`` are the ids that were sent with all rows (None: derived ones).
    """

    server_id: str
    accepted: int
    first_sequence: int
    due_ms: NDArray[np.int64]
    rejected: list[RejectedRow]
    message_ids: list[str] | None

    @property
    def sequence(self) -> NDArray[np.int64]:
        """i64[accepted]: the sequences of the accepted rows."""
        return np.arange(self.first_sequence, self.first_sequence + self.accepted, dtype=np.int64)

    def receipts(self) -> list[str]:
        """The receipts of the accepted rows, made here: about 0.2 µs each."""
        return format_receipts(self.server_id, self.due_ms, self.sequence)


@dataclass(frozen=True, slots=True)
class CancelResult:
    """``outcome`` CANCELLED: it is never delivered. Else ALREADY_CANCELLED, DELIVERED, EXPIRED, DEAD_LETTERED,
    TOO_LATE, UNKNOWN.
    """

    receipt: str | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RescheduleResult:
    """``outcome`` CANCELLED means moved, and then the last four are set;
    any other outcome means nothing was changed.
    """

    receipt: str | None
    outcome: Outcome
    new_receipt: str | None = None
    message_id: str | None = None
    due_ms: int | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class LookupResult:
    """What became of a message; what the server no longer knows is None.
    ``original_receipt`` is set on a deduplicated copy.
    """

    receipt: str | None
    outcome: Outcome
    subject: str | None = None
    due_ms: int | None = None
    dispatched_us: int | None = None
    attempts: int | None = None
    broker_group: str | None = None
    original_receipt: str | None = None


@dataclass(frozen=True, slots=True)
class AckResult:
    """``acked``: settled now. ``unknown``: settled before, or taken back after the ack timeout."""

    acked: int
    unknown: int


@dataclass(frozen=True, slots=True)
class NackResult:
    """``nacked``: will be delivered again. ``unknown``: as in `AckResult`."""

    nacked: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a broker group: ``address`` is ``host:port``, ``weight`` its share."""

    address: str
    weight: int


@dataclass(frozen=True, slots=True)
class Route:
    """The broker group of a subject, and its nodes."""

    group: str
    nodes: list[Node]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message handed to a consumer; ``delivery`` names this hand-over for ack and nack.

    ``attempt`` counts from 1. ``dispatched_us`` - max(``due_ms`` * 1000, ``accepted_us``) is its lateness in
    microseconds.
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


Status = dict[str, Any]
"""The status map as the server gives it; its keys are the server's to extend."""
