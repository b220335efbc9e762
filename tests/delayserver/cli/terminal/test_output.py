"""The records that commands print, field by field."""

from __future__ import annotations

import json

import pytest

from delayserver.cli.messages.lookup import _record as lookup_record
from delayserver.cli.running.status import _rows
from delayserver.cli.terminal.output import (
    body_fields,
    delivery_record,
    print_json,
    visible,
    visible_block,
    without_none,
)
from delayserver.client import Delivery, LookupResult
from delayserver.client.calls.core import NO_SERVER
from delayserver.client.calls.message_calls import lookup_call


def delivery(**changes: object) -> Delivery:
    fields = {
        "message_id": "id-1",
        "subject": "orders",
        "sequence": 7,
        "server_id": "0123456789ab",
        "due_ms": 5_000,
        "accepted_us": 1_000_001,
        "dispatched_us": 5_001_234,
        "attempt": 1,
        "body": b"hello",
        "properties": {},
        "delivery": 3,
    }
    return Delivery(**{**fields, **changes})  # type: ignore[arg-type]


def test_recorded_times_are_milliseconds_with_microsecond_fractions() -> None:
    record = delivery_record(delivery())
    assert (record["due_ms"], record["accepted_ms"], record["dispatched_ms"]) == (5_000, 1_000.001, 5_001.234)
    assert record["lateness_ms"] == 1.234


def test_lateness_of_a_message_that_was_due_before_it_was_accepted_counts_from_its_acceptance() -> None:
    assert delivery_record(delivery(accepted_us=5_001_000))["lateness_ms"] == 0.234


def test_a_body_that_is_not_utf8_is_base64_and_says_so() -> None:
    assert body_fields("größer".encode()) == {"body": "größer"}
    assert body_fields(b"\xff\x00") == {"body": "/wA=", "body_encoding": "base64"}


def test_the_stable_fields_of_a_pulled_message_are_all_there() -> None:
    names = ("message_id", "subject", "sequence", "due_ms", "dispatched_ms", "attempt", "body")
    assert set(names) <= set(delivery_record(delivery()))
    assert "properties" not in delivery_record(delivery())
    assert delivery_record(delivery(properties={"a": "b"}))["properties"] == {"a": "b"}


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert visible("a\x1b[31m\r\n\tb\x9b\x7fé") == "a\\x1b[31m\\x0d\\x0a\\x09b\\x9b\\x7fé"
    assert visible_block("a\x1b[31m\r\n\tb\x9b\x7fé") == "a\\x1b[31m\\x0d\n\tb\\x9b\\x7fé"


def test_json_of_a_record_holds_no_control_character_and_reads_back_as_the_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = {"body": "a\x1b\x9b31m\x7f\x85\ngrößer"}
    print_json(record)
    out = capsys.readouterr().out
    assert json.loads(out) == record
    assert out.rstrip("\n").isprintable() and "größer" in out


def test_unknown_fields_are_left_out() -> None:
    assert without_none({"a": 0, "b": None, "c": ""}) == {"a": 0, "c": ""}


def test_the_balance_of_a_status_comes_first_and_with_all_nothing_is_left_out() -> None:
    status = {
        "groups": {"default": {"queued": 1, "nodes": [{"address": "embedded"}]}},
        "pending": 3,
        "ready": True,
        "lateness_ms": {"p50": 0.5, "p99": None},
    }
    balance = [("ready", "yes"), ("pending", "3"), ("lateness_ms", "p50 0.500  p99 -")]
    assert _rows(status, everything=False) == balance
    assert _rows(status, everything=True) == [
        *balance,
        ("groups.default.queued", "1"),
        ("groups.default.nodes.0", "address embedded"),
    ]


def test_errors_are_shown_without_being_asked_for() -> None:
    assert _rows({"pending": 1, "corruption": ["a file"], "errors": {}}, everything=False)[-1] == (
        "corruption.0",
        "a file",
    )


@pytest.mark.parametrize("unanswered", [None, 2])
def test_a_lookup_shows_hand_overs_without_an_answer_where_the_server_names_some(unanswered: int | None) -> None:
    receipt = "00000000000a-000000000001-000000000001"
    row = {"receipt": receipt, "outcome": "delivered", "attempts": 3}
    row |= {} if unanswered is None else {"unanswered_elsewhere": unanswered}
    [found] = lookup_call([receipt]).read({"results": [row]}, NO_SERVER)
    assert isinstance(found, LookupResult)
    assert (found.attempts, found.unanswered_elsewhere) == (3, unanswered)
    assert lookup_record(receipt, found).get("unanswered_elsewhere") == unanswered


def test_text_that_turns_its_direction_shows_that_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    turned = "a\u202eb\u2066c\u200fd\u2028e"
    assert visible(turned) == visible_block(turned) == "a\\u202eb\\u2066c\\u200fd\\u2028e"
    print_json({"x": turned})
    text = capsys.readouterr().out
    assert "\u202e" not in text and json.loads(text) == {"x": turned}
    assert visible("größe 😀 \u05d0") == "größe 😀 \u05d0", "letters of any script stay"
