"""Frames: whatever is sent comes back however it is cut, and whatever is not a request gives a named error."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayserver.protocol.errors import (
    BatchTooLarge,
    DelayServerError,
    FrameTooLarge,
    MalformedFrame,
    QueueFull,
    UnknownError,
    make_error,
)
from delayserver.protocol.frames import (
    FrameDecoder,
    decode_reply,
    decode_request,
    encode_bulk_reply,
    encode_bulk_request,
    encode_error,
    encode_frame,
    encode_reply,
    encode_request,
)
from delayserver.protocol.limits import LIST_ITEMS_MAX

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20) | st.binary(max_size=20)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner))
maps = st.dictionaries(st.text(max_size=10), values, max_size=5)
ids = st.integers(1, 2**63 - 1)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


@given(ids, st.text(max_size=20), maps)
def test_a_request_comes_back_as_it_was_sent(request_id: int, operation: str, arguments: dict[str, Any]) -> None:
    [payload] = FrameDecoder().feed(encode_request(request_id, operation, arguments))
    request = decode_request(payload)
    assert (request.id, request.operation, request.arguments) == (request_id, operation, arguments)


@given(ids, maps)
def test_a_reply_comes_back_as_it_was_sent(reply_id: int, result: dict[str, Any]) -> None:
    [payload] = FrameDecoder().feed(encode_reply(reply_id, result))
    reply = decode_reply(payload)
    assert (reply.id, reply.result, reply.error) == (reply_id, result, None)


blobs = st.binary(min_size=1, max_size=9).flatmap(lambda unit: st.integers(65_530, 65_545).map(unit.__mul__))
views = blobs.map(memoryview)  # type: ignore[arg-type, var-annotated]
bulky: st.SearchStrategy[dict[str, Any]] = st.dictionaries(st.text(max_size=10), values | blobs | views, max_size=20)


@given(ids, st.text(max_size=20), bulky)
@settings(max_examples=60)
def test_a_frame_with_large_blobs_has_the_bytes_of_any_other(
    request_id: int, operation: str, content: dict[str, Any]
) -> None:
    assert encode_bulk_request(request_id, operation, content) == encode_request(request_id, operation, content)
    assert encode_bulk_reply(request_id, content) == encode_reply(request_id, content)


def test_an_error_comes_back_as_its_class_with_the_advice_to_wait() -> None:
    [payload] = FrameDecoder().feed(encode_error(7, QueueFull("slow down", retry_after_ms=20)))
    error = decode_reply(payload).error
    assert type(error) is QueueFull
    assert (error.message, error.retry_after_ms, error.request_id) == ("slow down", 20, 7)


def test_an_error_of_a_newer_server_keeps_its_name() -> None:
    error = make_error("moon_phase_wrong", "wait", 3)
    assert type(error) is UnknownError
    assert error.name == "moon_phase_wrong"


@given(st.lists(st.binary(max_size=40) | st.binary(min_size=4090, max_size=4200), max_size=6), st.lists(st.integers(0)))
def test_frames_survive_any_cutting_of_the_stream(bodies: list[bytes], places: list[int]) -> None:
    stream = b"".join(encode_frame(body) for body in bodies)
    decoder = FrameDecoder()
    payloads = [payload for piece in cut(stream, places) for payload in decoder.feed(piece)]
    assert [msgpack.unpackb(payload) for payload in payloads] == bodies
    assert decoder.buffered_bytes == 0


def test_a_stream_of_single_bytes_is_decoded() -> None:
    stream = encode_frame(b"a" * 300) + encode_frame({}) + struct.pack("<I", 0)
    decoder = FrameDecoder()
    payloads = [bytes(payload) for byte in stream for payload in decoder.feed(bytes([byte]))]
    assert [len(payload) for payload in payloads] == [303, 1, 0]


def test_a_large_frame_in_pieces_is_held_once() -> None:
    frame = encode_frame(b"x" * 3_000_000)
    decoder = FrameDecoder()
    for start in range(0, len(frame) - 65_536, 65_536):
        assert decoder.feed(frame[start : start + 65_536]) == []
        assert decoder.buffered_bytes == start + 65_536
    [payload] = decoder.feed(frame[start + 65_536 :])
    assert len(payload) == len(frame) - 4
    assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_an_oversized_frame_is_refused_as_soon_as_its_length_is_known(pieces: int) -> None:
    header = struct.pack("<I", 101)
    decoder = FrameDecoder(100)
    size = 4 // pieces
    for start in range(0, 4 - size, size):
        assert decoder.feed(header[start : start + size]) == []
    with pytest.raises(FrameTooLarge):
        decoder.feed(header[4 - size :])
    with pytest.raises(FrameTooLarge):
        decoder.feed(b"")
    assert decoder.buffered_bytes == 0


def test_a_frame_of_exactly_the_bound_is_accepted() -> None:
    assert len(FrameDecoder(100).feed(struct.pack("<I", 100) + bytes(100))) == 1


BAD_PAYLOADS = {
    "empty": b"",
    "never used byte": b"\xc1",
    "two values": b"\x93\x01\xa1a\x80\x01",
    "cut": b"\x93\x01\xa1",
    "not an array": b"\x80",
    "two items": b"\x92\x01\xa1a",
    "id 0": b"\x93\x00\xa1a\x80",
    "negative id": b"\x93\xff\xa1a\x80",
    "id true": b"\x93\xc3\xa1a\x80",
    "id 2^63": b"\x93\xcf\x80\0\0\0\0\0\0\0\xa1a\x80",
    "operation as bytes": b"\x93\x01\xc4\x01a\x80",
    "arguments nil": b"\x93\x01\xa1a\xc0",
    "integer key": b"\x93\x01\xa1a\x81\x01\x01",
    "bytes key": b"\x93\x01\xa1a\x81\xc4\x01a\x01",
    "array key": b"\x93\x01\xa1a\x81\x91\x01\x01",
    "extension": b"\x93\x01\xa1a\x81\xa1k\xd4\x05\x00",
    "empty extension": b"\x93\x01\xa1a\x81\xa1k\xc7\x00\x05",
    "timestamp": b"\x93\x01\xa1a\x81\xa1k\xd6\xff\0\0\0\0",
    "empty timestamp": b"\x93\x01\xa1a\x81\xa1k\xc7\x00\xff",
    "text that is not UTF-8": b"\x93\x01\xa1\xff\x80",
    "half a surrogate": b"\x93\x01\xa3\xed\xa0\x80\x80",
    "deep nesting": b"\x91" * 100_000,
    "deep nesting of maps": b"\x81\xa1a" * 50_000,
    "array longer than the frame": b"\xdd\xff\xff\xff\xff",
    "map longer than the frame": b"\xdf\xff\xff\xff\xff",
    "bytes longer than the frame": b"\xc6\xff\xff\xff\xff",
    "text longer than the frame": b"\xdb\xff\xff\xff\xff",
    "nested arrays that reserve memory": b"\xdc\x40\x00" * 1000 + bytes(70_000),
}


@pytest.mark.parametrize("payload", BAD_PAYLOADS.values(), ids=BAD_PAYLOADS.keys())
def test_what_is_no_request_is_a_malformed_frame(payload: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_request(payload)
    with pytest.raises(MalformedFrame):
        decode_request(memoryview(payload))


def test_a_list_too_long_is_an_error_of_its_own_request() -> None:
    frame = encode_request(77, "cancel", {"receipts": ["x"] * (LIST_ITEMS_MAX + 1)})
    with pytest.raises(BatchTooLarge) as caught:
        decode_request(frame[4:])
    assert caught.value.request_id == 77
    frame = encode_request(77, "cancel", {"receipts": ["x"] * LIST_ITEMS_MAX})
    assert len(decode_request(frame[4:]).arguments["receipts"]) == LIST_ITEMS_MAX


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_named_errors(data: bytes) -> None:
    for decode in (decode_request, decode_reply):
        try:
            decode(data)
        except DelayServerError:
            pass
    try:
        FrameDecoder(150).feed(data)
    except DelayServerError:
        pass


@settings(max_examples=300)
@given(ids, maps, st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 8))
def test_mutated_requests_raise_nothing_but_named_errors(
    request_id: int, arguments: dict[str, Any], changes: list[tuple[int, int]], cut_bytes: int
) -> None:
    payload = bytearray(encode_request(request_id, "send", arguments)[4:])
    for place, value in changes:
        payload[place % len(payload)] = value
    try:
        decode_request(bytes(payload[: len(payload) - cut_bytes]))
    except DelayServerError:
        pass
