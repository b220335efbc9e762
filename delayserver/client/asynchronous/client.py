"""The asynchronous client, on trio and on asyncio: concurrent requests over one connection.

Its operations are in `operations`. `stream_connection` moves the bytes, and `core` and the ``*_calls`` modules
give them their meaning.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

import anyio
import anyio.abc
import sniffio

from delayserver.client.asynchronous.operations import AsyncOperations
from delayserver.client.asynchronous.shards import SPREAD, Shards
from delayserver.client.calls import pull_calls
from delayserver.client.calls.core import Call
from delayserver.client.calls.retry_policy import CallAttempts
from delayserver.client.connections.asyncio_stream import AsyncioStream
from delayserver.client.connections.server_addresses import Given, HostAndPort, cannot_connect, none_connects
from delayserver.client.connections.stream_connection import StreamConnection
from delayserver.client.connections.tls import TLS, context_of
from delayserver.client.values.messages import Message
from delayserver.client.values.timing import Seconds, span_s
from delayserver.protocol.errors import ConnectionLost, DelayServerError, copied
from delayserver.protocol.frames import OneWayRefused, ReplyFrame
from delayserver.protocol.keepalive import keep_alive

T = TypeVar("T")

CLIENT_NAME: Final = "delayserver-python-async"


class AsyncClient(AsyncOperations):
    """A client for one server, for any number of tasks; use it as ``async with AsyncClient(...) as client``.

    The block owns the connection's tasks. Requests of concurrent tasks are pipelined over one connection, which is
    opened again after a failure. A batcher sends over the same connection. Settings and errors are those of the blocking
    `Client`. Before its ``timeout_s`` a request waits at most as long for its turn on the connection, and then raises
    `QueueFull`.
    A task may be cancelled in any method: the connection stays whole, and the request may or may not take effect.
    A cancelled pull ends at the server too, and the client gives back the messages that it was just given. The end of the
    block waits for that, ``timeout_s`` at most.
    The block ends when the server has taken all one-way messages, or after ``timeout_s``.
    In a cluster of several shards it is a client of all of them.
    """

    _SPREADS: ClassVar[bool] = True
    """Whether it goes to all shards of a cluster. Otherwise it is a client of the shard whose member it was given."""

    def __init__(
        self,
        address: Given = None,
        *,
        timeout_s: Seconds = 10.0,
        connect_timeout_s: Seconds = 5.0,
        retries: int = 3,
        token: str | None = None,
        tls: TLS = None,
    ) -> None:
        super().__init__(address, CLIENT_NAME, retries, token)
        self._token = token
        self._tls = context_of(tls)
        self._timeout_s = span_s(timeout_s)
        self._connect_timeout_s = span_s(connect_timeout_s)
        self._connection: StreamConnection | None = None
        self._connections = 0  # so many were opened
        self._connecting = anyio.Lock()
        self._connect_failure: DelayServerError | None = None  # the last one
        self._tasks: anyio.abc.TaskGroup | None = None
        self._blocks_left = 0
        self._waits: dict[int, StreamConnection] = {}
        # Whether one-way requests were sent that the server may not have read.
        self._posted = False
        # Whether callers of pulls have gone, so that messages may have to be given back.
        self._given_up = False
        # Clients of other nodes, where this one publishes.
        self._nodes: dict[str, AsyncClient] = {}
        self._making_nodes = anyio.Lock()
        self._shards: Shards[AsyncClient] | None = None

    async def __aenter__(self) -> Self:
        await self._start()
        try:
            await self.connect()
        except BaseException as exc:
            await self.__aexit__(type(exc), exc, exc.__traceback__)
            raise
        return self

    @asynccontextmanager
    async def unconnected(self) -> AsyncIterator[Self]:
        """A block that does not connect at its begin, for a server that may be away: the first call connects, and so does
        each call after a failure.
        """
        await self._start()
        try:
            yield self
        finally:
            await self.__aexit__(None, None, None)

    async def _start(self) -> None:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        try:
            if self._given_up:
                with anyio.move_on_after(self._timeout_s, shield=True):
                    if self._connection is not None:
                        await self._connection.late_replies()  # also those to the nacks of what came
            if kind is None and self._posted:
                await self._pass_ping()
            if kind is None and self._shards is not None:
                with suppress(DelayServerError):
                    await self._shards.pass_posted()
        finally:
            await self._close()

    async def _close(self) -> None:
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        self._blocks_left += 1
        self._shards = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        # This also ends a connection that another task is opening now. The group holds nothing else, so an error of the
        # block is not wrapped.
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)

    async def _pass_ping(self) -> None:
        """Everything that was sent so far has reached the server. It drops what it has not begun when a client closes."""
        connection = self._connection
        if connection is not None and not connection.closed:
            ping = self._core.ping()
            with suppress(DelayServerError):
                self._core.finish(ping, await connection.exchange(*self._core.encode(ping), self._timeout_s))

    @property
    def closed(self) -> bool:
        """Whether it is outside its ``async with`` block."""
        return self._tasks is None

    @property
    def connection_number(self) -> int:
        """The number of the connection that is open now. The first one is 1. 0 while none is open."""
        return 0 if self._connection is None or self._connection.closed else self._connections

    @property
    def _close_count(self) -> int:
        return self._blocks_left

    def _batching_client(self) -> Self:
        return self

    def _publishing_client(self) -> Self:
        return self

    async def _publisher_at(self, address: str) -> AsyncClient:
        async with self._making_nodes:
            node = self._nodes.get(address)
            if node is None or node.closed:
                if self._tasks is None:
                    raise RuntimeError("use the client inside its async with block")
                node = self._nodes[address] = self.node_client(address)
                await self._tasks.start(self._hold, node)
            return node

    async def _hold(self, node: AsyncClient, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keeps the client of another node until the block of this one ends."""
        async with node.unconnected():
            task_status.started()
            await anyio.sleep_forever()

    def node_client(self, address: str) -> AsyncClient:
        """A client with the same settings for a node of a route, not connected yet. Consumers and listeners pull over it."""
        return _NodeClient(
            address,
            timeout_s=self._timeout_s,
            connect_timeout_s=self._connect_timeout_s,
            retries=self._retries.retries,
            token=self._token,
            tls=self._tls,
        )

    async def _open_shard(self, addresses: str) -> AsyncClient:
        tasks = self._tasks
        if tasks is None:
            raise RuntimeError("use the client inside its async with block")
        client = self.node_client(addresses)
        await tasks.start(self._hold, client)
        return client

    def _move_to(self, addresses: str) -> None:
        """The server has these addresses from now on, with commas between. A connection that works stays."""
        self._addresses.renew(addresses)

    async def shard_clients(self) -> dict[int, AsyncClient]:
        """A client of each shard, by number, for operations that ask one shard. They live as long as this client. Where the
        cluster has no shards, it is this client itself, as number 0.
        """
        return await (await self._all_shards()).each() if await self.know_shards() else {0: self}

    @property
    def several_shards(self) -> bool:
        """Whether it has a map of several shards, by which `placed` chooses."""
        return self._shards is not None and self._shards.map.version > 0

    async def know_shards(self) -> bool:
        """Ask for the map of the shards, unless it has one. Returns whether there is one."""
        if not self.several_shards:
            await self._connected()
            if not (self._core.has_shards and self._SPREADS):
                return False
            await self._all_shards()
        return True

    def placed(self, message: Message) -> tuple[int, Message]:
        """The shard of a message, for a caller that sends to each shard by itself. One that may go to any shard gets an id
        for it. It is 0 for all messages where the client knows no shards.
        """
        shards = self._shards
        return (0, message) if shards is None or not shards.map.version else shards.placed(message)

    async def _shard_addresses(self) -> dict[int, str]:
        """The members of each shard, with commas between."""
        map = (await self._all_shards()).map
        return {shard: map.addresses(shard) for shard in map.all}

    async def _all_shards(self) -> Shards[AsyncClient]:
        """The shards, when the map of the cluster is read."""
        shards, tasks = self._shards, self._tasks
        if shards is None:
            if tasks is None:
                raise RuntimeError("use the client inside its async with block")
            learn, wait_ms_max = self._addresses.also, self._core.limits.wait_ms_max
            shards = self._shards = Shards[AsyncClient](
                self._run, learn, self._open_shard, tasks.start_soon, wait_ms_max, self._core.clock.elapsed
            )
        if not shards.map.version and await shards.begin() and tasks is not None:
            tasks.start_soon(shards.follow)
        return shards

    def _members(self) -> list[str]:
        """Where the members of all shards answer. Empty: it has no map."""
        return [] if self._shards is None else self._shards.map.members

    async def ping(self) -> int:
        """The server's time in microseconds. The client also learns its clock."""
        server_us = await super().ping()
        if self._shards is not None:
            await self._shards.pass_posted()
        return server_us

    def take_one_way_refused(self) -> OneWayRefused | None:
        """The number of one-way messages that were refused since the last call of this method, and the first error."""
        for client in [] if self._shards is None else self._shards.clients:
            refused = client.take_one_way_refused()
            if refused is not None:
                self._core.note_refused(refused)
        return super().take_one_way_refused()

    def _shard_prefix(self) -> str:
        return "" if self._shards is None else self._shards.prefix()

    def end_waits(self) -> None:
        """End the pulls that wait now. Each returns the messages that it was just given, mostly none."""
        for client in [] if self._shards is None else self._shards.clients:
            client.end_waits()
        for request_id, connection in self._waits.items():
            connection.post(self._core.encode(pull_calls.cancel_wait_call(request_id))[1])

    async def _run(self, call: Call[T], close_count: int | None = None) -> T:
        if close_count is not None and close_count != self._blocks_left:
            raise ConnectionLost("the client was closed")
        # With a map it needs no connection of its own: the server that gave the map may be gone.
        if self._shards is not None and self._shards.map.version and call.operation in SPREAD:
            return await self._shards.run(call)
        attempts: CallAttempts | None = None  # Nearly always the first one is the last.
        while True:
            sent = False
            try:
                connection = await self._connected()
                if self._core.has_shards and self._SPREADS and call.operation in SPREAD:
                    break
                request_id, frame = self._core.encode(call)
                sent = True
                if call.wait_s or call.give_back is not None:
                    reply = await self._wait(connection, request_id, frame, call)
                else:
                    reply = await connection.exchange(request_id, frame, self._timeout_s)
                result = self._core.finish(call, reply)
                return result if attempts is None else attempts.in_doubt(result)
            except DelayServerError as error:
                attempts = attempts or self._retries.attempts(call)
                pause_s = attempts.pause_s(error, sent=sent)
                if sent:
                    self._leave(connection, error)
                if pause_s is None:
                    raise
            await anyio.sleep(pause_s)
        return await (await self._all_shards()).run(call)

    def _leave(self, connection: StreamConnection, error: DelayServerError) -> None:
        """The next attempt connects to another server, if the error says that one may serve it."""
        if self._retries.follows and self._connection is connection and self._addresses.leave(error):
            self._connection = None
            connection.retire()

    def _note_refused(self, refused: OneWayRefused) -> None:
        self._core.note_refused(refused)
        if self._connection is not None:
            self._leave(self._connection, refused.first)

    async def _wait(self, connection: StreamConnection, request_id: int, frame: bytes, call: Call[Any]) -> ReplyFrame:
        """The exchange of a request that waits at the server. If the caller is cancelled, the client tells the server."""
        self._waits[request_id] = connection
        late = None if call.give_back is None else partial(self._give_back, connection, call)
        try:
            return await connection.exchange(request_id, frame, self._timeout_s + call.wait_s, late)
        except anyio.get_cancelled_exc_class():
            # Else the server would hand out messages that the caller no longer takes.
            connection.post(self._core.encode(pull_calls.cancel_wait_call(request_id))[1])
            self._given_up = True
            raise
        finally:
            del self._waits[request_id]

    def _give_back(self, connection: StreamConnection, call: Call[Any], reply: ReplyFrame) -> None:
        """Gives back what came for a caller that has gone. What the server does not take comes again by itself."""
        assert call.give_back is not None
        self._given_up = True
        with suppress(DelayServerError):
            back = call.give_back(self._core.finish(call, reply))
            if back is not None:
                request_id, frame = self._core.encode(back)
                connection.post(frame, request_id)

    def _read_notices(self) -> bool:
        """A task reads all the time."""
        return self._connection is not None and not self._connection.closed

    async def _reach(self) -> None:
        await self._connected()

    async def _post(self, call: Call[T]) -> None:
        if self._shards is not None and self._shards.map.version:
            await self._shards.post(call)
            return
        connection = await self._connected()
        if self._core.has_shards and self._SPREADS:
            await (await self._all_shards()).post(call)
            return
        self._posted = True
        await connection.send(self._core.encode(call)[1], self._timeout_s)

    async def _connected(self) -> StreamConnection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        failure_before = self._connect_failure
        async with self._connecting:
            # Another task may have connected while this one waited.
            if self._connection is None or self._connection.closed:
                # Or that task failed, and then its attempt counts for all tasks that waited. If each made an attempt of
                # its own, the last would wait for all of them.
                if self._connect_failure is not None and self._connect_failure is not failure_before:
                    raise copied(self._connect_failure)
                try:
                    self._connection = await self._open()
                    self._connections += 1
                except DelayServerError as error:
                    self._connect_failure = copied(error)
                    raise
            return self._connection

    async def _new_stream(self) -> anyio.abc.ByteStream:
        """A new stream to the first address that answers. Raises `ConnectionLost`."""
        failures = []
        for place in self._addresses.in_turn():
            try:
                stream = await self._stream_to(place)
            except ConnectionLost as error:
                self._addresses.useless(place)
                failures.append(error)
            else:
                self._addresses.begin_at(place)
                return stream
        raise none_connects(failures)

    async def _stream_to(self, place: HostAndPort) -> anyio.abc.ByteStream:
        """Raises `ConnectionLost`."""
        try:
            with anyio.fail_after(self._connect_timeout_s):
                stream = await self._connect(*place)
        # Python refuses a host such as `a..b` before it looks it up.
        except (OSError, UnicodeError) as exc:
            raise cannot_connect(place, exc) from None
        raw_socket = stream.extra(anyio.abc.SocketAttribute.raw_socket)
        raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(raw_socket)
        return stream

    async def _connect(self, host: str, port: int) -> anyio.abc.ByteStream:
        if self._tls is None and sniffio.current_async_library() == "asyncio":
            return await AsyncioStream.connect(host, port)
        if self._tls is None:
            return await anyio.connect_tcp(host, port)
        return await anyio.connect_tcp(host, port, ssl_context=self._tls, tls_standard_compatible=False)

    def _ping_frame(self) -> bytes:
        return self._core.encode(self._core.ping())[1]

    async def _open(self) -> StreamConnection:
        tasks = self._tasks
        if tasks is None:
            raise RuntimeError("use the client inside its async with block")
        stream = await self._new_stream()
        connection = StreamConnection(
            stream, self._note_refused, self._core.take_notice, self._ping_frame, self._timeout_s
        )
        if self._tasks is not tasks:
            await anyio.aclose_forcefully(stream)
            raise RuntimeError("use the client inside its async with block")
        tasks.start_soon(connection.run)
        try:
            hello = self._core.hello()
            self._core.finish(hello, await connection.exchange(*self._core.encode(hello), self._timeout_s))
        except BaseException:
            self._addresses.useless(self._addresses.current)
            connection.close()
            raise
        return connection


class _NodeClient(AsyncClient):
    """A client of one node, or of the members of one shard."""

    _SPREADS = False
