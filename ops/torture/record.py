"""The outside record: what a server acknowledged and what arrived from it, kept where no crash of the server reaches.

It knows the promises and notes at once what breaks one. It asks nobody anything: `verdict.py` compares it with what the
server says, `producing.py` and `consuming.py` fill it. Times are microseconds of the clock that the server uses.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TextIO

from delayserver.client import Delivery
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
    arrivals: int = 0
    arrived_in_run: int = 0
    acked: bool = False
    acking: bool = False
    """An ack was sent that nobody answered yet: it may come again."""
    again_from_us: int = 0
    """It was handed back (nack): it comes again, not before this."""
    handing_back: bool = False
    """A nack was sent that nobody answered yet."""
    instances: int = 1
    """One more for each nack that the server died over: the delivery may be open still, and its repeat be stored as well."""
    acks: int = 0


class Record:
    """All messages of a run. Used by several threads; each method is one step."""

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

    # -- what the sender does

    def new(self, subject: str, due_ms: int, *, with_id: bool = True, expires_ms: int = 0) -> Sent:
        """A message that is about to be sent."""
        with self._lock:
            number = len(self.sent) + 1
            message_id = f"m{number}" if with_id else ""
            sent = self.sent[number] = Sent(number, subject, message_id, due_ms, expires_ms)
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
                sent.fate = Fate.ENDING
                self._write("ending", sent.number)

    def ended(self, sent: Sent, outcome: Outcome) -> None:
        """The answer of a cancel or reschedule: `cancelled` is final, anything else means that it arrives or did."""
        with self._lock:
            self._write("ended", sent.number, outcome.label)
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

    # -- what the receiver sees

    def arrived(self, delivery: Delivery) -> Sent | None:
        """A delivery; None for one that nobody sent."""
        with self._lock:
            now_us = self.now_us()
            sent = self.sent.get(int(delivery.body)) if delivery.body.isdigit() else None
            if sent is None:
                self.violate(f"a message arrived that nobody sent: {delivery.body[:40]!r}")
                return None
            self._write("arrived", sent.number, delivery.attempt)
            self._check_time(sent, delivery, now_us)
            if sent.fate in (Fate.ENDED, Fate.REFUSED):
                self.violate(f"{sent.number} arrived though it was answered {sent.fate.name.lower()}")
            if sent.arrivals:
                self._check_repeat(sent)
            else:
                self.arrived_total += 1
            sent.arrivals += 1
            sent.acking = False
            sent.arrived_in_run = self.run
            sent.again_from_us = 0
            return sent

    def _check_time(self, sent: Sent, delivery: Delivery, now_us: int) -> None:
        if delivery.dispatched_us < sent.due_ms * 1000 or now_us < sent.due_ms * 1000:
            self.violate(
                f"{sent.number} was early: due {sent.due_ms}, dispatched {delivery.dispatched_us}, now {now_us}"
            )
        if now_us < sent.again_from_us:
            self.violate(
                f"{sent.number} came again {sent.again_from_us - now_us} us before the delay of its nack was over"
            )

    def _check_repeat(self, sent: Sent) -> None:
        if sent.acks >= sent.instances:
            self.violate(f"{sent.number} came again after its ack")
        elif sent.again_from_us:
            self.duplicates["handed back"] += 1
        elif sent.instances > 1:
            self.duplicates["nack without an answer"] += 1
        elif sent.arrived_in_run == self.run:
            self.violate(f"{sent.number} came twice without a crash, a nack or a timeout")
        else:
            self.duplicates["ack without an answer" if sent.acking else "not acked before a crash"] += 1

    def acking(self, messages: Sequence[Sent]) -> None:
        """An ack of them is about to be sent."""
        for sent in messages:
            sent.acking = True

    def acked(self, messages: Sequence[Sent]) -> None:
        """The ack was answered."""
        with self._lock:
            for sent in messages:
                sent.acked = True
                sent.acks += 1
                self._write("acked", sent.number)

    def handing_back(self, messages: Sequence[Sent], delay_ms: int) -> None:
        """A nack of them is about to be sent."""
        with self._lock:
            from_us = self.now_us() + delay_ms * 1000
            for sent in messages:
                sent.again_from_us = from_us
                sent.handing_back = True
                self._write("handing_back", sent.number)

    def handed_back(self, messages: Sequence[Sent]) -> None:
        """The nack was answered."""
        with self._lock:
            for sent in messages:
                sent.handing_back = False
                self._write("handed_back", sent.number)

    # -- the server

    def crashed(self) -> None:
        """The server was killed: whatever was not acked may come again."""
        with self._lock:
            self.run += 1
            for sent in self.sent.values():
                if sent.handing_back:
                    # It may have happened or not: then the message is there again at once.
                    sent.handing_back = False
                    sent.instances += 1
                    sent.again_from_us = 1
            self._write("crashed", self.run)

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

    def missing(self) -> list[Sent]:
        """What must arrive and has not."""
        return [sent for sent in self.of(Fate.ACCEPTED) if not sent.arrivals and not sent.expires_ms]

    def unsettled(self) -> list[Sent]:
        """What arrived and is not acked: it comes again. An ack without an answer may have been taken; and what was
        handed back may expire before it comes again."""
        with self._lock:
            return [
                sent
                for sent in self.sent.values()
                if sent.arrivals and not (sent.acked or sent.acking or sent.expires_ms)
            ]

    def open(self) -> list[Sent]:
        """What may still come: not acked, and not known to be refused or cancelled."""
        with self._lock:
            return [
                sent for sent in self.sent.values() if not sent.acked and sent.fate not in (Fate.REFUSED, Fate.ENDED)
            ]
