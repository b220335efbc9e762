"""The outside record: messages that a server acknowledged and delivered, kept where no crash of the server reaches.

It knows the promises and notes each broken one at once. It sends no requests: `producing.py` and `consuming.py` fill
it, and `verdict.py` compares it with the server's answers. Times are microseconds of the clock that the server uses.
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

# Violations that are kept with their text. The first ones are enough to find the fault.
VIOLATIONS_TOLD_MAX = 200


class Fate(IntEnum):
    """The sender's knowledge about one message."""

    ASKED = 0
    """Sent without an answer: the server may have it or not."""
    ACCEPTED = 1
    """Acknowledged: it must arrive."""
    REFUSED = 2
    """Answered with an error: it must not arrive."""
    ENDING = 3
    """A cancel or reschedule was sent without an answer: it may arrive or not."""
    ENDED = 4
    """Answered `cancelled`, or moved to another due time: it must not arrive."""


@dataclass(slots=True)
class Instance:
    """A message as the broker stores it, or a retry of it, which has its own sequence. It may come again only after a
    crash, and only until its ack or nack is answered."""

    sent: Sent
    sequence: int
    arrived_in_run: int
    acking: bool = False
    """An ack was sent without an answer so far: the instance may come again or not."""
    acked: bool = False
    handing_back: bool = False
    """A nack was sent without an answer so far."""
    handed_back: bool = False

    @property
    def settled(self) -> bool:
        """True if its ack or nack was answered, so it is durable and the instance must not come again."""
        return self.acked or self.handed_back


@dataclass(slots=True)
class Retry:
    """A nack of `instance`. One more instance may come, due at `from_us` or later; if `answered`, it must come. After a
    nack without an answer, the retry comes, or `instance` comes again, or both."""

    from_us: int
    instance: Instance
    answered: bool = False
    came: bool = False
    came_again: bool = False
    """The instance came again after its nack was interrupted."""


@dataclass(slots=True)
class Sent:
    """One message as its sender and receiver saw it. Its body is the number."""

    number: int
    subject: str
    message_id: str
    """Empty if the server derives it."""
    due_ms: int
    expires_ms: int = 0
    fate: Fate = Fate.ASKED
    receipt: str = ""
    replaced_by: int = 0
    """The number of the message that replaces it in a reschedule."""
    replaces: int = 0
    run: int = 1
    """The life of the server in which its last request was sent. In later lives that request gets no answer."""
    arrivals: int = 0
    asked_again: bool = False
    """It was sent twice for want of an answer, so its receipt may be that of the suppressed duplicate."""
    instances: dict[int, Instance] = field(default_factory=dict)
    """Instances by sequence, in the order of their first arrival."""
    retries: list[Retry] = field(default_factory=list)
    """All nacks of the message."""

    @property
    def awaited(self) -> list[Retry]:
        """Nacks whose retry has not come."""
        return [retry for retry in self.retries if not retry.came]

    @property
    def lost_retries(self) -> int:
        """The number of retries that must come and have not. Two retries cannot always be distinguished, so those of
        unanswered nacks are only counted."""
        unanswered = [retry for retry in self.retries if not retry.answered]
        instead = sum(not retry.came_again for retry in unanswered)
        came = sum(retry.came for retry in unanswered)
        return sum(retry.answered for retry in self.awaited) + max(0, instead - came)


class Record:
    """All messages of a run. Thread-safe; each method is one step. Can be pickled between two lives."""

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
        """Sets the clock and the log of a new process, after unpickling."""
        self.now_us, self._log = now_us, log

    # -- sender

    def new(self, subject: str, due_ms: int, *, with_id: bool = True, expires_ms: int = 0) -> Sent:
        """Makes a message that is about to be sent."""
        with self._lock:
            number = len(self.sent) + 1
            message_id = f"m{number}" if with_id else ""
            sent = self.sent[number] = Sent(number, subject, message_id, due_ms, expires_ms, run=self.run)
            self._write("ask", number, subject, due_ms, expires_ms)
            return sent

    def accepted(self, messages: Sequence[Sent], receipts: Sequence[str]) -> None:
        """Notes that the server acknowledged messages."""
        with self._lock:
            for sent, receipt in zip(messages, receipts, strict=True):
                sent.fate = Fate.ACCEPTED
                sent.receipt = receipt
                self._write("accepted", sent.number, receipt)

    def refused(self, sent: Sent, why: str) -> None:
        """Notes that the server refused a message with an error."""
        with self._lock:
            if sent.arrivals:
                self.violate(f"{sent.number} was refused ({why}) and had arrived")
            sent.fate = Fate.REFUSED
            self._write("refused", sent.number, why)

    def ending(self, messages: Sequence[Sent]) -> None:
        """Notes that a cancel or reschedule of these messages is about to be sent."""
        with self._lock:
            for sent in messages:
                sent.fate, sent.run = Fate.ENDING, self.run
                self._write("ending", sent.number)

    def ended(self, sent: Sent, outcome: Outcome) -> None:
        """Notes the answer of a cancel or reschedule. Unless it is `cancelled`, the message arrives or has arrived."""
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
                pass  # its outcome is not known any more, so it stays open here
            else:
                self.violate(f"the cancel of {sent.number}, which was accepted, was answered {outcome.label}")

    def looked_up(self, sent: Sent, outcome: Outcome) -> None:
        """Checks the answer of a lookup of an accepted message without a cancel."""
        with self._lock:
            if outcome in (Outcome.UNKNOWN, Outcome.CANCELLED) or (outcome == Outcome.EXPIRED and not sent.expires_ms):
                self.violate(f"{sent.number} is accepted, and lookup says {outcome.label}")
            self._check_moment(sent, outcome)

    def _check_moment(self, sent: Sent, outcome: Outcome) -> None:
        """Checks that an outcome is not answered before it can have happened."""
        soonest_ms = {Outcome.DELIVERED: sent.due_ms, Outcome.EXPIRED: sent.expires_ms}.get(outcome, 0)
        if self.now_us() < soonest_ms * 1000:
            self.violate(f"{sent.number} was answered {outcome.label} at {self.now_us()}, before {soonest_ms}")

    # -- receiver

    def arrived(self, delivery: Delivery) -> Instance | None:
        """Notes and checks a delivery. Returns its instance, or None for a message that was never sent."""
        with self._lock:
            now_us = self.now_us()
            sent = self.sent.get(int(delivery.body)) if delivery.body.isdigit() else None
            if sent is None:
                self.violate(f"a message arrived that no producer sent: {delivery.body[:40]!r}")
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
            # Unanswered acks and nacks have not happened, or the instance could not have come.
            instance.acking = instance.handing_back = False
            for retry in sent.retries:
                retry.came_again = retry.came_again or retry.instance is instance
            return instance

    def _check_name(self, sent: Sent, delivery: Delivery) -> None:
        """Checks subject and id. A derived id is made from the sequence of the first instance."""
        message_id = sent.message_id or f"{delivery.server_id}-{next(iter(sent.instances), delivery.sequence):012x}"
        if (delivery.subject, delivery.message_id) != (sent.subject, message_id):
            self.violate(
                f"{sent.number} of {sent.subject} as {message_id} arrived of {delivery.subject} as {delivery.message_id}"
            )

    def _check_time(self, sent: Sent, delivery: Delivery, now_us: int) -> None:
        """Checks that a delivery is not early, by its own due time: that of the message, or a later one of a retry."""
        first = max(sent.due_ms, delivery.due_ms) * 1000
        if delivery.dispatched_us < first or now_us < first or delivery.due_ms < sent.due_ms:
            self.violate(
                f"{sent.number} was early: due {sent.due_ms} (this delivery {delivery.due_ms}), "
                f"dispatched {delivery.dispatched_us}, now {now_us}"
            )

    def _first_of(self, sent: Sent, delivery: Delivery) -> Instance:
        """The new instance of a message, which is its first or the retry of a nack. Each nack allows one retry, not
        before its time."""
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
        """Checks a repeated instance. It may come only after a crash, and only until it is settled."""
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
        """Notes that an ack of these instances is about to be sent."""
        with self._lock:
            for instance in instances:
                instance.acking = True

    def acked(self, instances: Sequence[Instance]) -> None:
        """Notes that the ack was answered."""
        with self._lock:
            for instance in instances:
                instance.acking, instance.acked = False, True
                self._write("acked", instance.sent.number, instance.sequence)

    def handing_back(self, instances: Sequence[Instance], delay_ms: int) -> list[Retry]:
        """Notes that a nack is about to be sent. Returns the retries that it allows, in the same order."""
        with self._lock:
            # The server adds the delay to its present time, which is not before this one.
            retries = [Retry(self.now_us() + delay_ms * 1000, instance) for instance in instances]
            for instance, retry in zip(instances, retries, strict=True):
                instance.handing_back = True
                instance.sent.retries.append(retry)
                self._write("handing_back", instance.sent.number, instance.sequence, retry.from_us)
            return retries

    def handed_back(self, instances: Sequence[Instance], retries: Sequence[Retry]) -> None:
        """Notes that the nack was answered. The instances are settled, and their retries must come."""
        with self._lock:
            for instance, retry in zip(instances, retries, strict=True):
                instance.handing_back, instance.handed_back, retry.answered = False, True, True
                self._write("handed_back", instance.sent.number, instance.sequence)

    # -- the server

    def crashed(self) -> None:
        """Notes that the server was killed or stopped. Its leases have ended, so unsettled instances come again."""
        with self._lock:
            self.run += 1
            self.server_stops = self.power_off = False
            self._write("crashed", self.run)

    def stopping(self) -> None:
        """Notes that the server is about to be stopped cleanly."""
        with self._lock:
            self.server_stops = True
            self._write("stopping")

    def power_fails(self) -> None:
        """Notes that the disk of the server is about to refuse everything."""
        with self._lock:
            self.server_stops = self.power_off = True
            self._write("power_fails")

    def failed(self, error: DelayServerError) -> None:
        """Notes an error of a request or an item. It is a violation if the load does not explain it."""
        if isinstance(error, MessageDamaged):
            explained = self.power_off
        elif isinstance(error, (ShuttingDown, StorageFailed)):
            explained = self.server_stops
        else:  # Unavailable is temporary, and TooOld may follow a pause of the machine; others are faults
            explained = isinstance(error, (Unavailable, TooOld))
        if not explained:
            self.violate(f"a request failed without a reason: {error}")

    def violate(self, text: str) -> None:
        """Notes a broken promise."""
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
        """The messages with these fates, in the order of sending."""
        with self._lock:
            return [sent for sent in self.sent.values() if sent.fate in fates]

    def unanswered(self, fate: Fate) -> list[Sent]:
        """The messages with this fate whose request a crash interrupted, so that no thread waits for the answer."""
        with self._lock:
            return [sent for sent in self.sent.values() if sent.fate == fate and sent.run < self.run]

    def missing(self) -> list[Sent]:
        """The messages that must arrive and have not."""
        return [sent for sent in self.of(Fate.ACCEPTED) if not sent.arrivals and not sent.expires_ms]

    def unsettled(self) -> list[Sent]:
        """The messages that must come again, because of an unsettled instance or the retry of a nack.

        Without instances whose ack has no answer, because the server may have taken it. After a nack without an answer,
        either the instance or its retry must come. Without messages that expire, because a late retry expires instead.
        """
        with self._lock:
            return [sent for sent in self.sent.values() if sent.arrivals and not sent.expires_ms and _is_open(sent)]

    def open(self) -> list[Sent]:
        """The messages that may still come: not all settled, and neither refused nor cancelled."""
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
