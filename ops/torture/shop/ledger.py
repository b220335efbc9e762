"""The shop's own book: which messages it sent, and what came of them. It is kept outside the server and survives it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

VIOLATIONS_KEPT: Final = 50


@dataclass(slots=True)
class _Sent:
    """A message that the shop has sent. `certain`: the server acknowledged it."""

    due_ms: int
    certain: bool
    expires_ms: int | None


@dataclass(slots=True)
class Ledger:
    """Every message by the number that its body carries. A message leaves the book when it is handled, cancelled or dead.

    `counts` has the totals, by what happened. `violations` has the first broken promises as sentences.
    """

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    violations_total: int = 0
    _open: dict[int, _Sent] = field(default_factory=dict)
    _gone: set[int] = field(default_factory=set)
    _cancelled: set[int] = field(default_factory=set)
    _numbers: int = 0

    def number(self) -> int:
        """A number that no other message has."""
        self._numbers += 1
        return self._numbers

    def sending(self, number: int, due_ms: int, expires_ms: int | None = None) -> None:
        """A request with this message leaves. Until it is answered the message may come, or never come."""
        self._open[number] = _Sent(due_ms, False, expires_ms)
        self.counts["sent"] += 1

    def accepted(self, number: int, due_ms: int) -> None:
        """The server acknowledged the message, or moved it to this due time."""
        sent = self._open.get(number)
        if sent is not None:
            self._open[number] = _Sent(due_ms, True, sent.expires_ms)

    def refused(self, number: int) -> None:
        """The server refused the message by name."""
        self._open.pop(number, None)
        self.counts["refused"] += 1

    def moving(self, number: int, due_ms: int) -> None:
        """A reschedule leaves. Until it is answered, both due times are right."""
        sent = self._open.get(number)
        if sent is not None:
            self._open[number] = _Sent(min(due_ms, sent.due_ms), sent.certain, sent.expires_ms)

    def cancelling(self, number: int) -> None:
        """A cancel leaves. Without an answer the message may come, or never come."""
        sent = self._open.get(number)
        if sent is not None:
            self._open[number] = _Sent(sent.due_ms, False, sent.expires_ms)

    def cancelled(self, number: int) -> None:
        """The server answered `cancelled`."""
        self._open.pop(number, None)
        self._cancelled.add(number)
        self.counts["cancelled"] += 1

    def arrived(self, number: int, now_ms: int) -> None:
        """A consumer has got the message, at this time of the wall clock that the server goes by too."""
        self.counts["arrived"] += 1
        if number in self._cancelled:
            self.violate(f"message {number} was cancelled and came")
        sent = self._open.get(number)
        if sent is not None and now_ms < sent.due_ms:
            self.violate(f"message {number} came {sent.due_ms - now_ms} ms early")

    def handled(self, number: int) -> None:
        """The consumer is done with the message."""
        if number in self._gone:
            self.counts["again"] += 1
        self._gone.add(number)
        self._open.pop(number, None)
        self.counts["handled"] += 1

    def dead(self, number: int) -> None:
        """The consumer group gave the message up."""
        if number in self._gone:
            self.counts["dead again"] += 1
        self._gone.add(number)
        self._open.pop(number, None)
        self.counts["dead"] += 1

    def violate(self, sentence: str) -> None:
        """Notes a broken promise."""
        self.violations_total += 1
        if len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append(sentence)

    def missing(self, now_ms: int) -> list[int]:
        """Numbers of messages that were acknowledged, are due, have not expired, and have not come."""
        return [
            number
            for number, sent in self._open.items()
            if sent.certain and sent.due_ms <= now_ms and sent.expires_ms is None
        ]

    def pending(self) -> int:
        """Messages in the book."""
        return len(self._open)
