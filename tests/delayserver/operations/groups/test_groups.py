"""The operation `groups` shows what each consumer group has before it, by pages; `status` does not grow with the groups."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.protocol.frames import encode_reply
from tests.fakes.host import Boot, Client, Host, small_settings


async def pull(client: Client, subject: str, group: str, count: int = 1) -> list[dict[str, Any]]:
    arguments = {"subject": subject, "group": group, "max_messages": count}
    messages: list[dict[str, Any]] = (await client.request("pull", arguments))["messages"]
    return messages


async def deliver(host: Host, client: Client, subject: str, count: int) -> int:
    """Let messages arrive; returns when they were due."""
    due_ms = host.now_ms
    await client.send(*[{"subject": subject, "body": "m", "due_ms": due_ms} for _ in range(count)])
    await host.sleep_ms(200)
    return due_ms


async def test_one_group_is_shown_whose_oldest_message_has_to_be_read_from_the_disk(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    due_ms = await deliver(host, client, "orders", 5)
    await pull(client, "orders", "shop")
    await host.restart()
    row = await (await host.client()).request("group", {"subject": "orders", "group": "shop"})
    assert (row["lag"], row["oldest_ms"]) == (5, due_ms)


async def test_a_group_has_its_position_its_lag_and_its_oldest_message(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    due_ms = await deliver(host, client, "orders", 5)
    first, second, third = await pull(client, "orders", "shop", 3)
    ack = {"subject": "orders", "group": "shop", "count": 1, "deliveries": first["delivery"]}
    await client.request("ack", ack)
    await client.request("nack", ack | {"deliveries": third["delivery"], "delay_ms": 60_000})
    (row,) = (await client.request("groups"))["groups"]
    assert row == {
        "subject": "orders",
        "group": "shop",
        "position": 1,
        "end": 5,
        "lag": 4,
        "leased": 1,
        "retrying": 1,
        "expired": 0,
        "filtered": 0,
        "tags": None,
        "where": None,
        "waiting_in_place": 0,
        "redelivery_bytes": 3 * (64 + len("m")),
        "waiting_keys": 0,
        "oldest_ms": due_ms,
        "dead_letters": 0,
    }, "what was nacked waits for its redelivery, and counts meanwhile"
    await client.request("ack", ack | {"deliveries": second["delivery"]})
    (row,) = (await client.request("groups"))["groups"]
    assert (row["position"], row["lag"], row["leased"]) == (3, 3, 0)


async def test_groups_come_by_pages_and_by_subject(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    for subject in ("a", "b"):
        await deliver(host, client, subject, 1)
        for number in range(5):
            await pull(client, subject, f"group {number}")
    found, after, pages = [], None, 0
    while True:
        page = await client.request("groups", {"max": 3, "after": after})
        found += [(row["subject"], row["group"]) for row in page["groups"]]
        after, pages = page["next"], pages + 1
        if after is None:
            break
    assert sorted(found) == [(subject, f"group {number}") for subject in ("a", "b") for number in range(5)]
    assert pages == 4
    only = await client.request("groups", {"subject": "b", "max": 3})
    rest = await client.request("groups", {"subject": "b", "after": only["next"]})
    assert [row["subject"] for row in only["groups"] + rest["groups"]] == ["b"] * 5
    assert (await client.request("groups", {"subject": "never seen"}))["groups"] == []


@pytest.mark.parametrize("arguments", [{"max": 0}, {"max": 257}, {"after": [1]}, {"after": "x"}])
async def test_a_wrong_page_is_refused(boot: Boot, arguments: dict[str, Any]) -> None:
    host = await boot.started(small_settings())
    assert await (await host.client()).refused("groups", arguments) == "invalid_argument"


async def test_status_does_not_grow_with_the_groups(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    await deliver(host, client, "s", 1)
    await pull(client, "s", "first")
    size = len(encode_reply(1, await client.status()))
    for number in range(300):
        await pull(client, "s", f"group {number}")
    status = await client.status()
    assert status["broker"]["groups"] == 301
    assert len(encode_reply(1, status)) < size + 200


@pytest.mark.parametrize("operation", ["publish", "send"])
async def test_a_pull_from_the_latest_message_on_gets_the_first_message_of_its_subject(
    boot: Boot, operation: str
) -> None:
    host = await boot.started(small_settings())
    client, other = await host.client(), await host.client()
    arguments = {"subject": "orders", "group": "shop", "start": "latest", "wait_ms": 5_000}
    waiting = await client.ask("pull", arguments)
    await host.sleep_ms(50)
    due = {"due_ms": host.now_ms} if operation == "send" else {}
    await other.request(operation, {"messages": [{"subject": "orders", "body": "first"} | due]})
    messages = (await client.reply(waiting))["messages"]
    assert [message["body"] for message in messages] == [b"first"]
