"""Asks failing nodes of an idle group whether they are back. Messages are better probes, so a group that has some is left
alone; without any, a node would count as down until the next message, and clients would keep away from it. A node that
cannot be asked (see `Capabilities`) counts as down until then: when its pause is over, the next message tries it.
"""

from __future__ import annotations

from typing import Final

import trio

from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.dispatch.broker_node import BrokerNode
from delayserver.runtime.runtime import Runtime
from delayserver.targets.target import DeliveryError

PROBE_MS: Final = 1_000
"""How often a failing node is asked. It is one small request."""
ANSWER_MS: Final = 5_000
"""A node that needs longer is not back."""


class NodeProbes:
    """The probes of all groups; `run` is a task of each."""

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock

    async def run(self, group: BrokerGroup) -> None:
        """Ask until cancelled. The nodes of a group are asked side by side: one that hangs holds up no other."""
        asked: set[BrokerNode] = set()
        async with trio.open_nursery() as nursery:
            while True:
                await self._clock.sleep_ms(PROBE_MS)
                for node in group.nodes:
                    if not node.capabilities.probes:
                        continue
                    if group.is_idle and node.health.failures and node.health.weight and node not in asked:
                        asked.add(node)
                        nursery.start_soon(self._ask, group, node, asked)

    async def _ask(self, group: BrokerGroup, node: BrokerNode, asked: set[BrokerNode]) -> None:
        try:
            with trio.fail_after(ANSWER_MS / 1000):
                await node.target.probe()
        except (DeliveryError, trio.TooSlowError):
            return  # it counts as before: without messages nothing waits for it
        finally:
            asked.discard(node)
        if group.is_idle and node.health.failures:
            node.health.record_success(self._clock.monotonic_us())
