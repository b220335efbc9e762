"""A node of a broker group: a target that messages are handed to, with its circuit breaker. `Broker` is the small protocol
that targets implement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from delayserver.state.memory.node_health import NodeHealth
from store.records.batches import StoredBatch


class DeliveryError(Exception):
    """A node did not take a batch. `known`: the node stored none of it. Otherwise the result is unknown."""

    def __init__(self, reason: str, *, known: bool) -> None:
        super().__init__(reason)
        self.known = known


class Broker(Protocol):
    """Where messages land. One instance a node; `deliver` may be called by several workers at the same time."""

    address: str

    @property
    def problem(self) -> str:
        """The name of the error that an operator must mend before this node takes messages well; "" for none."""

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> NDArray[np.uint8]:
        """Hand over; returns DeliverOutcome codes u8[n] once the node has synced them. Raises DeliveryError.

        `uncertain`: the node may have some of these rows already and must look.
        """

    async def probe(self) -> None:
        """Returns if the node would take messages now, as far as it can be known without any. Raises DeliveryError."""

    async def windows_complete(self, windows_ms: Callable[[], list[int]]) -> None:
        """Nothing of these windows is to be delivered as it stands: the node may forget their keys. They are asked for
        at the moment of telling, since a late message opens a window again. Raises DeliveryError."""


@dataclass(slots=True, eq=False)
class Node:
    """A target and its health."""

    broker: Broker
    health: NodeHealth


def choose(nodes: Sequence[Node], now_us: int) -> Node | None:
    """The ready node with the fewest batches in flight by its weight; None if no node is ready.

    Between equals smooth weighted round robin decides: where no node is slow, each gets its weight.
    """
    ready = [node for node in nodes if node.health.ready(now_us) and node.health.weight > 0]
    if not ready:
        return None
    least = min([node.health.load for node in ready])
    equal = [node for node in ready if node.health.load == least]
    best = max(equal, key=lambda node: node.health.earn())
    best.health.pay(sum([node.health.weight for node in equal]))
    return best
