"""A consumer of one subject and group that pulls from every node of the group through one address.

The nodes are learned by the route operation and asked for again from time to time, so that a node added or moved is
found.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
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

ACK_TIMEOUT_S: Final = 60.0
"""Where the caller names none. It is asked of every node, whose own default nobody tells."""

KEPT_PART: Final = 0.5
"""Of its ack timeout a delivery waits here at most: the rest is for who handles and acks it."""

SAY_AGAIN_S: Final = 60.0
"""A node that stays away is named in the log this often, and whenever it fails in another way."""

GIVE_BACK_S: Final = 1.0
"""What waits here and is not handed out is given back in this time, or comes again after its ack timeout: whoever leaves
the block does not wait longer for a node that says nothing."""

logger = logging.getLogger("delayserver.client")


@dataclass(frozen=True, slots=True)
class Received:
    """One delivery and the node it came from, which alone can settle it. It is handed out before ``hand_out_until_s``
    of the event loop's clock, or not at all."""

    delivery: Delivery
    group: str
    node: AsyncClient
    hand_out_until_s: float

    async def ack(self) -> bool:
        """Settle it: it does not come again. False where it was not in flight any more: acked before, or its ack timeout
        was over, and somebody gets it again. Raises `ConnectionLost` where its node cannot be reached now (it may be tried
        again, over a new connection) or is not pulled from any more; what stays unsettled comes again.
        """
        if self.node.closed:
            raise ConnectionLost("the node of this delivery is not pulled from any more")
        result = await self.node.ack(self.delivery.subject, self.group, [self.delivery])
        return result.acked > 0


class _Node(AsyncClient):
    """A node that may be away when its block is entered: the first call connects, and each call after a failure."""

    async def __aenter__(self) -> Self:
        await self._start()
        return self


class Consumer:
    """Iterates the deliveries of ``subject`` for ``group`` from all nodes that ``client``'s server names.

    ``async with Consumer(client, "orders", "billing") as deliveries: async for received in deliveries: ...``. Each
    `Received` is acked on its own node (``await received.ack()``); what is not comes again after ``ack_timeout_s``. What
    waits here for a slow caller longer than half of that is handed back, and fewer are pulled at once; what waits at the end
    of the block is handed back then, in `GIVE_BACK_S` at most.
    Entering raises the error of the first ``route`` request, and iterating what a node refuses for good; a node that is
    away is tried again until it is back, and named in the log ``delayserver.client``. So neither is waited for in silence.
    """

    def __init__(
        self,
        client: AsyncClient,
        subject: str,
        group: str,
        *,
        max_messages: int = 100,
        wait_s: float = 20.0,
        ack_timeout_s: float = ACK_TIMEOUT_S,
    ) -> None:
        self._client = client
        self._subject = subject
        self._group = group
        self._max_messages = max_messages
        self._wait_s = wait_s
        self._ack_timeout_s = ack_timeout_s
        self._tasks: anyio.abc.TaskGroup | None = None
        self._pulling: dict[str, anyio.CancelScope] = {}
        self._asking = 0  # callers that wait for a delivery
        self._asked: anyio.Event | None = None  # made by who waits for one of them
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
        for scope in self._pulling.values():
            scope.cancel()
        self._tasks.cancel_scope.cancel()
        # An error of the block passes by unwrapped; the group's own tasks meet theirs with patience.
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._close_streams()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        self._asking += 1
        if self._asked is not None:
            self._asked.set()
            self._asked = None
        try:
            while True:
                received = await self._receive.receive()
                if isinstance(received, DelayServerError):
                    raise received
                if anyio.current_time() < received.hand_out_until_s:
                    return received
        finally:
            self._asking -= 1

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
        said, say_again_s = "", 0.0
        # Ended by its own scope alone: the connection is still there for what is given back then.
        with anyio.CancelScope(shield=True):
            # One client through all failures: what the node delivered before is acked over it afterwards.
            async with _Node(address) as node:
                with scope:
                    while True:
                        try:
                            await self._pull(node)
                        except DelayServerError as error:
                            # What time does not mend, such as a name that no node takes, is for the caller to see.
                            if isinstance(error, Refused):
                                await self._send.send(error)
                            elif str(error) != said or anyio.current_time() >= say_again_s:
                                said, say_again_s = str(error), anyio.current_time() + SAY_AGAIN_S
                                logger.warning("pulls %s from %s again: %s", self._subject, address, error)
                            await anyio.sleep(PAUSE_AFTER_ERROR_S)

    async def _pull(self, node: AsyncClient) -> None:
        await node.connect()  # before it the server's bound of a wait is not known
        count = self._max_messages
        while True:
            deliveries = await node.pull(
                self._subject, self._group, count, self._wait_s, ack_timeout_s=self._ack_timeout_s
            )
            left = deque(deliveries)
            try:
                await self._hand_out(left, node)
            finally:
                # Where nobody asked for one in all that time, what is given back would only come to wait here again.
                idle = len(left) == len(deliveries) > 0 and not self._asking
                asked = self._caller_asks() if idle else None
                if left:
                    await self._give_back(left, node)
            if asked is not None:
                await asked.wait()
            count = max(1, len(deliveries) - len(left)) if left else min(self._max_messages, 2 * count)

    async def _hand_out(self, left: deque[Delivery], node: AsyncClient) -> None:
        """Takes from ``left`` what the caller took, until all is or the time of the first is over."""
        until_s = anyio.current_time() + KEPT_PART * self._ack_timeout_s
        with anyio.CancelScope(deadline=until_s):
            while left:
                await self._send.send(Received(left[0], self._group, node, until_s))
                left.popleft()

    def _caller_asks(self) -> anyio.Event:
        """Set when the caller asks for the next delivery."""
        self._asked = self._asked or anyio.Event()
        return self._asked

    async def _give_back(self, left: deque[Delivery], node: AsyncClient) -> None:
        with anyio.move_on_after(GIVE_BACK_S, shield=True), suppress(DelayServerError):
            await node.nack(self._subject, self._group, left)
