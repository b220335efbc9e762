"""Whether a member may act as the primary now, by its lease, and how it refuses what it may not."""

from __future__ import annotations

from collections.abc import Callable

from delayserver.protocol.errors import NotPrimary, SharedLogUnavailable
from delayserver.runtime.clock import Clock
from delayserver.state.shard.standing import Standing

# A takeover takes two seconds or so. A client that asks this often loses little of them.
AGAIN_MS = 100
# An heir serves within half a second.
HEIR_MS = 50
# A log that does not answer for seconds may be away for a minute.
LOG_AGAIN_MS = 1_000


class Leading:
    """The lease of this process. It is asked in the step that acts: a process may have stopped before it."""

    __slots__ = ("_clock", "_lease_us", "_standing", "_wait_us")

    def __init__(self, standing: Standing, clock: Clock, lease_ms: int, log_wait_ms: int) -> None:
        """New messages are refused when no beat came back for `log_wait_ms`."""
        self._standing = standing
        self._clock = clock
        self._lease_us = lease_ms * 1000
        self._wait_us = log_wait_ms * 1000

    @property
    def left_us(self) -> int:
        """How long this process may still act as the primary; 0 if it may not."""
        standing = self._standing
        # Behind its end in the log another member may lead, before this one has read the claim.
        if not (standing.took_over.is_set() and standing.leads) or standing.heir is not None:
            return 0
        return max(standing.lease.value - self._clock.boot_us(), 0)

    def is_held(self) -> bool:
        """Whether this process may act as the primary now."""
        return self.left_us > 0

    @property
    def unconfirmed_us(self) -> int | None:
        """How long ago the last beat that came back was sent; None before the first one, and for a standby."""
        sent_us = self._standing.lease.value - self._lease_us
        return self._clock.boot_us() - sent_us if self._standing.leads and self._standing.lease.value else None

    def why_not(self) -> str:
        """Why this process may not act as the primary now, for people; empty if it may."""
        return "" if self.left_us else self.refusal().message

    def call_when_held(self, action: Callable[[], object]) -> None:
        """Call an action when the next beat has come back."""
        lease = self._standing.lease
        lease.call_at(lease.value + 1, action)

    def handing_over(self) -> NotPrimary:
        """The answer of a primary that hands over. Clients look for the next one, which serves within half a second."""
        return NotPrimary(f"{self._standing.seat.name} hands over", retry_after_ms=HEIR_MS)

    def require(self) -> None:
        """For an answer that must be true now, and for handing out. Raises NotPrimary, SharedLogUnavailable."""
        if not self.left_us:
            raise self.refusal()

    def require_log(self) -> None:
        """For what is answered when its record came back. Raises NotPrimary, SharedLogUnavailable."""
        standing = self._standing
        if not (standing.took_over.is_set() and standing.leads) or self._is_silent():
            raise self.refusal()

    def refusal(self) -> NotPrimary | SharedLogUnavailable:
        """Why this member does not serve, and who does."""
        standing = self._standing
        if not standing.leads:
            address = standing.leader_address
            details = {"primary": address, "http": standing.leader_http}
            # A member that led in its last life does not lead now.
            known = {name: text for name, text in details.items() if text and address != standing.seat.address}
            where = f"the primary is at {address}" if known else "another member leads"
            return NotPrimary(f"{standing.seat.name} is a standby: {where}", retry_after_ms=AGAIN_MS, details=known)
        if not standing.took_over.is_set():
            return NotPrimary(f"{standing.seat.name} takes over, and serves soon", retry_after_ms=AGAIN_MS)
        if standing.heir is not None:
            return NotPrimary(f"{standing.seat.name} has handed over", retry_after_ms=AGAIN_MS)
        if self._is_silent():
            return SharedLogUnavailable(
                f"{standing.seat.name} leads, but has heard nothing of the shared log for seconds",
                retry_after_ms=LOG_AGAIN_MS,
            )
        return NotPrimary(
            f"{standing.seat.name} led, and has not heard of the shared log since; perhaps another member leads",
            retry_after_ms=AGAIN_MS,
        )

    def _is_silent(self) -> bool:
        sent_us = self._standing.lease.value - self._lease_us
        return self._clock.boot_us() > sent_us + self._wait_us
