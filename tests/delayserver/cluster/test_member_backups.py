"""A member that is new, or has lost its disk, starts from a backup of another one and goes on from the log."""

from __future__ import annotations

import pytest

from delayserver.backup.backup_check import CheckedBackup, check_backup
from delayserver.backup.coverage import find_coverage
from delayserver.backup.repository import Repository
from delayserver.backup.restoring import STARTS
from delayserver.crossing.leaving import leave_restored
from delayserver.follow import follower as follower_module
from delayserver.protocol.receipts import parse_receipt
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.shared_log import LogTrimmed
from store.tables.identity import BLOCK
from tests.delayserver.backup.builders import repository, silent
from tests.delayserver.backup.test_restoring import HOUR_MS, backed_up, is_clean, restored
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.follow.members import IDENTITY
from tests.fakes.disk import FakeDisk
from tests.fakes.host import DATA_DIR, Boot, Host
from tests.fakes.workers import FakeWorkers


async def test_a_backup_of_a_standby_makes_a_member_that_goes_on_from_the_log(boot: Boot) -> None:
    cluster, place = Cluster(boot, "abc"), repository()
    first, second, third = cluster.hosts.values()
    client = await first.start_connected()
    second.begin()
    await client.put("delivered", first.now_ms + 500)
    early = (await client.put("kept", first.now_ms + HOUR_MS))["receipt"]
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
    assert await other.lookup(early, gone, later) == ["pending", "cancelled", "pending"]
    await third.sleep_ms(10_000)
    assert cluster.delivered == ["delivered", "later"], "what was delivered before the backup does not come again"
    status = await third.balanced(pending=1)
    assert (status["delivered"], status["cancelled"]) == (2, 1)
    await third.stop()
    assert is_clean(third.disk)


def checked(place: Repository, now_us: int) -> CheckedBackup:
    return check_backup(place, FakeDisk(), DATA_DIR, now_us, silent)


async def test_checked_backups_let_the_log_be_trimmed_and_a_new_member_starts_behind(boot: Boot) -> None:
    cluster, place = Cluster(boot, "abc"), repository()
    first, second, third = cluster.hosts.values()
    client = await first.start_connected()
    second.begin()
    sent = []
    for number in range(3):
        sent.append((await client.put(f"{number}", first.now_ms + HOUR_MS))["receipt"])
        await first.sleep_ms(1_000)
        await backed_up(second, await second.client(), place)
        found = checked(place, first.clock.now_us())
        assert found.clean and found.verified is not None and found.verified.epoch == 1
    log = cluster.engine.open(0)
    described = await log.describe()
    live = {name: kept(host) for name, host in (("a", first), ("b", second))}
    coverage = find_coverage(place, IDENTITY.server_id, described.first, described.end, live)
    second_last, last = [mark.position for mark in place.verified().values()][-2:]
    assert 0 < coverage.trims_to == second_last < last <= min(live.values())
    await log.trim(coverage.trims_to)
    await client.put("newest", first.now_ms + 2_000)
    third.disk, _ = restored(place, first.clock.now_us())
    third.begin()
    await first.sleep_ms(1_000)
    await first.kill()
    await second.kill()
    await third.wait_up()
    assert await (await third.client()).lookup(*sent) == ["pending"] * 3
    await third.sleep_ms(5_000)
    assert cluster.delivered == ["newest"]
    damaged = next(path for path in third.disk.files(f"{DATA_DIR}/schedule_log/") if path.endswith(".direct.log"))
    third.disk.flip_bit(damaged, third.disk.size(damaged) - 1)
    await backed_up(third, await third.client(), place)
    found = checked(place, first.clock.now_us())
    assert found.findings and found.verified is None and len(place.verified()) == 3, "a damaged one covers nothing"


def kept(host: Host) -> int:
    """From where the member's next process would read on."""
    assert host.server.parts.cluster is not None
    return host.server.parts.cluster.standing.kept.value


async def test_a_standby_drops_what_a_backup_has_left(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    await cluster.start()
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
    client = await cluster.start()
    await client.put("one", first.now_ms + HOUR_MS)
    await first.sleep_ms(2_000)
    before = kept(second)
    await first.sleep_ms(60_000)
    position = kept(second)
    status = await (await second.client()).status()
    assert status["storage"]["log_position"] == position
    assert before + 200 <= position == await after_restart(cluster, "b")
    assert len(cluster.engine.records.data) - position <= 110


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
    early = (await client.put("kept", first.now_ms + HOUR_MS))["receipt"]
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
    assert done.followed is None and done.of_member
    following = await leave_restored(disk, DATA_DIR, Runtime.on(clock=first.clock, workers=FakeWorkers()))
    assert is_clean(disk)
    await first.kill()
    await second.kill()
    host = boot(first.settings, name="alone", disk=disk, clock=first.clock, network=cluster.network)
    host.brokers = first.brokers
    other = await host.start_connected()
    assert await other.lookup(early, before, after) == ["pending", "pending", "unknown" if to_time else "pending"]
    new = (await other.put("new", host.now_ms + 1_000))["receipt"]
    assert (
        parse_receipt(new).sequence == following > done.next_sequence > STARTS * BLOCK > parse_receipt(after).sequence
    )
    await host.sleep_ms(5_000)
    assert cluster.delivered == ["delivered", "new"]
    await host.stop()
    assert is_clean(disk)
