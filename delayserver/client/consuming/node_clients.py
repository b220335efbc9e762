"""The connections of a listener to its nodes, shared by all sources that pull from a node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import anyio.abc

from delayserver.client.asynchronous.client import AsyncClient

USERS_MAX: Final = 512
"""Sources that share a connection. Each keeps one pull waiting, and a server takes 1,024 requests of a connection."""


class _Shared:
    """A connection and the count of its users."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.unused = anyio.Event()
        self.users = 0

    def count(self, change: int) -> None:
        """A user came or went. The connection ends with the last one."""
        self.users += change
        if not self.users:
            self.unused.set()


class NodeClients:
    """Clients by address. Each lives in a task of ``tasks``, as long as somebody uses it."""

    def __init__(self, client: AsyncClient, tasks: anyio.abc.TaskGroup) -> None:
        self._client = client
        self._tasks = tasks
        self._open: dict[str, list[_Shared]] = {}
        self._opening = anyio.Lock()

    @asynccontextmanager
    async def use(self, address: str) -> AsyncIterator[AsyncClient]:
        """A client of the node. It connects at its first call, and again after a failure."""
        async with self._opening:
            shared = await self._with_room(address)
            shared.count(+1)
        try:
            yield shared.client
        finally:
            if shared.users == 1:
                self._open[address].remove(shared)
            shared.count(-1)

    async def _with_room(self, address: str) -> _Shared:
        for shared in self._open.setdefault(address, []):
            if shared.users < USERS_MAX:
                return shared
        shared = _Shared(self._client.node_client(address))
        await self._tasks.start(self._hold, shared)
        self._open[address].append(shared)
        return shared

    async def _hold(self, shared: _Shared, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with shared.client.unconnected():
            task_status.started()
            await shared.unused.wait()

    def end_waits(self) -> None:
        """End all pulls that wait now; see `AsyncClient.end_waits`."""
        for connections in self._open.values():
            for shared in connections:
                shared.client.end_waits()
