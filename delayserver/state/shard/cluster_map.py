"""The shards of the cluster, as far as this process has read the map."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from delayserver.protocol.errors import WrongShard
from delayserver.protocol.schema.shard_map import CLOSED, OPEN, ShardMap
from delayserver.protocol.slots import NAMED_CHARACTERS, SLOTS
from delayserver.runtime.marks import Mark
from delayserver.state.shard.fronts import Fronts
from delayserver.state.shard.shared_tokens import SharedTokens

AGAIN_MS = 100
"""A client that is behind reads the map, and a member that is behind does so within this time."""


class ClusterMap:
    """The map, for all lives of a process. Writer of the map: `MapReading`; of `led`: the server.

    Invariant: the version only grows."""

    def __init__(self, shard: int = 0, member: str = "") -> None:
        """`shard` and `member` are those of this process."""
        self._shard = shard
        self.shown = ShardMap(0, [], [])
        # The highest version of the log of this shard that all its members read.
        self.reads = 0
        # That of `shown`.
        self.version = Mark(0)
        # The last epoch in which this process leads its shard, and serves.
        self.led = Mark(0)
        # Writer: `MapReading`.
        self.tokens = SharedTokens()
        self.fronts = Fronts(member)
        # The first characters of ids that name a shard, and the shard.
        self._named: dict[bytes, int] = {}
        self._owners: list[int] = []
        self._state = OPEN

    @property
    def epoch(self) -> int:
        """The last epoch in which somebody served this shard, as far as the map says."""
        return next((each.epoch for each in self.shown.shards if each.shard == self._shard), 0)

    def take(self, shown: ShardMap, reads: int = 0) -> None:
        """A later map. `reads`: the highest version of the log of this shard that all its members read."""
        self.shown, self.reads = shown, reads
        self._owners = [shard for first, last, shard in shown.slots for _ in range(first, last + 1)]
        self._named = {f"{each.server_id}.".encode(): each.shard for each in shown.shards}
        self._state = next((each.state for each in shown.shards if each.shard == self._shard), OPEN)
        self.version.advance(shown.version)

    @property
    def refusals(self) -> Callable[[str, bytes, bytes], WrongShard | None] | None:
        """What says of a message why this shard does not take it; None where it takes all. See `refusal`."""
        return self.refusal if len(self.shown.shards) > 1 else None

    def refusal(self, subject: str, order_key: bytes, message_id: bytes) -> WrongShard | None:
        """Why this shard does not take a message: another one has it, or this one takes no new ones. Order key and id are
        empty for a message without."""
        owner = None if order_key else self._named.get(message_id[:NAMED_CHARACTERS])
        if owner is None and (key := order_key or message_id):
            owner = self._owners[crc32(key, crc32(subject.encode() + b"\0")) % SLOTS]
        if self._state != CLOSED if owner == self._shard else owner is None and self._state == OPEN:
            return None
        owner = None if owner == self._shard else owner
        text = "this shard takes no new messages" if owner is None else f"the message belongs to shard {owner}"
        details = {"version": self.shown.version} | ({} if owner is None else {"shard": owner})
        return WrongShard(
            f"{text}, by version {self.shown.version} of the map", retry_after_ms=AGAIN_MS, details=details
        )
