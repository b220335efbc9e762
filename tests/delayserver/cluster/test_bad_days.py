"""Days on which the log is away, clocks differ, or another cluster writes into the log: members go on, or end by name."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
import trio

from delayserver.protocol.errors import InDoubt, SharedLogUnavailable
from delayserver.runtime.shared_log import AppendFailed
from delayserver.server.delay_server import LeadershipLost
from store.errors import CorruptionError
from store.records.batches import OutcomeBatch
from store.shared.envelope import EnvelopeKind, ShardIdentity, unwrap
from store.shared.payload import decode_records
from tests.delayserver.backup.builders import repository
from tests.delayserver.backup.test_restoring import backed_up, restored
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.cluster.test_lease import epoch
from tests.delayserver.cluster.test_member_figures import figures
from tests.delayserver.follow.members import IDENTITY
from tests.fakes.host import DATA_DIR, Boot, small_settings, texts

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


async def test_a_log_that_is_away_for_a_minute_costs_no_epoch_and_the_primary_goes_on_by_itself(boot: Boot) -> None:
    cluster = Cluster(boot, "abc")
    first, *standbys = cluster.hosts.values()
    client = await first.start_connected()
    for standby in standbys:
        standby.begin()
    await client.put("due meanwhile", first.now_ms + 30_000)
    await first.sleep_ms(1_000)
    for log in cluster.engine.logs:
        log.connect(False)
    await first.sleep_ms(MINUTE_MS)
    with pytest.raises(SharedLogUnavailable):
        await client.put("refused", first.now_ms)
    assert cluster.delivered == []
    for log in cluster.engine.logs:
        log.connect(True)
    await first.sleep_ms(1_000)
    await client.put("new", first.now_ms)
    await first.sleep_ms(1_000)
    assert cluster.delivered == ["due meanwhile", "new"]
    assert [epoch(host) for host in cluster.hosts.values()] == [1, 1, 1]


@pytest.mark.parametrize("ahead_ms", [-3 * HOUR_MS, 3 * HOUR_MS])
async def test_a_takeover_by_a_member_whose_clock_is_hours_apart_delivers_nothing_early_by_that_clock(
    boot: Boot, ahead_ms: int
) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    second.clock.step(ahead_ms)
    client = await cluster.start()
    due_ms = first.now_ms + 10 * MINUTE_MS
    await client.put("one", due_ms)
    await first.sleep_ms(1_000)
    await first.kill()
    await second.wait_up()
    await second.sleep_ms(MINUTE_MS)
    assert cluster.delivered == (["one"] if ahead_ms > 0 else [])
    if ahead_ms < 0:
        second.clock.step(due_ms - 2_000 - second.now_ms)  # hours go by
        await second.sleep_ms(1_000)
        assert cluster.delivered == []
        await second.sleep_ms(2_000)
    assert cluster.delivered == ["one"]
    await second.balanced(pending=0)


async def test_two_clusters_on_one_log_take_nothing_of_each_other_and_say_so(boot: Boot) -> None:
    ours = Cluster(boot, "ab")
    first, second = ours.hosts.values()
    client = await first.start_connected()
    second.begin()
    theirs = Cluster(boot, "x", records=ours.engine.records, identity=ShardIdentity(78, 6))
    stranger = theirs.hosts["x"]
    await (await stranger.start_connected()).put("theirs", stranger.now_ms + 500)
    await client.put("ours", first.now_ms + 500)
    await first.sleep_ms(2_000)
    assert (ours.delivered, theirs.delivered) == (["ours"], ["theirs"])
    for host in (first, second, stranger):
        assert epoch(host) == 1
        assert "of cluster" in host.server.damage.corruption[0]
    await first.balanced(pending=0)


async def test_a_record_that_the_log_will_never_take_is_in_doubt_and_ends_the_leadership_by_name(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(1_000)
    log = cluster.engine.logs[0]
    log.lose_from(0)
    asked = await client.ask("send", {"messages": [{"subject": "s", "body": "long", "due_ms": first.now_ms}]})
    await first.sleep_ms(100)
    log.fail()
    await first.wait_down()
    with pytest.raises(InDoubt):
        await client.reply(asked)
    assert isinstance(first.died_of, BaseExceptionGroup)
    assert first.died_of.subgroup(AppendFailed) is not None
    await second.wait_up()
    await (await second.client()).put("short", second.now_ms)
    await second.sleep_ms(1_000)
    assert cluster.delivered == ["short"]


async def test_a_standby_whose_disk_is_full_says_so_never_leads_and_goes_on_with_room(boot: Boot) -> None:
    cluster = Cluster(boot, "abc")
    first, second, third = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(1_000)
    second.disk.capacity_bytes = second.disk.used_bytes
    for _ in range(12):  # a segment of message_log has 1 MiB
        sent = await client.put("b" * 100_000, first.now_ms + HOUR_MS)
    await first.sleep_ms(1_000)
    assert "the copy of the shared log" in second.server.readiness.reason
    await first.kill()
    await third.wait_up()
    assert epoch(third) == 2
    await third.sleep_ms(MINUTE_MS)
    assert second.died_of is None
    second.disk.capacity_bytes = None
    await third.sleep_ms(20_000)
    await third.kill()
    await second.wait_up()
    assert await (await second.client()).lookup(sent["receipt"]) == ["pending"]


@pytest.mark.parametrize("lone", [False, True])
async def test_a_primary_whose_disk_is_full_lets_another_lead_or_goes_on_with_room(boot: Boot, lone: bool) -> None:
    cluster = Cluster(boot, "a" if lone else "ab")
    first, second = cluster.hosts["a"], cluster.hosts["a" if lone else "b"]
    client = await first.start_connected()
    if not lone:
        second.begin()
        await first.sleep_ms(1_000)
    first.disk.capacity_bytes = first.disk.used_bytes
    body = {"subject": "s", "body": "b" * 100_000, "due_ms": first.now_ms + HOUR_MS}
    for _ in range(12):
        asked = await client.ask("send", {"messages": [body]})
        await first.sleep_ms(20)
    await first.sleep_ms(10_000)
    if lone:
        assert first.died_of is None
        assert not first.server.readiness.serves
        assert "goes on by itself" in first.server.readiness.reason
        first.disk.capacity_bytes = None
        await first.sleep_ms(2_000)
        await client.reply(asked)
    else:
        assert isinstance(first.died_of, LeadershipLost)
        assert epoch(second) == 2
    await second.sleep_ms(1_000)
    await (await second.client()).put("goes on", second.now_ms)
    await second.sleep_ms(1_000)
    assert cluster.delivered == ["goes on"]


@pytest.mark.parametrize("part", ["names.log", "broker/store"])
async def test_a_standby_without_room_for_what_the_broker_decided_waits(boot: Boot, part: str) -> None:
    cluster = Cluster(boot, "ab", small_settings())
    first, second = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(1_000)
    second.disk.refuse = lambda operation, path: errno.ENOSPC if part in path and operation == "pwrite" else 0
    for number in range(3):
        for subject in ("s", f"s{number}"):
            await client.request("publish", {"messages": [{"subject": subject, "body": f"{number}"}]})
        assert await client.pull() != []
    await first.sleep_ms(MINUTE_MS)
    assert second.died_of is None
    second.disk.refuse = lambda _operation, _path: 0
    await first.sleep_ms(2_000)
    await first.kill()
    await second.wait_up()
    other = await second.client()
    assert texts(await other.pull()) == ["0", "1", "2"]
    assert texts(await other.pull("s2")) == ["2"]


async def test_a_standby_that_stops_while_a_round_waits_for_room_half_way_starts_again(boot: Boot) -> None:
    cluster = Cluster(boot, "ab", small_settings())
    first, second = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(1_000)
    stored: list[str] = []

    def refuse(operation: str, path: str) -> int:
        if "broker/store" not in path or operation != "pwrite":
            return 0
        stored.append(path)
        return errno.ENOSPC if len(stored) > 1 else 0

    second.disk.refuse = refuse
    for body in "012":  # one round at the standby, which gathers them
        await client.request("publish", {"messages": [{"subject": "s", "body": body}]})
    await first.sleep_ms(2_000)
    assert second.server.replay_room.waiting
    shared = second.server.parts.broker.shared
    assert shared is not None
    await shared.mark()
    await second.kill()
    second.disk.refuse = None
    second.begin()
    await first.sleep_ms(2_000)
    await first.kill()
    await second.wait_up()
    assert texts(await (await second.client()).pull()) == ["0", "1", "2"]


async def test_a_standby_whose_disk_hangs_does_not_lead(boot: Boot) -> None:
    cluster = Cluster(boot, "abc")
    first, second, third = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(1_000)
    hangs = trio.Event()

    async def hang(_name: str, work: Callable[[], Any]) -> Any:
        await hangs.wait()
        return work()

    second.workers.around = hang
    await client.put("kept", first.now_ms + 10_000)
    await first.sleep_ms(1_000)
    await first.kill()
    await third.wait_up()
    led = epoch(third)
    hangs.set()
    assert led == 2, "the claim of the one that is preferred would have come first"
    await third.sleep_ms(20_000)
    assert cluster.delivered == ["kept"]
    assert [epoch(second), epoch(third)] == [2, 2]


@pytest.mark.parametrize("heir", ["b", "c"])
async def test_a_standby_whose_replay_waits_for_room_does_not_lead(boot: Boot, heir: str) -> None:
    cluster = Cluster(boot, "abc")
    first, second, third = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(1_000)
    second.disk.refuse = lambda operation, path: errno.ENOSPC if "schedule_log" in path and operation != "pread" else 0
    await client.put("kept", first.now_ms + 20_000)
    await first.sleep_ms(1_000)
    assert second.server.replay_room.waiting
    if heir == "b":
        await client.request("cluster", {"action": "switch", "member": "b"})
        await first.wait_down()
    else:
        await first.kill()
    await third.wait_up()
    assert [epoch(second), epoch(third)] == [2, 2], "the claim of the one that is preferred would have come first"
    await third.sleep_ms(30_000)
    assert cluster.delivered == ["kept"]
    second.disk.refuse = lambda _operation, _path: 0
    await third.sleep_ms(2_000)
    await third.kill()
    await second.wait_up()
    await second.balanced(pending=0)


async def test_a_standby_that_has_found_damage_never_leads_and_is_made_anew_from_a_backup(boot: Boot) -> None:
    cluster, place = Cluster(boot, "abc"), repository()
    first, second, third = cluster.hosts.values()
    client = await first.start_connected()
    second.begin()
    third.begin()
    sent = await client.put("kept", first.now_ms + HOUR_MS)
    await first.sleep_ms(10_000)
    await second.kill()
    (lost,) = second.disk.files(f"{DATA_DIR}/schedule_log/")
    second.disk.remove(lost)
    second.begin()
    await first.sleep_ms(1_000)
    assert lost.removeprefix(DATA_DIR) in second.server.damage.corruption[0]
    for host, damaged in ((first, False), (second, True)):
        shown = await (await host.client()).request("cluster", {"action": "show"})
        assert (shown["damaged"], shown["unreplayed_bytes"]) == (damaged, 0)
        assert (await figures(host))["damaged"] is damaged
    await first.kill()
    await third.wait_up()
    assert epoch(third) == epoch(second) == 2
    await third.kill()
    await second.sleep_ms(MINUTE_MS)
    assert epoch(second) == 2, "no member leads rather than one without what it had"
    third.begin()
    await third.wait_up()
    await backed_up(third, await third.client(), place)
    await second.kill()
    second.disk, _ = restored(place, third.clock.now_us())
    second.begin()
    await third.sleep_ms(1_000)
    await third.kill()
    await second.wait_up()
    assert await (await second.client()).lookup(sent["receipt"]) == ["pending"]


async def test_a_member_without_its_message_log_refuses_each_start_by_name(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    client = await cluster.start()
    await client.put("kept", first.now_ms + HOUR_MS)
    await first.sleep_ms(1_000)
    await second.server.parts.upkeep.checkpointing.write()
    await second.kill()
    for path in second.disk.files(f"{DATA_DIR}/message_log/"):
        second.disk.remove(path)
    for _ in range(2):
        second.begin()
        await second.wait_down()
        assert isinstance(second.died_of, CorruptionError)
        assert "how far this member has followed" in str(second.died_of)


async def test_a_member_that_is_alone_leads_with_a_checkpoint_made_anew(boot: Boot) -> None:
    (host,) = Cluster(boot, "a").hosts.values()
    client = await host.start_connected()
    sent = await client.put("kept", host.now_ms + HOUR_MS)
    await host.sleep_ms(MINUTE_MS)
    await host.kill()
    host.disk.flip_bit(f"{DATA_DIR}/checkpoint", 80)
    client = await host.start_connected()
    assert "the checkpoint is rebuilt" in host.server.damage.corruption[0]
    assert epoch(host) == 2 and await client.lookup(sent["receipt"]) == ["pending"]
    await host.balanced(pending=1)


async def test_what_is_due_in_minutes_can_be_cancelled_at_a_primary_that_had_no_checkpoint(boot: Boot) -> None:
    """The log says up to when a primary may have attempted. The directory alone would say: up to ten minutes from now."""
    (host,) = Cluster(boot, "a").hosts.values()
    client = await host.start_connected()
    sent = [(await client.put("far", host.now_ms + minutes * MINUTE_MS))["receipt"] for minutes in (3, 8)]
    await host.sleep_ms(MINUTE_MS)
    for receipt in sent:
        await host.kill()
        host.disk.flip_bit(f"{DATA_DIR}/checkpoint", 80)
        client = await host.start_connected()
        assert await client.cancel(receipt) == ["cancelled"]
        await host.server.parts.upkeep.checkpointing.write()
    await host.restart_killed()
    await host.balanced(pending=0)


async def test_what_a_clock_far_ahead_delivered_is_in_the_log_once_when_another_clock_comes_there(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    first.clock.step(100 * HOUR_MS)
    client = await cluster.start()
    await client.put("one", first.now_ms + 1_000)
    await first.sleep_ms(10_000)
    assert cluster.delivered == ["one"]
    await first.kill()
    await second.wait_up()
    second.clock.step(101 * HOUR_MS)  # the day of the message comes near, and goes by
    await second.sleep_ms(10 * MINUTE_MS)
    await second.balanced(pending=0)
    assert cluster.delivered == ["one"]
    outcomes = [
        record.to_batch()
        for position, data in enumerate(cluster.engine.records.data)
        if (found := unwrap(data, IDENTITY, position)).envelope.kind is EnvelopeKind.RECORDS
        for record in decode_records(found.payload, position)
    ]
    assert [batch.sequence.tolist() for batch in outcomes if isinstance(batch, OutcomeBatch)] == [[1]]
