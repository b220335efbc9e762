"""The targets of all groups by the addresses of their nodes, and the connections to them."""

from __future__ import annotations

from collections.abc import Callable, Collection

import trio

from delayserver.config.settings import ListenSettings
from delayserver.dispatch.targets.embedded_node import EMBEDDED, EmbeddedNode
from delayserver.dispatch.targets.remote_node import RemoteNode, ServerIdentity
from delayserver.net.transport import Connect
from delayserver.runtime.marks import Bell


class Targets:
    """One connection for each address, whichever groups share the node: it refuses what comes over an older one."""

    def __init__(
        self,
        local: EmbeddedNode,
        server_id: int,
        instance: str,
        settings: ListenSettings,
        names: Callable[[int], str],
        connect: Connect,
    ) -> None:
        """`local`: the broker of this process. `instance` names this process to the nodes; `names` gives the name of a
        code."""
        self._embedded = local
        self._identity = ServerIdentity(f"{server_id:012x}", instance, settings.server_secret)
        self._frame_bytes_max = settings.frame_bytes_max
        self._names = names
        self._connect = connect
        self._remote: dict[str, RemoteNode] = {}
        # Those whose task runs.
        self._running: dict[RemoteNode, trio.CancelScope] = {}
        self._changed = Bell()

    def at(self, address: str) -> EmbeddedNode | RemoteNode:
        """The target of the node with this address. The first question makes it."""
        if address == EMBEDDED:
            return self._embedded
        if address not in self._remote:
            self._remote[address] = RemoteNode(
                address, self._identity, self._frame_bytes_max, self._connect, self._names
            )
            self._changed.ring()
        return self._remote[address]

    def keep(self, addresses: Collection[str]) -> None:
        """Close the connections to all other nodes. Nothing is in flight to them."""
        self._remote = {address: node for address, node in self._remote.items() if address in addresses}
        self._changed.ring()

    async def run(self) -> None:
        """Keep the connections until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._changed.hush()
                wanted = [*self._remote.values()]
                for node in self._running.keys() - wanted:
                    self._running.pop(node).cancel()
                for node in wanted:
                    if node not in self._running:
                        self._running[node] = trio.CancelScope()
                        nursery.start_soon(self._run, node, self._running[node])
                await self._changed.rung()

    @staticmethod
    async def _run(node: RemoteNode, scope: trio.CancelScope) -> None:
        with scope:
            await node.run()
