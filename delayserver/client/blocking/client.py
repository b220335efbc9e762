"""The blocking client: one request at a time over its connection, and a second connection beside a long pull.

Its operations are in `operations`, the attempts of a call in `line`. `socket_connection` moves the bytes, and `core` and
the ``*_calls`` modules give them their meaning.
"""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar, Final, Self, TypeVar

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.asynchronous.shards import SPREAD
from delayserver.client.blocking.line import InShards, Line, LineConnection
from delayserver.client.blocking.operations import BlockingOperations
from delayserver.client.blocking.shard_thread import ShardThread
from delayserver.client.calls.core import Call
from delayserver.client.connections.server_addresses import Given, HostAndPort, none_connects
from delayserver.client.connections.socket_connection import SocketConnection
from delayserver.client.connections.tls import TLS, context_of
from delayserver.client.connections.tls_connection import TlsConnection
from delayserver.client.values.messages import Message
from delayserver.client.values.timing import Seconds, span_s
from delayserver.protocol.errors import ConnectionLost
from delayserver.protocol.frames import OneWayRefused
from delayserver.protocol.operation_names import PING

T = TypeVar("T")

CLIENT_NAME: Final = "delayserver-python-blocking"

_SIDE: Final = "side"


class Client(BlockingOperations):
    """A client for one server. Calls of several threads wait for their turn, but not behind a long `pull`: beside one they
    go over a second connection.

    ``address`` is ``"host:port"``, several with commas between, or a list of them: any one that answers is enough, and the
    client stays with it until it fails. None: the variable DELAYSERVER_SERVER, or 127.0.0.1:20801. In a cluster any member
    is enough: the client goes to the primary, and tries for 15 s while there is none, unless ``retries`` is 0.
    Connects at the first call or on entering its ``with`` block, and again after a failure. ``timeout_s`` bounds each
    attempt of a call (beyond what the call itself asks the server to wait), ``connect_timeout_s`` each attempt to
    connect. After a failure that may pass, a call makes up to ``retries`` more attempts, with jittered pauses. Every
    method raises the errors of `delayserver.protocol.errors`. A batcher sends over a connection of its own.
    A pull that timed out or was interrupted gives back what the server has just handed out, in a second or two.
    `close` ends a call that waits, such as a long `pull`, from another thread or a signal handler. A signal handler that
    interrupts a call needs a client of its own for calls.
    In a cluster of several shards it is a client of all of them. It then runs an `AsyncClient` in a thread of its own, and
    calls of several threads do not wait for each other.
    """

    _SPREADS: ClassVar[bool] = True
    """As `AsyncClient._SPREADS`."""

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
        self._main = self._new_line()
        # The second connection is made when a thread calls while another one waits in a long pull. `setdefault` of a
        # dictionary is one step for all threads, and needs no lock that a fork could leave locked.
        self._lines = {"main": self._main}
        self._shards = ShardThread(self.asynchronous, self._timeout_s)
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
        self._shards.close()
        for line in list(self._lines.values()):
            line.let_posted_arrive()
        for node in list(self._nodes.values()):
            node.close()
        for line in list(self._lines.values()):
            line.close()

    @property
    def _close_count(self) -> int:
        return self._main.turns.close_count

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
        return self._nodes.get(address) or self._nodes.setdefault(address, self._node_client(address))

    def shard_clients(self) -> dict[int, Client]:
        """As `AsyncClient.shard_clients`."""
        if not self.know_shards():
            return {0: self}
        addresses = self._shards.call(lambda client: client._shard_addresses)
        return {shard: self._publisher_at(members) for shard, members in addresses.items()}

    @property
    def several_shards(self) -> bool:
        """As `AsyncClient.several_shards`."""
        client = self._shards.client
        return client is not None and client.several_shards

    def know_shards(self) -> bool:
        """As `AsyncClient.know_shards`."""
        if self.several_shards:
            return True
        self.connect()
        return self._core.has_shards and self._SPREADS and self._shards.call(lambda client: client.know_shards)

    def placed(self, message: Message) -> tuple[int, Message]:
        """As `AsyncClient.placed`."""
        client = self._shards.client
        return (0, message) if client is None else client.placed(message)

    def _node_client(self, address: str) -> Client:
        return _NodeClient(
            address,
            timeout_s=self._timeout_s,
            connect_timeout_s=self._connect_timeout_s,
            retries=self._retries.retries,
            token=self._token,
            tls=self._tls,
        )

    def _run(self, call: Call[T], close_count: int | None = None) -> T:
        # Where it knows the shards, it needs no connection of its own: the server that named them may be gone.
        if self._shards.client is None or call.operation not in SPREAD:
            try:
                return self._run_here(call, close_count)
            except InShards:
                pass
        if close_count is not None and close_count != self._close_count:
            raise ConnectionLost("the client was closed")
        result: T = self._shards.call(lambda client: client._run, call)
        return result

    def _run_here(self, call: Call[T], close_count: int | None) -> T:
        if call.wait_s:
            return self._main.run(call, close_count)
        if close_count is not None and close_count != self._close_count:
            raise ConnectionLost("the client was closed")
        # A reply says what was refused of one-way requests on its own line, so a ping goes behind them.
        behind = call.operation == PING and _SIDE in self._lines
        return (self._side_line() if behind or not self._main.is_free() else self._main).run(call, None)

    def _reach(self) -> None:
        self._free_line().reach()

    def ping(self) -> int:
        """The server's time in microseconds. The client also learns its clock."""
        if self._shards.client is not None:
            self._shards.call(lambda client: client.ping)
        return super().ping()

    def take_one_way_refused(self) -> OneWayRefused | None:
        """The number of one-way messages that were refused since the last call of this method, and the first error."""
        client = self._shards.client
        refused = None if client is None else client.take_one_way_refused()
        if refused is not None:
            self._core.note_refused(refused)
        return super().take_one_way_refused()

    def _shard_prefix(self) -> str:
        client = self._shards.client
        return "" if client is None else client._shard_prefix()

    def _post(self, call: Call[T]) -> None:
        if self._shards.client is None:
            try:
                self._post_here(call)
                return
            except InShards:
                pass
        self._shards.call(lambda client: client._post, call)

    def _post_here(self, call: Call[T]) -> None:
        # Once some were posted on the side line, all are: they keep their order.
        (self._side_line() if _SIDE in self._lines else self._free_line()).post(call)

    def _free_line(self) -> Line:
        """The line of a call that is not to wait behind a long pull of another thread."""
        return self._main if self._main.is_free() else self._side_line()

    def _side_line(self) -> Line:
        return self._lines.get(_SIDE) or self._lines.setdefault(_SIDE, self._new_line())

    def _new_line(self) -> Line:
        spread = SPREAD if self._SPREADS else ()
        return Line(self._core, self._retries, self._addresses, self._new_connection, self._timeout_s, spread)

    def _read_notices(self) -> bool:
        open_lines = [line for line in list(self._lines.values()) if line.read_notices()]
        return bool(open_lines)

    def _new_connection(self) -> LineConnection:
        """A new connection to the first address that answers. Raises `ConnectionLost`."""
        client = self._shards.client
        if client is not None:
            self._addresses.also(client._members())
        failures = []
        for place in self._addresses.in_turn():
            try:
                connection = self._connection_to(place)
            except ConnectionLost as error:
                self._addresses.useless(place)
                failures.append(error)
            else:
                self._addresses.begin_at(place)
                return connection
        raise none_connects(failures)

    def _connection_to(self, place: HostAndPort) -> LineConnection:
        """Raises `ConnectionLost`."""
        if self._tls is not None:
            return TlsConnection(place, self._connect_timeout_s, self._core.take_notice, self._tls)
        return SocketConnection(place, self._connect_timeout_s, self._core.take_notice)


class _NodeClient(Client):
    """A client of one node."""

    _SPREADS = False
