"""The blocking client: one socket, one request at a time.

Its operations are in `operations`. `socket_connection` moves the bytes, and `core` and the ``*_calls`` modules
give them their meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.blocking.operations import BlockingOperations
from delayserver.client.calls import message_calls
from delayserver.client.calls.core import Call
from delayserver.client.calls.retries import Attempts
from delayserver.client.connections.addresses import Given, HostAndPort, none_connects
from delayserver.client.connections.socket_connection import SocketConnection
from delayserver.client.connections.tls import TLS, context_of
from delayserver.client.connections.tls_connection import TlsConnection
from delayserver.client.connections.turns import Turns
from delayserver.client.values.messages import ConsumerGroup
from delayserver.protocol.errors import ConnectionLost, DelayServerError
from delayserver.protocol.frames import Reply

T = TypeVar("T")

CLIENT_NAME: Final = "delayserver-python-blocking"

_CLOSE_WAIT_S: Final = 0.1  # For a call of another thread, which the close has just ended.


class Connection(Protocol):
    """The methods that a client needs of a connection; `SocketConnection` says how each method behaves."""

    def usable(self, *, repeatable: bool) -> bool: ...

    def read_ahead(self) -> bool: ...

    def exchange(self, request_id: int, frame: bytes, timeout_s: float) -> Reply: ...

    def send(self, frame: bytes, timeout_s: float) -> None: ...

    def shut_down(self) -> None: ...

    def close(self) -> None: ...


class Client(BlockingOperations):
    """A client for one server, for one thread at a time (calls from others wait for their turn).

    ``address`` is ``"host:port"``, several with commas between, or a list of them: any one that answers is enough, and the
    client stays with it until it fails. None: the variable DELAYSERVER_SERVER, or 127.0.0.1:20801.
    Connects at the first call or on entering its ``with`` block, and again after a failure. ``timeout_s`` bounds each
    attempt of a call (beyond what the call itself asks the server to wait), ``connect_timeout_s`` each attempt to
    connect. After a failure that may pass, a call makes up to ``retries`` more attempts, with jittered pauses. Every
    method raises the errors of `delayserver.protocol.errors`. A batcher sends over a connection of its own.
    `close` ends a call that waits, such as a long `pull`, from another thread or a signal handler. A signal handler that
    interrupts a call needs a client of its own for calls.
    """

    def __init__(
        self,
        address: Given = None,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        retries: int = 3,
        token: str | None = None,
        tls: TLS = None,
    ) -> None:
        super().__init__(address, CLIENT_NAME, retries, token)
        self._token = token
        self._tls = context_of(tls)
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._turns = Turns()
        self._connection: Connection | None = None
        # Whether one-way requests were sent that the server may not have read.
        self._posted = False
        # Clients of other nodes, where this one publishes.
        self._nodes: dict[str, Client] = {}

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a call afterwards opens it again. Behind one-way messages it first waits until the server
        has taken them, ``timeout_s`` at most.

        A call in progress ends with `ConnectionLost`, in another thread as well as one that a signal handler has
        interrupted. A call that is just connecting ends once the attempt to connect is over.
        """
        self._let_posted_arrive()
        self._turns.close()
        for node in list(self._nodes.values()):
            node.close()
        connection = self._connection
        if connection is not None:
            connection.shut_down()
        # A call in progress lets go of the connection at its end.
        if self._turns.lock.acquire(timeout=_CLOSE_WAIT_S):
            try:
                if not self._turns.calling:
                    self._let_go()
            finally:
                self._turns.lock.release()

    def _let_posted_arrive(self) -> None:
        """The server drops what it has not begun when a client closes. Does not wait beside a call in progress."""
        turns = self._turns
        if not self._posted or not turns.lock.acquire(blocking=False):
            return
        try:
            connection = self._connection
            if not turns.calling and connection is not None and connection.usable(repeatable=True):
                turns.begin()
                try:
                    ping = self._core.ping()
                    with suppress(DelayServerError):
                        self._core.finish(ping, connection.exchange(*self._core.encode(ping), self._timeout_s))
                finally:
                    turns.end()
            self._posted = False
        finally:
            turns.lock.release()

    @property
    def _close_count(self) -> int:
        return self._turns.close_count

    def _batching_client(self) -> Client:
        return Client(
            self._addresses.given,
            timeout_s=self._timeout_s,
            connect_timeout_s=self._connect_timeout_s,
            retries=self._retries.retries,
            token=self._token,
            tls=self._tls,
        )

    def asynchronous(self) -> AsyncClient:
        """An asynchronous client with the same address and settings, not entered yet."""
        return AsyncClient(
            self._addresses.given,
            timeout_s=self._timeout_s,
            connect_timeout_s=self._connect_timeout_s,
            retries=self._retries.retries,
            token=self._token,
            tls=self._tls,
        )

    def _publishing_client(self) -> Client:
        return self._batching_client()

    def _publisher_at(self, address: str) -> Client:
        with self._turns.lock:
            node = self._nodes.get(address)
            if node is None:
                node = self._nodes[address] = self._node_client(address)
            return node

    def _node_client(self, address: str) -> Client:
        return Client(
            address,
            timeout_s=self._timeout_s,
            connect_timeout_s=self._connect_timeout_s,
            retries=self._retries.retries,
            token=self._token,
            tls=self._tls,
        )

    def groups(self, subject: str | None = None) -> Iterator[ConsumerGroup]:
        """The consumer groups of this node, or those of one subject, asked for a page at a time."""
        page = self._run(message_calls.groups_call(subject, None))
        yield from page.groups
        while page.next is not None:
            page = self._run(message_calls.groups_call(subject, page.next))
            yield from page.groups

    def _run(self, call: Call[T], close_count: int | None = None) -> T:
        turns = self._turns
        if close_count is None:
            close_count = turns.close_count
        with turns.lock:
            turns.refuse_inner(call.operation)
            try:
                turns.begin()
                attempts: Attempts | None = None  # Nearly always the first one is the last.
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
                        return result if attempts is None else attempts.in_doubt(result)
                    except DelayServerError as error:
                        attempts = attempts or self._retries.attempts(call)
                        pause_s = attempts.pause_s(error, sent=sent)
                        if pause_s is not None or isinstance(error, ConnectionLost):
                            turns.check(close_count, error)
                        if pause_s is None:
                            raise
                    turns.pause(pause_s, close_count)
            finally:
                turns.end()
                if turns.close_count != close_count:
                    self._let_go()

    def _read_notices(self) -> None:
        turns = self._turns
        # A call in progress reads them itself.
        if turns.lock.acquire(blocking=False):
            try:
                connection = self._connection
                if (
                    not turns.calling
                    and connection is not None
                    and connection.usable(repeatable=True)
                    and not connection.read_ahead()
                ):
                    connection.close()
            finally:
                turns.lock.release()

    def _reach(self) -> None:
        turns, close_count = self._turns, self._turns.close_count
        with turns.lock:
            try:
                turns.begin()
                if self._connection is None or not self._connection.usable(repeatable=False):
                    self._reconnect(close_count)
            finally:
                turns.end()
                if turns.close_count != close_count:
                    self._let_go()

    def _post(self, call: Call[T]) -> None:
        turns, close_count = self._turns, self._turns.close_count
        with turns.lock:
            turns.refuse_inner(call.operation)
            try:
                turns.begin()
                connection = self._connection
                if connection is None or not connection.usable(repeatable=False):
                    connection = self._reconnect(close_count)
                self._posted = True
                connection.send(self._core.encode(call)[1], self._timeout_s)
            finally:
                turns.end()
                if turns.close_count != close_count:
                    self._let_go()

    def _new_connection(self) -> Connection:
        """A new connection to the first address that answers. Raises `ConnectionLost`."""
        failures = []
        for place in self._addresses.in_turn():
            try:
                connection = self._connection_to(place)
            except ConnectionLost as error:
                failures.append(error)
            else:
                self._addresses.opened(place)
                return connection
        raise none_connects(failures)

    def _connection_to(self, place: HostAndPort) -> Connection:
        """Raises `ConnectionLost`."""
        if self._tls is not None:
            return TlsConnection(place, self._connect_timeout_s, self._core.take_notice, self._tls)
        return SocketConnection(place, self._connect_timeout_s, self._core.take_notice)

    def _reconnect(self, close_count: int) -> Connection:
        self._let_go()
        self._turns.check(close_count)
        connection = self._connection = self._new_connection()
        try:
            # A close while the client connected did not see this connection.
            self._turns.check(close_count)
            hello = self._core.hello()
            self._core.finish(hello, connection.exchange(*self._core.encode(hello), self._timeout_s))
        except BaseException:
            self._addresses.useless(self._addresses.current)
            connection.close()
            raise
        return connection

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
