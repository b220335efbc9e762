"""The asynchronous client, on trio and on asyncio: the methods of the blocking one, many at once over one connection.

Only waits and starts tasks; what the bytes mean is in `core` and the ``*_calls`` modules, how they move in
`stream_connection`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Self, TypeVar

import anyio
import anyio.abc
import numpy as np
from numpy.typing import ArrayLike, NDArray

from delayserver.client import message_calls, pull_calls, send_calls
from delayserver.client.async_batching import AsyncBatcher
from delayserver.client.blocking import DEFAULT_ADDRESS
from delayserver.client.core import Call, ClientCore, copied, parse_address
from delayserver.client.message_calls import Target
from delayserver.client.messages import (
    AckResult,
    CancelResult,
    ColumnsSent,
    Delivery,
    LookupResult,
    Message,
    NackResult,
    RescheduleResult,
    Route,
    SendResult,
    ServerInfo,
    Status,
)
from delayserver.client.pull_calls import NO_DELAY, Deliveries
from delayserver.client.pulled import PulledColumns
from delayserver.client.retries import Attempts, RetryPolicy
from delayserver.client.send_calls import Integers, SendColumns
from delayserver.client.stream_connection import StreamConnection
from delayserver.client.timing import resolve_due_ms
from delayserver.protocol.errors import ConnectionLost, DelayServerError
from delayserver.protocol.limits import Limits

T = TypeVar("T")

CLIENT_NAME: Final = "delayserver-python-async"


class AsyncClient:
    """A client for one server, for any number of tasks; use it as ``async with AsyncClient(...) as client``.

    The block owns the connection's tasks. Requests of concurrent tasks are pipelined over one connection, which is
    opened again after a failure. Settings and errors are those of the blocking `Client`; before its ``timeout_s`` a
    request may wait as long for its turn on the connection (`QueueFull` if in vain). Every method may be
    cancelled at any point: the connection stays whole, and the request may or may not take effect.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        retries: int = 3,
    ) -> None:
        self._host_and_port = parse_address(address)
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._retries = RetryPolicy(retries)
        self._core = ClientCore(CLIENT_NAME)
        self._connection: StreamConnection | None = None
        self._connecting = anyio.Lock()
        self._connect_failure: DelayServerError | None = None  # the last one
        self._tasks: anyio.abc.TaskGroup | None = None

    # --- life

    async def __aenter__(self) -> Self:
        await self._start()
        try:
            await self.connect()
        except BaseException as exc:
            await self.__aexit__(type(exc), exc, exc.__traceback__)
            raise
        return self

    async def _start(self) -> None:
        """Enter the block without a connection, which the first call opens."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        # Also a connection that another task is opening just now. The group holds nothing else, so an error of the block
        # passes by unwrapped.
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)

    @property
    def closed(self) -> bool:
        """Whether it is outside its ``async with`` block."""
        return self._tasks is None

    async def connect(self) -> ServerInfo:
        """Who the server is and which limits it has; connects if need be, as every call does."""
        if self._core.server is None:
            await self.ping()  # any call does, and this one makes the clock exact
        assert self._core.server is not None
        return self._core.server

    async def hello(self) -> ServerInfo:
        """Ask who the server is; also learns its clock."""
        return await self._run(self._core.hello())

    async def ping(self) -> int:
        """The server's time in microseconds; also learns its clock."""
        return await self._run(self._core.ping())

    @property
    def limits(self) -> Limits:
        """The server's limits; the defaults before the first connection."""
        return self._core.limits

    async def resolve_due_ms(
        self, due_ms: int | None, delay_ms: int | None, at: datetime | None, delay: timedelta | None
    ) -> int:
        """The absolute due time of exactly one of the four, by the server's clock."""
        await self._learn_clock(relative=delay_ms is not None or delay is not None)
        return resolve_due_ms(self._core.clock, due_ms, delay_ms, at, delay)

    # --- send

    async def send(
        self,
        subject: str,
        body: bytes | str,
        *,
        due_ms: int | None = None,
        delay_ms: int | None = None,
        at: datetime | None = None,
        delay: timedelta | None = None,
        message_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        expires_ms: int | None = None,
    ) -> SendResult:
        """Send one message, due at ``due_ms``, ``at``, or after ``delay_ms`` or ``delay`` by the server's clock.

        On return it is durable. With retries on and no ``message_id`` given, a random one (UUID 4) is made, so that
        a retry after a lost reply is recognised as the same message instead of being delivered twice; with
        ``retries=0`` the id is the server's. A delay is resolved once, before the first attempt.
        """
        due_ms = await self.resolve_due_ms(due_ms, delay_ms, at, delay)
        if message_id is None and self._retries.retries:
            message_id = send_calls.new_message_id()
        return await self._run(
            send_calls.send_call(
                subject, body, due_ms, message_id=message_id, properties=properties, expires_ms=expires_ms
            )
        )

    async def send_many(self, messages: Sequence[Message]) -> list[SendResult | DelayServerError]:
        """Send up to ``batch_messages_max`` messages in one frame: a result or an error for each, in order.

        A refused message does not fail its neighbours and is not retried here. Ids are made as by `send`.
        """
        if not messages:
            return []
        await self._learn_clock(relative=any(m.delay_ms is not None or m.delay is not None for m in messages))
        return await self._run(
            send_calls.send_many_call(messages, self._core.clock, make_ids=self._retries.retries > 0)
        )

    async def send_columns(
        self,
        subjects: str | Sequence[str],
        due_ms: Integers | None = None,
        bodies: bytes | Sequence[bytes] = (),
        *,
        delay_ms: Integers | None = None,
        body_length: Integers | None = None,
        subject_index: Integers | None = None,
        message_ids: Sequence[str] | None = None,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        expires_ms: Integers | None = None,
        count: int | None = None,
    ) -> ColumnsSent:
        """Send arrays: the fast way. ``due_ms`` (or ``delay_ms``) is i64[n] or one integer, ``bodies`` a list or one
        blob with ``body_length``.

        ``subjects`` is one subject, or a list with ``subject_index`` u32[n]. Without ``message_ids`` no ids are made
        and a lost reply raises `ConnectionLost` instead of being retried, since nothing would tell the copies apart.
        """
        await self._learn_clock(relative=delay_ms is not None)
        columns = SendColumns(
            subjects=subjects,
            due_ms=send_calls.resolve_due_column(self._core.clock, due_ms, delay_ms),
            bodies=bodies,
            body_length=body_length,
            subject_index=subject_index,
            message_ids=message_ids,
            properties=properties,
            expires_ms=expires_ms,
            count=count,
        )
        return await self._run(send_calls.send_columns_call(columns))

    def batcher(
        self,
        subject: str | None = None,
        *,
        batch_messages_max: int = 1000,
        linger_ms: int = 5,
        pending_messages_max: int = 100_000,
    ) -> AsyncBatcher:
        """Send in the background in batches, over this connection; see `AsyncBatcher`."""
        return AsyncBatcher(
            self,
            subject,
            batch_messages_max=batch_messages_max,
            linger_ms=linger_ms,
            pending_messages_max=pending_messages_max,
        )

    # --- about messages

    async def cancel(self, target: Target) -> CancelResult:
        """Cancel one message by receipt or `MessageKey`; durable before it is answered."""
        result: CancelResult = message_calls.only_row(await self.cancel_many([target]))
        return result

    async def cancel_many(self, targets: Sequence[Target]) -> list[CancelResult | DelayServerError]:
        """Cancel many, all by receipt or all by `MessageKey`: a result or an error for each, in order."""
        return await self._run(message_calls.cancel_call(targets)) if targets else []

    async def cancel_columns(self, due_ms: ArrayLike, sequence: ArrayLike) -> NDArray[np.uint8]:
        """Cancel many by due time and sequence (i64[n] each); gives `Outcome` codes, u8[n]."""
        return await self._run(message_calls.cancel_columns_call(due_ms, sequence))

    async def reschedule(
        self,
        target: Target,
        *,
        due_ms: int | None = None,
        delay_ms: int | None = None,
        at: datetime | None = None,
        delay: timedelta | None = None,
        body: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        expires_ms: int | None = None,
    ) -> RescheduleResult:
        """Move a message to another due time in one atomic step; what is not given stays. ``delay_ms=0`` delivers it
        now.

        Not retried once its request has left: after `ConnectionLost` ask `lookup` what became of it.
        """
        new_due_ms = await self.resolve_due_ms(due_ms, delay_ms, at, delay)
        return await self._run(message_calls.reschedule_call(target, new_due_ms, body, properties, expires_ms))

    async def lookup(self, target: Target) -> LookupResult:
        """What became of one message, by receipt or `MessageKey`."""
        result: LookupResult = message_calls.only_row(await self.lookup_many([target]))
        return result

    async def lookup_many(self, targets: Sequence[Target]) -> list[LookupResult | DelayServerError]:
        """What became of many: a result or an error for each, in order."""
        return await self._run(message_calls.lookup_call(targets)) if targets else []

    async def status(self) -> Status:
        """The server's status map."""
        return await self._run(message_calls.status_call())

    async def route(self, *, group: str | None = None, subject: str | None = None) -> Route:
        """The nodes of a broker group, or of the group that a subject routes to."""
        return await self._run(
            message_calls.route_call(group=group, subject=subject, dialled_host=self._host_and_port[0])
        )

    # --- consume

    async def pull(
        self,
        subject: str,
        group: str,
        max_messages: int = 100,
        wait_s: float = 0.0,
        *,
        ack_timeout_s: float | None = None,
        ack: Deliveries | None = None,
    ) -> list[Delivery]:
        """Up to ``max_messages`` deliveries; waits up to ``wait_s`` for the first. See `pull_columns`."""
        pulled = await self.pull_columns(subject, group, max_messages, wait_s, ack_timeout_s=ack_timeout_s, ack=ack)
        return pulled.deliveries()

    async def pull_columns(
        self,
        subject: str,
        group: str,
        max_messages: int = 1000,
        wait_s: float = 0.0,
        *,
        ack_timeout_s: float | None = None,
        max_bytes: int | None = None,
        ack: Deliveries | None = None,
    ) -> PulledColumns:
        """Deliveries as columns. ``ack`` settles earlier ones in the same round trip.

        What is not acked within ``ack_timeout_s`` (default: the server's) comes again. A ``wait_s`` beyond the
        server's bound is waited in several requests. What a cancelled pull would have brought comes after the ack
        timeout.
        """
        ack_timeout_ms = None if ack_timeout_s is None else round(ack_timeout_s * 1000)
        wait_ms = round(wait_s * 1000)
        while True:
            part_ms = min(wait_ms, self._core.limits.wait_ms_max)
            wait_ms -= part_ms
            pulled = await self._run(
                pull_calls.pull_call(
                    subject,
                    group,
                    max_messages=max_messages,
                    wait_ms=part_ms,
                    ack_timeout_ms=ack_timeout_ms,
                    max_bytes=max_bytes,
                    ack=ack,
                )
            )
            if pulled.count or wait_ms <= 0:
                return pulled
            ack = None

    async def ack(self, subject: str, group: str, deliveries: Deliveries) -> AckResult:
        """Settle deliveries: they do not come again."""
        return await self._run(pull_calls.ack_call(subject, group, deliveries))

    async def nack(self, subject: str, group: str, deliveries: Deliveries, delay: timedelta = NO_DELAY) -> NackResult:
        """Hand deliveries back; they come again after ``delay``."""
        return await self._run(pull_calls.nack_call(subject, group, deliveries, delay))

    # --- one call

    async def _run(self, call: Call[T]) -> T:
        """Send a call until it is answered, the error is final, or the attempts are used up."""
        attempts: Attempts | None = None  # nearly always the first one is the last
        while True:
            sent = False
            try:
                connection = await self._connected()
                request_id, frame = self._core.encode(call)
                sent = True
                reply = await connection.exchange(request_id, frame, self._timeout_s + call.wait_s)
                result = self._core.finish(call, reply)
                return result if attempts is None else attempts.told(result)
            except DelayServerError as error:
                attempts = attempts or self._retries.attempts(call)
                pause_s = attempts.pause_s(error, sent=sent)
                if pause_s is None:
                    raise
            await anyio.sleep(pause_s)

    async def _connected(self) -> StreamConnection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        failure_before = self._connect_failure
        async with self._connecting:
            # Another task may have connected while this one waited.
            if self._connection is None or self._connection.closed:
                # Or failed to, which is the attempt of all who waited: if each made its own, the last would wait for all.
                if self._connect_failure is not None and self._connect_failure is not failure_before:
                    raise copied(self._connect_failure)
                try:
                    self._connection = await self._open()
                except DelayServerError as error:
                    self._connect_failure = copied(error)
                    raise
            return self._connection

    async def _open(self) -> StreamConnection:
        tasks = self._tasks
        if tasks is None:
            raise RuntimeError("use the client inside its async with block")
        host, port = self._host_and_port
        try:
            with anyio.fail_after(self._connect_timeout_s):
                stream = await anyio.connect_tcp(host, port)
        # A host such as `a..b` is refused before it is looked up.
        except (OSError, UnicodeError) as exc:
            raise ConnectionLost(f"cannot connect to {host}:{port}: {exc}") from exc
        raw_socket = stream.extra(anyio.abc.SocketAttribute.raw_socket)
        raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = StreamConnection(stream)
        if self._tasks is not tasks:
            await anyio.aclose_forcefully(stream)
            raise RuntimeError("use the client inside its async with block")
        tasks.start_soon(connection.run)
        try:
            hello = self._core.hello()
            self._core.finish(hello, await connection.exchange(*self._core.encode(hello), self._timeout_s))
        except BaseException:
            connection.close()
            raise
        return connection

    async def _learn_clock(self, *, relative: bool) -> None:
        """Before a delay is resolved: learn the server's clock if it was never learned, too long ago, or roughly."""
        while relative and self._core.clock.stale:
            await self.ping()
