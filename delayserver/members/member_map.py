"""The map of a cluster: a log with its founding as the first record, and a record for each start of a member and for each
takeover. An operator adds records for members that are gone, and for shards that come and go.

Records are JSON, for people who look with Kafka's own tools. The map grows by some 200 bytes a start, and is read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeAlias

import msgspec
import trio
from msgspec.structs import replace

from delayserver.protocol.schema.shard_map import OPEN, ShardMap, ShardPlace
from delayserver.protocol.slots import SLOTS
from delayserver.runtime.log_reading import reading
from delayserver.runtime.marks import Mark
from delayserver.runtime.shared_log import LogRecord, LogUnusable, SharedLog
from store.shared.envelope import ShardIdentity
from store.tables.stored_tokens import TOKENS_MAX, StoredToken

FORMAT: Final = 1


class Founded(msgspec.Struct, frozen=True, tag_field="kind", tag="cluster"):
    """The cluster begins. The first such record counts. Ids are 12 hex digits; `shards` has the server id of each shard."""

    format: int
    cluster_id: str
    shards: tuple[str, ...]


class Announced(msgspec.Struct, frozen=True, tag_field="kind", tag="member"):
    """A process of a member has started. `address` is where clients reach it, `http` the URL of its HTTP interface or empty,
    `program` its version. By `instance`, 16 hex digits, the records of two starts differ. `reads` is the highest version of
    a shard's log that it reads; programs of before did not say it. A process writes its
    record again with the members of its shard whose fronts it `reaches`, and those that it has not reached for 10 s. So it
    does when it is `damaged`: it knows of damage in its directory. `ended` is `diverged` where it has ended so. `window_ms`
    is the length of its windows; 0: its program does not say it."""

    name: str
    shard: int
    address: str
    http: str
    program: str
    instance: str
    reads: int = 0
    reaches: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    damaged: bool = False
    ended: str = ""
    window_ms: int = 0


class Forgotten(msgspec.Struct, frozen=True, tag_field="kind", tag="forgotten"):
    """A member is gone for good. It counts if the last start of the member is that of `instance`."""

    name: str
    instance: str


class Led(msgspec.Struct, frozen=True, tag_field="kind", tag="primary"):
    """A member has taken its shard over. The log of the shard decided it; here others learn it."""

    name: str
    shard: int
    epoch: int


class ShardAdded(msgspec.Struct, frozen=True, tag_field="kind", tag="shard"):
    """One more shard. It counts if it is the next one by its number."""

    shard: int
    server_id: str


class ShardState(msgspec.Struct, frozen=True, tag_field="kind", tag="state"):
    """The state of a shard from here on: `open`, `draining` or `closed`."""

    shard: int
    state: str


class TokenNote(msgspec.Struct, frozen=True, tag_field="kind", tag="token"):
    """An access token for all shards. `made`: it counts if no token has its id; else it takes the place of the one that
    has. So a token that was revoked does not come back with a new secret."""

    token: StoredToken
    made: bool


class TokenRevoked(msgspec.Struct, frozen=True, tag_field="kind", tag="token_revoked"):
    """A token is valid no longer."""

    id: str


class Stranded(msgspec.Struct, frozen=True, tag_field="kind", tag="stranded"):
    """A member whose log has lost records is stopped, and waits to be healed. It had followed the log up to record `index`
    of `epoch`. `records_epoch` and `records_index` are those of the last one that had more than a note. The writer of the
    former is a member's number, and the instance of its process in 16 hex digits."""

    name: str
    shard: int
    epoch: int
    index: int
    writer: int
    instance: str
    records_epoch: int
    records_index: int
    ahead: int
    """So many records more it has, which a crash has cut off from their place."""

    @property
    def place(self) -> tuple[int, int]:
        """The last record that it has read."""
        return self.epoch, self.index

    @property
    def records_place(self) -> tuple[int, int]:
        """The last record that brought it anything."""
        return self.records_epoch, self.records_index


class HealingBegun(msgspec.Struct, frozen=True, tag_field="kind", tag="healing"):
    """The member `name` writes the log of a shard anew from now on. No member starts until it is healed: what the log has
    meanwhile is a part of it."""

    shard: int
    name: str


class Healed(msgspec.Struct, frozen=True, tag_field="kind", tag="healed"):
    """The log of a shard had lost records, and was made whole: from `position` on it has all behind the record `index` of
    `epoch`, up to the last epoch `until`. A member that has read no later epoch reads from there."""

    shard: int
    position: int
    epoch: int
    index: int
    until: int


Note: TypeAlias = (
    Founded
    | Announced
    | Forgotten
    | Led
    | ShardAdded
    | ShardState
    | TokenNote
    | TokenRevoked
    | Stranded
    | HealingBegun
    | Healed
)
"""A record of the map."""

encode_note: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Note).decode


@dataclass(slots=True)
class MemberMap:
    """What the map says. `members` has the last start of each, but for those that are gone. `numbers` has all that ever
    came, from 1 on in the order in which they came. `shards` has the server ids of the shards, `states` those that are not
    open, `leaders` the last takeover of each. `stranded` are the members that wait to be healed. `healing` has who began a
    healing that has not ended, for each shard, and `healed` the last one that has. `tokens` are those of all shards, by id;
    None: none was made yet. `version` is the place behind the last record."""

    founded: Founded | None = None
    members: dict[str, Announced] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    shards: list[str] = field(default_factory=list)
    states: dict[int, str] = field(default_factory=dict)
    leaders: dict[int, Led] = field(default_factory=dict)
    stranded: dict[str, Stranded] = field(default_factory=dict)
    healing: dict[int, str] = field(default_factory=dict)
    healed: dict[int, Healed] = field(default_factory=dict)
    tokens: dict[str, StoredToken] | None = None
    version: int = 0
    _gone: set[str] = field(default_factory=set)

    def identity(self, shard: int) -> ShardIdentity:
        """The ids that the records of a shard carry."""
        assert self.founded is not None, "there is a cluster"
        return ShardIdentity(int(self.founded.cluster_id, 16), int(self.shards[shard], 16))

    def shown(self) -> ShardMap:
        """The map as clients see it. The shards of the founding keep the slots: the same id meets the same shard."""
        founded = 0 if self.founded is None else len(self.founded.shards)
        ends = [number * SLOTS // max(founded, 1) for number in range(founded + 1)]
        slots = [[first, end - 1, shard] for shard, (first, end) in enumerate(pairwise(ends))]
        return ShardMap(self.version, slots, [self._place(shard) for shard in range(len(self.shards))])

    def _place(self, shard: int) -> ShardPlace:
        led = self.leaders.get(shard)
        members = self.of_shard(shard)
        leading = [each.address for each in members if led is not None and each.name == led.name]
        return ShardPlace(
            shard,
            self.shards[shard],
            self.states.get(shard, OPEN),
            0 if led is None else led.epoch,
            leading[0] if leading else "",
            [each.address for each in members if each.address not in leading],
        )

    def token_table(self) -> tuple[StoredToken, ...] | None:
        """The tokens of all shards, in the order in which they were made; None: none was made yet."""
        return None if self.tokens is None else tuple(self.tokens.values())

    def number(self, name: str) -> int:
        """The number of a member. It never changes, also while the member is gone."""
        return self.numbers[name]

    def all_stranded(self, shard: int) -> bool:
        """Whether all members of a shard are stopped, and wait to be healed."""
        return all(each.name in self.stranded for each in self.of_shard(shard))

    def rank(self, name: str) -> int:
        """The place of a member among those of its shard: 0 for the one that came first."""
        return [each.name for each in self.of_shard(self.members[name].shard)].index(name)

    def of_shard(self, shard: int) -> list[Announced]:
        """The members of a shard, in the order of their numbers."""
        members = [each for each in self.members.values() if each.shard == shard]
        return sorted(members, key=lambda each: self.numbers[each.name])

    def reads(self, shard: int) -> int:
        """The highest version of a shard's log that all its members read; 0 without members."""
        return min([each.reads for each in self.of_shard(shard)], default=0)

    def take(self, record: LogRecord, topic: str) -> None:
        """The next record. Raises LogUnusable if it is none of a map."""
        try:
            note = _decode(record.data)
        except msgspec.MsgspecError:
            raise LogUnusable(
                f"topic {topic} has a record at {record.position} that is none of a map of members: another program writes "
                "there, or a newer version of this one"
            ) from None
        self.version = record.position + 1
        if isinstance(note, Announced):
            self._take_member(note)
        elif isinstance(note, Forgotten):
            known = self.members.get(note.name)
            if known is not None and known.instance == note.instance:
                del self.members[note.name]
                self._gone.add(note.instance)
                self.stranded.pop(note.name, None)
        elif isinstance(note, Led):
            known_leader = self.leaders.get(note.shard)
            if known_leader is None or known_leader.epoch < note.epoch:
                self.leaders[note.shard] = note
        elif isinstance(note, ShardAdded):
            if note.shard == len(self.shards):
                self.shards.append(note.server_id)
        elif isinstance(note, ShardState):
            self.states[note.shard] = note.state
        elif isinstance(note, TokenNote):
            tokens = self.tokens = self.tokens or {}
            known_id = note.token.token_id in tokens
            if not known_id and len(tokens) < TOKENS_MAX if note.made else known_id:
                tokens[note.token.token_id] = note.token
        elif isinstance(note, TokenRevoked):
            if self.tokens is not None:
                self.tokens.pop(note.id, None)
        elif isinstance(note, Stranded):
            if note.name in self.members:
                self.stranded[note.name] = note
        elif isinstance(note, HealingBegun):
            self.healing[note.shard] = note.name
        elif isinstance(note, Healed):
            self.healed[note.shard] = note
            self.healing.pop(note.shard, None)
            led = self.leaders.get(note.shard)
            if led is not None and led.epoch > note.until:
                # Nobody had the claim of that epoch any more. The next primary claims it anew.
                self.leaders[note.shard] = replace(led, epoch=note.until)
            self.stranded = {name: each for name, each in self.stranded.items() if each.shard != note.shard}
        elif self.founded is None:
            if note.format != FORMAT:
                raise LogUnusable(f"the cluster in topic {topic} has format {note.format}: install a newer version")
            self.founded = note
            self.shards.extend(note.shards)

    def _take_member(self, note: Announced) -> None:
        if note.instance in self._gone:
            return  # a start that was forgotten, whose process goes on
        self.numbers.setdefault(note.name, len(self.numbers) + 1)
        self.members[note.name] = note
        self.stranded.pop(note.name, None)


async def visit(log: SharedLog, topic: str, note: Note | None = None) -> MemberMap:
    """Append `note` to the map, if there is one, and read the map: to that record at least. `log` has not run yet.

    A log that does not answer is waited for where a note is appended. Raises LogUnavailable otherwise, LogUnusable, LogLost.
    """
    found, read = MemberMap(), Mark(0)
    record = b"" if note is None else encode_note(note)
    came = trio.Event()

    def arrived(records: Sequence[LogRecord]) -> None:
        for each in records:
            found.take(each, topic)
            if each.data == record:
                came.set()
        read.advance(records[-1].position + 1)

    async with reading(log, 0, arrived):
        if record:
            log.append(record)
            await came.wait()
        else:
            await read.reached(await log.ask())
    return found
