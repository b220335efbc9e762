"""A consumer of one subject and group that pulls from every node of the group through one address.

The consumer asks for the nodes by the route operation, and asks again from time to time. So it finds a node that was
added or moved.

It shares `RouteFollower`, `pull_persistently` and `LeaseKeeper` with listeners. Its pulls and acks are its own: the caller
takes each delivery when it wants, may drop it, and gets the node's answer to its ack. A listener starts handlers itself and
acks in batches, of which the node does not say which messages it did not know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Self, Unpack

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.calls.pull_calls import GIVE_BACK_S, NO_DELAY, Only, PullFilter
from delayserver.client.consuming.extending import KEPT_PART, OUTLIVE_S
from delayserver.client.consuming.held_leases import Held, HeldLeases
from delayserver.client.consuming.lease_keeper import LeaseKeeper
from delayserver.client.consuming.node_pulling import ROUTE_INTERVAL_S, PulledNode, RouteFollower, pull_persistently
from delayserver.client.consuming.said_lately import SaidLately
from delayserver.client.values.messages import Delivery
from delayserver.client.values.timing import Seconds, span_s
from delayserver.protocol.errors import ConnectionLost, DelayServerError

ACK_TIMEOUT_S: Final = 60.0
"""The ack timeout if the caller names none. The consumer sends it with every pull, because it does not know the default of
a node."""

EXTEND_MAX_S: Final = 3600.0
"""If the caller names no ``extend_max_s``: a caller that hangs keeps a delivery for an hour and one lease more."""


class ConsumerOptions(Only, total=False):
    """Further settings of a `Consumer`, as keywords."""

    extend_max_s: float
    outlive_s: Seconds | None


@dataclass(frozen=True, slots=True)
class Received:
    """One delivery, and its node, which alone can settle it. The caller gets it before ``hand_out_until_s`` of the event
    loop's clock, or not at all.

    While the caller has this object and has not settled it, the consumer extends its lease.
    """

    delivery: Delivery
    group: str
    node: AsyncClient
    hand_out_until_s: float
    held: Held = field(repr=False, compare=False)

    async def ack(self) -> bool:
        """Settle this delivery, durably at its node. The delivery does not come again from there; the message may, see
        `AsyncClient.ack`.

        False: it was acked before, or its lease ended and it comes again. Raises `ConnectionLost` if its node
        cannot be reached now; a later ack uses a new connection. Raises it too if the consumer no longer pulls from that
        node. An unsettled delivery comes again.
        """
        if self.node.closed:
            raise ConnectionLost("the node of this delivery is not pulled from any more")
        result = await self.node.ack(self.delivery.subject, self.group, [self.delivery])
        self.held.settle()
        return result.acked > 0


class Consumer:
    """Iterates the deliveries of ``subject`` for ``group`` from all nodes that ``client``'s server names.

    ``async with Consumer(client, "orders", "billing") as deliveries: async for received in deliveries: ...``. The caller
    acks each `Received` on its own node (``await received.ack()``). Without an ack it comes again after
    ``ack_timeout_s``. While the caller keeps a `Received`, the consumer extends its lease, for ``extend_max_s`` (an hour;
    0: not at all). If the consumer dies, its deliveries come again ``outlive_s`` later (5; at most 60; None: after
    ``ack_timeout_s``). After a lost connection it takes its leases over to the next one. If a delivery waits here for half
    of the ack timeout, the consumer nacks it and pulls fewer at once. At the end of the block it nacks deliveries that
    still wait, in `GIVE_BACK_S` at most.

    ``tags`` and ``where`` are the filter of the group, at every node; see `AsyncClient.pull_columns`.

    Entering raises the error of the first ``route`` request. Iterating raises the error of a node that refuses for good.
    The consumer tries a node that is away until it is back, and names it in the log ``delayserver.client``.
    """

    def __init__(
        self,
        client: AsyncClient,
        subject: str,
        group: str,
        *,
        max_messages: int = 100,
        wait_s: Seconds = 20.0,
        ack_timeout_s: Seconds = ACK_TIMEOUT_S,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._client = client
        self._subject = subject
        self._group = group
        self._max_messages = max_messages
        self._wait_s = span_s(wait_s)
        self._ack_timeout_s = span_s(ack_timeout_s)
        self._extend_max_s = options.get("extend_max_s", EXTEND_MAX_S)
        outlive_s = options.get("outlive_s", OUTLIVE_S)
        self._outlive_s = None if outlive_s is None else span_s(outlive_s)
        self._only = PullFilter(tags=options.get("tags"), where=options.get("where"))
        self._tasks: anyio.abc.TaskGroup | None = None
        self._route: RouteFollower | None = None
        self._said = SaidLately()
        self._held: dict[AsyncClient, HeldLeases] = {}  # of the deliveries that are here
        self._asking = 0  # callers that wait for a delivery
        self._asked: anyio.Event | None = None  # set when the next caller waits; there while a puller waits for that
        # No buffer: the consumer pulls from a node again when the caller has taken all deliveries of the last pull. So a
        # slow caller holds one pull of each node and no more.
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
        self._route = RouteFollower(self._client, self._subject, self._tasks, self._pull_from)
        self._route.adjust(route)
        self._tasks.start_soon(self._route.run, ROUTE_INTERVAL_S)
        if self._extend_max_s or self._outlive_s is not None:
            name = f"Consumer ({self._subject} for {self._group})"
            keeper = LeaseKeeper(name, self._group, self._ack_timeout_s, self._outlive_s, self._leases_of_nodes)
            self._tasks.start_soon(keeper.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None and self._route is not None
        self._route.end()
        self._tasks.cancel_scope.cancel()
        # An error of the block is not wrapped, because the group's own tasks raise none.
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
                now_s = anyio.current_time()
                if now_s < min(received.hand_out_until_s, received.held.ends_s):
                    received.held.begin(now_s)
                    return received
        finally:
            self._asking -= 1

    @property
    def nodes(self) -> list[str]:
        """The addresses of the nodes from which it pulls now."""
        return [] if self._route is None else self._route.nodes

    def _hold(self, node: AsyncClient, brought: Sequence[Received]) -> None:
        """These deliveries came from a node."""
        leases = self._held.get(node)
        if leases is None:
            leases = self._held[node] = HeldLeases(self._subject, self._ack_timeout_s, self._extend_max_s)
        leases.add([received.held for received in brought], node.connection_number, anyio.current_time())

    def _leases_of_nodes(self) -> dict[HeldLeases, AsyncClient]:
        """The leases at each node; forgets nodes that are not pulled from any more."""
        self._held = {node: leases for node, leases in self._held.items() if not node.closed}
        return {leases: node for node, leases in self._held.items()}

    def _close_streams(self) -> None:
        self._send.close()
        self._receive.close()

    async def _pull_from(self, pulled: PulledNode) -> None:
        # Its own scope alone ends it. So the connection is still there when it gives deliveries back.
        with anyio.CancelScope(shield=True):
            # One client through all failures: the caller acks earlier deliveries over it.
            async with self._client.node_client(pulled.address).unconnected() as node:
                pulled.pull_over(node)
                with pulled.scope:
                    # The caller gets a lasting error, such as that of an invalid name.
                    assert self._route is not None
                    await pull_persistently(
                        partial(self._pull, node),
                        f"{self._subject} from {pulled.address}",
                        self._send.send,
                        self._route.doubt,
                        self._said,
                    )

    async def _pull(self, node: AsyncClient) -> None:
        count = self._max_messages
        while True:
            deliveries = await node.pull(
                self._subject,
                self._group,
                count,
                self._wait_s,
                ack_timeout_s=self._ack_timeout_s,
                tags=self._only.tags,
                where=self._only.where,
                outlive_s=self._outlive_s,
            )
            left = self._brought(deliveries, node)
            try:
                await self._hand_out(left)
            finally:
                # If no caller has asked for a delivery, returned ones would only come back to wait here again.
                idle = len(left) == len(deliveries) > 0 and not self._asking
                asked = self._caller_asks() if idle else None
                if left:
                    await self._give_back(left, node)
            if asked is not None:
                await asked.wait()
            count = max(1, len(deliveries) - len(left)) if left else min(self._max_messages, 2 * count)

    def _brought(self, deliveries: list[Delivery], node: AsyncClient) -> deque[Received]:
        """The deliveries that a node has just leased to this consumer."""
        now_s = anyio.current_time()
        until_s, ends_s = now_s + KEPT_PART * self._ack_timeout_s, now_s + self._ack_timeout_s
        brought = [Received(each, self._group, node, until_s, Held(each.delivery, ends_s)) for each in deliveries]
        self._hold(node, brought)
        return deque(brought)

    async def _hand_out(self, left: deque[Received]) -> None:
        """Remove deliveries from ``left`` as the caller takes them, until none is left or their time is over."""
        if left:
            with anyio.CancelScope(deadline=left[0].hand_out_until_s):
                while left:
                    await self._send.send(left[0])
                    left.popleft()

    def _caller_asks(self) -> anyio.Event:
        """An event that is set when the caller asks for the next delivery."""
        self._asked = self._asked or anyio.Event()
        return self._asked

    async def _give_back(self, left: deque[Received], node: AsyncClient) -> None:
        deliveries = [received.delivery for received in left]
        with anyio.move_on_after(GIVE_BACK_S, shield=True), suppress(DelayServerError):
            await node.nack(self._subject, self._group, deliveries, NO_DELAY, unseen=True)
