"""`cancel_wait`: a client ends its own long poll, and a pull whose client gave up hands out nothing."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import encode_request
from tests.fakes.host import Boot, Client, Host, small_settings

PULL: dict[str, Any] = {"subject": "s", "group": "g", "wait_ms": 60_000, "max_messages": 10}


async def ready(boot: Boot, subject_seen: bool) -> tuple[Host, Client]:
    host, client = await boot.connected(small_settings())
    if subject_seen:
        await client.put("first", host.now_ms)
        await host.sleep_ms(100)
        (first,) = await client.pull()
        await client.request("ack", {"subject": "s", "group": "g", "count": 1, "deliveries": first["delivery"]})
    return host, client


@pytest.mark.parametrize("subject_seen", [True, False])
async def test_a_pull_that_waits_is_answered_empty_and_hands_out_nothing_later(boot: Boot, subject_seen: bool) -> None:
    host, client = await ready(boot, subject_seen)
    number = await client.ask("pull", PULL)
    await host.sleep_ms(500)
    assert (await client.request("cancel_wait", {"id": number}))["ended"]
    assert (await client.reply(number))["messages"] == []
    await client.put("m", host.now_ms)
    await host.sleep_ms(100)
    assert [message["body"] for message in await client.pull()] == [b"m"], "it was leased to nobody"
    assert not (await client.request("cancel_wait", {"id": number}))["ended"]
    assert host.server.parts.groups.consuming.waiting_pulls == 0


async def test_a_wait_can_be_ended_in_the_same_write_in_which_it_began(boot: Boot) -> None:
    _, client = await ready(boot, True)
    await client.send_bytes(encode_request(500, "pull", PULL) + encode_request(501, "cancel_wait", {"id": 500}))
    assert (await client.reply(501))["ended"]
    assert (await client.reply(500))["messages"] == []


async def test_the_ack_of_a_pull_is_carried_out_also_where_its_wait_is_ended_at_once(boot: Boot) -> None:
    host, client = await ready(boot, True)
    await client.put("m", host.now_ms)
    await host.sleep_ms(100)
    (message,) = await client.pull()
    acked = PULL | {"ack": {"count": 1, "deliveries": message["delivery"]}}
    await client.send_bytes(encode_request(500, "pull", acked) + encode_request(501, "cancel_wait", {"id": 500}))
    await client.reply(500)
    (group,) = (await client.request("groups"))["groups"]
    assert (group["lag"], group["leased"]) == (0, 0)


async def test_only_the_waits_of_its_own_connection_are_ended(boot: Boot) -> None:
    host, client = await ready(boot, True)
    other = await host.client()
    number = await client.ask("pull", PULL)
    await host.sleep_ms(100)
    assert not (await other.request("cancel_wait", {"id": number}))["ended"]
    assert await client.refused("cancel_wait", {"id": 0}) == "invalid_argument"
    await other.put("m", host.now_ms)
    assert len((await client.reply(number))["messages"]) == 1
    await host.sleep_ms(10)
    assert not (await client.request("cancel_wait", {"id": number}))["ended"]


async def test_a_pull_that_was_refused_waits_for_nothing(boot: Boot) -> None:
    _, client = await ready(boot, True)
    number = await client.ask("pull", PULL | {"broadcast": "yes"})
    with pytest.raises(InvalidArgument):
        await client.reply(number)
    assert not (await client.request("cancel_wait", {"id": number}))["ended"]
