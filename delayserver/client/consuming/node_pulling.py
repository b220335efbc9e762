"""Pulling from all nodes of a route: which nodes there are now, and going on after a failure. `Consumer` and listeners
share it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import anyio
import anyio.abc

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.consuming.said_lately import SaidLately, held_back_words
from delayserver.logs.events import EventLogger
from delayserver.protocol.errors import DelayServerError, Refused
from delayserver.protocol.schema.node_routes import Route

ROUTE_INTERVAL_S: Final = 30.0
"""The route is asked for this often. A new node waits at most this long for its first pull. After a failure at a node the
route is asked for sooner, since the node may have moved."""

PAUSE_AFTER_ERROR_S: Final = 1.0
"""The pause between attempts at a failing node, on top of the client's own retries. The other nodes go on meanwhile."""

events = EventLogger("delayserver.client")


class PulledNode:
    """A node of a route, or a shard, from which a task pulls. ``scope`` is cancelled when it has left the route, or at the
    end.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.scope = anyio.CancelScope()
        self._client: AsyncClient | None = None

    def pull_over(self, client: AsyncClient) -> None:
        """The task pulls over this client, which goes where the node is from now on."""
        self._client = client
        client._move_to(self.address)

    def move(self, address: str) -> None:
        """The shard has other members. A connection that works stays, and so do the deliveries that came over it."""
        if address != self.address:
            self.address = address
            if self._client is not None:
                self._client._move_to(address)


Serve = Callable[[PulledNode], Coroutine[Any, Any, None]]
"""Pulls from a node until its scope is cancelled."""


class RouteFollower:
    """Keeps one task for each node of the route of a subject."""

    def __init__(self, client: AsyncClient, subject: str, tasks: anyio.abc.TaskGroup, serve: Serve) -> None:
        self._client = client
        self._subject = subject
        self._tasks = tasks
        self._serve = serve
        self._pulling: dict[str | int, PulledNode] = {}  # by address, or by the number of the shard
        self._ended = False
        self._doubted = anyio.Event()
        self._said = SaidLately()

    @property
    def nodes(self) -> list[str]:
        """The addresses of the nodes from which it pulls now."""
        return sorted([node.address for node in self._pulling.values()])

    async def run(self, pause_s: float = 0.0) -> None:
        """Ask for the route after a pause, then again and again, until cancelled. Raises `Refused` if there is none."""
        while True:
            with anyio.move_on_after(pause_s):
                await self._doubted.wait()
                # Not more often than this, however many nodes fail.
                await anyio.sleep(min(pause_s, PAUSE_AFTER_ERROR_S))
            self._doubted = anyio.Event()
            try:
                self.adjust(await self._client.route(subject=self._subject))
                pause_s = ROUTE_INTERVAL_S
            except DelayServerError as error:
                # The known nodes stay. A server that knows no route at the beginning will not know one later.
                if isinstance(error, Refused) and not self._pulling:
                    raise
                pause_s = PAUSE_AFTER_ERROR_S
                held_back = self._said.say(str(error), anyio.current_time())
                if held_back is not None:
                    events.warning(
                        "route_failed",
                        "asks for the nodes of {subject} again: {reason}" + held_back_words(held_back),
                        subject=self._subject,
                        reason=str(error),
                        held_back=held_back,
                    )

    def adjust(self, route: Route) -> None:
        """Stop the tasks of nodes that left the route, and start tasks for new nodes. After `end` it does nothing."""
        if self._ended:  # a route may arrive in the same step: no cancel would reach a task that begins now
            return
        addresses = route.address_of_each()
        for key in self._pulling.keys() - addresses.keys():
            self._pulling.pop(key).scope.cancel()
        for key, address in addresses.items():
            if key in self._pulling:
                self._pulling[key].move(address)
            else:
                node = self._pulling[key] = PulledNode(address)
                self._tasks.start_soon(self._serve, node)

    def doubt(self) -> None:
        """A node failed: ask for the route soon."""
        self._doubted.set()

    def end(self) -> None:
        """End all pulls, for good."""
        self._ended = True
        for node in self._pulling.values():
            node.scope.cancel()


async def pull_persistently(
    pull: Callable[[], Awaitable[None]],
    what: str,
    refused: Callable[[Refused], Awaitable[None]],
    failed: Callable[[], None],
    said: SaidLately,
) -> None:
    """Call ``pull`` until it returns. After an error it is called again after a pause, and the log names the error.
    ``refused`` gets an error that the node will give again. ``failed`` is called after any other error.
    """
    while True:
        try:
            await pull()
            return
        except Refused as error:
            await refused(error)
        except DelayServerError as error:
            failed()
            held_back = said.say(f"{what}: {error}", anyio.current_time())
            if held_back is not None:
                events.warning(
                    "pull_failed",
                    "pulls {source} again: {reason}" + held_back_words(held_back),
                    source=what,
                    reason=str(error),
                    held_back=held_back,
                )
        await anyio.sleep(PAUSE_AFTER_ERROR_S)
