"""The waiting pulls of one consumer group as an actor: a mailbox, what it has used lately, and what it waits for.

An actor is at one of these: *idle* (no pull waits, or there is nothing for those that do), *in line* for its turn, or
*suspended* until the disk has read its next messages. An arrival, an ack or the end of the read puts it in line.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

import trio

from delayserver.broker.pulled_batch import PulledBatch
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.service.broker_reads import Reading
from delayserver.runtime.fair_shares import Account, Ticket

Answer = Callable[[PulledBatch], None]


class Outlet(NamedTuple):
    """How much the consumer of a pull may get: it may read more slowly than messages come."""

    reply_bytes: Callable[[], int]
    """How many bytes a reply may have now. 0: hand out nothing until `when_room` calls its action."""
    when_room: Callable[[Callable[[], None]], None]
    """Calls its action once, when there is room for a reply, at once or later. Never if the consumer ends first."""


UNBOUNDED: Final = Outlet(lambda: 1 << 62, lambda action: action())
"""It takes everything."""


class LeaseTerms(NamedTuple):
    """The leases that a pull asks for."""

    ack_timeout_ms: int | None
    owner: int
    """To whom they belong; 0: to nobody. See `Consuming.pull`."""


class WaitingPull:
    """One waiting pull."""

    __slots__ = (
        "answer",
        "deadline_ms",
        "error",
        "lease",
        "max_bytes",
        "max_messages",
        "outlet",
        "patient",
        "pulled",
        "served",
    )

    def __init__(
        self,
        max_messages: int,
        max_bytes: int,
        lease: LeaseTerms,
        deadline_ms: int | None,
        answer: Answer | None,
        outlet: Outlet,
    ) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.lease = lease
        self.deadline_ms = deadline_ms
        self.served = trio.Event()
        # False if it waits only until its turn, which answers for an empty queue too.
        self.patient = True
        self.answer = answer
        self.outlet = outlet
        self.pulled: PulledBatch | None = None
        self.error: Exception | None = None

    def take(self, pulled: PulledBatch | None) -> None:
        """Gives the pull the deliveries that the broker handed out."""
        self.pulled = pulled

    def fail(self, error: Exception) -> None:
        """Raises the error where the pull waits."""
        self.error = error

    def take_error(self) -> Exception:
        """The error, kept here no longer."""
        error, self.error = self.error, None
        assert error is not None
        return error

    async def wait_for_turn(self) -> None:
        """Lets the pull wait only until its turn from now on."""
        self.patient = False
        await self.served.wait()


class PullActor:
    """The pulls of one (subject, group). Only `PullService` changes it."""

    __slots__ = ("account", "key", "mailbox", "reading", "suspended", "ticket", "waiting")

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        # The event-loop time and the bytes that its pulls used lately.
        self.account = Account()
        # In the order in which they came, but for those that wait for room in their outlet. Any of them may leave, a
        # thousand at a time when a connection ends.
        self.mailbox: OrderedDict[WaitingPull, None] = OrderedDict()
        # Pulls that wait, also those that wait for room in their outlet, in the order in which they came.
        self.waiting: dict[WaitingPull, None] = {}
        # Its place in line.
        self.ticket: Ticket | None = None
        self.suspended = False
        # The results of reads that its next pull needs.
        self.reading: Reading | None = None

    @property
    def pulls(self) -> int:
        """How many pulls wait."""
        return len(self.waiting)

    @property
    def idle(self) -> bool:
        """Whether nothing waits here."""
        return not self.pulls and self.ticket is None and self.reading is None

    def enter(self, pull: WaitingPull) -> None:
        """Adds a pull that waits from now on."""
        self.waiting[pull] = None

    def leave(self, pull: WaitingPull) -> None:
        """Removes a pull that waits no more."""
        del self.waiting[pull]

    def set_ticket(self, ticket: Ticket | None) -> None:
        """Keeps the actor's ticket in the line of pulls; None when it leaves the line."""
        self.ticket = ticket

    def suspend(self, reading: Reading) -> None:
        """Suspends the actor: its next pull needs a read, whose result goes to `reading`."""
        self.suspended = True
        self.reading = reading

    def resume(self) -> None:
        """Ends the suspension, because the read has ended."""
        self.suspended = False

    def end_reading(self) -> None:
        """Frees the results so far, because the next pull needs none of them."""
        self.suspended = False
        reading, self.reading = self.reading, None
        if reading is not None:
            reading.release()

    def check_invariants(self) -> None:
        """It is in line, or suspended, or neither; and what stands in the mailbox waits."""
        assert self.ticket is None or not self.suspended, "in line and suspended at once"
        assert not self.suspended or self.reading is not None
        assert len(self.mailbox) <= self.pulls
        assert all(pull in self.waiting and not pull.served.is_set() for pull in self.mailbox)
