"""A node of a broker group: a target that messages are handed to, with its circuit breaker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delayserver.state.memory.node_health import NodeHealth
from delayserver.targets.kinds import Capabilities
from delayserver.targets.target import Target


@dataclass(slots=True, eq=False)
class BrokerNode:
    """A target, its health, and what it can do."""

    target: Target
    health: NodeHealth
    capabilities: Capabilities


def choose(nodes: Sequence[BrokerNode], now_us: int) -> BrokerNode | None:
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
