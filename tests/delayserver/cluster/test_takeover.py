"""Whole servers as members of a shard: a standby goes on where the primary was."""

from __future__ import annotations

from functools import partial

import pytest

from delayserver.config.cluster_settings import ClusterSettings
from delayserver.protocol.errors import StorageFailed
from delayserver.server.delay_server import LeadershipLost
from delayserver.server.ground import Membership
from delayserver.state.shard.seat import Seat
from store.shared.envelope import LogWriter
from tests.delayserver.follow.members import IDENTITY, ListLog, Records
from tests.fakes.broker import FakeBroker
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot, faked_settings
from tests.fakes.network import FakeNetwork


class Engine:
    """Gives each life of a member its view of the one log."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.logs: list[ListLog] = []

    def open(self, shard: int) -> ListLog:
        assert shard == 0
        self.logs.append(ListLog(self.records))
        return self.logs[-1]


class Cluster:
    """Members on disks of their own. All of them deliver to the same fake node."""

    def __init__(self, boot: Boot, names: str) -> None:
        self.engine = Engine(Records())
        self.network = FakeNetwork()
        self.lives = 0
        self.hosts = {
            name: boot(
                faked_settings(),
                name=name,
                disk=FakeDisk(),
                network=self.network,
                seed=number + 1,
                membership=partial(self._membership, name, number),
            )
            for number, name in enumerate(names)
        }
        first = next(iter(self.hosts.values()))
        for host in self.hosts.values():
            host.brokers = first.brokers

    def _membership(self, name: str, number: int) -> Membership:
        self.lives += 1
        seat = Seat(0, IDENTITY, LogWriter(number, self.lives), name, f"{name}:1")
        return Membership(self.engine, seat, ClusterSettings(rank=number))

    @property
    def node(self) -> FakeBroker:
        return next(iter(self.hosts.values())).fake()

    @property
    def delivered(self) -> list[str]:
        """The bodies of what the node was handed, in order."""
        return [self.node.bodies[sequence].decode() for sequence in self.node.stored]


async def test_a_standby_serves_what_the_dead_primary_accepted(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await first.start_connected()
    second.begin()
    await client.put("early", first.now_ms + 500)
    receipt = (await client.put("late", first.now_ms + 60_000))["receipt"]
    (cancelled,) = await client.cancel((await client.put("never", first.now_ms + 60_000))["receipt"])
    assert cancelled == "cancelled"
    await first.sleep_ms(1_000)
    assert cluster.delivered == ["early"]
    await first.kill()
    await second.wait_up()
    other = await second.client()
    assert await other.lookup(receipt) == ["pending"]
    await other.put("new", second.now_ms + 30_000)
    await second.sleep_ms(70_000)
    assert cluster.delivered == ["early", "new", "late"]
    status = await second.balanced(pending=0)
    assert (status["delivered"], status["cancelled"]) == (3, 1)


async def test_a_primary_that_was_superseded_ends_and_follows_in_its_next_life(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await first.start_connected()
    second.begin()
    await client.put("one", first.now_ms + 60_000)
    cluster.engine.logs[0].connect(False)
    asked = await client.ask("send", {"messages": [{"subject": "s", "body": "lost", "due_ms": first.now_ms + 60_000}]})
    await second.wait_up()
    cluster.engine.logs[0].connect(True)
    await first.wait_down()
    assert isinstance(first.died_of, LeadershipLost)
    with pytest.raises(StorageFailed):  # nobody knows whether it counts
        await client.reply(asked)
    first.disk.kill()
    first.begin()
    other = await second.client()
    await other.put("two", second.now_ms + 60_000)
    await second.sleep_ms(5_000)
    await second.kill()
    await first.wait_up()
    await first.sleep_ms(70_000)
    assert cluster.delivered == ["one", "two"]
    status = await first.balanced(pending=0)
    assert status["delivered"] == 2


async def test_what_a_dead_primary_may_have_handed_over_is_asked_for(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await first.start_connected()
    second.begin()
    known = await client.put("known", first.now_ms + 1_000)
    unknown = await client.put("unknown", first.now_ms + 3_000)
    await first.sleep_ms(2_000)
    cluster.engine.logs[0].connect(False)  # the outcome of the next one never comes into the log
    await first.sleep_ms(1_100)
    assert cluster.delivered == ["known", "unknown"]
    await first.kill()
    await second.wait_up()
    other = await second.client()
    assert await other.lookup(known["receipt"]) == ["delivered"]
    assert await other.cancel(unknown["receipt"]) != ["cancelled"], "it was delivered"
    await second.sleep_ms(5_000)
    assert cluster.delivered == ["known", "unknown", "unknown"]
    assert cluster.node.uncertain == {2}, "the node is told that it may have it"
    status = await second.balanced(pending=0)
    assert status["delivered"] == 2


async def test_a_member_replays_its_own_log_and_goes_on_from_there(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await first.start_connected()
    second.begin()
    for number in range(5):
        await client.put(f"{number}", first.now_ms + 500 + number, subject=f"s{number}")
        await first.sleep_ms(500)
        await second.lose_power(number)
        second.begin()
    await first.sleep_ms(2_000)
    await client.put("last", first.now_ms + 30_000, subject="new")
    await first.sleep_ms(500)
    await first.kill()
    await second.wait_up()
    status = await second.balanced(pending=1)
    assert status["delivered"] == 5
    await second.sleep_ms(40_000)
    assert cluster.delivered == ["0", "1", "2", "3", "4", "last"]
