"""The primary raises the version of its log when all members of the shard read it."""

from __future__ import annotations

import trio

from delayserver.protocol.errors import DelayServerError
from delayserver.state.shard.cluster_map import ClusterMap
from delayserver.state.shard.proposals import Proposals
from delayserver.state.shard.standing import Standing
from store.shared.payload import BarrierNote


class BarrierRaising:
    """Proposes barriers. A member that the map does not show yet may read less than the others: it stops at the barrier, by
    name. So nothing that is promised depends on how new the map is."""

    def __init__(self, standing: Standing, proposals: Proposals, shards: ClusterMap) -> None:
        self._standing = standing
        self._proposals = proposals
        self._map = shards

    async def run(self) -> None:
        """Look at each change of the map, while this process leads."""
        standing, shards = self._standing, self._map
        while True:
            seen = shards.version.value
            version = min(shards.reads, standing.reads)
            if version > standing.barrier.value:
                await self._raise_to(version)
            await shards.version.reached(seen + 1)

    async def _raise_to(self, version: int) -> None:
        ended = trio.Event()

        def refused(_: DelayServerError) -> None:
            ended.set()  # the next primary raises it

        self._proposals.note(BarrierNote(version, self._standing.program), lambda _: ended.set(), refused)
        await ended.wait()
