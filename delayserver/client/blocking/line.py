"""One connection of a blocking client, with the attempts of the calls on it: one call at a time, from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from delayserver.client.calls import pull_calls
from delayserver.client.calls.core import Call, ClientCore
from delayserver.client.calls.pull_calls import GIVE_BACK_S
from delayserver.client.calls.retry_policy import CallAttempts, RetryPolicy
from delayserver.client.connections.call_turns import CallTurns
from delayserver.client.connections.exchanging import Late
from delayserver.client.connections.server_addresses import Addresses
from delayserver.protocol.errors import ConnectionLost, DelayServerError
from delayserver.protocol.frames import ReplyFrame

T = TypeVar("T")

_CLOSE_WAIT_S: Final = 0.1  # For a call of another thread, which the close has just ended.
_LOOK_S: Final = 0.01  # A call that waits for the line looks this often whether a long pull has taken it.


class InShards(Exception):
    """The server has said that its cluster has several shards. The call has not left, and is one for all of them."""


class LineConnection(Protocol):
    """The methods that a client needs of a connection; `SocketConnection` says how each method behaves."""

    def usable(self, *, repeatable: bool) -> bool: ...

    def read_ahead(self) -> bool: ...

    def exchange(self, request_id: int, frame: bytes, timeout_s: float, late: Late | None = None) -> ReplyFrame: ...

    def send(self, frame: bytes, timeout_s: float) -> None: ...

    def shut_down(self) -> None: ...

    def close(self) -> None: ...


class Line:
    """A connection that is opened when a call needs it, and again after a failure."""

    def __init__(
        self,
        core: ClientCore,
        retries: RetryPolicy,
        addresses: Addresses,
        connect: Callable[[], LineConnection],
        timeout_s: float,
        spread: Container[str] = (),
    ) -> None:
        """``spread``: the operations that end as `InShards` where the cluster has several."""
        self.turns = CallTurns()
        self._core = core
        self._retries = retries
        self._addresses = addresses
        self._connect = connect
        self._timeout_s = timeout_s
        self._spread = spread
        self._connection: LineConnection | None = None
        # Whether one-way requests were sent that the server may not have read.
        self._posted = False
        # The thread whose call waits at the server, such as a long pull.
        self._waiting: int | None = None

    def is_free(self) -> bool:
        """Wait for the end of a call of another thread. False at once if that call waits at the server for long."""
        if not self.turns.calling:
            return True
        lock = self.turns.lock
        while not lock.acquire(timeout=_LOOK_S):
            waiting = self._waiting
            if waiting is not None and waiting != threading.get_ident():
                return False
        lock.release()
        return True

    def run(self, call: Call[T], close_count: int | None) -> T:
        """The result of a call, after as many attempts as it needs. Raises `InShards`."""
        turns = self.turns
        if close_count is None:
            close_count = turns.close_count
        with turns.lock:
            turns.refuse_inner(call.operation)
            try:
                turns.begin()
                if call.wait_s:
                    self._waiting = threading.get_ident()
                attempts: CallAttempts | None = None  # Nearly always the first one is the last.
                while True:
                    sent = False
                    try:
                        connection = self._connection
                        if connection is None or not connection.usable(repeatable=call.repeatable):
                            connection = self._reconnect(close_count)
                        self._check(call)
                        request_id, frame = self._core.encode(call)
                        sent = True
                        late = (
                            None if call.give_back is None else partial(self._give_back, connection, request_id, call)
                        )
                        reply = connection.exchange(request_id, frame, self._timeout_s + call.wait_s, late)
                        if reply.refused is not None:
                            self._leave(reply.refused.first)
                        result = self._core.finish(call, reply)
                        return result if attempts is None else attempts.in_doubt(result)
                    except DelayServerError as error:
                        attempts = attempts or self._retries.attempts(call)
                        pause_s = attempts.pause_s(error, sent=sent)
                        if sent:
                            self._leave(error)
                        if pause_s is not None or isinstance(error, ConnectionLost):
                            turns.check(close_count, error)
                        if pause_s is None:
                            raise
                    turns.pause(pause_s, close_count)
            finally:
                self._waiting = None
                turns.end()
                if turns.close_count != close_count:
                    self._let_go()

    def _check(self, call: Call[Any]) -> None:
        if self._core.has_shards and call.operation in self._spread:
            raise InShards

    def _leave(self, error: DelayServerError) -> None:
        """The next attempt connects to another server, if the error says that one may serve it."""
        if self._retries.follows and self._addresses.leave(error):
            self._let_go()

    def _give_back(self, connection: LineConnection, request_id: int, call: Call[Any]) -> None:
        """End the wait at the server, and give back what comes for a caller that has gone, each in `GIVE_BACK_S`."""
        assert call.give_back is not None
        with suppress(DelayServerError):
            cancel = self._core.encode(pull_calls.cancel_wait_call(request_id))[1]
            back = call.give_back(self._core.finish(call, connection.exchange(request_id, cancel, GIVE_BACK_S)))
            if back is not None:
                self._core.finish(back, connection.exchange(*self._core.encode(back), GIVE_BACK_S))

    def post(self, call: Call[T]) -> None:
        """Send a request that gets no reply. Raises `InShards`."""
        turns, close_count = self.turns, self.turns.close_count
        with turns.lock:
            turns.refuse_inner(call.operation)
            try:
                turns.begin()
                connection = self._connection
                if connection is None or not connection.usable(repeatable=False):
                    connection = self._reconnect(close_count)
                self._check(call)
                self._posted = True
                connection.send(self._core.encode(call)[1], self._timeout_s)
            finally:
                turns.end()
                if turns.close_count != close_count:
                    self._let_go()

    def reach(self) -> None:
        """Connect if not connected, in one attempt."""
        turns, close_count = self.turns, self.turns.close_count
        with turns.lock:
            try:
                turns.begin()
                if self._connection is None or not self._connection.usable(repeatable=False):
                    self._reconnect(close_count)
            finally:
                turns.end()
                if turns.close_count != close_count:
                    self._let_go()

    def read_notices(self) -> bool:
        """Read the notices that the server has sent, without waiting. A call in progress reads them itself. False if the
        connection is not open.
        """
        turns = self.turns
        if not turns.lock.acquire(blocking=False):
            return True
        try:
            connection = self._connection
            if turns.calling:
                return True
            if connection is None or not connection.usable(repeatable=True):
                return False
            if not connection.read_ahead():
                connection.close()
                return False
            return True
        finally:
            turns.lock.release()

    def close(self) -> None:
        """End the call in progress with `ConnectionLost`, and close the connection. A later call opens it again."""
        self.turns.close()
        connection = self._connection
        if connection is not None:
            connection.shut_down()
        # A call in progress lets go of the connection at its end.
        if self.turns.lock.acquire(timeout=_CLOSE_WAIT_S):
            try:
                if not self.turns.calling:
                    self._let_go()
            finally:
                self.turns.lock.release()

    def let_posted_arrive(self) -> None:
        """The server drops what it has not begun when a client closes. Does not wait beside a call in progress."""
        turns = self.turns
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

    def _reconnect(self, close_count: int) -> LineConnection:
        self._let_go()
        self.turns.check(close_count)
        connection = self._connection = self._connect()
        try:
            # A close while the client connected did not see this connection.
            self.turns.check(close_count)
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
