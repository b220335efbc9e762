"""A process reads the map of the cluster while it runs, and says there that it leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec
import trio
import trio.testing
from msgspec.structs import replace

from delayserver.members.member_map import Announced, Forgotten, Founded, Led, Note, ShardAdded
from delayserver.protocol.schema.shard_map import ShardMap
from delayserver.runtime.shared_log import LogRecord, LogUnusable
from delayserver.server.map_reading import MapReading, say_diverged
from delayserver.state.shard.cluster_map import ClusterMap
from tests.delayserver.follow.members import ListLog, Records

OWN = Announced("a", 1, "a:1", "", "1", "1")
FOUNDED = Founded(1, "0" * 12, ("00000000000a", "00000000000b"))


class MapEngine:
    """The engine of a map. Its first logs fail, as many as there are `errors`."""

    topic = "members"

    def __init__(self, *notes: Note, errors: int = 0) -> None:
        self.records = Records()
        self.errors = errors
        for note in notes:
            self.add(note)

    def add(self, note: Note) -> None:
        self.records.add(msgspec.json.encode(note))

    def open(self, shard: int) -> ListLog:
        assert shard == 0
        if self.errors:
            self.errors -= 1
            return LostLog(self.records)
        return ListLog(self.records)

    async def make_topic(self, shards: int) -> None:
        raise AssertionError("nobody makes it")

    async def grow_topic(self, shards: int) -> None:
        raise AssertionError("nobody adds to it")


class LostLog(ListLog):
    """A log that is gone."""

    async def run(self, position: int, arrived: Callable[[Sequence[LogRecord]], None]) -> NoReturn:
        raise LogUnusable("it is gone")


async def test_a_process_learns_each_change_of_the_map(autojump_clock: trio.testing.MockClock) -> None:
    engine, shards = MapEngine(FOUNDED, OWN), ClusterMap(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(MapReading(engine, OWN, shards).run)
        await shards.version.reached(2)
        assert [each.standbys for each in shards.shown.shards] == [[], ["a:1"]]
        engine.add(Led("a", 1, 4))
        await shards.version.reached(3)
        assert (shards.shown.shards[1].primary, shards.shown.shards[1].epoch) == ("a:1", 4)
        nursery.cancel_scope.cancel()


async def test_the_version_that_all_members_of_the_shard_read(autojump_clock: trio.testing.MockClock) -> None:
    other, older = Announced("b", 0, "b:1", "", "1", "1"), Announced("c", 1, "c:1", "", "1", "1")
    engine, shards = MapEngine(FOUNDED, other, replace(OWN, reads=2)), ClusterMap(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(MapReading(engine, OWN, shards).run)
        for note, reads in ((None, 2), (older, 0), (replace(older, reads=3), 2), (OWN, 0), (Forgotten("a", "1"), 3)):
            if note is not None:
                engine.add(note)
            await trio.sleep(1)
            assert shards.reads == reads
        nursery.cancel_scope.cancel()


async def test_each_takeover_is_written_once(autojump_clock: trio.testing.MockClock) -> None:
    engine, shards = MapEngine(FOUNDED, OWN), ClusterMap(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(MapReading(engine, OWN, shards).run)
        for epoch in (3, 7):
            shards.led.advance(epoch)
            await shards.version.reached(shards.version.value + 1)
            await trio.sleep(60)
        assert [msgspec.json.decode(each) for each in engine.records.data[2:]] == [
            {"kind": "primary", "name": "a", "shard": 1, "epoch": epoch} for epoch in (3, 7)
        ]
        nursery.cancel_scope.cancel()


async def test_a_map_that_was_lost_is_read_again_and_gets_the_takeover(autojump_clock: trio.testing.MockClock) -> None:
    engine, shards = MapEngine(FOUNDED, OWN, errors=2), ClusterMap(1)
    shards.led.advance(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(MapReading(engine, OWN, shards).run)
        await shards.version.reached(3)
        engine.add(ShardAdded(2, "00000000000c"))
        await trio.sleep(1)
        assert [each.primary for each in shards.shown.shards] == ["", "a:1", ""]
        nursery.cancel_scope.cancel()


async def test_a_map_older_than_the_one_that_is_known_is_not_shown(autojump_clock: trio.testing.MockClock) -> None:
    engine, shards = MapEngine(FOUNDED, OWN), ClusterMap(1)
    newer = ShardMap(3, [], [])
    shards.take(newer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(MapReading(engine, OWN, shards).run)
        await trio.sleep(1)
        assert shards.shown is newer
        engine.add(ShardAdded(2, "00000000000c"))
        engine.add(OWN)
        await trio.sleep(1)
        assert (shards.shown.version, len(shards.shown.shards)) == (4, 3)
        nursery.cancel_scope.cancel()


async def test_others_learn_that_a_member_has_diverged_until_it_starts_anew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    other = Announced("b", 1, "b:1", "", "1", "2")
    engine, shards = MapEngine(FOUNDED, OWN, other), ClusterMap(1, "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(MapReading(engine, OWN, shards).run)
        await shards.version.reached(3)
        assert not list(shards.fronts.unfit)
        await say_diverged(engine, other)
        await shards.version.reached(4)
        assert list(shards.fronts.unfit) == ["b"]
        engine.add(replace(other, instance="3"))
        await shards.version.reached(5)
        assert not list(shards.fronts.unfit)
        nursery.cancel_scope.cancel()


async def test_a_map_that_does_not_answer_holds_up_no_member_that_has_diverged(
    autojump_clock: trio.testing.MockClock,
) -> None:
    await say_diverged(MapEngine(FOUNDED, errors=1), OWN)
