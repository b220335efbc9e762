"""Frames and their three contents: bytes in, requests and replies out.

A frame is a u32 little-endian payload length and the payload, one msgpack value. This module has no sockets and no clock,
and knows no operation: the reader of a request interprets its arguments. Bad bytes raise errors of
`delayserver.protocol.errors` and no others.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, TypeGuard

import msgpack

from delayserver.protocol.errors import (
    BatchTooLarge,
    DelayServerError,
    FrameTooLarge,
    MalformedFrame,
    MalformedRequest,
    error_from_map,
    error_to_map,
)
from delayserver.protocol.foreign import foreign_protocol
from delayserver.protocol.limits import DEFAULT_LIMITS, LIST_ITEMS_MAX

HEADER_BYTES: Final = 4
# The field of a reply with the refusals of earlier one-way requests.
ONE_WAY_REFUSED: Final = "one_way_refused"
# The field of a notice which says that the server's wall clock was stepped: its time now, in microseconds.
CLOCK_STEPPED: Final = "clock_stepped_us"
REQUEST_ID_MAX: Final = 2**63 - 1

# Payloads from this size on are views of the caller's bytes. A copy of a smaller one costs less than a view.
_VIEW_BYTES_MIN: Final = 4096

Payload: TypeAlias = bytes | memoryview

# The id and the operation at the front of a request fit into so many bytes.
_PEEK_BYTES: Final = 64

_header = struct.Struct("<I")
_pack_header = _header.pack
_read_header = _header.unpack_from
# One packer for all threads: pack() with autoreset does not release the GIL before its end.
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
_pack_map_header = msgpack.Packer(autoreset=True).pack_map_header
_pack_array_header = msgpack.Packer(autoreset=True).pack_array_header
_unpackb = msgpack.unpackb
# msgpack has one kind of header for blobs from this size on: its code, then the length as a big-endian u32.
_BULK_BYTES_MIN: Final = 1 << 16
_BIN_32: Final = 0xC6
_bin_32_header = struct.Struct(">BI").pack
_ARRAY_OF_THREE: Final = b"\x93"
# The bytes of a successful reply between its id and the rows of its result.
_RESULTS: Final = _pack(True) + _pack_map_header(1) + _pack("results")

_EXTENSION: Final = "extension types and timestamps are not part of the protocol"
# Parts of msgpack's error texts, and their meaning.
_REASONS: Final = (
    (_EXTENSION, _EXTENSION),
    ("max_ext_len", _EXTENSION),
    ("timestamp", _EXTENSION),
    ("incomplete input", "it ends in the middle of a value"),
    ("extra data", "bytes follow the value"),
    ("map key", "a key of a map is neither text nor bytes"),
    ("max_array_len", "an array is longer than a list may be"),
    ("max_map_len", "a map has more keys than a list may have items"),
)


class RequestFrame(NamedTuple):
    """One request. The reply repeats its ``id``. ``arguments`` are a map with text keys, and not checked further."""

    id: int
    operation: str
    arguments: dict[str, Any]


class ReplyFrame(NamedTuple):
    """One reply: exactly one of ``result`` and ``error`` is set. ``id`` 0: a notice of the server, or an error of the
    connection, which then closes.
    """

    id: int
    result: dict[str, Any] | None
    error: DelayServerError | None
    refused: OneWayRefused | None = None
    """The refusals of earlier one-way requests of the connection, if the reply has them."""


@dataclass(frozen=True, slots=True)
class OneWayRefused:
    """Messages of one-way requests that were refused: their number, and the error of the first one."""

    messages: int
    first: DelayServerError

    def to_map(self) -> dict[str, Any]:
        """The field `one_way_refused` of a reply."""
        return {"messages": self.messages} | error_to_map(self.first)

    @classmethod
    def from_map(cls, fields: dict[str, Any]) -> OneWayRefused | None:
        """The same from a reply; None if it is malformed."""
        messages = fields.get("messages")
        return cls(messages, error_from_map(fields)) if type(messages) is int else None


class FrameDecoder:
    """Cuts a byte stream into frame payloads. It holds at most one frame, and never more than the received bytes of it.

    After an error nothing shows where the next frame begins. So every later `feed` raises the error again.
    """

    __slots__ = ("_broken", "_frame_bytes_max", "_partial", "_wanted")

    def __init__(self, frame_bytes_max: int = DEFAULT_LIMITS.frame_bytes_max) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._partial = bytearray()  # an incomplete frame with its header
        self._wanted = HEADER_BYTES  # size of that frame with its header, or of the header while that is incomplete
        self._broken = ""  # the error of the stream

    @property
    def buffered_bytes(self) -> int:
        """The bytes held of an incomplete frame. At the end of the stream 0, unless the peer left in mid-frame."""
        return len(self._partial)

    @property
    def wanted_bytes(self) -> int:
        """The size of the incomplete frame with its header, as far as it is known."""
        return self._wanted

    def feed(self, data: bytes) -> list[Payload]:
        """Take the next bytes (as `socket.recv` gives them) and return the payloads that they complete, in order.

        Large payloads are views of ``data``, so the caller must not change ``data`` afterwards. Raises `FrameTooLarge` as
        soon as a length above the bound is known. Frames before it in the same bytes are lost with the connection; that
        is safe, because they have no answer yet.
        """
        if self._broken:
            raise FrameTooLarge(self._broken)
        if (
            not self._partial
            and HEADER_BYTES <= len(data) < _VIEW_BYTES_MIN
            and _read_header(data)[0] + HEADER_BYTES == len(data) <= self._frame_bytes_max
        ):
            return [data[HEADER_BYTES:]]  # The usual request: one small frame and nothing else.
        payloads: list[Payload] = []
        offset = 0
        if self._partial:
            offset = self._complete_partial(data, payloads)
            if self._partial:
                return payloads
        end = len(data)
        while end - offset >= HEADER_BYTES:
            length = _read_header(data, offset)[0]
            if length > self._frame_bytes_max:
                self._refuse(length)
            start = offset + HEADER_BYTES
            if end - start < length:
                break
            offset = start + length
            payloads.append(data[start:offset] if length < _VIEW_BYTES_MIN else memoryview(data)[start:offset])
        if offset < end:
            self._partial += memoryview(data)[offset:]
            self._wanted = HEADER_BYTES if end - offset < HEADER_BYTES else HEADER_BYTES + length
        return payloads

    def drop(self) -> None:
        """Free the bytes of an incomplete frame. The stream is over; the caller does not call `feed` again."""
        self._partial = bytearray()

    def _complete_partial(self, data: bytes, payloads: list[Payload]) -> int:
        """Append the bytes of ``data`` that belong to the incomplete frame; return their number."""
        partial = self._partial
        taken = 0
        if len(partial) < HEADER_BYTES:
            taken = HEADER_BYTES - len(partial)
            partial += data[:taken]
            if len(partial) < HEADER_BYTES:
                return len(data)
            length = _read_header(partial)[0]
            if length > self._frame_bytes_max:
                self._refuse(length)
            self._wanted = HEADER_BYTES + length
        missing = self._wanted - len(partial)
        partial += memoryview(data)[taken : taken + missing]
        if len(partial) == self._wanted:
            payloads.append(memoryview(partial)[HEADER_BYTES:])
            # The view owns this buffer now. The next incomplete frame gets another one.
            self._partial = bytearray()
            self._wanted = HEADER_BYTES
        return taken + missing

    def _refuse(self, length: int) -> None:
        error = _too_large(length, f"{self._frame_bytes_max}")
        self._broken = error.message
        self._partial = bytearray()
        raise error


class FirstFrames:
    """Cuts the bytes of a peer that has no rights yet into small frames, one at a time. The bytes behind a frame stay as
    they are, so that a peer which has got rights by it may go on with a large one."""

    __slots__ = ("_bytes", "_frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._bytes = bytearray()

    @property
    def buffered_bytes(self) -> int:
        """The bytes held."""
        return len(self._bytes)

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._bytes += data

    def next(self) -> bytes | None:
        """The payload of the next frame; None if it is not whole. Raises `FrameTooLarge` for one above the bound."""
        if len(self._bytes) < HEADER_BYTES:
            return None
        length = _read_header(self._bytes)[0]
        if length > self._frame_bytes_max:
            raise _too_large(length, f"{self._frame_bytes_max} before a token")
        end = HEADER_BYTES + length
        if len(self._bytes) < end:
            return None
        payload = bytes(self._bytes[HEADER_BYTES:end])
        del self._bytes[:end]
        return payload

    def take(self) -> bytes:
        """All bytes that are left."""
        rest = bytes(self._bytes)
        self._bytes.clear()
        return rest


def _too_large(length: int, bound: str) -> FrameTooLarge:
    speaks = foreign_protocol(_pack_header(length))
    if speaks:
        return FrameTooLarge(f"these bytes are {speaks}, not the wire protocol: is the port right?", speaks=speaks)
    return FrameTooLarge(f"a frame of {length} bytes was announced, the bound is {bound}")


def encode_frame(value: object) -> bytes:
    """One frame with ``value`` as its payload. Raises msgpack's errors for a value that msgpack cannot carry: a bug of the
    caller.
    """
    return frame_of(_pack(value))


def frame_of(payload: bytes) -> bytes:
    """The frame of an encoded payload."""
    return _pack_header(len(payload)) + payload


def encode_request(request_id: int, operation: str, arguments: dict[str, Any]) -> bytes:
    """The frame of one request."""
    payload: bytes = _pack((request_id, operation, arguments))
    return _pack_header(len(payload)) + payload


def encode_reply(request_id: int, result: dict[str, Any]) -> bytes:
    """The frame of one successful reply."""
    payload: bytes = _pack((request_id, True, result))
    return _pack_header(len(payload)) + payload


def encode_notice(fields: dict[str, Any]) -> bytes:
    """The frame of a notice: a result that answers no request. Only for clients that asked for notices in `hello`."""
    return encode_reply(0, fields)


def encode_bulk_request(request_id: int, operation: str, arguments: dict[str, Any]) -> bytes:
    """The same bytes as `encode_request`, but copies large blobs of the arguments once instead of three times."""
    if not any(map(_is_bulk, arguments.values())):
        return encode_request(request_id, operation, arguments)
    return _bulk_frame(_pack(request_id) + _pack(operation), arguments)


def encode_bulk_reply(request_id: int, result: dict[str, Any]) -> bytes:
    """The same bytes as `encode_reply`, but copies large blobs of the result once instead of three times."""
    if not any(map(_is_bulk, result.values())):
        return encode_reply(request_id, result)
    return _bulk_frame(_pack(request_id) + _pack(True), result)


def _is_bulk(value: object) -> bool:
    return (type(value) is bytes or type(value) is memoryview) and len(value) >= _BULK_BYTES_MIN


def _bulk_frame(head: bytes, content: dict[str, Any]) -> bytes:
    """The frame of an array of three: the two values in `head`, then a map."""
    parts: list[Payload] = [b"", _ARRAY_OF_THREE, head, _pack_map_header(len(content))]
    for key, value in content.items():
        parts.append(_pack(key))
        if _is_bulk(value):
            parts += (_bin_32_header(_BIN_32, len(value)), value)
        else:
            parts.append(_pack(value))
    parts[0] = _pack_header(sum(map(len, parts)))
    return b"".join(parts)


class RowsReply:
    """The reply with the result ``{"results": [row, …]}``. It is encoded row by row, so that a long reply does not hold the
    event loop.
    """

    __slots__ = ("_request_id", "_rows")

    def __init__(self, request_id: int) -> None:
        self._request_id = request_id
        self._rows: list[bytes] = []

    def add(self, row: dict[str, Any]) -> None:
        """Encode the next row."""
        self._rows.append(_pack(row))

    def frame(self) -> bytes:
        """The frame, with the same bytes as `encode_reply`."""
        head = _ARRAY_OF_THREE + _pack(self._request_id) + _RESULTS + _pack_array_header(len(self._rows))
        return frame_of(b"".join([head, *self._rows]))


class FieldsReply:
    """A reply with long lists. It is encoded in parts, so that it does not hold the event loop."""

    __slots__ = ("_count", "_parts", "_request_id")

    def __init__(self, request_id: int) -> None:
        self._request_id = request_id
        self._count = 0
        self._parts: list[bytes] = []

    def add(self, fields: dict[str, Any]) -> None:
        """Encode the next fields of the result."""
        self._count += len(fields)
        for name, value in fields.items():
            self._parts += (_pack(name), _pack(value))

    def add_rows(self, name: str, parts: Sequence[list[bytes]]) -> None:
        """The next field: a list of rows that `encode_row` made, in parts."""
        self._count += 1
        self._parts += (_pack(name), _pack_array_header(sum(map(len, parts))))
        for rows in parts:
            self._parts += rows

    def frame(self) -> bytes:
        """The frame, with the same bytes as `encode_reply`."""
        head = _ARRAY_OF_THREE + _pack(self._request_id) + _pack(True) + _pack_map_header(self._count)
        return b"".join([_pack_header(len(head) + sum(map(len, self._parts))), head, *self._parts])


def encode_row(row: dict[str, Any]) -> bytes:
    """A row of `FieldsReply.add_rows`."""
    encoded: bytes = _pack(row)
    return encoded


def peek_operation(payload: Payload) -> str:
    """The operation of a request that is not decoded yet, or "" if there is none at its front."""
    unpacker = msgpack.Unpacker(max_ext_len=0, max_str_len=_PEEK_BYTES, max_array_len=3)
    unpacker.feed(payload[:_PEEK_BYTES])
    try:
        count = unpacker.read_array_header()
        unpacker.skip()
        operation = unpacker.unpack()
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return ""
    return operation if count == 3 and type(operation) is str else ""


def encode_error(request_id: int, error: DelayServerError) -> bytes:
    """The frame of one failed reply. With id 0 the request is not known, and the connection closes afterwards."""
    return encode_frame((request_id, False, error_to_map(error)))


def with_refused(frame: bytes, refused: OneWayRefused) -> bytes:
    """The frame of a reply, with the field `one_way_refused` added to its map."""
    request_id, success, content = msgpack.unpackb(memoryview(frame)[HEADER_BYTES:])
    return encode_frame((request_id, success, content | {ONE_WAY_REFUSED: refused.to_map()}))


def decode_request(payload: Payload, items_max: int = DEFAULT_LIMITS.frame_items_max) -> RequestFrame:
    """Read one request, of at most `items_max` items in all its arrays and maps.

    Raises `MalformedFrame` if it has no readable id. With its ``request_id``, raises `MalformedRequest` for a wrong
    operation or wrong arguments, and `BatchTooLarge` for too many items.
    """
    value = _decode(payload, LIST_ITEMS_MAX, items_max)
    if type(value) is not list or len(value) != 3:
        raise MalformedFrame("a request is an array of three: id, operation, arguments")
    request_id, operation, arguments = value
    if type(request_id) is not int or not 1 <= request_id <= REQUEST_ID_MAX:
        _refuse_id(1)
    if type(operation) is not str:
        raise MalformedRequest("a request's operation is text", request_id=request_id)
    if not _is_map(arguments):
        raise MalformedRequest("a request's arguments are a map with text keys", request_id=request_id)
    return RequestFrame(request_id, operation, arguments)


def decode_reply(payload: Payload) -> ReplyFrame:
    """Read one reply. Raises `MalformedFrame`."""
    value = _decode(payload, len(payload), len(payload))
    if type(value) is not list or len(value) != 3 or type(value[1]) is not bool:
        raise MalformedFrame("a reply is an array of three: id, success, result or error")
    reply_id, success, content = value
    if type(reply_id) is not int or not 0 <= reply_id <= REQUEST_ID_MAX:
        _refuse_id(0)
    if not _is_map(content):
        raise MalformedFrame("the result of a reply is a map with text keys")
    told = content.get(ONE_WAY_REFUSED)
    refused = OneWayRefused.from_map(told) if type(told) is dict else None
    if success:
        return ReplyFrame(reply_id, content, None, refused)
    return ReplyFrame(reply_id, None, error_from_map(content, request_id=reply_id), refused)


def _refuse_id(minimum: int) -> NoReturn:
    raise MalformedFrame(f"an id is an integer from {minimum} to 2^63-1")


def _is_map(value: object) -> TypeGuard[dict[str, Any]]:
    if type(value) is not dict:
        return False
    for key in value:  # noqa: SIM110 - a generator would cost three times as much, for every request
        if type(key) is not str:
            return False
    return True


def _refuse_extension(_code: int, _data: bytes) -> object:
    raise ValueError(_EXTENSION)


class _TooManyItems(Exception):
    """The maps and arrays read so far hold more items than a frame may have."""


class _Items:
    """Counts the items of a payload while it is read, so that reading stops at the bound."""

    __slots__ = ("_left",)

    def __init__(self, items_max: int) -> None:
        self._left = items_max

    def take(self, container: Any) -> Any:
        """Count a map or an array that was read. An empty one counts too, because it costs memory."""
        self._left -= len(container) + 1
        if self._left < 0:
            raise _TooManyItems
        return container


def _decode(payload: Payload, list_items_max: int, frame_items_max: int) -> object:
    size = len(payload)
    # An array cannot have more items than the frame has bytes. So a short frame cannot make msgpack reserve much.
    list_items_max = min(size, list_items_max)
    # A shorter payload cannot have so many items.
    take = _Items(frame_items_max).take if size > frame_items_max else None
    try:
        return _unpackb(
            payload,
            object_hook=take,
            list_hook=take,
            ext_hook=_refuse_extension,
            max_array_len=list_items_max,
            max_map_len=list_items_max,
            max_ext_len=0,
        )
    except _TooManyItems:
        too_many = f"the request has more than {frame_items_max} items in all its arrays and maps"
    # msgpack raises ValueError and its subclasses for bad bytes, and the others for its own faults and for deep nesting.
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        too_many = ""
        if "max_array_len" in str(error) and list_items_max == LIST_ITEMS_MAX:
            too_many = f"a list of the request has more than {list_items_max} items"
        reason = _in_words(error)
    if too_many:
        request_id = _salvage_id(payload)
        if request_id:
            raise BatchTooLarge(too_many, request_id=request_id)
        reason = too_many
    raise MalformedFrame(f"the payload of {size} bytes is not one valid msgpack value: {reason}")


def _in_words(error: Exception) -> str:
    """The fault of a payload in the words of the protocol."""
    text = str(error)
    if isinstance(error, msgpack.StackError | RecursionError):
        return "its values nest too deep"
    if isinstance(error, UnicodeDecodeError):
        return "a text is not UTF-8"
    return next((words for part, words in _REASONS if part in text), "a byte begins no value")


def _salvage_id(payload: Payload) -> int:
    """The id at the front of a request that cannot be read to its end, or 0."""
    try:
        unpacker = msgpack.Unpacker(max_array_len=3, max_ext_len=0, strict_map_key=True)
        unpacker.feed(payload[:64])
        count = unpacker.read_array_header()
        request_id = unpacker.unpack()
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return 0
    return request_id if count == 3 and type(request_id) is int and 0 < request_id <= REQUEST_ID_MAX else 0
