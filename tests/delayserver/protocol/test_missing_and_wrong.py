"""The table "missing, nil, wrong type" of PROTOCOL.md, asked of a server row by row."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.delayserver.protocol.test_document import rows, section
from tests.fakes.host import Boot, Host, small_settings

Arguments = dict[str, Any]
LEFT_OUT = object()
# Of each row of the table: an operation, its other arguments, the argument, and wrong values of it.
GROUP = {"subject": "s", "group": "g"}
ACK = GROUP | {"count": 0, "deliveries": b""}
NAMED = {"subject": "s", "message_id": "m", "due_ms": 1}
OF_ONE_GROUP = (
    "`subject` and `group` of an operation about one consumer group: `pull`, `ack`, `nack`, `extend`, `group`, `seek`, "
    "`remove_group`, `policy`, `dead_letters`, `waiting_keys`"
)
CASES: dict[str, list[tuple[str, Arguments, str, list[Any]]]] = {
    "`subject` of a message or of `read`": [
        ("send row", {"body": "", "delay_ms": 10**6}, "subject", [5, b"s", "", True, "a\nb"]),
        ("cancel row", {"message_id": "m", "due_ms": 1}, "subject", [5, ""]),
        ("read", {"position": 0}, "subject", [5, ""]),
    ],
    OF_ONE_GROUP: [
        (operation, ACK | {"action": "list", "to": "latest"}, name, [5, ""])
        for operation in OF_ONE_GROUP.partition(": ")[2].replace("`", "").split(", ")
        for name in ("subject", "group")
    ],
    "`subject` of `groups`": [("groups", {}, "subject", [5, ""])],
    "`message_id` of a new message": [
        ("send row", {"subject": "s", "body": "", "delay_ms": 10**6}, "message_id", [5, ""])
    ],
    "`message_id` that names a message": [("cancel row", {"subject": "s", "due_ms": 1}, "message_id", [5, ""])],
    "`properties` of a row": [
        ("send row", {"subject": "s", "body": "", "delay_ms": 10**6}, "properties", [5, [], {"a": 1}, {b"a": "b"}]),
    ],
    "`versions` of `hello`": [("hello", {}, "versions", [1, [], [2], [True]])],
    "`group` of `route`": [("route", {}, "group", [5, "nobody"])],
    "`group` of `prepare`": [("prepare", {"messages": [{}]}, "group", [5, "", "a\nb"])],
    "`client` of `hello`": [("hello", {"versions": [1]}, "client", [5, []])],
    "`proof` of `prove`": [("prove", {}, "proof", [5, b"x", "x"])],
}
# Arguments of the general rule, which have no row: required ones and optional ones.
REQUIRED: list[tuple[str, Arguments, str, list[Any]]] = [
    ("send", {}, "messages", [5, {}, []]),
    ("send row", {"subject": "s", "delay_ms": 0}, "body", [5, [], True]),
    ("send row", {"subject": "s", "body": ""}, "delay_ms", [True, 1.0, "1", -1]),
    ("send row", {"subject": "s", "body": ""}, "due_ms", [True, 1.0, "1"]),
    ("send", {"count": 1, "subject": "s", "delay_ms": 0, "body_length": 0}, "bodies", ["", 5]),
    ("cancel", {"count": 1, "due_ms": 1}, "sequence", [True, 1.0, "1", [1, 2], b"1"]),
    ("ack", GROUP | {"deliveries": b""}, "count", [True, 1.0, "1", -1]),
    ("cancel_wait", {}, "id", [True, 0, "1"]),
    ("redispatch", {"to_ms": 5}, "from_ms", [True, "1"]),
    ("pending", {}, "by", [1, "day", b"minute"]),
    ("window_complete", {"server_id": "0" * 12}, "window_ms", [1, ["x"], [True]]),
]
OPTIONAL: list[tuple[str, Arguments, str, list[Any]]] = [
    ("cancel row", {"subject": "s", "message_id": "m"}, "due_ms", [True, 1.0, "1"]),
    ("pull", GROUP, "max_messages", [True, 0, "1", 1.0]),
    ("pull", GROUP, "max_bytes", [True, 0, "1"]),
    ("pull", GROUP, "wait_ms", [True, -1, "1"]),
    ("pull", GROUP, "ack_timeout_ms", [True, 0, "1"]),
    ("pull", GROUP, "columns", [1, "true"]),
    ("pull", GROUP, "ack", [1, []]),
    ("nack", ACK, "delay_ms", [True, -1, "1"]),
    ("extend", ACK, "ack_timeout_ms", [True, 0, "1", 86_400_001]),
    ("extend", ACK, "outlive_ms", [True, -1, "1", 60_001]),
    ("pull", GROUP, "outlive_ms", [True, -1, "1", 60_001]),
    ("groups", {}, "max", [True, 0, 257]),
    ("groups", {}, "after", [1, [1], ["a", "b"]]),
    ("find", {"key": "k"}, "subject", [5, b"s", ""]),
    ("find", {"key": "k"}, "from_ms", [True, -1, "1"]),
    ("find", {"key": "k"}, "max", [True, 0, 1001]),
    ("find", {"key": "k"}, "after", [1, [1], ["a", "b"]]),
    ("pending", {"by": "hour"}, "from_ms", [True, -1, "1"]),
    ("pending", {"by": "hour"}, "to_ms", [True, -1, 1 << 54]),
    ("pending", {"by": "hour"}, "max", [True, 0, 1441]),
    ("pending", {"by": "subject"}, "max", [True, 0, 4097]),
    ("pending", {"by": "subject"}, "after", [True, -1, [1]]),
    ("pending", {"by": "message"}, "subject", [5, b"a*", "*" * 1025]),
    ("pending", {"by": "message"}, "from_ms", [True, -1, "1"]),
    ("pending", {"by": "message"}, "to_ms", [True, -1, 1 << 54]),
    ("pending", {"by": "message"}, "tag", [5, True]),
    ("pending", {"by": "message"}, "bodies", [5, "yes"]),
    ("pending", {"by": "message"}, "latest_first", [5, "yes"]),
    ("pending", {"by": "message"}, "count", [5, "yes"]),
    ("pending", {"by": "message"}, "places", [5, "yes"]),
    ("pending", {"by": "message"}, "after", [True, 1, "x" * 257]),
    ("pending", {"by": "message"}, "max", [True, 0, 1025]),
    ("subjects", {}, "pattern", [5, b"a*", "*" * 1025]),
    ("subjects", {}, "prefix", [5, True]),
    ("subjects", {}, "after", [True, -1, [1]]),
    ("subjects", {}, "max", [True, 0, 4097]),
    ("send row", {"subject": "s", "body": "", "delay_ms": 10**6}, "expires_ms", [True, -1, "1"]),
    ("prepare", {"group": "p", "messages": [{}]}, "check_after_ms", [True, 999, 10**15, "1"]),
    ("prepare", {"group": "p", "messages": [{}]}, "checks_max", [True, -1, 1001, "1"]),
    ("prepare", {"group": "p", "messages": [{}]}, "policy", [1, "keep"]),
    ("redispatch", {"from_ms": 0, "to_ms": 5}, "dry_run", [1, "no"]),
    ("redispatch", {"from_ms": 0, "to_ms": 5}, "outcomes", [1, [], ["cancelled"]]),
    ("redispatch", {"from_ms": 0, "to_ms": 5}, "subject", [1]),
]


def table() -> dict[str, tuple[str, str]]:
    """What the page says of each row: the error where the argument is missing, and where it is wrong. "" for none."""
    found = {}
    for what, missing, wrong in rows(section("## 6 Missing, nil, wrong type"))[1:]:
        names = [re.fullmatch(r"`(\w+)`(, id 0)?", cell) for cell in (missing, wrong)]
        found[what] = (names[0][1] if names[0] else "", names[1][1] if names[1] else "")
    return found


async def error_of(host: Host, operation: str, arguments: Arguments, name: str, value: Any) -> str:
    """The error name of a request, or of its only item; "" where there is none."""
    client = await host.client()
    others = {other: argument for other, argument in arguments.items() if other != name}
    given = others if value is LEFT_OUT else others | {name: value}
    verb, _, row = operation.partition(" ")
    if not row:
        request_id = await client.ask(verb, given)
        while request_id not in client.replies:
            await client.take()
        error = client.replies[request_id].error
        return "" if error is None else error.name
    result = await client.request(verb, {"messages": [given]})
    return str(result["results"][0].get("error", ""))


async def check(host: Host, case: tuple[str, Arguments, str, list[Any]], missing: str, wrong: str) -> None:
    operation, arguments, name, values = case
    assert await error_of(host, operation, arguments, name, LEFT_OUT) == missing, (operation, name)
    assert await error_of(host, operation, arguments, name, None) == missing, (operation, name)
    for value in values:
        assert await error_of(host, operation, arguments, name, value) == wrong, (operation, name, value)


@pytest.mark.parametrize("what", CASES)
async def test_an_argument_with_a_name_of_its_own_is_answered_as_the_table_says(boot: Boot, what: str) -> None:
    host: Host = boot(small_settings())
    await host.start()
    missing, wrong = table()[what]
    for case in CASES[what]:
        # A route is asked for by a subject or a group, so one that is missing leaves no form.
        await check(host, case, missing or ("invalid_argument" if case[0] == "route" else ""), wrong)


@pytest.mark.parametrize("receipt", [None, 5, "nonsense"])
async def test_a_malformed_receipt_is_answered_as_the_table_says(boot: Boot, receipt: Any) -> None:
    host: Host = boot(small_settings())
    await host.start()
    [row] = (await (await host.client()).request("lookup", {"receipts": [receipt]}))["results"]
    assert (row["error"], row["error"]) == table()["a receipt in `receipts`"]


async def test_every_other_argument_follows_the_one_rule(boot: Boot) -> None:
    host: Host = boot(small_settings())
    await host.start()
    for case in REQUIRED:
        await check(host, case, "invalid_argument", "invalid_argument")
    for case in OPTIONAL:
        await check(host, case, "", "invalid_argument")


@pytest.mark.parametrize("name", ["due_ms", "delay_ms", "delay_level"])
async def test_a_nil_time_of_a_published_row_counts_as_missing(boot: Boot, name: str) -> None:
    host: Host = boot(small_settings())
    await host.start()
    row = {"subject": "orders", "body": "x"}
    assert await error_of(host, "publish row", row, name, None) == ""
    assert await error_of(host, "publish row", row, name, 1) == "invalid_argument"


@pytest.mark.parametrize(
    "both",
    [
        {"subject": "a", "subjects": ["a"], "subject_index": bytes(4)},
        {"subject": "a", "tag": "t", "tags": ["t"], "tag_index": bytes(4)},
    ],
)
@pytest.mark.parametrize("operation", ["send", "publish"])
async def test_one_name_for_all_and_names_for_each_are_refused_together(
    boot: Boot, operation: str, both: Arguments
) -> None:
    host: Host = boot(small_settings())
    await host.start()
    columns = {"count": 1, "bodies": b"x", "body_length": [1]} | ({"delay_ms": [5]} if operation == "send" else {})
    assert await error_of(host, operation, columns | both, "count", 1) == "invalid_argument"
