"""A member reads the map of the cluster while it runs, and writes there that it leads, which tokens were changed, which
members it reaches, and what is wrong with its directory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import trio
from msgspec.structs import replace

from delayserver.logs.events import EventLogger
from delayserver.members.founding import Engine
from delayserver.members.member_map import Announced, Led, MemberMap, Note, TokenNote, TokenRevoked, encode_note, visit
from delayserver.runtime.shared_log import LogRecord, SharedLog, SharedLogError
from delayserver.state.shard.cluster_map import ClusterMap
from delayserver.state.shard.fronts import MemberFront, Reach
from delayserver.state.shard.shared_tokens import TokenChange

events = EventLogger()

ENDED_S = 5.0
"""A process that ends waits so long for the map."""
AGAIN_S = 5.0
"""The map is not needed to serve. Who reads it learns of a change this much later."""


class MapReading:
    """Keeps the `ClusterMap` of a process."""

    def __init__(self, engine: Engine, own: Announced, shards: ClusterMap) -> None:
        """`engine` has the map. `own` is the start of this process."""
        self._engine = engine
        self._own = own
        self._shards = shards

    async def run(self) -> None:
        """Read until cancelled. A map that is lost is looked for again: the shard goes on without it."""
        while True:
            failure: SharedLogError | None = None
            async with trio.open_nursery() as nursery:
                log = self._engine.open(0)
                nursery.start_soon(self._say_that_it_leads, log)
                nursery.start_soon(self._say_changed_tokens, log)
                nursery.start_soon(self._say_whom_it_reaches, log)
                try:
                    await self._read(log)
                except SharedLogError as error:
                    failure = error
                nursery.cancel_scope.cancel()
            events.warning("map_not_read", "the map of the cluster cannot be read: {reason}", reason=str(failure))
            await trio.sleep(AGAIN_S)

    async def _read(self, log: SharedLog) -> None:
        found = MemberMap()

        def arrived(records: Sequence[LogRecord]) -> None:
            for each in records:
                found.take(each, self._engine.topic)
            if found.version > self._shards.version.value:
                self._shards.take(found.shown(), found.reads(self._own.shard))
                self._shards.tokens.take(found.token_table(), found.version)
                self._shards.fronts.take(fronts_of(found, self._own.shard))

        await log.run(0, arrived)

    async def _say_that_it_leads(self, log: SharedLog) -> None:
        led, own, said = self._shards.led, self._own, 0
        while True:
            await led.reached(said + 1)
            said = led.value
            log.append(encode_note(Led(own.name, own.shard, said)))

    async def _say_changed_tokens(self, log: SharedLog) -> None:
        """What was offered while no log was there is written now. Whoever asked for it may have given up: it is in doubt."""
        tokens = self._shards.tokens
        while True:
            tokens.offered.hush()
            for change in tokens.take_offered():
                log.append(encode_note(_note_of(change)))
            await tokens.offered.rung()

    async def _say_whom_it_reaches(self, log: SharedLog) -> None:
        fronts, said = self._shards.fronts, (Reach(), False)
        while True:
            fronts.changed.hush()
            if (fronts.own, fronts.damaged) != said:
                reach, damaged = said = (fronts.own, fronts.damaged)
                known = replace(self._own, reaches=reach.reaches, unreached=reach.unreached, damaged=damaged)
                log.append(encode_note(known))
            await fronts.changed.rung()


def fronts_of(found: MemberMap, shard: int) -> list[MemberFront]:
    """The fronts of a shard, as the map has them."""
    return [
        MemberFront(each.name, each.address, Reach(each.reaches, each.unreached), each.damaged or bool(each.ended))
        for each in found.of_shard(shard)
    ]


async def say_diverged(engine: Engine, own: Announced) -> None:
    """Say that the process of `own` has ended because it has diverged. Where the map does not take it within `ENDED_S`, the
    last line of the process says it alone."""
    with trio.move_on_after(ENDED_S), suppress(SharedLogError):
        await visit(engine.open(0), engine.topic, replace(own, ended="diverged"))


def _note_of(change: TokenChange) -> Note:
    if change.after is None:
        assert change.before is not None, "a change has a token"
        return TokenRevoked(change.before.token_id)
    return TokenNote(change.after, made=change.before is None)
