"""The outside record: what a server acknowledged and what arrived from it, kept where no crash of the server reaches.

It knows the promises and notes at once what breaks one. It asks nobody anything: `verdict.py` compares it with what the
server says, `producing.py` and `consuming.py` fill it. Times are microseconds of the clock that the server uses.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TextIO

from delayserver.client import Delivery
from delayserver.protocol.errors import (
    DelayServerError,
    MessageDamaged,
    ShuttingDown,
    StorageFailed,
    TooOld,
    Unavailable,
)
from delayserver.protocol.outcomes import Outcome

# Violations told in full; of a broken server the first ones say enough.
VIOLATIONS_TOLD_MAX = 200


class Fate(IntEnum):
    """What the sender knows of one message."""

    ASKED = 0
    """Sent, and no answer came: it may be there or not."""
    ACCEPTED = 1
    """Acknowledged: it must arrive."""
    REFUSED = 2
    """Answered with an error: it must not arrive."""
    ENDING = 3
    """A cancel or a reschedule was sent, and no answer came: it may arrive or not."""
    ENDED = 4
    """Answered `cancelled`, or moved to another due time: it must not arrive."""


@dataclass(slots=True)
class Instance:
    """One delivery of a message as the broker keeps it: the message itself, or a retry of it, which has a sequence of its
    own. It may be handed out again only after a crash, and only until its ack or its nack was answered."""

    sent: Sent
    sequence: int
    arrived_in_run: int
    acking: bool = False
    """An ack was sent that nobody answered yet: it may come again or not."""
    acked: bool = False
    handing_back: bool = False
    """A nack was sent that nobody answered yet."""
    handed_back: bool = False

    @property
    def settled(self) -> bool:
        """Answered, so durable: it must not come again."""
        return self.acked or self.handed_back


@dataclass(slots=True)
class Retry:
    """A nack of `instance`: one more instance may come, due not before `from_us`; once `answered`, it must. Of a nack that
    was not answered, the retry comes, or `instance` comes again, or both do."""

    from_us: int
    instance: Instance
    answered: bool = False
    came: bool = False
    came_again: bool = False
    """The instance came after its nack was cut off."""


@dataclass(slots=True)
class Sent:
    """One message as its sender and its receiver saw it. The body is the number."""

    number: int
    subject: str
    message_id: str
    """Empty where the server derives it."""
    due_ms: int
    expires_ms: int = 0
    fate: Fate = Fate.ASKED
    receipt: str = ""
    replaced_by: int = 0
    """The number of the message that was to take its place in a reschedule."""
    replaces: int = 0
    run: int = 1
    """The life of the server in which it was asked for last: what nobody answered then, nobody will."""
    arrivals: int = 0
    asked_again: bool = False
    """It was sent twice, because nobody answered: its receipt may be the one of the suppressed copy."""
    instances: dict[int, Instance] = field(default_factory=dict)
    """By sequence, in the order of their first arrival."""
    retries: list[Retry] = field(default_factory=list)
    """All nacks of it."""

    @property
    def awaited(self) -> list[Retry]:
        """Nacks whose retry has not come: it may, or it must."""
        return [retry for retry in self.retries if not retry.came]

    @property
    def lost_retries(self) -> int:
        """How many retries must come and have not. Which of two retries it is that came cannot always be told, so those of
        unanswered nacks are counted."""
        unanswered = [retry for retry in self.retries if not retry.answered]
        instead = sum(not retry.came_again for retry in unanswered)
        came = sum(retry.came for retry in unanswered)
        return sum(retry.answered for retry in self.awaited) + max(0, instead - came)


class Record:
    """All messages of a run. Used by several threads; each method is one step. Can be pickled between two lives."""

    def __init__(self, now_us: Callable[[], int], log: TextIO | None = None) -> None:
        self._lock = threading.RLock()
        self._log = log
        self.now_us = now_us
        self.sent: dict[int, Sent] = {}
        self.arrived_total = 0
        self.copies = 0
        self.copies_unknown = 0
        self.run = 1
        self.duplicates: Counter[str] = Counter()
        self.violations: list[str] = []
        self.violations_total = 0
        self.copy_receipts: dict[str, int] = {}
        self.server_stops = False
        self.power_off = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_log", "now_us")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def go_on(self, now_us: Callable[[], int], log: TextIO | None) -> None:
        """After it was read back: the clock and the log of the new process."""
        self.now_us, self._log = now_us, log

    # -- what the sender does

    def new(self, subject: str, due_ms: int, *, with_id: bool = True, expires_ms: int = 0) -> Sent:
        """A message that is about to be sent."""
        with self._lock:
            number = len(self.sent) + 1
            message_id = f"m{number}" if with_id else ""
            sent = self.sent[number] = Sent(number, subject, message_id, due_ms, expires_ms, run=self.run)
            self._write("ask", number, subject, due_ms, expires_ms)
            return sent

    def accepted(self, messages: Sequence[Sent], receipts: Sequence[str]) -> None:
        """The server acknowledged them."""
        with self._lock:
            for sent, receipt in zip(messages, receipts, strict=True):
                sent.fate = Fate.ACCEPTED
                sent.receipt = receipt
                self._write("accepted", sent.number, receipt)

    def refused(self, sent: Sent, why: str) -> None:
        """The server answered with an error."""
        with self._lock:
            if sent.arrivals:
                self.violate(f"{sent.number} was refused ({why}) and had arrived")
            sent.fate = Fate.REFUSED
            self._write("refused", sent.number, why)

    def ending(self, messages: Sequence[Sent]) -> None:
        """A cancel or reschedule of them is about to be sent."""
        with self._lock:
            for sent in messages:
                sent.fate, sent.run = Fate.ENDING, self.run
                self._write("ending", sent.number)

    def ended(self, sent: Sent, outcome: Outcome) -> None:
        """The answer of a cancel or reschedule: `cancelled` is final, anything else means that it arrives or did."""
        with self._lock:
            self._write("ended", sent.number, outcome.label)
            self._check_moment(sent, outcome)
            if outcome in (Outcome.CANCELLED, Outcome.ALREADY_CANCELLED):
                if sent.arrivals:
                    self.violate(f"{sent.number} had arrived and its cancel was answered {outcome.label}")
                sent.fate = Fate.ENDED
            elif outcome in (Outcome.DELIVERED, Outcome.TOO_LATE) or (outcome == Outcome.EXPIRED and sent.expires_ms):
                sent.fate = Fate.ACCEPTED
            elif outcome == Outcome.RETIRED:
                pass  # it had an outcome, and nobody remembers which: it stays open here
            else:
                self.violate(f"the cancel of {sent.number}, which was accepted, was answered {outcome.label}")

    def looked_up(self, sent: Sent, outcome: Outcome) -> None:
        """The answer of a lookup of an accepted message that nobody cancels."""
        with self._lock:
            if outcome in (Outcome.UNKNOWN, Outcome.CANCELLED) or (outcome == Outcome.EXPIRED and not sent.expires_ms):
                self.violate(f"{sent.number} is accepted, and lookup says {outcome.label}")
            self._check_moment(sent, outcome)

    def _check_moment(self, sent: Sent, outcome: Outcome) -> None:
        """No answer speaks of what cannot have happened yet."""
        soonest_ms = {Outcome.DELIVERED: sent.due_ms, Outcome.EXPIRED: sent.expires_ms}.get(outcome, 0)
        if self.now_us() < soonest_ms * 1000:
            self.violate(f"{sent.number} was answered {outcome.label} at {self.now_us()}, before {soonest_ms}")

    # -- what the receiver sees

    def arrived(self, delivery: Delivery) -> Instance | None:
        """A delivery; None for one that nobody sent."""
        with self._lock:
            now_us = self.now_us()
            sent = self.sent.get(int(delivery.body)) if delivery.body.isdigit() else None
            if sent is None:
                self.violate(f"a message arrived that nobody sent: {delivery.body[:40]!r}")
                return None
            self._write("arrived", sent.number, delivery.sequence, delivery.due_ms, delivery.attempt)
            self._check_name(sent, delivery)
            self._check_time(sent, delivery, now_us)
            if sent.fate in (Fate.ENDED, Fate.REFUSED):
                self.violate(f"{sent.number} arrived though it was answered {sent.fate.name.lower()}")
            instance = sent.instances.get(delivery.sequence)
            if instance is None:
                instance = sent.instances[delivery.sequence] = self._first_of(sent, delivery)
            else:
                self._check_repeat(instance)
            sent.arrivals += 1
            instance.arrived_in_run = self.run
            # What nobody answered before the crash has not happened, or it could not have come.
            instance.acking = instance.handing_back = False
            for retry in sent.retries:
                retry.came_again = retry.came_again or retry.instance is instance
            return instance

    def _check_name(self, sent: Sent, delivery: Delivery) -> None:
        """A derived id is made of the sequence of the first instance."""
        message_id = sent.message_id or f"{delivery.server_id}-{next(iter(sent.instances), delivery.sequence):012x}"
        if (delivery.subject, delivery.message_id) != (sent.subject, message_id):
            self.violate(
                f"{sent.number} of {sent.subject} as {message_id} arrived of {delivery.subject} as {delivery.message_id}"
            )

    def _check_time(self, sent: Sent, delivery: Delivery, now_us: int) -> None:
        """By the delivery's own due time, which is the message's or, for a retry, a later one."""
        first = max(sent.due_ms, delivery.due_ms) * 1000
        if delivery.dispatched_us < first or now_us < first or delivery.due_ms < sent.due_ms:
            self.violate(
                f"{sent.number} was early: due {sent.due_ms} (this delivery {delivery.due_ms}), "
                f"dispatched {delivery.dispatched_us}, now {now_us}"
            )

    def _first_of(self, sent: Sent, delivery: Delivery) -> Instance:
        """The message itself, or what a nack made of it: each nack is good for one instance, and not before its time."""
        if not sent.instances:
            self.arrived_total += 1
            if sent.receipt and not sent.asked_again and int(sent.receipt[-12:], 16) != delivery.sequence:
                self.violate(f"{sent.number} ({sent.receipt}) arrived as sequence {delivery.sequence}")
            return Instance(sent, delivery.sequence, self.run)
        fitting = [retry for retry in sent.awaited if retry.from_us <= delivery.due_ms * 1000]
        if fitting:
            retry = max(fitting, key=lambda retry: retry.from_us)
            retry.came = True
            self.duplicates["handed back" if retry.answered else "handed back, without an answer"] += 1
        elif sent.awaited:
            soonest = min(retry.from_us for retry in sent.awaited)
            self.violate(f"{sent.number} came again {soonest - delivery.due_ms * 1000} us before the delay of its nack")
        else:
            self.violate(f"{sent.number} came as a second instance ({delivery.sequence}) that no nack asked for")
        return Instance(sent, delivery.sequence, self.run)

    def _check_repeat(self, instance: Instance) -> None:
        """Only a crash brings the same instance again, and only until it was settled."""
        number = instance.sent.number
        if instance.settled:
            self.violate(f"{number} came again after its {'ack' if instance.acked else 'nack'} was answered")
        elif instance.arrived_in_run == self.run:
            self.violate(f"{number} came twice without a crash, a nack or a timeout")
        elif instance.acking:
            self.duplicates["ack without an answer"] += 1
        elif instance.handing_back:
            self.duplicates["nack without an answer"] += 1
        else:
            self.duplicates["not acked before a crash"] += 1

    def acking(self, instances: Sequence[Instance]) -> None:
        """An ack of them is about to be sent."""
        with self._lock:
            for instance in instances:
                instance.acking = True

    def acked(self, instances: Sequence[Instance]) -> None:
        """The ack was answered."""
        with self._lock:
            for instance in instances:
                instance.acking, instance.acked = False, True
                self._write("acked", instance.sent.number, instance.sequence)

    def handing_back(self, instances: Sequence[Instance], delay_ms: int) -> list[Retry]:
        """A nack of them is about to be sent; what it is good for, in the same order."""
        with self._lock:
            # The server adds the delay to its own now, which is not before this one.
            retries = [Retry(self.now_us() + delay_ms * 1000, instance) for instance in instances]
            for instance, retry in zip(instances, retries, strict=True):
                instance.handing_back = True
                instance.sent.retries.append(retry)
                self._write("handing_back", instance.sent.number, instance.sequence, retry.from_us)
            return retries

    def handed_back(self, instances: Sequence[Instance], retries: Sequence[Retry]) -> None:
        """The nack was answered: the instances are settled, and their retries will come."""
        with self._lock:
            for instance, retry in zip(instances, retries, strict=True):
                instance.handing_back, instance.handed_back, retry.answered = False, True, True
                self._write("handed_back", instance.sent.number, instance.sequence)

    # -- the server

    def crashed(self) -> None:
        """The server was killed, or stopped: leases do not outlive a process, so what was not settled comes again."""
        with self._lock:
            self.run += 1
            self.server_stops = self.power_off = False
            self._write("crashed", self.run)

    def stopping(self) -> None:
        """The server is about to be told to stop cleanly."""
        with self._lock:
            self.server_stops = True
            self._write("stopping")

    def power_fails(self) -> None:
        """The disk of the server is about to refuse everything."""
        with self._lock:
            self.server_stops = self.power_off = True
            self._write("power_fails")

    def failed(self, error: DelayServerError) -> None:
        """A request, or an item of one, ended with an error: a violation if the load gave no reason for it."""
        if isinstance(error, MessageDamaged):
            explained = self.power_off
        elif isinstance(error, (ShuttingDown, StorageFailed)):
            explained = self.server_stops
        else:  # a machine that stood still may send late; all else that is not the lack of something is a fault
            explained = isinstance(error, (Unavailable, TooOld))
        if not explained:
            self.violate(f"a request failed without a reason: {error}")

    def violate(self, text: str) -> None:
        """Note a broken promise."""
        with self._lock:
            self.violations_total += 1
            if len(self.violations) < VIOLATIONS_TOLD_MAX:
                self.violations.append(text)
            self._write("violation", text)

    def _write(self, *words: object) -> None:
        if self._log is not None:
            self._log.write(f"{self.now_us()} {' '.join(map(str, words))}\n")

    # -- questions

    def of(self, *fates: Fate) -> list[Sent]:
        """The messages of these fates, in the order of their sending."""
        with self._lock:
            return [sent for sent in self.sent.values() if sent.fate in fates]

    def unanswered(self, fate: Fate) -> list[Sent]:
        """The messages of this fate whose request was cut off by a crash: no other thread waits for its answer."""
        with self._lock:
            return [sent for sent in self.sent.values() if sent.fate == fate and sent.run < self.run]

    def missing(self) -> list[Sent]:
        """What must arrive and has not."""
        return [sent for sent in self.of(Fate.ACCEPTED) if not sent.arrivals and not sent.expires_ms]

    def unsettled(self) -> list[Sent]:
        """What must come again: instances that nobody settled, and the retries of nacks.

        Not where an ack was sent and not answered: it may have been taken. Where that was a nack, either the instance comes
        again or its retry comes. Not where the message expires: a retry that is past that time is expired instead.
        """
        with self._lock:
            return [sent for sent in self.sent.values() if sent.arrivals and not sent.expires_ms and _is_open(sent)]

    def open(self) -> list[Sent]:
        """What may still come: anything not settled, and not known to be refused or cancelled."""
        with self._lock:
            return [
                sent
                for sent in self.sent.values()
                if sent.fate not in (Fate.REFUSED, Fate.ENDED)
                and not (
                    sent.instances
                    and all(instance.settled for instance in sent.instances.values())
                    and not sent.awaited
                )
            ]


def _is_open(sent: Sent) -> bool:
    waiting = any(
        not (instance.settled or instance.acking or instance.handing_back) for instance in sent.instances.values()
    )
    return waiting or sent.lost_retries > 0
