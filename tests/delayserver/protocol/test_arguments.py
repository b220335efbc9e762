"""One rule for all arguments: missing and nil are the same, another type is refused, and an error names the field."""

from __future__ import annotations

import re
from typing import Any

import pytest

from delayserver.protocol.errors import DelayServerError
from tests.fakes.host import Boot, small_settings

GROUP = {"subject": "s", "group": "g"}
TIMES = {"from_ms": 0, "to_ms": 1}
ROW = {"subject": "s", "body": "b", "due_ms": 1}
COLUMNS = {"count": 1, "subject": "s", "delay_ms": 0, "bodies": b"", "body_length": 0}
NAMES = {"messages": [{"subject": "s", "message_id": "i", "due_ms": 1}]}

# Operation, arguments, and the fields that the error must name.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("send", {}, "messages, count"),
    ("send", {"messages": [ROW], "count": 1}, "messages and count"),
    ("send", {"messages": {}}, "messages"),
    ("send", {"messages": []}, "messages"),
    ("send", COLUMNS | {"count": True}, "count"),
    ("send", COLUMNS | {"count": 0}, "count"),
    ("send", COLUMNS | {"bodies": None}, "bodies"),
    ("send", COLUMNS | {"body_length": None}, "body_length"),
    ("send", COLUMNS | {"delay_ms": None}, "delay_ms"),
    ("send", COLUMNS | {"subject": None}, "subjects"),
    ("cancel", {}, "receipts, messages, count"),
    ("cancel", NAMES | {"receipts": ["r"]}, "receipts and messages"),
    ("cancel", {"receipts": ["r"], "count": 1}, "receipts and count"),
    ("cancel", {"count": 1, "sequence": 1}, "due_ms"),
    ("cancel", {"count": 1, "sequence": True, "due_ms": 1}, "sequence"),
    ("lookup", NAMES | {"receipts": ["r"]}, "receipts and messages"),
    ("reschedule", {}, "items, count"),
    ("reschedule", {"items": [{}], "count": 1}, "items and count"),
    ("commit", {}, "receipts, items"),
    ("commit", {"receipts": ["r"], "items": [{}]}, "receipts and items"),
    ("rollback", {"receipts": []}, "receipts"),
    ("route", {}, "group, subject"),
    ("route", {"group": "default", "subject": "s"}, "group and subject"),
    ("pull", GROUP | {"columns": 1}, "columns"),
    ("pull", GROUP | {"max_messages": 0}, "max_messages"),
    ("pull", GROUP | {"wait_ms": True}, "wait_ms"),
    ("pull", GROUP | {"ack": [1]}, "ack"),
    ("pull", GROUP | {"ack": {"count": 1}}, "deliveries"),
    ("ack", GROUP | {"deliveries": 1}, "count"),
    ("nack", GROUP | {"count": 1, "deliveries": 1, "delay_ms": -1}, "delay_ms"),
    ("redispatch", {"to_ms": 1}, "from_ms"),
    ("redispatch", {"from_ms": 5, "to_ms": 5}, "from_ms"),
    ("redispatch", TIMES | {"dry_run": 1}, "dry_run"),
    ("redispatch", TIMES | {"outcomes": ["cancelled"]}, "outcomes"),
    ("redispatch", TIMES | {"after": [1]}, "after"),
]


@pytest.mark.parametrize(("operation", "arguments", "field"), WRONG)
async def test_a_wrong_argument_is_refused_and_named_in_the_words_of_the_protocol(
    boot: Boot, operation: str, arguments: dict[str, Any], field: str
) -> None:
    _, client = await boot.connected(small_settings())
    with pytest.raises(DelayServerError) as caught:
        await client.request(operation, arguments)
    assert caught.value.name == "invalid_argument"
    assert field in caught.value.message
    assert not re.search(r"\b(None|True|False|int|str|dict)\b", caught.value.message)


async def test_nil_is_the_same_as_a_missing_argument(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    nothing = dict.fromkeys(("message_id", "properties", "expires_ms", "delay_ms"))
    (sent,) = await client.send({"subject": "s", "body": "b", "due_ms": host.now_ms} | nothing)
    columns = dict.fromkeys(("messages", "message_ids", "message_id_length", "properties", "expires_ms", "subjects"))
    assert (await client.request("send", COLUMNS | columns))["accepted"] == 1
    assert await client.request("cancel", {"receipts": [sent["receipt"]], "messages": None, "count": None})
    optional = dict.fromkeys(("max_messages", "max_bytes", "wait_ms", "ack_timeout_ms", "columns", "ack"))
    await host.sleep_ms(100)
    (pulled,) = (await client.request("pull", GROUP | optional))["messages"]
    nack = {"count": 1, "deliveries": pulled["delivery"], "delay_ms": None}
    assert (await client.request("nack", GROUP | nack))["nacked"] == 1
    wanted = {"from_ms": 0, "to_ms": host.now_ms} | dict.fromkeys(("subject", "outcomes", "dry_run", "after"))
    assert "messages" in await client.request("redispatch", wanted)


async def test_an_error_names_a_delay_beyond_the_maximum_as_it_was_given(boot: Boot) -> None:
    _, client = await boot.connected(small_settings())
    delay_ms = (1 << 62) + 12_345
    (result,) = await client.send({"subject": "s", "body": "b", "delay_ms": delay_ms})
    reply = await client.request("send", COLUMNS | {"delay_ms": delay_ms})
    assert result["error"] == reply["rejected"][0][1] == "too_far"
    assert str(delay_ms) in result["message"] and str(delay_ms) in reply["rejected"][0][2]
