"""Windows are retired by the log of a shard, never by the clock of a member. So is what the broker's store gives up."""

from __future__ import annotations

import pytest

from delayserver.config.settings import Settings
from store.logs.due_windows import DAY_MS
from store.logs.log_scan import LogScan
from store.records.batches import KeptBatch
from store.shared.payload import LOG_VERSION
from tests.delayserver.cluster.clusters import Cluster
from tests.fakes.host import Boot, Client, Host, faked_settings, small_settings

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def kept_for_minutes(**storage: int) -> Settings:
    return faked_settings(storage={"retention_ms": 2 * MINUTE_MS, "fine_horizon_ms": HOUR_MS} | storage)


def windows(host: Host) -> tuple[list[int], set[int]]:
    """The windows in the ledger of a member, and those that have files."""
    files = host.server.parts.files
    return files.ledger.windows()[:, 0].tolist(), {key.start_ms for key in files.schedule.keys()}


@pytest.mark.parametrize("ahead_ms", [-5 * HOUR_MS, 5 * HOUR_MS, -20 * HOUR_MS])
async def test_what_the_primary_retires_goes_on_all_members(boot: Boot, ahead_ms: int) -> None:
    """20 hours behind, the messages lie in the file of a coarse day still."""
    cluster = Cluster(boot, "ab", kept_for_minutes())
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    second.clock.step(ahead_ms)
    client = await cluster.start()
    due_ms = first.now_ms + 500
    receipt = (await client.put("one", due_ms, message_id="id"))["receipt"]
    (cancelled,) = await client.cancel((await client.put("two", due_ms + 1))["receipt"])
    assert cancelled == "cancelled"
    await first.sleep_ms(6 * MINUTE_MS)
    assert windows(first) == ([due_ms - due_ms % MINUTE_MS], set())
    assert windows(second) == windows(first)
    await first.kill()
    await second.wait_up()
    other = await second.client()
    assert await other.lookup(receipt) == ["retired"]
    (copy,) = await other.send({"subject": "s", "due_ms": due_ms, "body": "copy", "message_id": "id"})
    assert copy["error"] == "too_old", "the window is closed on all members, also where its time has not come"
    await second.sleep_ms(10_000)
    assert cluster.delivered == ["one"]
    status = await second.balanced(pending=0)
    assert (status["accepted"], status["delivered"], status["cancelled"]) == (2, 1, 1)


async def test_a_standby_whose_clock_is_ahead_retires_nothing(boot: Boot) -> None:
    cluster = Cluster(boot, "ab", kept_for_minutes(retention_ms=HOUR_MS))
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    second.clock.step(-20 * HOUR_MS)  # then the day is a coarse one, and over when its turn comes
    client = await cluster.start()
    due_ms = first.now_ms + 500
    await client.put("one", due_ms, message_id="id")
    await first.sleep_ms(1_000)
    second.clock.step(3 * DAY_MS)
    await first.sleep_ms(5 * MINUTE_MS)
    copy = (await client.put("copy", due_ms, message_id="id"))["receipt"]
    await first.sleep_ms(1_000)
    assert await client.lookup(copy) == ["deduplicated"]
    assert windows(second) == windows(first) == ([], {due_ms - due_ms % MINUTE_MS})
    assert not second.server.parts.files.days.whole()
    assert second.server.parts.state.decided.totals.tolist() == first.server.parts.state.decided.totals.tolist()


async def test_a_member_that_dies_while_windows_go_has_the_same_counts(boot: Boot) -> None:
    cluster = Cluster(boot, "ab", kept_for_minutes())
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    second.clock.step(-5 * HOUR_MS)
    client = await cluster.start()
    for number in range(6):
        await client.put(f"{number}", first.now_ms + 500, subject=f"s{number % 2}")
        await first.sleep_ms(MINUTE_MS + 777)
        await second.lose_power(number)
        second.begin()
    await first.sleep_ms(10 * MINUTE_MS)
    assert len(windows(first)[0]) == 6
    assert windows(second) == windows(first)
    await first.kill()
    await second.wait_up()
    status = await second.balanced(pending=0)
    assert (status["accepted"], status["delivered"]) == (6, 6)


def small_store() -> Settings:
    broker = {"segment_bytes": 16 * 1024, "retention_ms": 2 * MINUTE_MS, "cache_bytes_max": 1 << 20}
    return small_settings(broker=broker, storage={"clock_hold_ms": 1_000})


async def stored_and_acked(client: Client, count: int) -> None:
    for number in range(count):
        await client.request("publish", {"messages": [{"subject": "s", "body": f"{number}".ljust(4_000)}]})
        for message in await client.pull():
            acked = {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"]}
            await client.request("ack", acked)


def kept_positions(host: Host) -> tuple[int, int]:
    """The first position that the store of a member has, and the end."""
    (bounds,) = [(queue.first, queue.end) for queue in host.server.parts.broker.core.state.queues.values()]
    return bounds


async def test_what_the_primary_gives_up_of_its_store_goes_on_all_members(boot: Boot) -> None:
    """Also where the clock of a standby says that nothing is old yet, and after a takeover and a restart."""
    cluster = Cluster(boot, "ab", small_store())
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    second.clock.step(-5 * HOUR_MS)
    client = await cluster.start()
    cluster.announce(a=LOG_VERSION, b=LOG_VERSION)
    await stored_and_acked(client, 20)
    assert kept_positions(first) == (0, 20)
    await first.sleep_ms(5 * MINUTE_MS)
    given_up, _ = kept_positions(first)
    assert given_up > 10
    assert kept_positions(second) == (given_up, 20)
    for host in (first, second):
        log = host.server.parts.broker.core.state.files.store.log
        assert log.segments()[0][0] > 0, "segments have gone"
    await second.kill()
    second.begin()
    await first.sleep_ms(5_000)
    assert kept_positions(second) == (given_up, 20)
    await first.kill()
    await second.wait_up()
    read = await (await second.client()).request("read", {"subject": "s", "position": 0})
    assert read["first"] == given_up


async def test_a_standby_whose_clock_is_ahead_keeps_what_the_primary_keeps(boot: Boot) -> None:
    cluster = Cluster(boot, "ab", small_store())
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    cluster.announce(a=LOG_VERSION, b=LOG_VERSION)
    await stored_and_acked(client, 20)
    second.clock.step(5 * HOUR_MS)
    await first.sleep_ms(MINUTE_MS)
    assert kept_positions(first) == kept_positions(second) == (0, 20)


async def test_without_the_barrier_the_log_has_nothing_new(boot: Boot) -> None:
    """An older member would stop there. Each one gives up by its own clock."""
    cluster = Cluster(boot, "ab", small_store())
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    cluster.announce(a=LOG_VERSION, b=0)
    await stored_and_acked(client, 20)
    await first.sleep_ms(5 * MINUTE_MS)
    assert kept_positions(first)[0] > 10 < kept_positions(second)[0]
    log = first.server.parts.files.log
    assert not [entry for entry in LogScan(log, log.first, log.end) if isinstance(entry.batch, KeptBatch)]
