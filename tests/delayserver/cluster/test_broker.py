"""The embedded broker of whole servers as members: consumer groups go on at the new primary where they were."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from delayserver.protocol.errors import InDoubt
from delayserver.server.delay_server import LeadershipLost
from store.errors import CorruptionError
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.operations.groups.test_redelivery_crashes import GONE, OPERATIONS, Told, judge, script
from tests.fakes.host import DATA_DIR, Boot, Client, small_settings, texts

# The records that a primary appends during the script below, beats among them.
RECORDS = 60


def members(boot: Boot, names: str = "ab", **parts: Any) -> Cluster:
    """Members that deliver to their own brokers."""
    return Cluster(boot, names, small_settings(**parts))


async def publish(client: Client, *bodies: str, subject: str = "s") -> None:
    for body in bodies:
        await client.request("publish", {"messages": [{"subject": subject, "body": body}]})


async def ack(client: Client, messages: list[dict[str, Any]], operation: str = "ack", **rest: Any) -> int:
    """How many of these deliveries were still leased: acked, or nacked."""
    count = 0
    for message in messages:
        result = await client.request(
            operation, {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"]} | rest
        )
        count += result[f"{operation}ed"]
    return count


async def test_a_group_goes_on_at_the_new_primary_where_it_was(boot: Boot) -> None:
    cluster = members(boot)
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await first.start_connected()
    second.begin()
    await publish(client, "one", "two")
    await client.put("three", first.now_ms + 500)
    await client.put("four", first.now_ms + 30_000)
    await first.sleep_ms(1_000)
    pulled = await client.pull()
    assert texts(pulled) == ["one", "two", "three"]
    assert await ack(client, pulled[:2]) == 2
    await first.kill()
    await second.wait_up()
    other = await second.client()
    assert await ack(other, pulled[2:]) == 1, "the consumer has it since before the takeover"
    await publish(other, "five")
    assert texts(again := await other.pull()) == ["five"]
    assert await ack(other, again) == 1
    await second.sleep_ms(40_000)
    assert texts(await other.pull()) == ["four"]
    status = await second.balanced(pending=0)
    assert status["delivered"] == 2


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_was_redelivered_before_a_takeover_waits_for_no_group_behind_it(boot: Boot, restarts: bool) -> None:
    cluster = members(boot)
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await first.start_connected()
    second.begin()
    await publish(client, "one", "two")
    assert await ack(client, await client.pull(), "nack", delay_ms=500) == 2
    await first.sleep_ms(300)
    if restarts:
        await second.kill()
    await first.sleep_ms(1_000)
    again = await client.pull()
    assert texts(again) == ["one", "two"]
    assert await ack(client, again[:1]) == 1
    assert await ack(client, again[1:], "nack", delay_ms=60_000) == 1
    if restarts:
        second.begin()
        await second.sleep_ms(1_000)
    await first.kill()
    await second.wait_up()
    (row,) = (await (await second.client()).request("groups"))["groups"]
    assert (row["lag"], row["retrying"]) == (1, 1)


async def test_a_new_primary_counts_each_redelivery_that_waits_once(boot: Boot) -> None:
    cluster = members(boot)
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await first.start_connected()
    second.begin()
    await publish(client, "one", "two")
    assert await ack(client, (await client.pull())[:1], "nack", delay_ms=60_000) == 1
    await first.sleep_ms(500)
    await first.kill()
    await second.wait_up()
    other = await second.client()
    assert (await other.status())["broker"]["redeliveries_waiting"] == 1
    (rest,) = await other.pull()
    assert await ack(other, [rest], "nack", delay_ms=60_000) == 1
    await second.sleep_ms(500)
    assert (await other.status())["broker"]["redeliveries_waiting"] == 2


async def test_a_new_primary_gives_no_message_the_sequence_of_a_published_one(boot: Boot) -> None:
    cluster = members(boot)
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await first.start_connected()
    second.begin()
    await publish(client, "one", "two")
    await first.sleep_ms(500)
    await first.kill()
    await second.wait_up()
    other = await second.client()
    assert (await other.put("three", second.now_ms))["sequence"] == 3
    await second.sleep_ms(500)
    assert texts(await other.pull()) == ["one", "two", "three"]


@pytest.mark.parametrize("first", [1, 6])
async def test_a_primary_that_dies_at_any_call_of_its_disk_doubles_and_loses_nothing(boot: Boot, first: int) -> None:
    for operation in range(first, OPERATIONS, 10):
        cluster = members(boot)
        dying, standby = cluster.hosts["a"], cluster.hosts["b"]
        client = await dying.start_connected()
        standby.begin()
        await standby.sleep_ms(10)
        cluster.engine.logs[1].delay_s = 0.25  # it reads more at once, so its own log gets other offsets
        told = Told()
        dying.disk.crash_after(operation)
        try:
            await script(dying, client, told)
        except GONE:
            pass
        await dying.lose_power(operation)
        await standby.wait_up()
        dying.begin()
        other = await standby.client()
        await judge(standby, other, told, operation)
        await publish(other, "last")
        await standby.kill()
        await dying.wait_up()
        assert texts(await (await dying.client()).pull()) == ["last"], operation
        await dying.stop()


@pytest.mark.parametrize("first", [1, 6])
async def test_a_primary_whose_last_records_never_came_into_the_log_forgets_them(boot: Boot, first: int) -> None:
    for count in range(first, RECORDS, 10):
        cluster = members(boot)
        losing, standby = cluster.hosts["a"], cluster.hosts["b"]
        client = await losing.start_connected()
        standby.begin()
        await standby.sleep_ms(10)
        cluster.engine.logs[1].delay_s = 0.25  # it reads more at once, so its own log gets other offsets
        told = Told()
        cluster.engine.logs[0].lose_from(count)
        with trio.move_on_after(10):
            try:
                await script(losing, client, told)
            except GONE:
                pass
        await losing.wait_down()
        assert isinstance(losing.died_of, LeadershipLost)
        losing.disk.kill()
        await standby.wait_up()
        other = await standby.client()
        await publish(other, "first")
        losing.begin()
        await judge(standby, other, told, count)
        await publish(other, "last")
        await standby.kill()
        await losing.wait_up()
        assert texts(await (await losing.client()).pull()) == ["last"], count
        await losing.stop()


async def test_what_a_superseded_primary_was_asked_last_is_in_doubt(boot: Boot) -> None:
    cluster = members(boot)
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await first.start_connected()
    second.begin()
    await publish(client, "one")
    (message,) = await client.pull()
    cluster.engine.logs[0].connect(False)
    published = await client.ask("publish", {"messages": [{"subject": "s", "body": "two"}]})
    acked = await client.ask("ack", {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"]})
    await second.wait_up()
    cluster.engine.logs[0].connect(True)
    for asked in (published, acked):
        with pytest.raises((InDoubt, ConnectionResetError)):  # an end without an answer says the same
            await client.reply(asked)
    await first.wait_down()
    assert isinstance(first.died_of, LeadershipLost)
    assert texts(await (await second.client()).pull()) == ["one"]


@pytest.mark.parametrize("lost", ["", "/progress.log", "/store"])
async def test_a_member_that_lost_its_broker_s_files_does_not_start(boot: Boot, lost: str) -> None:
    cluster = members(boot)
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await first.start_connected()
    second.begin()
    await publish(client, "one")
    await second.sleep_ms(1_000)
    await second.kill()
    for path in second.disk.files(f"{DATA_DIR}/broker{lost}"):
        second.disk.remove(path)
    for _ in range(2):
        second.begin()
        await second.wait_down()
        assert isinstance(second.died_of, CorruptionError)
        assert "restore a backup" in str(second.died_of)
    assert texts(await client.pull()) == ["one"]


async def test_a_standby_forgets_the_windows_that_are_over(boot: Boot) -> None:
    cluster = members(boot)
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await first.start_connected()
    second.begin()
    await client.put("one", first.now_ms + 500)
    await client.put("two", first.now_ms + 3_600_000)
    await first.sleep_ms(1_000)
    assert texts(await client.pull()) == ["one"]
    kept = second.server.parts.broker.core.state.windows.extents
    assert len(kept) == 1
    await second.sleep_ms(180_000)
    assert not kept
