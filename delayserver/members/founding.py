"""Founds a cluster: the topic with a partition for each shard, the topic of the map, and the ids of the shards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol, TypeVar

import trio

from delayserver.members.member_map import FORMAT, Founded, MemberMap, Note, ShardAdded, visit
from delayserver.runtime.chance import random_server_id
from delayserver.runtime.log_reading import reading
from delayserver.runtime.marks import Mark
from delayserver.runtime.shared_log import (
    LogDescription,
    LogMissing,
    LogRecord,
    LogUnavailable,
    LogUnusable,
    SharedLog,
)
from store.errors import UpgradeNeededError
from store.shared.envelope import Envelope, EnvelopeKind, ForeignRecordError, ShardIdentity, unwrap, wrap
from store.shared.log_order import NOBODY
from store.shared.payload import ClaimNote, encode_note

TRIES: Final = 6
AGAIN_S: Final = 0.5


T = TypeVar("T")


class Engine(Protocol):
    """A `LogEngine` that can make its topic."""

    topic: str

    def open(self, shard: int) -> SharedLog:
        """A log that has not run yet."""

    async def make_topic(self, shards: int) -> None:
        """Make the topic. Raises LogUnusable if it exists or is refused, LogUnavailable."""

    async def grow_topic(self, shards: int) -> None:
        """Add a log: then there are so many. Raises LogUnusable, LogUnavailable."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The engine of the shards' logs, and that of the map."""

    shards: Engine
    map: Engine

    async def read_map(self) -> MemberMap:
        """The map. Raises LogMissing without a cluster, LogUnavailable, LogUnusable."""
        return await visit(self.map.open(0), self.map.topic)

    async def note(self, note: Note) -> MemberMap:
        """Append a record to the map, and read it up to there. Waits for a log that does not answer. Raises LogUnusable."""
        return await visit(self.map.open(0), self.map.topic, note)


@dataclass(frozen=True, slots=True)
class FoundedNow:
    """The cluster. `made`: what was not there before, a sentence each."""

    founded: Founded
    made: tuple[str, ...]


async def found_cluster(engines: Engines, shards: int, chance: Random) -> FoundedNow:
    """Make what is missing of a cluster. A second call, or one after an interrupted one, is as good as the first.

    Raises LogUnusable where a topic is another program's, is set up wrongly, or the cluster has another number of shards;
    LogUnavailable."""
    made: list[str] = []
    for _ in range(TRIES - 1):
        try:
            return FoundedNow(await _found(engines, shards, chance, made), tuple(made))
        except LogUnavailable:  # also of a topic that was just made: its leader is not known everywhere
            await trio.sleep(AGAIN_S)
    return FoundedNow(await _found(engines, shards, chance, made), tuple(made))


async def _found(engines: Engines, shards: int, chance: Random, made: list[str]) -> Founded:
    found = await _founded(engines)
    if found is not None and len(found.shards) != shards:
        raise LogUnusable(
            f"the cluster in topic {engines.shards.topic} has --shards {len(found.shards)}, not {shards}: the number is "
            "fixed at its founding. To add one: delayserver cluster add-shard"
        )
    await make_topics(engines, shards, made)
    if found is None:
        await _require_empty(engines.shards, range(shards))
        ids = [f"{random_server_id(chance):012x}" for _ in range(shards + 1)]
        found = await note_founded(engines, Founded(FORMAT, ids[0], tuple(ids[1:])), made)
    return found


async def make_topics(engines: Engines, shards: int, made: list[str]) -> None:
    """Make the topics that are missing, and add to `made` what was. Raises LogUnusable, LogUnavailable."""
    await _make(engines.shards, shards, made)
    await _make(engines.map, 1, made)


async def note_founded(engines: Engines, founded: Founded, made: list[str]) -> Founded:
    """The cluster exists from here on. Returns what the map says: another call may have come first."""
    found = (await _known(lambda: engines.note(founded))).founded
    assert found is not None, "the map has the note"
    made.append(f"a cluster of {len(found.shards)} {'shard' if len(found.shards) == 1 else 'shards'}")
    return found


async def begin_log(engine: Engine, shard: int, identity: ShardIdentity, wall_us: int) -> int:
    """Let the log of a shard that begins with a directory have its begin behind a first record: no member starts with an
    empty directory then. Returns the position behind it. May be repeated. Raises LogUnusable (records of another program),
    LogUnavailable."""
    described = await _known(engine.open(shard).describe)
    if described.end and described.first == described.end:
        return described.end
    read = Mark(described.first)
    note = ClaimNote("", "", "", 0, "the shard begins with a directory")
    own = wrap(Envelope(EnvelopeKind.CLAIM, identity, 1, 0, NOBODY, wall_us), [encode_note(note)])

    def arrived(records: Sequence[LogRecord]) -> None:
        for each in records:
            try:
                unwrap(each.data, identity, each.position)
            except (ForeignRecordError, UpgradeNeededError):
                raise _foreign(engine, shard, described.end) from None
        read.advance(records[-1].position + 1)

    log = engine.open(shard)
    async with reading(log, described.first, arrived):
        if not described.end:
            log.append(own)
        await read.reached(max(described.end, described.first + 1))
    await engine.open(shard).trim(read.value)
    return read.value


async def _founded(engines: Engines) -> Founded | None:
    try:
        return (await engines.read_map()).founded
    except LogMissing:
        return None


async def _make(engine: Engine, shards: int, made: list[str]) -> None:
    """Make a topic where it is missing, and look at its settings."""
    try:
        await engine.open(0).describe()
    except LogMissing:
        await engine.make_topic(shards)
        made.append(f"topic {engine.topic}, with {shards} {'partition' if shards == 1 else 'partitions'}")
    for shard in range(shards):
        require_fit([await _known(engine.open(shard).describe)])


async def _known(ask: Callable[[], Awaitable[T]]) -> T:
    """An answer about a topic that is there. A broker may learn of it a moment later than the one that made it."""
    for _ in range(TRIES - 1):
        try:
            return await ask()
        except LogMissing:
            await trio.sleep(AGAIN_S)
    return await ask()


async def add_shard(engines: Engines, chance: Random) -> MemberMap:
    """Add a shard: its log, then its record in the map. A second call after an interrupted one goes on.

    It owns no slots: a message that was accepted may come again with its id, and must meet the shard that knows it.
    Raises LogMissing without a cluster, LogUnusable, LogUnavailable."""
    shard = len((await engines.read_map()).shards)
    if not shard:
        raise LogMissing(f"topic {engines.map.topic} has no cluster")
    try:
        await engines.shards.open(shard).describe()
    except LogUnusable:  # Kafka names the partition that is missing
        await engines.shards.grow_topic(shard + 1)
    require_fit([await _known(engines.shards.open(shard).describe)])
    await _require_empty(engines.shards, [shard])
    return await engines.note(ShardAdded(shard, f"{random_server_id(chance):012x}"))


async def _require_empty(engine: Engine, shards: Iterable[int]) -> None:
    for shard in shards:
        end = (await engine.open(shard).describe()).end
        if end:
            raise _foreign(engine, shard, end)


def _foreign(engine: Engine, shard: int, end: int) -> LogUnusable:
    return LogUnusable(
        f"topic {engine.topic} has {end} records in partition {shard}, and belongs to no cluster: another program "
        "writes there. Name another topic in the file of the cluster"
    )


def require_fit(logs: Iterable[LogDescription]) -> None:
    """Raises LogUnusable for logs with wrong settings: each is named, with the command that mends it."""
    faults = [fault for log in logs for fault in log.faults]
    if faults:
        raise LogUnusable("\n".join([f"{fault.text}. To mend it: {fault.remedy}" for fault in faults]))
