"""A member that is new, or has lost its disk, starts from a backup of another one and goes on from the log."""

from __future__ import annotations

import pytest

from delayserver.backup.restoring import STARTS
from delayserver.follow import follower as follower_module
from delayserver.protocol.receipts import parse_receipt
from delayserver.runtime.shared_log import LogTrimmed
from store.tables.identity import BLOCK
from tests.delayserver.backup.builders import repository
from tests.delayserver.backup.test_restoring import HOUR_MS, backed_up, is_clean, restored
from tests.delayserver.cluster.test_takeover import Cluster
from tests.fakes.host import Boot


async def test_a_backup_of_a_standby_makes_a_member_that_goes_on_from_the_log(boot: Boot) -> None:
    cluster, place = Cluster(boot, "abc"), repository()
    first, second, third = cluster.hosts.values()
    client = await first.start_connected()
    second.begin()
    await client.put("delivered", first.now_ms + 500)
    kept = (await client.put("kept", first.now_ms + HOUR_MS))["receipt"]
    await first.sleep_ms(2_000)
    follower = await second.client()
    before = len(cluster.engine.records.data)
    await backed_up(second, follower, place)
    assert not second.disk.exists("/data/snapshot")
    gone = (await client.put("gone", first.now_ms + HOUR_MS))["receipt"]
    assert await client.cancel(gone) == ["cancelled"]
    later = (await client.put("later", first.now_ms + 5_000))["receipt"]
    third.disk, done = restored(place, first.clock.now_us())
    assert done.followed is not None and 0 < done.followed.position <= before and done.followed.epoch == 1
    assert is_clean(third.disk)
    cluster.engine.records.first = done.followed.position
    third.begin()
    await first.sleep_ms(1_000)
    await first.kill()
    await second.kill()
    await third.wait_up()
    other = await third.client()
    assert await other.lookup(kept, gone, later) == ["pending", "cancelled", "pending"]
    await third.sleep_ms(10_000)
    assert cluster.delivered == ["delivered", "later"], "what was delivered before the backup does not come again"
    status = await third.balanced(pending=1)
    assert (status["delivered"], status["cancelled"]) == (2, 1)
    await third.stop()
    assert is_clean(third.disk)


async def test_a_standby_drops_what_a_backup_has_left(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    await first.start_connected()
    second.begin()
    await first.sleep_ms(1_000)
    await (await second.client()).request("snapshot", {"action": "take"})
    await second.kill()
    assert second.disk.files("/data/snapshot/")
    second.begin()
    await second.until(lambda: not second.disk.files("/data/snapshot/"))


async def test_a_member_behind_the_trimmed_part_says_what_it_needs(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    client = await first.start_connected()
    await client.put("one", first.now_ms + HOUR_MS)
    await first.sleep_ms(1_000)
    cluster.engine.records.first = position = len(cluster.engine.records.data)
    second.begin()
    await second.wait_down()
    assert isinstance(second.died_of, BaseExceptionGroup)
    trimmed, _ = second.died_of.split(LogTrimmed)
    assert trimmed is not None
    found = trimmed.exceptions[0]
    while isinstance(found, BaseExceptionGroup):
        (found,) = found.exceptions
    assert isinstance(found, LogTrimmed) and (found.start, found.stop) == (0, position)
    assert f"backup that has position {position} or a later one (delayserver restore)" in str(found)


async def test_an_idle_member_writes_down_how_far_it_has_read(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "MARKS_APART", 100)
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    client = await first.start_connected()
    second.begin()
    await client.put("one", first.now_ms + HOUR_MS)
    await first.sleep_ms(2_000)
    assert second.server.parts.cluster is not None
    standing = second.server.parts.cluster.standing
    kept = standing.kept.value
    await first.sleep_ms(60_000)
    assert kept + 200 <= standing.kept.value == await after_restart(cluster, "b")
    assert len(cluster.engine.records.data) - standing.kept.value <= 110


async def after_restart(cluster: Cluster, name: str) -> int:
    """Where the next life of a member begins to read."""
    await cluster.hosts[name].kill()
    cluster.hosts[name].begin()
    await cluster.hosts[name].sleep_ms(100)
    return cluster.engine.logs[-1].began_at


@pytest.mark.parametrize("to_time", [False, True])
async def test_a_backup_of_a_member_makes_a_server_of_its_own(boot: Boot, to_time: bool) -> None:
    cluster, place = Cluster(boot, "ab"), repository()
    first, second = cluster.hosts.values()
    client = await first.start_connected()
    second.begin()
    kept = (await client.put("kept", first.now_ms + HOUR_MS))["receipt"]
    await client.put("delivered", first.now_ms + 500)
    await first.sleep_ms(2_000)
    follower = await second.client()
    await backed_up(second, follower, place)
    before = (await client.put("before", first.now_ms + HOUR_MS))["receipt"]
    await first.sleep_ms(1_000)
    moment = first.now_ms
    await first.sleep_ms(1_000)
    after = (await client.put("after", first.now_ms + HOUR_MS))["receipt"]
    await first.sleep_ms(1_000)
    await backed_up(second, follower, place)
    disk, done = restored(place, first.clock.now_us(), moment if to_time else None, alone=True)
    assert done.followed is None and is_clean(disk)
    await first.kill()
    await second.kill()
    host = boot(first.settings, name="alone", disk=disk, clock=first.clock, network=cluster.network)
    host.brokers = first.brokers
    other = await host.start_connected()
    assert await other.lookup(kept, before, after) == ["pending", "pending", "unknown" if to_time else "pending"]
    new = (await other.put("new", host.now_ms + 1_000))["receipt"]
    assert parse_receipt(new).sequence == done.next_sequence > STARTS * BLOCK > parse_receipt(after).sequence
    await host.sleep_ms(5_000)
    assert cluster.delivered == ["delivered", "new"]
    await host.stop()
    assert is_clean(disk)
