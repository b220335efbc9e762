"""Targets for the wire: frames, requests, replies, columns and receipts, from peers that may send anything."""

from __future__ import annotations

import json

import msgpack
import numpy as np

from delayserver.protocol.columns import I64, U8, U32, pack_column, unpack_column, unpack_ragged
from delayserver.protocol.errors import DelayServerError, QueueFull
from delayserver.protocol.frames import (
    FrameDecoder,
    decode_reply,
    decode_request,
    encode_error,
    encode_frame,
    encode_reply,
    encode_request,
)
from delayserver.protocol.receipts import (
    RECEIPT_CHARACTERS,
    derived_message_id,
    format_receipt,
    parse_derived_message_id,
    parse_receipt,
    parse_receipts,
)
from ops.fuzz.target import Target, ensure

FRAME_BYTES_MAX = 1 << 16
# The operation bounds the rows of a column. The fuzzer uses as many as it has memory for.
COUNT_MAX = 4096
_SERVER = "0123456789ab"


def _stream_seeds() -> list[bytes]:
    send = encode_request(1, "send", {"messages": [{"subject": "a", "body": b"x", "delay_ms": 5}]})
    columns = encode_request(
        2, "send", {"count": 3, "due_ms": [7], "subjects": ["a"], "body_lengths": 1, "bodies": b"abc"}
    )
    return [
        bytes([3]) + send,
        bytes([0]) + send + columns,
        bytes([200]) + encode_frame([]) + encode_frame({"a": b"b" * 5000}),
    ]


def check_stream(data: bytes) -> bool:
    """Decodes a stream in pieces and as a whole; the payloads must be the same. The first byte sets the piece size."""
    if not data:
        return False
    step, stream = data[0] + 1, data[1:]
    whole, pieces = FrameDecoder(FRAME_BYTES_MAX), FrameDecoder(FRAME_BYTES_MAX)
    got: list[bytes] = []
    refused = False
    try:
        for start in range(0, len(stream), step):
            got += [bytes(payload) for payload in pieces.feed(stream[start : start + step])]
            ensure(pieces.buffered_bytes <= FRAME_BYTES_MAX + 4, "more is held back than one frame")
    except DelayServerError:
        refused = True
    try:
        expected = [bytes(payload) for payload in whole.feed(stream)]
    except DelayServerError:
        ensure(refused, "refused as a whole, taken in pieces")
        return False
    ensure(not refused and got == expected, "other payloads in pieces than as a whole")
    for payload in expected:
        check_request(payload)
    return bool(expected)


def _request_seeds() -> list[bytes]:
    frames = [
        encode_request(1, "hello", {"versions": [1]}),
        encode_request(2**63 - 1, "pull", {"subject": "a", "group": "g", "messages_max": 5}),
        encode_request(3, "send", {"count": 2, "due_ms": [5], "bodies": b"ab", "float": 1.5, "none": None}),
    ]
    return [frame[4:] for frame in frames]


def check_request(data: bytes) -> bool:
    """Accepted requests must be the same after encoding and decoding."""
    try:
        request = decode_request(data)
    except DelayServerError as error:
        encode_error(error.request_id, error)  # the answer must be encodable
        return False
    frame = encode_request(request.id, request.operation, request.arguments)
    again = decode_request(frame[4:])
    ensure(encode_request(again.id, again.operation, again.arguments) == frame, "a request changes when it is sent on")
    return True


def _reply_seeds() -> list[bytes]:
    frames = [
        encode_reply(1, {"accepted": 3, "due_ms": b"12345678", "rejected": []}),
        encode_error(2, QueueFull("later", retry_after_ms=5)),
        encode_reply(3, {"results": [{"receipt": "a"}, {"error": "too_far", "message": "no"}]}),
    ]
    return [frame[4:] for frame in frames]


def check_reply(data: bytes) -> bool:
    """Accepted replies must be the same after encoding and decoding."""
    try:
        reply = decode_reply(data)
    except DelayServerError:
        return False
    ensure((reply.result is None) != (reply.error is None), "neither result nor error, or both")
    if reply.error is not None:
        frame = encode_error(reply.id, reply.error)
        again = decode_reply(frame[4:])
        ensure(again.error is not None and again.error.name == reply.error.name, "an error changes its name")
    elif reply.result is not None:
        frame = encode_reply(reply.id, reply.result)
        found = decode_reply(frame[4:])
        ensure(found.result is not None and encode_reply(found.id, found.result) == frame, "a reply changes")
    return True


def _column_seeds() -> list[bytes]:
    rows = np.array([5, 1, 9], np.int64)
    return [
        msgpack.packb((3, 0, pack_column(rows), b"")),
        msgpack.packb((3, 1, 7, b"")),
        msgpack.packb((3, 2, [250], b"")),
        msgpack.packb((3, 3, np.array([1, 0, 2], "<u4").tobytes(), b"abc")),
        msgpack.packb((0, 3, b"", b"")),
    ]


def check_column(data: bytes) -> bool:
    """An accepted column must be the same after packing. The input is [count, type, value, blob] as in a request."""
    try:
        value = msgpack.unpackb(data, max_ext_len=0)
    except (ValueError, TypeError, msgpack.UnpackException):
        return False
    if type(value) is not list or len(value) != 4 or type(value[0]) is not int or type(value[1]) is not int:
        return False
    count = value[0] % COUNT_MAX
    try:
        if value[1] % 4 == 3:
            ragged = unpack_ragged(value[3], value[2], count, "bodies", "body_lengths")
            ensure(b"".join(ragged.rows()) == bytes(value[3]), "ragged rows are not their blob")
            return True
        dtype = (I64, U32, U8)[value[1] % 4]
        column = unpack_column(value[2], count, dtype, "column")
    except DelayServerError:
        return False
    ensure(column.shape == (count,) and column.dtype == dtype, "a column of another shape")
    again = unpack_column(pack_column(column), count, dtype, "column")
    ensure(bool((again == column).all()), "a column changes when it is packed")
    if type(value[2]) is list and count:
        ensure([int(column[0]), int(column[-1])] == [value[2][0], value[2][0] + count - 1], "steps that wrap")
    return True


def _receipt_seeds() -> list[bytes]:
    one = format_receipt(_SERVER, 1_700_000_000_000, 77)
    return [
        json.dumps([one, one, derived_message_id(_SERVER, 9)]).encode(),
        json.dumps([one, None, 5, "é" * 38]).encode(),
    ]


def check_receipts(data: bytes) -> bool:
    """The readers of one receipt and of many must agree, and accepted ones must format the same. Input: a JSON list."""
    try:
        items = json.loads(data)
    except (ValueError, RecursionError):
        return False
    if type(items) is not list:
        return False
    many = parse_receipts(items, _SERVER)
    accepted = False
    for index, item in enumerate(items):
        try:
            one = parse_receipt(item)
        except DelayServerError:
            ensure(not many.valid[index], f"{item!r:.80} is a receipt among many only")
        else:
            ensure(bool(many.valid[index]) and str(one) == item, f"{item!r:.80} is written differently")
            ensure(
                (one.due_ms, one.sequence) == (many.due_ms[index], many.sequence[index]), "two readers, two receipts"
            )
            ensure(bool(many.own[index]) == (one.server_id == _SERVER), "whose receipt it is")
            accepted = len(item) == RECEIPT_CHARACTERS
        if isinstance(item, str):
            derived = parse_derived_message_id(item)
            ensure(derived is None or derived_message_id(*derived) == item, "a derived id is written differently")
    return accepted


TARGETS = (
    Target("stream", _stream_seeds, check_stream),
    Target("request", _request_seeds, check_request),
    Target("reply", _reply_seeds, check_reply),
    Target("column", _column_seeds, check_column),
    Target("receipts", _receipt_seeds, check_receipts),
)
