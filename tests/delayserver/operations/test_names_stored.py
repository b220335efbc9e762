"""Names are not for everybody to fill: a misspelt one stores nothing, and consumer groups have a bound of their own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.host import Boot, Client, small_settings


async def pull(client: Client, subject: str, group: str, **more: Any) -> list[dict[str, Any]]:
    result = await client.request("pull", {"subject": subject, "group": group} | more)
    messages: list[dict[str, Any]] = result["messages"]
    return messages


@pytest.mark.parametrize("operation", ["ack", "nack"])
@pytest.mark.parametrize(("subject", "group"), [("misspelt", "g"), ("s", "misspelt"), ("misspelt", "too")])
async def test_an_ack_or_nack_of_names_never_seen_stores_neither(
    boot: Boot, operation: str, subject: str, group: str
) -> None:
    host, client = await boot.connected(small_settings())
    server = host.server
    await client.put("m", host.now_ms)
    await host.sleep_ms(100)
    before = len(server.parts.files.names)
    arguments = {"subject": subject, "group": group, "count": 2, "deliveries": [1]}
    assert (await client.request(operation, arguments))["unknown"] == 2
    assert len(server.parts.files.names) == before
    assert (await client.request("groups"))["groups"] == []


async def test_a_pull_of_a_subject_never_seen_stores_nothing_and_is_answered_empty(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    server = host.server
    before = len(server.parts.files.names)
    assert await pull(client, "misspelt", "g") == []
    assert await pull(client, "misspelt", "g", wait_ms=1_000) == []
    assert len(server.parts.files.names) == before
    assert (await client.status())["broker"]["waiting_pulls"] == 0


async def test_a_pull_waits_for_the_first_message_of_a_subject(boot: Boot) -> None:
    host = await boot.started(small_settings())
    waiting, also, client = [await host.client() for _ in range(3)]
    asked = [
        (one, await one.ask("pull", {"subject": "first", "group": group, "wait_ms": 60_000}))
        for one, group in ((waiting, "g"), (also, "h"))
    ]
    await host.sleep_ms(1_000)
    assert (await client.status())["broker"]["waiting_pulls"] == 2
    await client.send({"subject": "first", "body": "m", "due_ms": host.now_ms + 2_000})
    for one, number in asked:
        (message,) = (await one.reply(number))["messages"]
        assert message["body"] == b"m"
    assert (await client.status())["broker"]["waiting_pulls"] == 0


async def test_a_waiting_pull_of_a_subject_never_seen_ends_in_its_time_and_with_its_connection(boot: Boot) -> None:
    host = boot(small_settings(broker={"waiting_pulls_max": 2}))
    server = await host.start()
    gone, waiting, client = [await host.client() for _ in range(3)]
    await gone.ask("pull", {"subject": "never", "group": "g", "wait_ms": 60_000})
    number = await waiting.ask("pull", {"subject": "never", "group": "g", "wait_ms": 1_000})
    await host.sleep_ms(100)
    assert await client.refused("pull", {"subject": "never", "group": "g", "wait_ms": 1}) == "queue_full"
    assert (await waiting.reply(number))["messages"] == []
    gone.transport.close()
    await host.sleep_ms(100)
    assert server.parts.groups.consuming.waiting_pulls == 0


async def test_groups_have_a_bound_of_their_own_that_hello_and_status_tell(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(message={"subjects_max": 2}, broker={"groups_max": 2}))
    server = host.server
    await client.send(*[{"subject": name, "body": "m", "due_ms": host.now_ms} for name in ("a", "b")])
    await host.sleep_ms(100)
    for group in ("one", "two"):
        assert len(await pull(client, "a", group)) == 1, "subjects do not take the room of groups"
    before = len(server.parts.files.names)
    assert await client.refused("pull", {"subject": "a", "group": "three"}) == "groups_full"
    assert await client.refused("pull", {"subject": "b", "group": "one"}) == "groups_full"
    assert len(server.parts.files.names) == before
    (refused,) = await client.send({"subject": "c", "body": "m", "due_ms": host.now_ms})
    assert refused["error"] == "subjects_full"
    limits = (await client.request("hello", {"versions": [1]}))["limits"]
    assert (limits["subjects_max"], limits["groups_max"]) == (2, 2)
    status = await client.status()
    assert (status["storage"]["subjects"], status["broker"]["groups"]) == (2, 2)


async def test_the_bound_of_a_groups_waiting_pulls_holds_before_the_first_message(boot: Boot) -> None:
    host = boot(small_settings(broker={"waiting_pulls_max": 10, "mailbox_pulls_max": 2}))
    server = await host.start()
    waiting, client = await host.client(), await host.client()
    names = {"subject": "never", "group": "g"}
    asked = [await waiting.ask("pull", names | {"wait_ms": 60_000}) for _ in range(2)]
    await host.sleep_ms(100)
    assert await client.refused("pull", names | {"wait_ms": 1}) == "queue_full"
    other = await client.ask("pull", names | {"group": "other", "wait_ms": 500})
    assert (await client.reply(other))["messages"] == [], "another group has its own bound"
    await client.put("m", host.now_ms, subject="never")
    while not waiting.replies:  # the scheduler chooses which of the two pulls is first at the message
        await waiting.take()
    ((number, reply),) = waiting.replies.items()
    assert number in asked and reply.result is not None
    assert [message["body"] for message in reply.result["messages"]] == [b"m"]
    assert server.parts.groups.first_messages.waiting == 0


async def test_reads_that_wait_for_a_first_message_count_among_those_that_wait(boot: Boot) -> None:
    host = await boot.started(small_settings(broker={"waiting_pulls_max": 2}))
    waiting, client = await host.client(), await host.client()
    read = {"subject": "never", "position": 0, "wait_ms": 60_000}
    for _ in range(2):
        await waiting.ask("read", read)
    await host.sleep_ms(100)
    assert await client.refused("read", read) == "queue_full"
    assert await client.refused("pull", {"subject": "never", "group": "g", "wait_ms": 1}) == "queue_full"
