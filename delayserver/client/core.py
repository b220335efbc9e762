"""The sans-IO core of both clients: what a call is, which frame it becomes, and which reply answers it.

Holds the state of a client that outlives connections (the server's clock and limits) and of the connection it has
now (ids, requests in flight, the frame decoder). Moves no bytes and never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from delayserver.client.messages import ServerInfo
from delayserver.client.timing import ServerClock
from delayserver.protocol.errors import (
    ConnectionLost,
    DelayServerError,
    FrameTooLarge,
    InvalidArgument,
    MalformedFrame,
    TooManyConnections,
)
from delayserver.protocol.frames import HEADER_BYTES, FrameDecoder, Reply, decode_reply, encode_request
from delayserver.protocol.limits import DEFAULT_LIMITS, Limits
from delayserver.protocol.operations import DEFAULT_HOST, DEFAULT_PORT, HELLO, PING, SUPPORTED_VERSIONS

T = TypeVar("T")

REPLY_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bound of a reply's frame. The client chose the server and trusts it more than it is trusted, but a stranger's port
must not make it allocate four gigabytes."""


@dataclass(slots=True)
class Call(Generic[T]):
    """One operation with its arguments, and how to read its result.

    ``repeatable`` says that sending it twice has the effect of sending it once, so that it is retried although the
    first result is unknown. ``wait_s`` is how long the server may hold the reply back on purpose. ``sent_us`` is the
    local elapsed time of the last attempt, where ``timed`` asks for it. ``doubt`` makes of a result what it means where an
    earlier attempt may have taken effect, whose error it is given.
    """

    operation: str
    arguments: dict[str, Any]
    read: Callable[[dict[str, Any], ServerInfo], T]
    repeatable: bool = True
    wait_s: float = 0.0
    timed: bool = False
    sent_us: int = 0
    doubt: Callable[[T, DelayServerError], T] | None = None


class ClientCore:
    """State of one client. ``server`` is None until the first hello."""

    def __init__(self, client_name: str, clock: ServerClock | None = None) -> None:
        self.clock = clock or ServerClock()
        self.server: ServerInfo | None = None
        self._client_name = client_name
        self._next_id = 1
        self._frame_bytes_max = DEFAULT_LIMITS.frame_bytes_max

    @property
    def limits(self) -> Limits:
        """The server's limits, or the defaults before the first hello."""
        return self.server.limits if self.server is not None else DEFAULT_LIMITS

    def hello(self) -> Call[ServerInfo]:
        """The first call on every connection; its reading sets ``server`` and the clock."""

        def read(result: dict[str, Any], _: ServerInfo) -> ServerInfo:
            self.clock.forget()
            self.clock.learn(_integer(result, "server_us"), call.sent_us)
            self.server = ServerInfo(
                server_id=str(result["server_id"]),
                version=_integer(result, "version"),
                role=str(result["role"]),
                software=str(result["software"]),
                limits=Limits.from_map(result["limits"]),
            )
            self._frame_bytes_max = self.server.limits.frame_bytes_max
            return self.server

        call = Call(HELLO, {"versions": list(SUPPORTED_VERSIONS), "client": self._client_name}, read, timed=True)
        return call

    def ping(self) -> Call[int]:
        """Ask for the server's time in microseconds, and learn its clock from the answer."""

        def read(result: dict[str, Any], _: ServerInfo) -> int:
            server_us = _integer(result, "server_us")
            self.clock.learn(server_us, call.sent_us)
            return server_us

        call = Call(PING, {}, read, timed=True)
        return call

    def encode(self, call: Call[Any]) -> tuple[int, bytes]:
        """The request's id and frame. Raises `FrameTooLarge` and `InvalidArgument` here, where they harm no other."""
        request_id = self._next_id
        self._next_id += 1
        if call.timed:
            # Here and not where the call is made: until it leaves it may wait for a lock, a connection or a retry.
            call.sent_us = self.clock.elapsed()
        try:
            frame = encode_request(request_id, call.operation, call.arguments)
        except (TypeError, ValueError, OverflowError) as exc:
            raise InvalidArgument(f"the arguments of {call.operation} cannot be sent: {exc}") from exc
        if len(frame) - HEADER_BYTES > self._frame_bytes_max:
            raise FrameTooLarge(
                f"{call.operation} needs a frame of {len(frame)} bytes, the server takes {self._frame_bytes_max}"
            )
        return request_id, frame

    def finish(self, call: Call[T], reply: Reply) -> T:
        """The result of a call from its reply. Raises the error the server named,
        or `MalformedFrame` if the reply is nonsense.
        """
        if reply.error is not None:
            raise reply.error
        assert reply.result is not None
        try:
            # Only hello runs before there is a server, and it does not look at it.
            return call.read(reply.result, self.server or _NOBODY)
        except (KeyError, TypeError, ValueError, IndexError) as exc:
            raise MalformedFrame(f"the server's reply to {call.operation} cannot be read: {exc!r}") from exc


@dataclass(slots=True)
class ReplyStream:
    """The incoming half of one connection: bytes in, replies out.
    A reply with id 0 is an error of the connection, not of a request, and is raised as `connection_error` says.
    """

    decoder: FrameDecoder = field(default_factory=lambda: FrameDecoder(REPLY_BYTES_MAX))
    failure: DelayServerError | None = None
    """What came behind the replies given last, and ended the connection: nothing more is read of it."""

    def feed(self, data: bytes) -> list[Reply]:
        """Replies completed by ``data``. Raises `ConnectionLost` at the end of the stream (``data`` empty)
        and protocol errors; where replies come before one, they are given and it becomes the ``failure``.
        """
        if self.failure is not None:
            raise self.failure
        if not data:
            half = " in the middle of a reply" if self.decoder.buffered_bytes else ""
            raise ConnectionLost(f"the server closed the connection{half}")
        replies: list[Reply] = []
        try:
            for payload in self.decoder.feed(data):
                reply = decode_reply(payload)
                if reply.id == 0:
                    raise connection_error(reply)
                replies.append(reply)
        except DelayServerError as error:
            if not replies:
                raise
            self.failure = error
        return replies


def connection_error(reply: Reply) -> DelayServerError:
    """What the requests in flight are told of a reply with id 0. Whoever caused it, each of them may have been done:
    `ConnectionLost`, with the server's error as its cause. Of a connection too many nothing was read.
    """
    error = reply.error
    if error is None:
        return MalformedFrame("the server sent a result that answers no request")
    if isinstance(error, TooManyConnections):
        return error
    lost = ConnectionLost(f"the server ended the connection ({error})", retry_after_ms=error.retry_after_ms)
    lost.__cause__ = error
    return lost


def in_doubt(refusal: DelayServerError, unknown: DelayServerError) -> DelayServerError:
    """What a refusal comes to where an earlier attempt ended ``unknown`` and may have taken effect: the caller must not
    believe that nothing was done.
    """
    doubt = type(unknown)(
        f"{unknown.message}; another attempt ended with {refusal}", retry_after_ms=refusal.retry_after_ms
    )
    doubt.__cause__ = refusal
    return doubt


def copied(error: DelayServerError) -> DelayServerError:
    """The same error for another caller: one exception object in many tasks would gather all their tracebacks."""
    copy = type(error)(error.message, retry_after_ms=error.retry_after_ms, name=error.name)
    copy.__cause__ = error.__cause__
    return copy


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``, ``host`` or ``[ipv6]:port``. Raises ValueError for a port that is no number."""
    host, _, port = address.rpartition(":") if not address.endswith("]") else (address, "", "")
    if not host or (":" in host and not host.startswith("[")):
        host, port = address, ""
    number = int(port) if port else DEFAULT_PORT
    if not 0 < number < 65_536:
        raise ValueError(f"{address!r} has no valid port")
    return host.strip("[]") or DEFAULT_HOST, number


def reachable(address: str, dialled_host: str) -> str:
    """The address of a node for who has dialled `dialled_host`: a server that listens on all interfaces announces that,
    which is nowhere to connect to."""
    host, _, port = address.rpartition(":")
    if host.strip("[]") not in ("", "0.0.0.0", "::"):
        return address
    return f"[{dialled_host}]:{port}" if ":" in dialled_host else f"{dialled_host}:{port}"


def _integer(result: dict[str, Any], name: str) -> int:
    value = result[name]
    if type(value) is not int:
        raise TypeError(f"{name} is {value!r}, not an integer")
    return value


_NOBODY: Final = ServerInfo("0" * 12, 0, "", "", DEFAULT_LIMITS)
