"""The targets of all groups by the addresses of their nodes, and the tasks of those targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import trio

from delayserver.runtime.marks import Bell
from delayserver.targets.kinds import Capabilities, Surroundings
from delayserver.targets.node_options import NodeOptions
from delayserver.targets.registry import capabilities_of, kind_of
from delayserver.targets.target import Target


class Targets:
    """One target for each address, whichever groups share the node: a node refuses what comes over an older connection."""

    def __init__(self, options: Mapping[str, NodeOptions], surroundings: Surroundings) -> None:
        """`options`: those of each node by its address."""
        self._options = dict(options)
        self._surroundings = surroundings
        self._made: dict[str, Target] = {}
        # Those whose task has begun.
        self._running: dict[Target, trio.CancelScope] = {}
        self._changed = Bell()

    def learn(self, options: Mapping[str, NodeOptions]) -> None:
        """These nodes may be asked for too."""
        self._options |= options

    def capabilities(self, address: str) -> Capabilities:
        """What the node with this address can do."""
        return capabilities_of(address, self._options[address])

    def at(self, address: str) -> Target:
        """The target of the node with this address. The first question makes it."""
        if address not in self._made:
            self._made[address] = kind_of(address).make(address, self._options[address], self._surroundings)
            self._changed.ring()
        return self._made[address]

    def keep(self, addresses: Collection[str]) -> None:
        """End all other targets. Nothing is in flight to them."""
        self._made = {address: target for address, target in self._made.items() if address in addresses}
        self._options = {address: options for address, options in self._options.items() if address in addresses}
        self._changed.ring()

    async def run(self) -> None:
        """Run the tasks of the targets until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._changed.hush()
                wanted = [*self._made.values()]
                for target in self._running.keys() - wanted:
                    self._running.pop(target).cancel()
                for target in wanted:
                    if target not in self._running:
                        self._running[target] = trio.CancelScope()
                        nursery.start_soon(self._run, target, self._running[target])
                await self._changed.rung()

    @staticmethod
    async def _run(target: Target, scope: trio.CancelScope) -> None:
        with scope:
            await target.run()
