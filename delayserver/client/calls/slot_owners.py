"""The map of a cluster with several shards, as a client asks it: which shard a message belongs to. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.receipts import DIGITS
from delayserver.protocol.schema.shard_map import CLOSED, OPEN, ShardMap, ShardPlace
from delayserver.protocol.slots import NAMED_CHARACTERS, SLOTS

NO_MAP: Final = ShardMap(0, [], [])


def _has_members(place: ShardPlace) -> bool:
    return bool(place.primary or place.standbys)


class SlotOwners:
    """One version of the map."""

    def __init__(self, shown: ShardMap) -> None:
        self.version = shown.version
        self._places = {place.shard: place for place in shown.shards}
        self._owners = [shard for first, last, shard in shown.slots for _ in range(first, last + 1)]
        self._named = {f"{place.server_id}.".encode(): place.shard for place in shown.shards}
        self._of_server = {place.server_id: place.shard for place in shown.shards}
        self.all = [place.shard for place in shown.shards if place.state != CLOSED and _has_members(place)]
        """The shards that have messages."""
        self.led = [
            place.shard for place in shown.shards if place.state != CLOSED and (place.epoch or _has_members(place))
        ]
        """The shards that may have messages, also where no member is left that has them."""
        opened = [place for place in shown.shards if place.state == OPEN and _has_members(place)]
        self.open = [place.shard for place in opened if place.epoch] or [place.shard for place in opened]
        """The shards that take new messages. One that was just added has no primary yet."""

    @property
    def members(self) -> list[str]:
        """Where the members of all shards answer."""
        return [address for place in self._places.values() for address in (place.primary, *place.standbys) if address]

    def addresses(self, shard: int) -> str:
        """The members of a shard, with commas between: the same text after a takeover. Empty: it has none yet."""
        place = self.place(shard)
        return ",".join(sorted({address for address in (place.primary, *place.standbys) if address}))

    def from_primary(self, shard: int) -> str:
        """`addresses` with that of the primary first, where a client shall begin."""
        place = self.place(shard)
        return ",".join(dict.fromkeys([address for address in (place.primary, *place.standbys) if address]))

    def place(self, shard: int) -> ShardPlace:
        """The row of a shard. Raises InvalidArgument."""
        if shard not in self._places:
            raise InvalidArgument(f"the cluster has no shard {shard}")
        return self._places[shard]

    def prefix(self, shard: int) -> str:
        """The begin of an id that names this shard."""
        return f"{self._places[shard].server_id}."

    def of_receipt(self, receipt: object) -> int | None:
        """The shard whose receipt it is. None: it is of no shard, or no receipt."""
        return self._of_server.get(receipt[:DIGITS]) if isinstance(receipt, str) else None

    def owner(self, subject: str, order_key: bytes, message_id: bytes) -> int | None:
        """The shard of a message. Order key and id are empty for a message without. None: any open one."""
        if order_key:
            return self._owners[crc32(order_key, crc32(subject.encode() + b"\0")) % SLOTS]
        if not message_id:
            return None
        named = self._named.get(message_id[:NAMED_CHARACTERS])
        if named is not None:
            return named
        return self._owners[crc32(message_id, crc32(subject.encode() + b"\0")) % SLOTS]

    def owners(
        self, subjects: Sequence[str], subject_index: Iterable[int], order_keys: Iterable[bytes], ids: Iterable[bytes]
    ) -> list[int | None]:
        """`owner` of many messages, some 0.3 µs each."""
        begun = [crc32(subject.encode() + b"\0") for subject in subjects]
        owners, named = self._owners, self._named
        found: list[int | None] = []
        for subject, order_key, message_id in zip(subject_index, order_keys, ids, strict=True):
            if order_key:
                found.append(owners[crc32(order_key, begun[subject]) % SLOTS])
            elif not message_id:
                found.append(None)
            else:
                shard = named.get(message_id[:NAMED_CHARACTERS])
                found.append(owners[crc32(message_id, begun[subject]) % SLOTS] if shard is None else shard)
        return found
