"""A message that is sent again says so, and what became of the first one: on the wire, over HTTP, on the command line."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from delayserver.client import Client, Message
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.outcomes import Outcome
from tests.delayserver.cli.conftest import run
from tests.delayserver.web.test_gateway import wait_until
from tests.delayserver.web.web_server import Web


def later_ms() -> int:
    return time.time_ns() // 1_000_000 + 3_600_000


def test_a_copy_says_so_and_names_its_original_and_what_became_of_it(web: Web) -> None:
    due_ms = later_ms()
    with Client(web.address) as client:
        first = client.send("copied", b"one", due_ms=due_ms, message_id="m", tell_duplicates=True)
        assert (first.duplicate, first.outcome, first.never_comes) == (False, None, False)
        again = client.send("copied", b"two", due_ms=due_ms, message_id="m", tell_duplicates=True)
        assert (again.duplicate, again.original_receipt, again.outcome) == (True, first.receipt, Outcome.PENDING)
        assert (again.due_ms, again.never_comes) == (due_ms, False)
        assert client.cancel(again.receipt).outcome is Outcome.CANCELLED
        after = client.send("copied", b"three", due_ms=due_ms, message_id="m", tell_duplicates=True)
        assert (after.duplicate, after.outcome, after.never_comes) == (True, Outcome.CANCELLED, True)
        # Another due time makes another message.
        other = client.send("copied", b"x", due_ms=due_ms + 1, message_id="m", tell_duplicates=True)
        assert other.duplicate is False


def test_a_sender_that_does_not_ask_is_not_told_and_so_does_not_wait(web: Web) -> None:
    due_ms = later_ms()
    message = Message("copied.unasked", b"x", due_ms, message_id="m")
    with Client(web.address) as client:
        results = [client.send("copied.unasked", b"x", due_ms=due_ms, message_id="m") for _ in range(2)]
        for result in (*results, *client.send_many([message])):
            assert not isinstance(result, Exception)
            assert result.duplicate is None
        with pytest.raises(InvalidArgument):
            client.send("copied.unasked", b"x", due_ms=due_ms, tell_duplicates=True)


@pytest.mark.parametrize("count", [2, 200])
def test_copies_among_many_are_told_apart(web: Web, count: int) -> None:
    due_ms, subject = later_ms(), f"copied.many.{count}"
    messages = [Message(subject, b"x", due_ms, message_id=f"{number}") for number in range(count)]
    with Client(web.address) as client:
        firsts = client.send_many(messages[::2])
        results = client.send_many([*messages, Message("", b"x", due_ms)], tell_duplicates=True)
        columns = client.send_columns(
            subject, due_ms, [b"x"] * 3, message_ids=["0", "new", "2" if count > 2 else "0"], tell_duplicates=True
        )
    assert isinstance(results.pop(), Exception)
    known = {each.message_id: each.receipt for each in firsts if not isinstance(each, Exception)}
    for message, result in zip(messages, results, strict=True):
        assert not isinstance(result, Exception)
        assert (result.duplicate, result.original_receipt) == (
            message.message_id in known,
            known.get(result.message_id),
        )
    assert columns.duplicates is not None
    assert [each.sequence - columns.first_sequence for each in columns.duplicates] == [0, 2]


def test_over_http_a_copy_says_so(web: Web) -> None:
    document = {"subject": "copied.http", "body": "x", "due_ms": later_ms(), "message_id": "m"}
    first = web.post("/v1/messages", document).json
    assert first["duplicate"] is False
    assert web.ask("DELETE", f"/v1/messages/{first['receipt']}").status == 200
    single = web.post("/v1/messages", document)
    assert (single.status, single.json["error"]) == (409, "message_ended")
    for again in (
        single.json,
        web.post("/v1/messages", [document]).json[0],
        json.loads(web.post("/v1/messages", json.dumps(document).encode(), content_type="application/x-ndjson").body),
    ):
        assert (again["duplicate"], again["outcome"], again["original_receipt"]) == (
            True,
            "cancelled",
            first["receipt"],
        )


@pytest.mark.parametrize(
    "other",
    [
        {"body": "y"},
        {"delay": "2h"},
        {"tag": "t"},
        {"order_key": "k"},
        {"properties": {"a": "b"}},
        {"expires_ms": 2**50},
    ],
)
def test_a_key_with_another_message_is_refused(web: Web, other: dict[str, Any]) -> None:
    document = {"subject": "keyed", "body": "x", "delay": "1h"}
    key = f"k-{next(iter(other))}"
    first = web.post("/v1/messages", document, idempotency_key=key)
    assert first.status == 201
    reply = web.post("/v1/messages", document | other, idempotency_key=key)
    assert (reply.status, reply.json["error"]) == (422, "idempotency_key_reused")
    again = web.post("/v1/messages", document, idempotency_key=key).json
    assert (again["due_ms"], again["duplicate"]) == (first.json["due_ms"], True)


def test_a_key_with_another_due_time_is_refused(web: Web) -> None:
    document = {"subject": "keyed.at", "body": "x", "due_ms": later_ms()}
    assert web.post("/v1/messages", document, idempotency_key="k").status == 201
    reply = web.post("/v1/messages", document | {"due_ms": later_ms() + 60_000}, idempotency_key="k")
    assert (reply.status, reply.json["error"]) == (422, "idempotency_key_reused")


def test_the_command_line_fails_for_a_message_that_stays_cancelled(web: Web) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(later_ms() // 1000))
    arguments = ("send", "copied.cli", "x", "--id", "m", "--at", at, "--server", web.address, "--json")
    first, again = run(*arguments).row, run(*arguments).row
    assert (first["duplicate"], again["duplicate"], again["outcome"]) == (False, True, "pending")
    with Client(web.address) as client:
        client.cancel(first["receipt"])
        wait_until(lambda: client.lookup(first["receipt"]).outcome is Outcome.CANCELLED)
    ended = run(*arguments)
    assert ended.code == 1 and ended.row["outcome"] == "cancelled" and "not delivered" in ended.err
