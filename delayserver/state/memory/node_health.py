"""The circuit breaker in front of a node: it counts failures of every kind, and lets a node be tried again after a pause.
It also counts the batches that the node has and did not answer yet, by which the next one is spread.

Pauses grow with each failure and are jittered. No I/O, and no clock: the time is an argument.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from delayserver.config.settings import DispatchSettings
from delayserver.logs.events import EventLogger
from delayserver.runtime.marks import Mark
from delayserver.state.memory.rows import SEVERAL_NODES

events = EventLogger()


# The state of a node. UNKNOWN: it was not tried since the start. FAILING: its last attempt failed. DOWN: so many
# failed in a row that its circuit is open. DRAINING is a matter of its weight, which is 0.
UNKNOWN, UP, FAILING, DOWN, DRAINING = "unknown", "up", "failing", "down", "draining"


class NodeHealth:
    """Circuit breaker, back-off and load of one node."""

    def __init__(
        self, address: str, weight: int, settings: DispatchSettings, random: Callable[[], float], now_us: int = 0
    ) -> None:
        self.address = address
        self.weight = weight
        self._settings = settings
        self._random = random
        # Names the node in index rows; never 0, never SEVERAL_NODES.
        self.number = zlib.crc32(address.encode()) % (SEVERAL_NODES - 1) + 1
        self.failures = 0
        self.failures_total = 0
        self.closed_until_us = 0
        self.last_error = ""
        # Its state, and since when (monotonic).
        self.state = UNKNOWN
        self.since_us = now_us
        # Batches that were given to it, and those of them that are settled.
        self.taken = 0
        self.settled = Mark(0)
        # Of smooth weighted round robin.
        self._share = 0.0
        self._failed_us = 0
        self._probing = False

    def ready(self, now_us: int) -> bool:
        """Whether the node may be tried now. After a failure by one attempt alone: it shows whether the node is back."""
        return now_us >= self.closed_until_us and not (self.failures and self._probing)

    def begin(self) -> bool:
        """An attempt begins. Returns whether it is a probe: the one attempt that shows whether the node is back."""
        probe = self.failures > 0
        self._probing |= probe
        return probe

    def end(self, probe: bool) -> None:
        """Ends an attempt; `probe` is what `begin` returned."""
        self._probing &= not probe

    @property
    def open_circuit(self) -> bool:
        """Whether so many attempts failed in a row that the node counts as down."""
        return self.failures >= self._settings.breaker_failures

    @property
    def load(self) -> float:
        """Batches in flight by weight. The next one goes where it is lowest."""
        return self.in_flight / self.weight

    @property
    def in_flight(self) -> int:
        """Batches that the node has and that are not settled."""
        return self.taken - self.settled.value

    def weigh(self, weight: int) -> None:
        """Gives the node another weight. With 0 it gets no more batches, and those in flight end."""
        self.weight = weight
        self._share = 0.0

    def take(self) -> None:
        """Counts a batch that the node gets."""
        self.taken += 1

    def give(self) -> None:
        """Counts a batch that is settled, whatever became of it."""
        self.settled.advance(self.settled.value + 1)

    def _becomes(self, state: str, now_us: int) -> None:
        if state != self.state:
            self.state, self.since_us = state, now_us

    def record_success(self, now_us: int) -> None:
        """Ends the pause and the failures, because an attempt worked."""
        if self.open_circuit:
            events.warning("node_up", "broker node {node} takes messages again", node=self.address)
        self.failures = 0
        self.closed_until_us = 0
        self.last_error = ""
        self._becomes(UP, now_us)

    def earn(self) -> float:
        """The node takes part in a choice: its share grows by its weight. Returns the share."""
        self._share += self.weight
        return self._share

    def pay(self, total: int) -> None:
        """Pays for a batch: the node was chosen among nodes with this total weight."""
        self._share -= total

    def record_failure(self, reason: str, now_us: int, began_us: int) -> None:
        """Begins a pause after a failed attempt, twice as long each time. Jitter spreads it, so that servers do not
        come in step.

        Attempts that ran side by side fail together: one that began before the last failure says nothing new."""
        self.failures_total += 1
        self.last_error = reason
        if self.failures and began_us <= self._failed_us:
            return
        self.failures += 1
        if self.failures == self._settings.breaker_failures:
            events.warning("node_down", "broker node {node} counts as down: {reason}", node=self.address, reason=reason)
        self._becomes(DOWN if self.open_circuit else FAILING, now_us)
        self._failed_us = now_us
        pause_ms = self._settings.backoff_ms_min * 2 ** min(self.failures - 1, 30)
        pause_ms = min(pause_ms, self._settings.backoff_ms_max)
        self.closed_until_us = now_us + int(pause_ms * 1000 * (0.5 + self._random() / 2))

    def check_invariants(self) -> None:
        """No batch is settled twice, and the state says what the failures in a row say."""
        assert self.in_flight >= 0
        self.settled.check_invariants()
        assert self.failures <= self.failures_total
        assert self.failures or self.state in (UNKNOWN, UP)
        assert not self.failures or self.state == (DOWN if self.open_circuit else FAILING)
