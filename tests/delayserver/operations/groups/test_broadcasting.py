"""Broadcast groups over one connection: pulls in parallel, given up, and the end of the connection."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.protocol.errors import GroupsFull, PositionOutOfRange
from delayserver.state.connections import broadcasts
from delayserver.state.connections.broadcasts import Broadcasts
from tests.fakes.host import Boot, Client, Host, small_settings

PULL = {"subject": "orders", "group": "g", "broadcast": True}


async def bodies(client: Client, **changes: Any) -> list[bytes]:
    return [row["body"] for row in (await client.request("pull", PULL | changes))["messages"]]


async def booted(boot: Boot) -> tuple[Host, Client]:
    host = await boot.started(small_settings())
    return host, await host.client()


async def deliver(host: Host, client: Client, *texts: str) -> None:
    await client.send(*[{"subject": "orders", "body": text, "due_ms": host.now_ms} for text in texts])
    await host.sleep_ms(200)


async def test_parallel_pulls_of_a_connection_share_the_messages(boot: Boot) -> None:
    host, client = await booted(boot)
    await deliver(host, client, "a")
    assert await bodies(client) == []
    first = await client.ask("pull", PULL | {"wait_ms": 5000})
    second = await client.ask("pull", PULL | {"wait_ms": 5000})
    await deliver(host, client, "b")
    await deliver(host, client, "c")
    found = [(await client.reply(request))["messages"] for request in (first, second)]
    assert sorted(row["body"] for messages in found for row in messages) == [b"b", b"c"]


async def test_a_pull_that_was_given_up_takes_no_message(boot: Boot) -> None:
    host, client = await booted(boot)
    assert await bodies(client) == []
    waiting = await client.ask("pull", PULL | {"wait_ms": 5000})
    await host.sleep_ms(50)
    assert (await client.request("cancel_wait", {"id": waiting}))["ended"]
    assert (await client.reply(waiting))["messages"] == []
    await deliver(host, client, "a")
    assert await bodies(client) == [b"a"]


async def test_a_group_ends_with_its_connection(boot: Boot) -> None:
    host, client = await booted(boot)
    assert await bodies(client) == []
    await deliver(host, client, "a")
    client.transport.close()
    await host.sleep_ms(50)
    assert await bodies(await host.client()) == []
    assert host.server.parts.broker.core.status()["groups"] == 0


def test_groups_do_not_come_back_after_the_end() -> None:
    groups = Broadcasts()
    groups.put(("orders", "g"), 7)
    groups.end()
    groups.put(("orders", "g"), 8)
    assert not len(groups)


async def test_a_connection_has_a_bounded_number_of_groups(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "BROADCASTS_MAX", 2)
    _, client = await booted(boot)
    await bodies(client)
    await bodies(client, group="h")
    await bodies(client)
    with pytest.raises(GroupsFull):
        await bodies(client, group="i")


async def test_a_group_gets_no_expired_message(boot: Boot) -> None:
    host, client = await booted(boot)
    assert await bodies(client) == []
    soon = {"subject": "orders", "due_ms": host.now_ms, "expires_ms": host.now_ms + 1000}
    await client.send(soon | {"body": "a"}, soon | {"body": "b", "expires_ms": 0}, soon | {"body": "c"})
    await host.sleep_ms(1000)
    assert await bodies(client, max_messages=10) == [b"b"]
    await client.send(*[soon | {"body": text, "expires_ms": host.now_ms + 1000} for text in ("d", "e")])
    await host.sleep_ms(1000)
    waiting = await client.ask("pull", PULL | {"wait_ms": 5000})
    await deliver(host, client, "f")
    assert [row["body"] for row in (await client.reply(waiting))["messages"]] == [b"f"]


async def test_a_group_that_retention_passed_gets_one_error_and_goes_on(boot: Boot) -> None:
    host, client = await booted(boot)
    await deliver(host, client, "a", "b", "c")
    assert await bodies(client, start="earliest") == [b"a"]
    ((_, queue),) = host.server.parts.broker.core.state.queues.items()
    queue.drop_below(2)
    with pytest.raises(PositionOutOfRange) as caught:
        await bodies(client)
    assert caught.value.details == {"first": 2, "end": 3}
    assert await bodies(client) == [b"c"]
