"""A primary that clients cannot reach hands over. Its beats go on, so nobody would claim."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from delayserver.members.member_map import Announced, Founded
from delayserver.server.delay_server import LeadershipLost
from store.errors import CorruptionError
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.cluster.test_member_figures import figures
from tests.delayserver.server.test_map_reading import MapEngine
from tests.fakes.host import Boot

FOUNDED = Founded(1, "0" * 12, ("000000000005",))
PROBED_MS = 5_000
UNREACHED_MS = 20_000


class Shard:
    """Members that read one map."""

    def __init__(self, boot: Boot, names: str = "abc") -> None:
        self.cluster = Cluster(boot, names)
        self.map = MapEngine(FOUNDED, *(Announced(name, 0, f"{name}:1", "", "1", name) for name in names))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.cluster.reading(self.map):
            await self.cluster.start()
            await self.cluster.hosts["a"].sleep_ms(PROBED_MS)
            yield

    def said(self) -> list[tuple[str, list[str], list[str]]]:
        """What members said of each other, in order."""
        notes = [msgspec.json.decode(each) for each in self.map.records.data]
        found = [each for each in notes if each["kind"] == "member"][len(self.cluster.hosts) :]
        return [(each["name"], each["reaches"], each["unreached"]) for each in found]

    def leader(self) -> str:
        """The member that leads."""
        (name,) = [
            name
            for name, host in self.cluster.hosts.items()
            if host.server.is_open and (parts := host.server.parts.cluster) is not None and parts.standing.leads
        ]
        return name

    async def unreachable(self, names: str, for_ms: int = UNREACHED_MS) -> None:
        self.cluster.network.unreachable = {f"{name}:1" for name in names}
        await self.cluster.hosts["a"].sleep_ms(for_ms)


async def test_members_say_once_whom_they_reach(boot: Boot) -> None:
    shard = Shard(boot)
    async with shard.running():
        last = {name: (reaches, unreached) for name, reaches, unreached in shard.said()}
        assert last == {"a": (["b", "c"], []), "b": (["a", "c"], []), "c": (["a", "b"], [])}
        count = len(shard.said())
        await shard.cluster.hosts["a"].sleep_ms(60_000)
        assert len(shard.said()) == count


async def test_a_primary_that_clients_cannot_reach_hands_over_by_name(boot: Boot) -> None:
    shard = Shard(boot)
    first, second, third = shard.cluster.hosts.values()
    async with shard.running():
        await shard.unreachable("a")
        assert isinstance(first.died_of, LeadershipLost)
        assert shard.cluster.maps["a"].fronts.hand_overs == 1
        await second.wait_up()
        assert (await figures(second))["role"] == "primary"
        found = await figures(third)
        assert (found["unreached"], found["front"]) == (["a"], "does not reach a")
        shown = await (await third.client()).request("cluster", {"action": "show"})
        assert shown["front"] == "does not reach a"


async def test_a_short_fault_moves_nothing(boot: Boot) -> None:
    shard = Shard(boot)
    async with shard.running():
        await shard.unreachable("a", 9_000)
        await shard.unreachable("", 9_000)
        await shard.unreachable("a", 9_000)
        await shard.unreachable("")
        assert shard.leader() == "a"


async def test_a_primary_stays_where_one_standby_reaches_it(boot: Boot) -> None:
    shard = Shard(boot)
    async with shard.running():
        await shard.unreachable("b")
        assert shard.leader() == "a"
        assert shard.cluster.maps["a"].fronts.own.unreached == ("b",)


@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_a_fault_of_all_fronts_moves_nothing(boot: Boot, names: str) -> None:
    shard = Shard(boot, names)
    async with shard.running():
        await shard.unreachable(names, 40_000)
        problem = shard.cluster.maps["a"].fronts.problem(leads=True)
        assert problem.startswith("not reached by b") and "stays the primary" in problem
        await shard.unreachable(names, 80_000)
        assert shard.leader() == "a"
        await shard.unreachable("")
        assert shard.cluster.maps["a"].fronts.problem(leads=True) == ""


async def test_the_probe_can_be_turned_off(boot: Boot) -> None:
    shard = Shard(boot)
    shard.cluster.front_probe = False
    asked = _connections(shard)
    async with shard.running():
        before = asked()
        await shard.unreachable("a", 60_000)
        assert (shard.leader(), shard.said(), asked()) == ("a", [], before)


def _connections(shard: Shard) -> Callable[[], int]:
    """How often anybody has connected."""
    network, count = shard.cluster.network, 0
    connect = network.connect

    async def counted(address: str) -> object:
        nonlocal count
        count += 1
        return await connect(address)

    network.connect = counted  # type: ignore[method-assign, assignment]
    return lambda: count


@pytest.mark.parametrize("probes", [True, False])
async def test_a_damaged_standby_is_named_by_the_others_and_is_no_heir(boot: Boot, probes: bool) -> None:
    shard = Shard(boot)
    shard.cluster.front_probe = probes
    first, second, third = shard.cluster.hosts.values()
    async with shard.running():
        second.server.damage.report(CorruptionError("schedule_log", 0, "it lacks rows"))
        await first.sleep_ms(PROBED_MS)
        for host in (first, third):
            assert (await figures(host))["unfit"] == ["b"]
        assert (await figures(second))["unfit"] == []
        client = await first.client()
        assert await client.refused("cluster", {"action": "switch", "member": "b"}) == "invalid_argument"
        assert shard.leader() == "a"
        if probes:
            await shard.unreachable("a")
            await third.wait_up()
            assert shard.leader() == "c"
