"""The sans-IO core of both clients: a call, its request frame, and the reading of its reply.

`ClientCore` holds the state that outlives connections: request ids, and the server's clock and limits. `ReplyStream`
holds the incoming half of one connection. Neither moves bytes or waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from delayserver.client.calls.behalf import CLIENT_ADDRESS, TOLD
from delayserver.client.values.timing import ServerClock
from delayserver.protocol.errors import (
    ConnectionLost,
    DelayServerError,
    FrameTooLarge,
    InvalidArgument,
    MalformedFrame,
    TooManyConnections,
)
from delayserver.protocol.frames import (
    CLOCK_STEPPED,
    HEADER_BYTES,
    FrameDecoder,
    OneWayRefused,
    ReplyFrame,
    decode_reply,
    encode_request,
)
from delayserver.protocol.limits import DEFAULT_LIMITS, Limits
from delayserver.protocol.operation_names import DEFAULT_HOST, DEFAULT_PORT, HELLO, PING, SUPPORTED_VERSIONS
from delayserver.protocol.schema.greetings import Hello, ServerInfo
from delayserver.protocol.schema.structs import Request, arguments_of, read_reply

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

DEFAULT_ADDRESS: Final = f"{DEFAULT_HOST}:{DEFAULT_PORT}"

REPLY_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bound of a reply's frame. The client trusts its server to send large replies. But a wrong port, where something else
answers, must not make the client allocate four gigabytes."""


@dataclass(slots=True)
class Call(Generic[T]):
    """One operation with its arguments, and how to read its result.

    ``repeatable``: sending it twice has the effect of sending it once. So the client retries it although the first
    result is unknown. ``wait_s``: the server may hold the reply back so long on purpose. ``sent_us``: the local elapsed
    time when the last attempt left, if ``timed``. ``doubt``: corrects a result if an earlier attempt may have taken
    effect; it gets the result and the error of that attempt. ``give_back``: the call that gives a result back whose caller
    has gone. ``shard``: where the rows go that any shard may take, while it takes new ones.
    """

    operation: str
    arguments: dict[str, Any]
    read: Callable[[dict[str, Any], ServerInfo], T]
    repeatable: bool = True
    wait_s: float = 0.0
    timed: bool = False
    sent_us: int = 0
    doubt: Callable[[T, DelayServerError], T] | None = None
    give_back: Callable[[T], Call[Any] | None] | None = None
    shard: int | None = None

    def leave(self, elapsed_us: int) -> None:
        """Note when an attempt leaves."""
        self.sent_us = elapsed_us


def described_call(operation: str, asked: Request, kind: type[S], *, repeatable: bool = True) -> Call[S]:
    """A call whose request and reply are types of `protocol/schema`."""
    return Call(operation, arguments_of(asked), lambda result, _: read_reply(result, kind), repeatable)


class ClientCore:
    """State of one client. ``server`` is None until the first hello."""

    def __init__(self, client_name: str, clock: ServerClock | None = None, token: str | None = None) -> None:
        self.clock = clock or ServerClock()
        self.server: ServerInfo | None = None
        self._client_name = client_name
        self._token = token
        self._next_id = 1
        self._one_way_refused: OneWayRefused | None = None
        self._frame_bytes_max = DEFAULT_LIMITS.frame_bytes_max

    @property
    def has_shards(self) -> bool:
        """Whether the server is in a cluster of several shards, as far as it has said hello."""
        return self.server is not None and self.server.shards > 1

    @property
    def limits(self) -> Limits:
        """The server's limits, or the defaults before the first hello."""
        return self.server.limits if self.server is not None else DEFAULT_LIMITS

    def hello(self) -> Call[ServerInfo]:
        """The first call on every connection. Reading its reply sets ``server`` and the clock."""

        def read(result: dict[str, Any], _: ServerInfo) -> ServerInfo:
            self.server = read_reply(result, ServerInfo)
            self.clock.forget()
            self.clock.learn(self.server.server_us, call.sent_us)
            self._frame_bytes_max = self.server.limits.frame_bytes_max
            return self.server

        asked = Hello(versions=list(SUPPORTED_VERSIONS), client=self._client_name, notices=True, token=self._token)
        call = Call(HELLO, arguments_of(asked), read, timed=True)
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
        """The request's id and frame. Raises `FrameTooLarge` and `InvalidArgument` before anything is sent, so that
        requests of other callers are not harmed.
        """
        request_id = self._next_id
        self._next_id += 1
        if call.timed:
            # A call may wait for a lock, a connection or a retry after it was made. So the time is taken here.
            call.leave(self.clock.elapsed())
        try:
            arguments = call.arguments
            if call.operation in TOLD and CLIENT_ADDRESS.get():
                arguments = arguments | {"client_address": CLIENT_ADDRESS.get()}
            frame = encode_request(request_id, call.operation, arguments)
        except (TypeError, ValueError, OverflowError) as exc:
            raise InvalidArgument(f"the arguments of {call.operation} cannot be sent: {exc}") from exc
        if len(frame) - HEADER_BYTES > self._frame_bytes_max:
            raise FrameTooLarge(
                f"{call.operation} needs a frame of {len(frame)} bytes, the server takes {self._frame_bytes_max}"
            )
        return request_id, frame

    def note_refused(self, refused: OneWayRefused) -> None:
        """A reply says that these one-way messages were refused."""
        before = self._one_way_refused
        messages = refused.messages + (0 if before is None else before.messages)
        self._one_way_refused = OneWayRefused(messages, refused.first if before is None else before.first)

    def take_notice(self, notice: ReplyFrame) -> None:
        """Read a notice of the server. After a step of its clock the next delay asks for the clock again."""
        assert notice.result is not None
        if notice.refused is not None:
            self.note_refused(notice.refused)
        if CLOCK_STEPPED in notice.result:
            self.clock.forget()

    def take_one_way_refused(self) -> OneWayRefused | None:
        """The number of refused one-way messages since the last call of this method, and the first error."""
        refused, self._one_way_refused = self._one_way_refused, None
        return refused

    def finish(self, call: Call[T], reply: ReplyFrame) -> T:
        """The result of a call from its reply. Raises the error that the server named, or `MalformedFrame` if the reply
        cannot be read.
        """
        if reply.refused is not None:
            self.note_refused(reply.refused)
        if reply.error is not None:
            raise reply.error
        assert reply.result is not None
        try:
            # Only hello runs before `server` is known, and its reading ignores this argument.
            return call.read(reply.result, self.server or NO_SERVER)
        except (KeyError, TypeError, ValueError, IndexError) as exc:
            raise MalformedFrame(f"the server's reply to {call.operation} cannot be read: {exc!r}") from exc


@dataclass(slots=True)
class ReplyStream:
    """The incoming half of one connection: bytes in, replies out. ``noticed`` gets the notices of the server: results with
    id 0. An error with id 0 is one of the connection, not of a request; it is raised as `connection_error` says.
    """

    noticed: Callable[[ReplyFrame], None]
    decoder: FrameDecoder = field(default_factory=lambda: FrameDecoder(REPLY_BYTES_MAX))
    failure: DelayServerError | None = None
    """The error that followed the replies given last. It ended the connection; nothing more is read of it."""

    def check(self) -> None:
        """Raise the ``failure`` that followed the replies given last."""
        if self.failure is not None:
            raise self.failure

    @property
    def ended(self) -> ConnectionLost:
        """The error of a stream that ends here."""
        half = " in the middle of a reply" if self.decoder.buffered_bytes else ""
        return ConnectionLost(f"the server closed the connection{half}")

    def feed(self, data: bytes) -> list[ReplyFrame]:
        """Replies completed by ``data``. Raises `ConnectionLost` at the end of the stream (``data`` empty), and protocol
        errors. If replies precede an error, it returns them and keeps the error as ``failure``.
        """
        self.check()
        if not data:
            raise self.ended
        replies: list[ReplyFrame] = []
        try:
            for payload in self.decoder.feed(data):
                reply = decode_reply(payload)
                if reply.id:
                    replies.append(reply)
                elif reply.error is not None:
                    raise connection_error(reply.error)
                else:
                    self.noticed(reply)
        except DelayServerError as error:
            if not replies:
                raise
            self.failure = error
        return replies


def connection_error(error: DelayServerError) -> DelayServerError:
    """The meaning of an error with id 0 for the requests in flight. The server may have carried out each of them. So it is
    `ConnectionLost`, with the server's error as its cause. `TooManyConnections` stays as it is: the server has read nothing
    from that connection.
    """
    if isinstance(error, TooManyConnections):
        return error
    lost = ConnectionLost(f"the server ended the connection ({error})", retry_after_ms=error.retry_after_ms)
    lost.__cause__ = error
    return lost


def in_doubt(refusal: DelayServerError, unknown: DelayServerError) -> DelayServerError:
    """The error of a call whose last attempt ended with a ``refusal`` after an earlier one ended ``unknown``. The earlier
    attempt may have taken effect, so the caller must not believe that nothing was done.
    """
    doubt = type(unknown)(
        f"{unknown.message}; another attempt ended with {refusal}", retry_after_ms=refusal.retry_after_ms
    )
    doubt.__cause__ = refusal
    return doubt


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``, ``host`` or ``[ipv6]:port``. Raises ValueError for an invalid port."""
    host, _, port = address.rpartition(":") if not address.endswith("]") else (address, "", "")
    if not host or (":" in host and not host.startswith("[")):
        host, port = address, ""
    number = int(port) if port else DEFAULT_PORT
    if not 0 < number < 65_536:
        raise ValueError(f"{address!r} has no valid port")
    return host.strip("[]") or DEFAULT_HOST, number


def _integer(result: dict[str, Any], name: str) -> int:
    value = result[name]
    if type(value) is not int:
        raise TypeError(f"{name} is {value!r}, not an integer")
    return value


def read_joined(call: Call[T], result: dict[str, Any]) -> T:
    """The result of a call from what several shards answered, as one reply. Raises `MalformedFrame`."""
    try:
        return call.read(result, SEVERAL_SHARDS)
    except (KeyError, TypeError, ValueError, IndexError) as exc:
        raise MalformedFrame(f"the replies of the shards to {call.operation} cannot be read: {exc!r}") from exc


NO_SERVER: Final = ServerInfo(version=0, server_id="0" * 12, server_us=0, role="", software="", limits=DEFAULT_LIMITS)
SEVERAL_SHARDS: Final = ServerInfo(version=0, server_id="", server_us=0, role="", software="", limits=DEFAULT_LIMITS)
