"""Frames and the three shapes in them: bytes in, requests and replies out.

A frame is a u32 little-endian payload length and the payload, one msgpack value. No sockets, no clock, and no
knowledge of operations: what the arguments of a request mean is the reader's business. Whatever bytes come in, only
errors of `delayserver.protocol.errors` go out.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import msgpack

from delayserver.protocol.errors import (
    BatchTooLarge,
    DelayServerError,
    FrameTooLarge,
    MalformedFrame,
    error_from_map,
    error_to_map,
)
from delayserver.protocol.limits import DEFAULT_LIMITS, LIST_ITEMS_MAX

HEADER_BYTES: Final = 4
REQUEST_ID_MAX: Final = 2**63 - 1

# Payloads from this size on are handed out as views of the caller's bytes; below it a copy costs less than a view.
_VIEW_BYTES_MIN: Final = 4096

Payload: TypeAlias = bytes | memoryview

_header = struct.Struct("<I")
_pack_header = _header.pack
_read_header = _header.unpack_from
# One packer for all threads: pack() with autoreset runs to its end without giving up the interpreter.
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
_pack_map_header = msgpack.Packer(autoreset=True).pack_map_header
_unpackb = msgpack.unpackb
# Blobs from this size on have one kind of header in msgpack: its code, then the length as a big-endian u32.
_BULK_BYTES_MIN: Final = 1 << 16
_BIN_32: Final = 0xC6
_bin_32_header = struct.Struct(">BI").pack
_ARRAY_OF_THREE: Final = b"\x93"


class Request(NamedTuple):
    """One request: ``id`` is matched by the reply,
    ``arguments`` are not checked yet beyond being a map with text keys.
    """

    id: int
    operation: str
    arguments: dict[str, Any]


class Reply(NamedTuple):
    """One reply: exactly one of ``result`` and ``error`` is set. ``id`` 0 speaks about the connection,
    which then closes.
    """

    id: int
    result: dict[str, Any] | None
    error: DelayServerError | None


class FrameDecoder:
    """Cuts a byte stream into frame payloads. Memory: at most one frame, and never more than was received of it.

    After an error the stream is lost (there is no way to find the next frame), so every later `feed` raises it again.
    """

    __slots__ = ("_broken", "_frame_bytes_max", "_partial", "_wanted")

    def __init__(self, frame_bytes_max: int = DEFAULT_LIMITS.frame_bytes_max) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._partial = bytearray()  # an incomplete frame with its header
        self._wanted = HEADER_BYTES  # size of that frame with its header, or of the header while that is incomplete
        self._broken: FrameTooLarge | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an incomplete frame held back; not 0 at the end of the stream means the peer went in mid-frame."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[Payload]:
        """Take the next bytes (as `socket.recv` gives them) and return the payloads they complete, in order.

        Large payloads are views of ``data``, which therefore must not change afterwards. Raises `FrameTooLarge` as
        soon as a length above the bound is known; frames completed earlier in the same bytes are then lost with the
        connection, which is safe, since nobody has answered them.
        """
        if self._broken is not None:
            raise self._broken
        if (
            not self._partial
            and HEADER_BYTES <= len(data) < _VIEW_BYTES_MIN
            and _read_header(data)[0] + HEADER_BYTES == len(data) <= self._frame_bytes_max
        ):
            return [data[HEADER_BYTES:]]  # one small frame and nothing else: the usual request
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

    def _complete_partial(self, data: bytes, payloads: list[Payload]) -> int:
        """Append to the incomplete frame what belongs to it; return how many bytes of ``data`` that took."""
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
            # The view owns the old buffer now; the next incomplete frame gets its own.
            self._partial = bytearray()
            self._wanted = HEADER_BYTES
        return taken + missing

    def _refuse(self, length: int) -> None:
        self._broken = FrameTooLarge(f"a frame of {length} bytes was announced, the bound is {self._frame_bytes_max}")
        self._partial = bytearray()
        raise self._broken


def encode_frame(value: object) -> bytes:
    """One frame with ``value`` as its payload. Raises what msgpack raises for values it cannot carry:
    a bug of the caller.
    """
    return frame_of(_pack(value))


def frame_of(payload: bytes) -> bytes:
    """The frame of a payload that is one msgpack value already."""
    return _pack_header(len(payload)) + payload


def encode_request(request_id: int, operation: str, arguments: dict[str, Any]) -> bytes:
    """The frame of one request."""
    payload: bytes = _pack((request_id, operation, arguments))
    return _pack_header(len(payload)) + payload


def encode_reply(request_id: int, result: dict[str, Any]) -> bytes:
    """The frame of one successful reply."""
    payload: bytes = _pack((request_id, True, result))
    return _pack_header(len(payload)) + payload


def encode_bulk_request(request_id: int, operation: str, arguments: dict[str, Any]) -> bytes:
    """The same bytes as `encode_request`; large blobs among the arguments are copied once and not three times."""
    if not any(map(_is_bulk, arguments.values())):
        return encode_request(request_id, operation, arguments)
    return _bulk_frame(_pack(request_id) + _pack(operation), arguments)


def encode_bulk_reply(request_id: int, result: dict[str, Any]) -> bytes:
    """The same bytes as `encode_reply`; large blobs in the result are copied once and not three times."""
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


def encode_error(request_id: int, error: DelayServerError) -> bytes:
    """The frame of one failed reply; id 0 where the request's id is not known, after which the connection closes."""
    return encode_frame((request_id, False, error_to_map(error)))


def decode_request(payload: Payload) -> Request:
    """Read one request. Raises `MalformedFrame`, or `BatchTooLarge` with its ``request_id`` where only a list is too
    long.
    """
    value = _decode(payload, LIST_ITEMS_MAX)
    if type(value) is not list or len(value) != 3:
        raise MalformedFrame("a request is an array of three: id, operation, arguments")
    request_id, operation, arguments = value
    if type(request_id) is not int or not 1 <= request_id <= REQUEST_ID_MAX:
        _refuse_id(1)
    if type(operation) is not str:
        raise MalformedFrame("a request's operation is text", request_id=request_id)
    return Request(request_id, operation, _check_map(arguments, "arguments", request_id))


def decode_reply(payload: Payload) -> Reply:
    """Read one reply. Raises `MalformedFrame`."""
    value = _decode(payload, len(payload))
    if type(value) is not list or len(value) != 3 or type(value[1]) is not bool:
        raise MalformedFrame("a reply is an array of three: id, success, result or error")
    reply_id, success, content = value
    if type(reply_id) is not int or not 0 <= reply_id <= REQUEST_ID_MAX:
        _refuse_id(0)
    content = _check_map(content, "result")
    if success:
        return Reply(reply_id, content, None)
    return Reply(reply_id, None, error_from_map(content, request_id=reply_id))


def _refuse_id(minimum: int) -> NoReturn:
    raise MalformedFrame(f"an id is an integer from {minimum} to 2^63-1")


def _check_map(value: object, what: str, request_id: int = 0) -> dict[str, Any]:
    if type(value) is not dict:
        raise MalformedFrame(f"{what} must be a map", request_id=request_id)
    for key in value:
        if type(key) is not str:
            raise MalformedFrame(f"the keys of {what} must be text", request_id=request_id)
    return value


def _refuse_extension(code: int, data: bytes) -> object:
    raise ValueError(f"msgpack extension types are not part of the protocol (code {code}, {len(data)} bytes)")


def _decode(payload: Payload, items_max: int) -> object:
    size = len(payload)
    # No array can have more items than the frame has bytes, so a short frame cannot make msgpack reserve much.
    items_max = min(size, items_max)
    try:
        return _unpackb(
            payload,
            ext_hook=_refuse_extension,
            max_array_len=items_max,
            max_map_len=items_max,
            max_ext_len=0,
        )
    # msgpack raises ValueError and its subclasses for every kind of bad bytes; the rest are its own and nesting.
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as exc:
        reason = str(exc) or type(exc).__name__
    if "max_array_len" in reason and items_max == LIST_ITEMS_MAX:
        request_id = _salvage_id(payload)
        if request_id:
            raise BatchTooLarge(f"a list of the request has more than {items_max} items", request_id=request_id)
    raise MalformedFrame(f"the payload of {size} bytes is not one valid msgpack value: {reason}")


def _salvage_id(payload: Payload) -> int:
    """The id at the front of a request that could not be read to its end, or 0."""
    try:
        unpacker = msgpack.Unpacker(max_array_len=3, max_ext_len=0, strict_map_key=True)
        unpacker.feed(payload[:64])
        count = unpacker.read_array_header()
        request_id = unpacker.unpack()
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return 0
    return request_id if count == 3 and type(request_id) is int and 0 < request_id <= REQUEST_ID_MAX else 0
