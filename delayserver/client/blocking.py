"""The blocking client: one plain socket, one request at a time, retried without doing anything twice.

Only moves bytes and sleeps; what the bytes mean is in `core` and the ``*_calls`` modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from delayserver.client import message_calls, pull_calls, send_calls
from delayserver.client.batching import Batcher
from delayserver.client.core import Call, ClientCore, parse_address
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
from delayserver.client.socket_connection import SocketConnection
from delayserver.client.timing import resolve_due_ms
from delayserver.client.turns import Turns
from delayserver.protocol.errors import ConnectionLost, DelayServerError, InvalidArgument
from delayserver.protocol.limits import Limits

T = TypeVar("T")

DEFAULT_ADDRESS: Final = "127.0.0.1:20801"
CLIENT_NAME: Final = "delayserver-python-blocking"

_CLOSE_WAIT_S: Final = 0.1  # for a call of another thread that was told to end


class Client:
    """A client for one server, for one thread at a time (calls from others wait for their turn).

    Connects at the first call or on entering its ``with`` block, and again after a failure. ``timeout_s`` bounds each
    attempt of a call (beyond what the call itself asks the server to wait), ``connect_timeout_s`` each attempt to
    connect. ``retries`` more attempts follow a failure that may pass, with jittered pauses. Every method raises the
    errors of `delayserver.protocol.errors`. A call that waits, such as a long `pull`, is ended by `close` from another
    thread or a signal handler. A signal handler that interrupts a call needs a client of its own for calls.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        retries: int = 3,
    ) -> None:
        self._address = address
        self._host_and_port = parse_address(address)
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._retries = RetryPolicy(retries)
        self._core = ClientCore(CLIENT_NAME)
        self._turns = Turns()
        self._connection: SocketConnection | None = None

    # --- life

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self) -> ServerInfo:
        """Connect if not connected, and say who the server is and which limits it has. Calls connect by themselves."""
        if self._core.server is None:
            self.ping()  # any call does, and this one makes the clock exact
        assert self._core.server is not None
        return self._core.server

    def close(self) -> None:
        """Close the connection; a call afterwards opens it again. A call under way in another thread, or that a signal
        handler has interrupted to call this, ends with `ConnectionLost`, one that just connects when that is over.
        """
        self._turns.close_count += 1
        connection = self._connection
        if connection is not None:
            connection.shut_down()
        # Whoever has a call under way lets go of the connection at its end.
        if self._turns.lock.acquire(timeout=_CLOSE_WAIT_S):
            try:
                if not self._turns.calling:
                    self._let_go()
            finally:
                self._turns.lock.release()

    def hello(self) -> ServerInfo:
        """Ask who the server is; also learns its clock."""
        return self._run(self._core.hello())

    def ping(self) -> int:
        """The server's time in microseconds; also learns its clock."""
        return self._run(self._core.ping())

    @property
    def limits(self) -> Limits:
        """The server's limits; the defaults before the first connection."""
        return self._core.limits

    def resolve_due_ms(
        self, due_ms: int | None, delay_ms: int | None, at: datetime | None, delay: timedelta | None
    ) -> int:
        """The absolute due time of exactly one of the four, by the server's clock."""
        if delay_ms is not None or delay is not None:
            self._learn_clock()
        return resolve_due_ms(self._core.clock, due_ms, delay_ms, at, delay)

    # --- send

    def send(
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
        with self._turns.lock:
            due_ms = self.resolve_due_ms(due_ms, delay_ms, at, delay)
            if message_id is None and self._retries.retries:
                message_id = send_calls.new_message_id()
            return self._run(
                send_calls.send_call(
                    subject, body, due_ms, message_id=message_id, properties=properties, expires_ms=expires_ms
                )
            )

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | DelayServerError]:
        """Send up to ``batch_messages_max`` messages in one frame: a result or an error for each, in order.

        A refused message does not fail its neighbours and is not retried here. Ids are made as by `send`.
        """
        if not messages:
            return []
        with self._turns.lock:
            if any(m.delay_ms is not None or m.delay is not None for m in messages):
                self._learn_clock()
            return self._run(send_calls.send_many_call(messages, self._core.clock, make_ids=self._retries.retries > 0))

    def send_columns(
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
        with self._turns.lock:
            if delay_ms is not None:
                self._learn_clock()
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
            return self._run(send_calls.send_columns_call(columns))

    def batcher(
        self,
        subject: str | None = None,
        *,
        batch_messages_max: int = 1000,
        linger_ms: int = 5,
        pending_messages_max: int = 100_000,
    ) -> Batcher:
        """Send in the background in batches, over a connection of its own; see `Batcher`."""
        twin = Client(
            self._address,
            timeout_s=self._timeout_s,
            connect_timeout_s=self._connect_timeout_s,
            retries=self._retries.retries,
        )
        return Batcher(
            twin,
            subject,
            batch_messages_max=batch_messages_max,
            linger_ms=linger_ms,
            pending_messages_max=pending_messages_max,
        )

    # --- about messages

    def cancel(self, target: Target) -> CancelResult:
        """Cancel one message by receipt or `MessageKey`; durable before it is answered."""
        result: CancelResult = message_calls.only_row(self.cancel_many([target]))
        return result

    def cancel_many(self, targets: Sequence[Target]) -> list[CancelResult | DelayServerError]:
        """Cancel many, all by receipt or all by `MessageKey`: a result or an error for each, in order."""
        return self._run(message_calls.cancel_call(targets)) if targets else []

    def cancel_columns(self, due_ms: ArrayLike, sequence: ArrayLike) -> NDArray[np.uint8]:
        """Cancel many by due time and sequence (i64[n] each); gives `Outcome` codes, u8[n]."""
        return self._run(message_calls.cancel_columns_call(due_ms, sequence))

    def reschedule(
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
        with self._turns.lock:
            new_due_ms = self.resolve_due_ms(due_ms, delay_ms, at, delay)
            return self._run(message_calls.reschedule_call(target, new_due_ms, body, properties, expires_ms))

    def lookup(self, target: Target) -> LookupResult:
        """What became of one message, by receipt or `MessageKey`."""
        result: LookupResult = message_calls.only_row(self.lookup_many([target]))
        return result

    def lookup_many(self, targets: Sequence[Target]) -> list[LookupResult | DelayServerError]:
        """What became of many: a result or an error for each, in order."""
        return self._run(message_calls.lookup_call(targets)) if targets else []

    def status(self) -> Status:
        """The server's status map."""
        return self._run(message_calls.status_call())

    def route(self, *, group: str | None = None, subject: str | None = None) -> Route:
        """The nodes of a broker group, or of the group that a subject routes to."""
        return self._run(message_calls.route_call(group=group, subject=subject, dialled_host=self._host_and_port[0]))

    # --- consume

    def pull(
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
        return self.pull_columns(
            subject, group, max_messages, wait_s, ack_timeout_s=ack_timeout_s, ack=ack
        ).deliveries()

    def pull_columns(
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
        server's bound is waited in several requests. `close` from elsewhere ends a wait.
        """
        ack_timeout_ms = None if ack_timeout_s is None else round(ack_timeout_s * 1000)
        wait_ms = round(wait_s * 1000)
        close_count = self._turns.close_count
        self.connect()  # before it the server's bound of a wait is not known
        while True:
            part_ms = min(wait_ms, self._core.limits.wait_ms_max)
            wait_ms -= part_ms
            pulled = self._run(
                pull_calls.pull_call(
                    subject,
                    group,
                    max_messages=max_messages,
                    wait_ms=part_ms,
                    ack_timeout_ms=ack_timeout_ms,
                    max_bytes=max_bytes,
                    ack=ack,
                ),
                close_count,
            )
            if pulled.count or wait_ms <= 0:
                return pulled
            ack = None

    def ack(self, subject: str, group: str, deliveries: Deliveries) -> AckResult:
        """Settle deliveries: they do not come again."""
        return self._run(pull_calls.ack_call(subject, group, deliveries))

    def nack(self, subject: str, group: str, deliveries: Deliveries, delay: timedelta = NO_DELAY) -> NackResult:
        """Hand deliveries back; they come again after ``delay``."""
        return self._run(pull_calls.nack_call(subject, group, deliveries, delay))

    # --- one call

    def _run(self, call: Call[T], close_count: int | None = None) -> T:
        """Send a call until it is answered, the error is final, the attempts are used up, or the client is closed: since
        ``close_count`` was so much, or since now.
        """
        turns = self._turns
        if close_count is None:
            close_count = turns.close_count
        with turns.lock:
            if turns.calling:
                raise InvalidArgument(
                    f"{call.operation} inside another call: a signal handler needs a client of its own"
                )
            try:
                turns.calling = True
                attempts: Attempts | None = None  # nearly always the first one is the last
                while True:
                    sent = False
                    try:
                        connection = self._connection
                        if connection is None or not connection.usable(repeatable=call.repeatable):
                            connection = self._reconnect(close_count)
                        request_id, frame = self._core.encode(call)
                        sent = True
                        reply = connection.exchange(request_id, frame, self._timeout_s + call.wait_s)
                        result = self._core.finish(call, reply)
                        return result if attempts is None else attempts.told(result)
                    except DelayServerError as error:
                        attempts = attempts or self._retries.attempts(call)
                        pause_s = attempts.pause_s(error, sent=sent)
                        if pause_s is not None or isinstance(error, ConnectionLost):
                            turns.check(close_count, error)
                        if pause_s is None:
                            raise
                    turns.pause(pause_s, close_count)
            finally:
                turns.calling = False
                if turns.close_count != close_count:
                    self._let_go()

    def _reconnect(self, close_count: int) -> SocketConnection:
        self._let_go()
        self._turns.check(close_count)
        connection = self._connection = SocketConnection(self._host_and_port, self._connect_timeout_s)
        try:
            # Whoever closed the client while it connected has not seen this connection.
            self._turns.check(close_count)
            hello = self._core.hello()
            self._core.finish(hello, connection.exchange(*self._core.encode(hello), self._timeout_s))
        except BaseException:
            connection.close()
            raise
        return connection

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _learn_clock(self) -> None:
        """Before a delay is resolved: learn the server's clock if it was never learned, too long ago, or roughly."""
        while self._core.clock.stale:
            self.ping()
