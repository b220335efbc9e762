"""A node of a broker group: where messages are handed to. `Broker` is the small protocol that other targets implement.

`NodeHealth` is the circuit breaker in front of a node: it counts failures of every kind, I/O errors too, and lets a node
be tried again after a jittered, growing pause.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from delayserver.config.settings import DispatchSettings
from delayserver.state.rows import SEVERAL_NODES
from store.records.batches import StoredBatch

logger = logging.getLogger("delayserver")


class DeliveryError(Exception):
    """A node did not take a batch. `known` says that it certainly stored none of it; otherwise nobody knows."""

    def __init__(self, reason: str, *, known: bool) -> None:
        super().__init__(reason)
        self.known = known


class Broker(Protocol):
    """Where messages land. One instance a node; `deliver` may be called by several workers at the same time."""

    address: str

    @property
    def problem(self) -> str:
        """What an operator must mend before this node takes messages well: the name of an error, "" for nothing."""

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> NDArray[np.uint8]:
        """Hand over; returns DeliverOutcome codes u8[n] once the node has synced them. Raises DeliveryError.

        `uncertain`: the node may have some of these rows already and must look.
        """

    async def windows_complete(self, windows_ms: Callable[[], list[int]]) -> None:
        """Nothing of these windows is to be delivered as it stands: the node may forget their keys. They are asked for
        at the moment of telling, since a late message opens a window again. Raises DeliveryError."""


class NodeHealth:
    """Circuit breaker and back-off of one node."""

    def __init__(self, broker: Broker, weight: int, settings: DispatchSettings, random: Callable[[], float]) -> None:
        self.broker = broker
        self.weight = weight
        self._settings = settings
        self._random = random
        # Names the node in index rows; never 0, never SEVERAL_NODES.
        self.number = zlib.crc32(getattr(broker, "address", "").encode()) % (SEVERAL_NODES - 1) + 1
        self.failures = 0
        self.failures_total = 0
        self.closed_until_us = 0
        self.last_error = ""
        self.share = 0.0  # of smooth weighted round robin
        self._failed_us = 0
        self._probing = False

    def ready(self, now_us: int) -> bool:
        """Whether the node may be tried now. After a failure by one attempt alone: it shows whether the node is back."""
        return now_us >= self.closed_until_us and not (self.failures and self._probing)

    def begin(self) -> bool:
        """An attempt begins; whether it is the one that shows."""
        probe = self.failures > 0
        self._probing |= probe
        return probe

    def end(self, probe: bool) -> None:
        """The attempt ended, as was said before."""
        self._probing &= not probe

    @property
    def open_circuit(self) -> bool:
        """Whether so many attempts failed in a row that the node counts as down."""
        return self.failures >= self._settings.breaker_failures

    def succeeded(self) -> None:
        """An attempt worked."""
        if self.open_circuit:
            logger.warning("broker node %s takes messages again", self.broker.address)
        self.failures = 0
        self.closed_until_us = 0
        self.last_error = ""

    def failed(self, reason: str, now_us: int, began_us: int) -> None:
        """An attempt failed: pause, twice as long each time, spread by jitter so that servers do not come in step.

        Attempts that ran side by side fail together: one that began before the last failure says nothing new.
        """
        self.failures_total += 1
        self.last_error = reason
        if self.failures and began_us <= self._failed_us:
            return
        self.failures += 1
        if self.failures == self._settings.breaker_failures:
            logger.warning("broker node %s counts as down: %s", self.broker.address, reason)
        self._failed_us = now_us
        pause_ms = self._settings.backoff_ms_min * 2 ** min(self.failures - 1, 30)
        pause_ms = min(pause_ms, self._settings.backoff_ms_max)
        self.closed_until_us = now_us + int(pause_ms * 1000 * (0.5 + self._random() / 2))


def choose(nodes: list[NodeHealth], now_us: int) -> NodeHealth | None:
    """Smooth weighted round robin over the nodes that are ready; None if there is none."""
    ready = [node for node in nodes if node.ready(now_us) and node.weight > 0]
    if not ready:
        return None
    total = sum([node.weight for node in ready])
    for node in ready:
        node.share += node.weight
    best = max(ready, key=lambda node: node.share)
    best.share -= total
    return best
