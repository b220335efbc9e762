"""Bounds of what the gateway keeps for its clients, and of what it does in one step."""

from __future__ import annotations

import tracemalloc
from collections.abc import MutableMapping
from contextlib import ExitStack
from typing import Any

import anyio
import msgspec
import pytest

from delayserver.client.values.messages import Delivery
from delayserver.protocol.errors import QueueFull, TooFar
from delayserver.web.answers import event
from delayserver.web.bodies import ROOM_BYTES, SMALL_BYTES, TOKEN, BodyReader
from delayserver.web.cloud_events import to_structured
from delayserver.web.idempotency import FirstTries
from delayserver.web.problems import Problem
from delayserver.web.row_lines import PIECES_MAX, ROWS_MAX, LineReader
from delayserver.web.schemas import SendRequest

LINE_BYTES_MAX = 1 << 20
ROOM_OF_TOKEN_BYTES = ROOM_BYTES // 2


async def all_rows(parts: list[bytes], bodies: BodyReader) -> list[list[SendRequest | Problem]]:
    """The rows of a body that comes in parts, as they are read."""
    left = list(parts)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    held_bytes = bodies.held_bytes
    with bodies.holding({TOKEN: "mine"}) as holding:
        reader, found = LineReader(receive, LINE_BYTES_MAX, holding, anyio.Lock()), []
        while reader.more:
            found.append(await reader.next())
    assert bodies.held_bytes == held_bytes
    return found


def row(number: int) -> bytes:
    return b'{"subject":"s","body":%d,"due_ms":1}\n' % number


async def test_a_large_piece_of_lines_is_read_a_few_rows_at_a_time() -> None:
    steps = await all_rows([b"".join(map(row, range(3000))), b"0\n" * 3000 + b"\n" * 3000, b"{"], BodyReader())
    assert max(map(len, steps)) <= ROWS_MAX
    rows = [each for step in steps for each in step]
    assert [bytes(each.body) for each in rows[:3000] if isinstance(each, SendRequest)] == [
        b"%d" % n for n in range(3000)
    ]
    problems = [each for each in rows[3000:] if isinstance(each, Problem)]
    assert len(problems) == 3001
    # A problem that was raised would hold the frames of its row.
    assert all(each.__traceback__ is None for each in problems)


async def test_pieces_of_a_line_make_one_line() -> None:
    whole = row(1) + row(2).replace(b",", b"," + b" " * 2 * PIECES_MAX)
    steps = await all_rows([whole[place : place + 1] for place in range(len(whole))] + [b" " * 3000], BodyReader())
    assert [bytes(each.body) for step in steps for each in step if isinstance(each, SendRequest)] == [b"1", b"2"]
    assert sum(map(len, steps)) == 2


async def test_a_line_without_an_end_counts_against_the_room_of_all() -> None:
    bodies = BodyReader()
    with bodies.holding({TOKEN: "mine"}) as other, bodies.holding({TOKEN: "theirs"}) as theirs:
        other.hold(ROOM_OF_TOKEN_BYTES)
        ((problem,),) = [step for step in await all_rows([b" " * 200_000, row(1)], bodies) if step]
        assert isinstance(problem, Problem) and problem.error == "queue_full"
        theirs.hold(ROOM_OF_TOKEN_BYTES // 2)
        with pytest.raises(QueueFull):
            other.hold(ROOM_OF_TOKEN_BYTES + 2 * SMALL_BYTES)
    assert bodies.held_bytes == 0


def test_small_requests_get_through_when_others_hold_all_the_room() -> None:
    bodies = BodyReader()
    with ExitStack() as stack:
        one, other, small = (stack.enter_context(bodies.holding({TOKEN: token})) for token in ("a", "b", "c"))
        for each in (one, other):
            each.hold(ROOM_OF_TOKEN_BYTES + SMALL_BYTES)
        small.hold(SMALL_BYTES)
        with pytest.raises(QueueFull):
            small.hold(SMALL_BYTES + 1)
    assert bodies.held_bytes == 0


async def test_a_line_that_is_too_long_is_the_last_row() -> None:
    steps = await all_rows([row(1), b" " * (LINE_BYTES_MAX + 1), row(2)], BodyReader())
    first, last = [each for step in steps for each in step]
    assert isinstance(first, SendRequest) and isinstance(last, Problem) and last.error == "body_too_large"


def first_due_ms(tries: FirstTries, subject: str, key: str, now_ms: int) -> int:
    """The due time of a try with a delay, made now."""
    with tries.due_ms(key, SendRequest(subject=subject, delay_ms=5), b"x", now_ms) as due_ms:
        return due_ms


def test_a_key_takes_the_same_memory_however_long_it_is() -> None:
    tries, count = FirstTries(), 2_000
    tracemalloc.start()
    try:
        for number in range(count):
            key, subject = f"{number:250}", f"\N{SNOWMAN}{number:250}"
            assert first_due_ms(tries, subject, key, number) == number
            assert first_due_ms(tries, subject, key, number + 1) == number
        assert tracemalloc.get_traced_memory()[0] / count < 300
    finally:
        tracemalloc.stop()


def test_a_key_belongs_to_its_subject() -> None:
    tries = FirstTries()
    named = [("s", "k"), ("sk", ""), ("", "sk"), ("1 s", "k"), ("s", "1 k")]
    assert [first_due_ms(tries, *each, place) for place, each in enumerate(named)] == [*range(5)]


def test_the_key_that_was_used_least_recently_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayserver.web.idempotency.KEYS_MAX", 2)
    tries = FirstTries()
    keys = ["a", "b", "a", "c", "a", "b"]
    assert [first_due_ms(tries, "s", key, due_ms) for due_ms, key in enumerate(keys)] == [0, 1, 0, 3, 0, 5]


def test_a_first_try_that_was_refused_leaves_its_key_to_another_message() -> None:
    tries = FirstTries()
    with pytest.raises(TooFar), tries.due_ms("k", SendRequest(subject="s", delay="9999d"), b"x", 1):
        raise TooFar("too far")
    assert first_due_ms(tries, "s", "k", 7) == 7


def test_a_body_with_line_breaks_stays_one_event() -> None:
    document = msgspec.json.encode({"body": msgspec.Raw(b"[1,\n\n2,\r3,\r\n4]")})
    (only,) = event(document, event_id="7").decode().replace("\r", "\n").split("\n\n")[:-1]
    name, *data = only.split("\n")
    assert name == "id: 7" and all(line.startswith("data: ") for line in data)
    assert msgspec.json.decode("\n".join([line[6:] for line in data])) == {"body": [1, 2, 3, 4]}


def test_no_property_gives_an_event_a_second_body() -> None:
    attributes = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "s", "ce_type": "t", "ce_trace": "x"}
    forged = {"ce_data": "a", "ce_data_base64": "AA", "ce_datacontenttype": "text/plain", "ce_": "b"}
    delivery = Delivery(
        subject="s", message_id="m", body=b"true", properties=attributes | forged, due_ms=0, sequence=1, server_id="a",
        accepted_us=0, dispatched_us=0, attempt=1, delivery=1, expires_ms=0,
    )  # fmt: skip
    document = msgspec.json.decode(msgspec.json.encode(to_structured(delivery)))
    assert document.pop("data") is True and document.pop("datacontenttype") == "application/json"
    assert document == {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "trace": "x"}
