"""The acks and nacks of one source that are not at their node yet: gathered, sent in batches, kept after a failure.

Pure: the driver sends what `take` gives, and reports the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from delayserver.client.listening.handling import Handling, Verdict

AT_ONCE_MAX: Final = 4096
"""Deliveries of one request. So many are sent without waiting for the interval."""

KINDS_MAX: Final = 64
"""Kinds of settlements that wait, a request each. Of further nacks with a reason the reason is left out."""

RETRY_FIRST_S: Final = 0.1
RETRY_CAP_S: Final = 5.0
"""The pauses before a failed request is sent again, doubling from the first to the cap. The client has made its own
retries by then."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """One request: all acks, or nacks with one delay. ``verdict`` is that of all its deliveries."""

    verdict: Verdict
    handlings: list[Handling]

    @property
    def deliveries(self) -> list[int]:
        """The delivery numbers."""
        return [handling.delivery.delivery for handling in self.handlings]


class Settlements:
    """``interval_s``: a request leaves at most so often, so that a busy source sends few. The first one leaves at once."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._waiting: dict[Verdict, list[Handling]] = {}
        self._count = 0
        self._taken_count = 0
        self._taken_s = -interval_s
        self._not_before_s = 0.0
        self._pause_s = 0.0

    def __len__(self) -> int:
        """Deliveries that are not settled: those that wait, and those of requests under way."""
        return self._count + self._taken_count

    @property
    def waiting(self) -> list[Handling]:
        """Deliveries whose acks and nacks wait for a request."""
        return [each for handlings in self._waiting.values() for each in handlings]

    @property
    def full(self) -> bool:
        """Whether a request of the largest size is there."""
        return self._count >= AT_ONCE_MAX

    @property
    def rouses(self) -> bool:
        """Whether the delivery that was added last must wake the sender: it is the first, or it fills a request."""
        return self._count in {1, AT_ONCE_MAX}

    def hurry(self) -> None:
        """Gather no more: the listener stops."""
        self._interval_s = 0.0

    def add(self, handling: Handling, verdict: Verdict) -> None:
        """Settle a delivery soon."""
        self._waiting.setdefault(self._kind(verdict), []).append(handling)
        self._count += 1

    def _kind(self, verdict: Verdict) -> Verdict:
        """The verdict, without its reason if there are many kinds."""
        if verdict.reason and verdict not in self._waiting and len(self._waiting) >= KINDS_MAX:
            return replace(verdict, reason="")
        return verdict

    def due_s(self, now_s: float) -> float | None:
        """When the next requests leave; None if there is nothing to settle."""
        if not self._count:
            return None
        due_s = now_s if self.full else self._taken_s + self._interval_s
        return max(due_s, self._not_before_s, now_s)

    def take(self, now_s: float) -> list[Settlement]:
        """The requests to send now. The driver answers each by `finish` or `retry_later`."""
        self._taken_s = now_s
        taken = [
            Settlement(verdict, handlings[first : first + AT_ONCE_MAX])
            for verdict, handlings in self._waiting.items()
            for first in range(0, len(handlings), AT_ONCE_MAX)
        ]
        self._waiting = {}
        self._taken_count += self._count
        self._count = 0
        return taken

    def finish(self, settlement: Settlement) -> None:
        """Ends a request that the node has answered."""
        self._taken_count -= len(settlement.handlings)
        self._pause_s = self._not_before_s = 0.0

    def retry_later(self, settlement: Settlement, now_s: float) -> Sequence[Handling]:
        """Has a request without an answer sent again after a pause. Returns the messages that are given up, because
        their leases end before that. They come again by themselves."""
        self._taken_count -= len(settlement.handlings)
        self._pause_s = min(2 * self._pause_s, RETRY_CAP_S) if self._pause_s else RETRY_FIRST_S
        self._not_before_s = now_s + self._pause_s
        kept = [each for each in settlement.handlings if each.lease_ends_s > self._not_before_s]
        if kept:
            kind = self._kind(settlement.verdict)
            self._waiting[kind] = kept + self._waiting.get(kind, [])
            self._count += len(kept)
        return [each for each in settlement.handlings if each.lease_ends_s <= self._not_before_s]

    def abandon(self) -> list[Handling]:
        """Give up all that waits. Those messages come again when their leases end."""
        left = self.waiting
        self._waiting = {}
        self._count = 0
        return left

    def check_invariants(self) -> None:
        """The count is that of the lists."""
        assert self._count == sum(map(len, self._waiting.values()))
        assert self._taken_count >= 0
