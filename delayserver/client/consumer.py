"""A consumer of one subject and group that pulls from every node of the group through one address.

The nodes are learned by the route operation and asked for again from time to time, so that a node added or moved is
found.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from delayserver.client.asynchronous import AsyncClient
from delayserver.client.messages import Delivery, Route
from delayserver.protocol.errors import ConnectionLost, DelayServerError, Refused

ROUTE_INTERVAL_S: Final = 30.0
"""How often the nodes are asked for: a new node waits at most this long for its first pull."""

PAUSE_AFTER_ERROR_S: Final = 1.0
"""Between attempts at a node that fails, on top of the client's own retries: the other nodes go on meanwhile."""


@dataclass(frozen=True, slots=True)
class Received:
    """One delivery and the node it came from, which alone can settle it."""

    delivery: Delivery
    group: str
    node: AsyncClient

    async def ack(self) -> None:
        """Settle it: it does not come again. Raises `ConnectionLost` where its node is gone; then it comes again."""
        if self.node.closed:
            raise ConnectionLost("the node of this delivery is not pulled from any more")
        await self.node.ack(self.delivery.subject, self.group, [self.delivery])


class Consumer:
    """Iterates the deliveries of ``subject`` for ``group`` from all nodes that ``client``'s server names.

    ``async with Consumer(client, "orders", "billing") as deliveries: async for received in deliveries: ...``. Each
    `Received` is acked on its own node (``await received.ack()``); what is not comes again after the ack timeout.
    Entering raises the error of the first ``route`` request, and iterating what a node refuses for good, so that
    neither is waited for in silence.
    """

    def __init__(
        self,
        client: AsyncClient,
        subject: str,
        group: str,
        *,
        max_messages: int = 100,
        wait_s: float = 20.0,
        ack_timeout_s: float | None = None,
    ) -> None:
        self._client = client
        self._subject = subject
        self._group = group
        self._max_messages = max_messages
        self._wait_s = wait_s
        self._ack_timeout_s = ack_timeout_s
        self._tasks: anyio.abc.TaskGroup | None = None
        self._pulling: dict[str, anyio.CancelScope] = {}
        # No buffer: a node is asked for more only when all it gave before has been taken, so a slow consumer holds
        # one pull of each node and no more.
        streams: tuple[
            MemoryObjectSendStream[Received | DelayServerError], MemoryObjectReceiveStream[Received | DelayServerError]
        ]
        streams = anyio.create_memory_object_stream[Received | DelayServerError](0)
        self._send, self._receive = streams

    async def __aenter__(self) -> Self:
        try:
            route = await self._client.route(subject=self._subject)
        except BaseException:
            self._close_streams()
            raise
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._adjust(route)
        self._tasks.start_soon(self._follow_route)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        # An error of the block passes by unwrapped; the group's own tasks meet theirs with patience.
        await self._tasks.__aexit__(None, None, None)
        self._close_streams()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        received = await self._receive.receive()
        if isinstance(received, DelayServerError):
            raise received
        return received

    @property
    def nodes(self) -> list[str]:
        """Addresses pulled from now."""
        return sorted(self._pulling)

    def _close_streams(self) -> None:
        self._send.close()
        self._receive.close()

    async def _follow_route(self) -> None:
        pause_s = ROUTE_INTERVAL_S
        while True:
            await anyio.sleep(pause_s)
            try:
                self._adjust(await self._client.route(subject=self._subject))
                pause_s = ROUTE_INTERVAL_S
            except DelayServerError:
                # The nodes known so far are pulled from; the route is asked for again soon.
                pause_s = PAUSE_AFTER_ERROR_S

    def _adjust(self, route: Route) -> None:
        """One puller for each node of the route: stop those of nodes that left, start those of new ones."""
        assert self._tasks is not None
        addresses = {node.address for node in route.nodes}
        for address in self._pulling.keys() - addresses:
            self._pulling.pop(address).cancel()
        for address in addresses - self._pulling.keys():
            scope = self._pulling[address] = anyio.CancelScope()
            self._tasks.start_soon(self._pull_from, address, scope)

    async def _pull_from(self, address: str, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                try:
                    async with AsyncClient(address) as node:
                        await self._pull(node)
                except DelayServerError as error:
                    # What time does not mend, such as a name that no node takes, is for the caller to see.
                    if isinstance(error, Refused):
                        await self._send.send(error)
                    await anyio.sleep(PAUSE_AFTER_ERROR_S)

    async def _pull(self, node: AsyncClient) -> None:
        while True:
            deliveries = await node.pull(
                self._subject, self._group, self._max_messages, self._wait_s, ack_timeout_s=self._ack_timeout_s
            )
            for delivery in deliveries:
                await self._send.send(Received(delivery, self._group, node))
