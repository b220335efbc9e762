"""A consumer that never acks: redeliveries back off, and what they keep on disk has a bound."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from delayserver.config.settings import Settings
from tests.fakes.host import Boot, Client, small_settings, texts

# The server looks for leases that ended every now and then, and a delivery takes its moment.
SLACK_MS = 200


def bounded(redelivery_bytes_max: int, **broker: Any) -> Settings:
    return small_settings(broker={"redelivery_bytes_max": redelivery_bytes_max, **broker})


async def settle(client: Client, operation: str, message: dict[str, Any], **rest: Any) -> dict[str, Any]:
    arguments = {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"]}
    return await client.request(operation, arguments | rest)


async def group_of(client: Client) -> dict[str, Any]:
    """The row of the one consumer group."""
    (group,) = (await client.request("groups"))["groups"]
    return dict(group)


@pytest.mark.parametrize("room", [1 << 30, 0], ids=["through the pipeline", "in its place"])
async def test_redeliveries_after_ack_timeouts_back_off_up_to_a_cap(boot: Boot, room: int) -> None:
    host, client = await boot.connected(bounded(room, redelivery_first_ms=1_000, redelivery_cap_ms=5_000))
    await client.put("m", host.now_ms)
    came_ms = []
    for attempt in range(1, 7):
        (message,) = await client.pull(wait_ms=20_000, ack_timeout_ms=500)
        came_ms.append(host.now_ms)
        assert (message["attempt"], message["body"]) == (attempt, b"m")
    pauses = [after - before for before, after in pairwise(came_ms)]
    for pause, expected in zip(pauses, (1_500, 2_500, 4_500, 5_500, 5_500), strict=True):
        assert expected <= pause < expected + SLACK_MS, pauses


@pytest.mark.parametrize("room", [1 << 30, 0], ids=["through the pipeline", "in its place"])
async def test_a_nack_backs_off_unless_the_client_asks_for_a_delay(boot: Boot, room: int) -> None:
    host, client = await boot.connected(bounded(room))
    await client.put("m", host.now_ms)
    (message,) = await client.pull(wait_ms=1_000)
    for rest, least_ms in (({}, 1_000), ({"delay_ms": 0}, 0), ({"delay_ms": 7_000}, 7_000), ({}, 8_000)):
        before_ms = host.now_ms
        assert await settle(client, "nack", message, **rest) == {"nacked": 1, "unknown": 0}
        (message,) = await client.pull(wait_ms=20_000)
        assert least_ms <= host.now_ms - before_ms < least_ms + SLACK_MS
    assert message["attempt"] == 5


async def test_a_group_that_never_acks_does_not_fill_the_disk_and_loses_nothing(boot: Boot) -> None:
    host, client = await boot.connected(bounded(60_000, redelivery_cap_ms=2_000))
    count, body = 40, "x" * 500
    for number in range(count):
        await client.put(f"{number} {body}", host.now_ms)
    await host.sleep_ms(100)
    attempts: dict[str, int] = {}
    used_bytes = host.disk.used_bytes
    end_ms = host.now_ms + 600_000
    while host.now_ms < end_ms:
        for message in await client.pull(wait_ms=5_000, ack_timeout_ms=1_000):
            number = message["body"].decode().split()[0]
            assert message["attempt"] == attempts.get(number, 0) + 1
            attempts[number] = message["attempt"]
    group = await group_of(client)
    assert group["redelivery_bytes"] <= 60_000
    assert group["waiting_in_place"] + group["leased"] > 0
    assert len(attempts) == count
    assert min(attempts.values()) > 100
    # Three copies of each redelivery would be some 15 MB; logs are preallocated in steps of a mebibyte.
    assert host.disk.used_bytes - used_bytes < 3_000_000
    done: set[str] = set()
    while len(done) < count:
        for message in await client.pull(wait_ms=5_000):
            assert (await settle(client, "ack", message))["acked"] == 1
            done.add(message["body"].decode().split()[0])
    assert await client.pull(wait_ms=10_000) == []
    group = await group_of(client)
    assert (group["lag"], group["waiting_in_place"], group["leased"]) == (0, 0, 0)


@pytest.mark.parametrize("clean", [True, False])
async def test_a_message_that_waits_in_its_place_keeps_its_pause_and_its_attempt_over_a_restart(
    boot: Boot, clean: bool
) -> None:
    host, client = await boot.connected(bounded(0))
    for number in range(4):
        await client.put(str(number), host.now_ms)
    await host.sleep_ms(100)
    messages = await client.pull(wait_ms=1_000)
    assert texts(messages) == ["0", "1", "2", "3"]
    assert await settle(client, "ack", messages[3]) == {"acked": 1, "unknown": 0}
    nacked_ms = host.now_ms
    assert await settle(client, "nack", messages[1], delay_ms=30_000) == {"nacked": 1, "unknown": 0}
    assert (await group_of(client))["waiting_in_place"] == 1
    if clean:
        await host.stop()
    else:
        await host.lose_power()
    client = await host.start_connected()
    group = await group_of(client)
    assert group["lag"] == 3
    # What was leased at the end is deliverable at once; what waits goes on waiting.
    assert texts(await client.pull(wait_ms=1_000)) == ["0", "2"]
    (message,) = await client.pull(wait_ms=60_000)
    assert (message["body"], message["attempt"]) == (b"1", 2)
    assert 30_000 <= host.now_ms - nacked_ms < 30_000 + SLACK_MS


async def test_a_lease_in_its_place_lasts_its_own_time(boot: Boot) -> None:
    """The deadline of the lease before it, which a nack ended, must not end it."""
    host, client = await boot.connected(bounded(0))
    await client.put("m", host.now_ms)
    (message,) = await client.pull(wait_ms=1_000, ack_timeout_ms=10_000)
    await host.sleep_ms(6_000)
    await settle(client, "nack", message, delay_ms=0)
    (message,) = await client.pull(wait_ms=1_000, ack_timeout_ms=10_000)
    await host.sleep_ms(9_000)
    assert await settle(client, "ack", message) == {"acked": 1, "unknown": 0}
    assert await client.pull(wait_ms=20_000) == []


async def test_an_ack_behind_its_lease_counts_for_a_message_that_waits_in_its_place(boot: Boot) -> None:
    host, client = await boot.connected(bounded(0))
    await client.put("m", host.now_ms)
    (message,) = await client.pull(wait_ms=1_000, ack_timeout_ms=1_000)
    await host.sleep_ms(1_500)
    assert await settle(client, "nack", message) == {"nacked": 0, "unknown": 1}
    assert await settle(client, "ack", message) == {"acked": 1, "unknown": 0}
    assert await client.pull(wait_ms=20_000) == []


async def test_a_message_that_expires_in_its_place_is_counted_and_not_handed_out(boot: Boot) -> None:
    host, client = await boot.connected(bounded(0))
    await client.put("m", host.now_ms, expires_ms=host.now_ms + 5_000)
    (message,) = await client.pull(wait_ms=1_000)
    assert await settle(client, "nack", message, delay_ms=1_000) == {"nacked": 1, "unknown": 0}
    await host.sleep_ms(6_000)
    assert await client.pull(wait_ms=1_000) == []
    group = await group_of(client)
    assert (group["expired"], group["lag"], group["waiting_in_place"]) == (1, 0, 0)


async def test_redeliveries_go_through_the_pipeline_again_when_room_comes(boot: Boot) -> None:
    settings = small_settings(
        storage={"retention_ms": 60_000, "message_log_retention_ms": 0},
        broker={"redelivery_bytes_max": 560, "retention_ms": 0},
    )
    host, client = await boot.connected(settings)
    for number in range(3):
        await client.put(str(number), host.now_ms)
    in_place = []
    for _ in range(2):
        await host.sleep_ms(100)
        for message in await client.pull(wait_ms=1_000):
            await settle(client, "nack", message, delay_ms=200_000)
        in_place.append((await group_of(client))["waiting_in_place"])
        await host.sleep_ms(200_000)
    assert in_place == [1, 1]
    assert (await group_of(client))["redelivery_bytes"] <= 560
