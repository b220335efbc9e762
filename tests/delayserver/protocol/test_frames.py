"""Frames: whatever is sent comes back however it is cut, and whatever is not a request gives a named error."""

from __future__ import annotations

import re
import struct
import tracemalloc
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
    MalformedRequest,
    QueueFull,
    UnknownError,
    make_error,
)
from delayserver.protocol.frames import (
    FieldsReply,
    FrameDecoder,
    RowsReply,
    decode_reply,
    decode_request,
    encode_bulk_reply,
    encode_bulk_request,
    encode_error,
    encode_frame,
    encode_reply,
    encode_request,
    encode_row,
    peek_operation,
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
    "integer key": b"\x93\x01\xa1a\x81\x01\x01",
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
def test_a_payload_that_is_no_request_is_a_malformed_frame(payload: bytes) -> None:
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


def nested_maps(count: int) -> bytes:
    """A request whose arguments hold this many empty maps, in lists of 1,000 within each other's neighbours."""
    rows = b"".join([b"\xdc\x03\xe8" + b"\x80" * 1000 for _ in range(count // 1000)])
    return b"\x93\x07\xa4send\x81\xa1k\xdc" + struct.pack(">H", count // 1000) + rows


@pytest.mark.parametrize("items", [3_000_000, 16_000_000])
def test_a_frame_of_empty_maps_is_refused_at_the_bound_and_costs_little(items: int) -> None:
    payload = nested_maps(items)
    tracemalloc.start()
    with pytest.raises(BatchTooLarge, match="more than 262144 items") as caught:
        decode_request(payload)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.request_id == 7
    assert peak < 64 << 20


def test_the_bound_on_items_counts_all_arrays_and_maps_of_a_request() -> None:
    arguments = {"rows": [{"a": 1, "b": [1, 2, 3]} for _ in range(1000)], "blob": bytes(20_000)}
    # The request and its arguments hold 3 + 2 items; the list 1,000; each map 2 and its list 3; and each of them is one.
    items = (3 + 1) + (2 + 1) + (1000 + 1) + 1000 * (2 + 1 + 3 + 1)
    payload = encode_request(5, "send", arguments)[4:]
    assert decode_request(payload, items).arguments == arguments
    with pytest.raises(BatchTooLarge):
        decode_request(payload, items - 1)


@pytest.mark.parametrize("payload", [b"\x93\x05\xc4\x01a\x80", b"\x93\x05\xa1a\xc0", b"\x93\x05\xa1a\x81\xc4\x01a\x01"])
def test_an_error_inside_a_request_is_answered_with_its_id(payload: bytes) -> None:
    with pytest.raises(MalformedRequest) as caught:
        decode_request(payload)
    assert caught.value.request_id == 5


def test_the_reasons_of_a_malformed_frame_use_the_words_of_the_protocol() -> None:
    reasons = set()
    for name, payload in BAD_PAYLOADS.items():
        with pytest.raises(MalformedFrame) as caught:
            decode_request(payload)
        assert not re.search("unpack|codec|strict|hook|max_|None", caught.value.message), name
        reasons.add(caught.value.message.rpartition(": ")[2])
    assert len(reasons) > 8


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


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_a_reply_in_parts_has_the_same_bytes_as_one_in_one_go(count: int) -> None:
    rows = [{"subject": "ä", "pending": number} for number in range(count)]
    reply = FieldsReply(7)
    reply.add({"ready": True, "none": None})
    reply.add_rows("subjects", [[encode_row(row) for row in part] for part in (rows[:9], rows[9:])])
    reply.add({str(number): number for number in range(20)})
    fields = {"ready": True, "none": None, "subjects": rows} | {str(number): number for number in range(20)}
    assert reply.frame() == encode_reply(7, fields)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_a_reply_that_is_encoded_row_by_row_is_the_same_reply(count: int) -> None:
    rows = [{"receipt": f"r{number}", "outcome": "pending"} for number in range(count)]
    reply = RowsReply(7)
    for row in rows:
        reply.add(row)
    assert reply.frame() == encode_reply(7, {"results": rows})


@given(st.integers(1, 2**63 - 1), st.sampled_from(["lookup", "window_complete"]), st.binary(max_size=100))
def test_the_operation_is_known_before_a_request_is_decoded(number: int, operation: str, rest: bytes) -> None:
    payload = encode_request(number, operation, {"rest": rest})[4:]
    assert peek_operation(payload) == peek_operation(memoryview(payload)) == operation


@given(st.binary(max_size=80) | values.map(msgpack.packb))
def test_peeking_at_the_operation_of_a_wrong_request_raises_nothing(payload: bytes) -> None:
    assert type(peek_operation(payload)) is str
