"""A process joins its cluster: it learns the ids of its shard, says where it is, and gets a seat for each of its lives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from random import Random

import trio

from delayserver import __version__
from delayserver.config.cluster_file import ClusterFile
from delayserver.config.cluster_settings import ClusterSettings
from delayserver.config.settings import Settings, TlsSettings
from delayserver.config.toml_file import ConfigError
from delayserver.logs.events import EventLogger
from delayserver.members.founding import Engines, require_fit
from delayserver.members.member_map import Announced, MemberMap
from delayserver.runtime.shared_log import RECORD_BYTES_MAX, LogMissing, LogUnavailable, LogUnusable
from delayserver.server.ground import Membership
from delayserver.server.map_reading import fronts_of
from delayserver.startup.directory_opening import OpeningMember
from delayserver.state.shard.cluster_map import ClusterMap
from delayserver.state.shard.seat import Seat
from store.shared.envelope import LogWriter
from store.shared.payload import LOG_VERSION
from store.tables.member_file import MemberOf

events = EventLogger()

AGAIN_S = 1.0
GATHERED_BYTES_MAX = RECORD_BYTES_MAX // 2
"""A frame, or a group of frames, becomes one record of the shared log."""
GATHERED_MESSAGES_MAX = 1 << 15
"""A message has 116 bytes of columns there, and one of a transaction twice as many: it has a timer."""
RANK_MAX = 5
"""A standby waits 0.4 s longer for each rank. Members that are gone for good leave their ranks behind."""

Look = Callable[[OpeningMember], object]

Following = Callable[[str, int, str], object]
"""Called with the host and the port of this member, and the name of the primary."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A process that has joined. `found` is the map of that moment. `shards` has the map as clients see it, which
    `MapReading` keeps."""

    engines: Engines
    file: ClusterFile
    own: Announced
    found: MemberMap
    shards: ClusterMap

    def membership(self, chance: Random, following: Callable[[str], object], tls: TlsSettings) -> Membership:
        """A seat for one life. `following` is called with the name of a primary that lives, when the life is its standby.
        `tls` is that of this life."""
        found = self.found
        seat = Seat(
            self.file.shard,
            found.identity(self.file.shard),
            LogWriter(found.number(self.own.name), chance.getrandbits(64)),
            self.own.name,
            self.own.address,
            self.own.http,
        )

        settings = ClusterSettings(
            rank=min(found.rank(self.own.name), RANK_MAX), front_probe=_probes_fronts(self.file, tls)
        )
        names = {number: name for name, number in found.numbers.items()}
        healed = found.healed.get(self.file.shard)
        return Membership(self.engines.shards, seat, settings, names, following, self.shards, healed)


def require_of_member(settings: Settings) -> None:
    """Raises ConfigError for settings with which a member could skip records of its log, or take them twice, and for those
    with which it makes records that the log does not take."""
    if settings.storage.durability != "sync":
        raise ConfigError(
            f"storage.durability = {settings.storage.durability!r} is not for a member of a cluster: after a loss of power "
            "its files would not agree on how far they followed the log. Leave it at 'sync'"
        )
    for name, value, most in (
        ("listen.frame_bytes_max", settings.listen.frame_bytes_max, GATHERED_BYTES_MAX),
        ("storage.group_bytes_max", settings.storage.group_bytes_max, GATHERED_BYTES_MAX),
        ("message.batch_messages_max", settings.message.batch_messages_max, GATHERED_MESSAGES_MAX),
    ):
        if value > most:
            raise ConfigError(
                f"{name} = {value} is too large for a member of a cluster: a record of the shared log has at most "
                f"{RECORD_BYTES_MAX} bytes, with all columns. Give {most} at most"
            )


def _probes_fronts(cluster: ClusterFile, tls: TlsSettings) -> bool:
    """Whether a member asks the fronts of the others. It can do so where it can check their certificates, if it has one."""
    return cluster.front_probe and (not tls.certificate or bool(tls.node_ca))


async def has_tokens(engines: Engines) -> bool:
    """Whether the cluster has tokens. Waits for Kafka where it does not answer. Raises LogUnusable."""
    while True:
        try:
            return (await engines.read_map()).tokens is not None
        except LogMissing:
            return False
        except LogUnavailable as error:
            events.warning("start_waits_for_log", "the start waits for the shared log: {reason}", reason=str(error))
            await trio.sleep(AGAIN_S)


async def join(
    file: ClusterFile, engines: Engines, address: str, http: str, window_ms: int, chance: Random, look: Look
) -> Joined:
    """Join, and wait for Kafka where it does not answer. `look` raises where this member may not open its data directory: a
    start that is refused must not take the place of a member that runs. Raises LogUnusable: there is no such cluster or
    shard, or a topic has wrong settings. Raises ConfigError where another member of the shard has not the same
    `window_ms`."""
    while True:
        try:
            return await _join(file, engines, address, http, window_ms, chance, look)
        except LogUnavailable as error:
            events.warning("start_waits_for_log", "the start waits for the shared log: {reason}", reason=str(error))
            await trio.sleep(AGAIN_S)


async def _join(
    file: ClusterFile, engines: Engines, address: str, http: str, window_ms: int, chance: Random, look: Look
) -> Joined:
    known = await engines.read_map()
    if known.founded is None:
        raise LogUnusable(
            f"topic {engines.map.topic} has no cluster yet, so its founding was interrupted: delayserver cluster init "
            "--cluster FILE"
        )
    if file.shard >= len(known.shards):
        raise LogUnusable(
            f"this member is of shard {file.shard}, and the cluster has {len(known.shards)}, counted from 0. Name one of "
            "them: shard in the file of the cluster, or --shard"
        )
    _require_whole(known, file.shard)
    _require_same_windows(known.of_shard(file.shard), file.member, window_ms)
    require_fit([await engines.shards.open(file.shard).describe(), await engines.map.open(0).describe()])
    identity = known.identity(file.shard)
    look(OpeningMember(identity.server_id, MemberOf(identity.cluster_id, file.shard, file.member)))
    instance = f"{chance.getrandbits(64):016x}"
    own = Announced(file.member, file.shard, address, http, __version__, instance, LOG_VERSION, window_ms=window_ms)
    found = await engines.note(own)
    _require_whole(found, file.shard)
    # Of two that came at the same time the second one is refused.
    earlier = takewhile(lambda each: each.name != file.member, found.of_shard(file.shard))
    _require_same_windows(earlier, file.member, window_ms)
    shards = ClusterMap(file.shard, file.member)
    shards.take(found.shown(), found.reads(file.shard))
    shards.fronts.take(fronts_of(found, file.shard))
    shards.tokens.take(found.token_table(), found.version)
    return Joined(engines, file, own, found, shards)


def _require_whole(found: MemberMap, shard: int) -> None:
    """Raises LogUnusable while the log of a shard is healed: a member would take a part of it for all."""
    if shard in found.healing:
        raise LogUnusable(
            f"the log of shard {shard} is being healed by {found.healing[shard]}, or that was interrupted. If no "
            "delayserver cluster heal runs any more, call it again on the machine of each member of the shard"
        )


def _require_same_windows(members: Iterable[Announced], name: str, window_ms: int) -> None:
    """Raises ConfigError where one of these members, but for `name`, has windows of another length. The log says which
    windows are over, so these two would not find the same copies."""
    for each in members:
        if each.name != name and each.window_ms not in (0, window_ms):
            raise ConfigError(
                f"storage.window_ms = {window_ms} is not that of this shard: member {each.name} has {each.window_ms}, and "
                "all members need the same. Set it so. Is that member gone for good? Then: delayserver cluster forget "
                f"--cluster FILE --member {each.name}"
            )
