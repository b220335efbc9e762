"""One delivery in a listener: its times, its verdict and its hooks. No I/O.

Times are seconds of the listener's clock: that of the event loop, and of `time.monotonic` for threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from delayserver.client.consuming.extending import KEPT_PART
from delayserver.client.values.messages import Delivery
from delayserver.client.values.retry import Retry
from delayserver.logs.told import text_of, type_of

REASON_BYTES_MAX: Final = 1024
"""A node takes no longer reason."""


class CutOff(Exception):
    """The listener ended, and its handler did not end in the time that was left. The message comes again."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a listener for a delivery. ``delay_ms``, ``level``: of a nack; None for the growing pauses of the group.
    ``given_back``: no handler has seen the delivery. ``snoozed``: the handler asked for it later. ``reason``: a dead letter
    keeps it.
    """

    ack: bool
    delay_ms: int | None = None
    given_back: bool = False
    snoozed: bool = False
    level: int | None = None
    reason: str = ""


ACK: Final = Verdict(ack=True)
NACK: Final = Verdict(ack=False)
GIVE_BACK: Final = Verdict(ack=False, delay_ms=0, given_back=True)


def verdict_of(error: BaseException | None) -> Verdict:
    """The verdict for a handler that returned (None) or raised. The error may be of any type, also one without a text."""
    if error is None:
        return ACK
    if issubclass(type(error), Retry):
        try:
            return Verdict(
                ack=False,
                delay_ms=error.delay_ms,  # type: ignore[attr-defined]
                snoozed=not error.counts,  # type: ignore[attr-defined]
                level=error.level,  # type: ignore[attr-defined]
                reason=_bounded(text_of(error)),
            )
        except BaseException:  # noqa: BLE001 - a subclass that lacks what Retry has
            return Verdict(ack=False, reason=_bounded(type_of(error)))
    text, name = text_of(error), type_of(error)
    return Verdict(ack=False, reason=_bounded(f"{name}: {text}" if text else name))


def _bounded(reason: str) -> str:
    """The beginning of a reason that is too long, as UTF-8 can carry it."""
    return reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")


class Handling:
    """One delivery on its way through a listener. Hooks get it, and may read all of it.

    ``received_s``, ``started_s``, ``ended_s``: when it came from the node, and when its handler began and ended; 0.0
    until then. ``lease_ends_s``: from then on the node gives the message to another consumer; the listener extends it while
    the handler runs. ``lost``: a new connection could not take over the lease. ``error``: what the handler raised.
    ``settled_s``: when the node had the ack or nack on disk.
    """

    __slots__ = (
        "delivery",
        "ended_s",
        "error",
        "group",
        "lease_ends_s",
        "lost",
        "node",
        "received_s",
        "settled_s",
        "size",
        "started_s",
    )

    def __init__(
        self, delivery: Delivery, group: str, node: str, size: int, received_s: float, lease_ends_s: float
    ) -> None:
        self.delivery = delivery
        self.group = group
        self.node = node
        self.size = size
        self.received_s = received_s
        self.lease_ends_s = lease_ends_s
        self.lost = False
        self.started_s = 0.0
        self.ended_s = 0.0
        self.settled_s = 0.0
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"Handling({self.delivery.subject!r}, {self.delivery.message_id!r}, attempt {self.delivery.attempt})"

    @property
    def number(self) -> int:
        """The number of its delivery."""
        return self.delivery.delivery

    @property
    def late(self) -> bool:
        """Whether its handler ended after the lease."""
        return self.ended_s > self.lease_ends_s

    @property
    def in_work(self) -> bool:
        """Whether its handler has not ended."""
        return not self.ended_s

    @property
    def settled(self) -> bool:
        """Whether the node has answered the ack or nack."""
        return bool(self.settled_s)

    def is_stale(self, now_s: float) -> bool:
        """Whether it has waited too long for a handler, or is with another consumer by now."""
        return self.lost or now_s >= self.received_s + KEPT_PART * (self.lease_ends_s - self.received_s)

    def start(self, now_s: float) -> None:
        """Begins the handler."""
        self.started_s = now_s

    def extend(self, lease_ends_s: float) -> None:
        """Keeps another end of the lease."""
        self.lease_ends_s = lease_ends_s

    def lose(self) -> None:
        """Marks the lease as ended by the node: with a connection, or when the node started again."""
        self.lost = True

    def end(self, now_s: float, error: BaseException | None) -> None:
        """Ends the handler, with the error that it raised."""
        self.ended_s = now_s
        self.error = error

    def settle(self, now_s: float) -> None:
        """Notes that the node has answered the ack or nack."""
        self.settled_s = now_s


Hook = Callable[[Handling], object]


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions that a listener calls, for metrics and tracing. They must be quick, and must not block.

    ``received``: it came from a node. ``started``: its handler is about to run, in the same task or thread. ``failed``:
    its handler raised something other than `Retry`; in the same task or thread. ``acked`` and ``nacked``: the node has
    this on disk; also for deliveries that were given back unhandled. ``overdue``: its handler still runs although its
    lease is over, so another consumer may have it. A hook that raises ends the listener with its error.
    """

    received: Hook | None = None
    started: Hook | None = None
    acked: Hook | None = None
    nacked: Hook | None = None
    failed: Hook | None = None
    overdue: Hook | None = None


@dataclass(slots=True)
class ListenerStats:
    """Counts of deliveries since the listener began.

    ``dead_lettered``: nacks after the last attempt of the group's policy. ``given_back``: nacked without having been
    handled. ``extended``: how often the lease of a running handler was extended. ``overdue``: handlers that ran past the
    lease. ``too_late``: acks and nacks after the end of the lease, so these messages may come again. ``unknown``: acks and
    nacks before it that the node did not know either, as after its restart or a seek; these may come again too. ``lost``:
    acks and nacks that could not be sent before the lease ended. ``gaps``: how often a node had removed messages before the
    group consumed them, because it lagged too far.
    """

    received: int = 0
    started: int = 0
    acked: int = 0
    nacked: int = 0
    failed: int = 0
    dead_lettered: int = 0
    given_back: int = 0
    overdue: int = 0
    too_late: int = 0
    lost: int = 0
    gaps: int = 0
    extended: int = 0
    unknown: int = 0

    def add(self, name: str, count: int = 1) -> None:
        """Count more of them."""
        setattr(self, name, getattr(self, name) + count)
