"""What every builder of parts is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from delayserver.config.cluster_settings import ClusterSettings
from delayserver.config.pacing import Pacing
from delayserver.config.settings import Settings
from delayserver.members.member_map import Healed
from delayserver.net.transport import Connect, connect_socket
from delayserver.operations.access.tokens import OwnTokens
from delayserver.operations.nodes.reload import Reread
from delayserver.operations.nodes.servers import Servers
from delayserver.runtime.room_wait import RoomWait
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.shared_log import LogEngine
from delayserver.runtime.watchdog import Watchdog
from delayserver.startup.directory_opening import Opened, OpeningMember
from delayserver.state.connections.connections import Connections
from delayserver.state.files import Files
from delayserver.state.positions.readiness import Readiness
from delayserver.state.shard.cluster_map import ClusterMap
from delayserver.state.shard.seat import Seat
from delayserver.state.shard.standing import Standing
from store.disk.filesystem import FileSystem, RealFileSystem
from store.shared.payload import LOG_VERSION
from store.tables.member_file import MemberOf
from store.tables.names import Names


@dataclass(frozen=True, slots=True)
class Membership:
    """What makes a server a member of a cluster: its seat, and the engine of the shared log. `names` are those of all
    members, by their numbers. `following` is called with the name of the primary, when this member is its standby and
    hears it. `map` has all shards, for all lives of the process. `healed`: how the log was made whole of late. `reads`: the
    highest version of the log that this program reads."""

    engine: LogEngine
    seat: Seat
    settings: ClusterSettings
    names: Mapping[int, str] = field(default_factory=dict)
    following: Callable[[str], object] = lambda _primary: None
    map: ClusterMap = field(default_factory=ClusterMap)
    healed: Healed | None = None
    reads: int = LOG_VERSION

    @property
    def member(self) -> OpeningMember:
        """As a data directory knows it."""
        seat = self.seat
        return OpeningMember(seat.identity.server_id, MemberOf(seat.identity.cluster_id, seat.shard, seat.name))

    def leader_of(self, standing: Standing) -> str:
        """The name of whoever leads. Its claim has it. Where an earlier process read the claim, `names` have it."""
        if standing.claim is not None:
            return standing.claim.member
        return self.names.get(standing.leader.member, f"member {standing.leader.member}")


@dataclass(frozen=True, slots=True)
class Doors:
    """How a server reaches its disk and other servers."""

    fs: FileSystem = field(default_factory=RealFileSystem)
    connect: Connect = connect_socket


@dataclass(frozen=True, slots=True)
class Outside:
    """The inputs of a server that exist before its data directory is open. `instance` names this process. `given` are
    the settings as the operator gave them; `reread` reads them again, for `reload`. `membership` is None for a single
    server."""

    role: str
    instance: str
    doors: Doors
    given: Settings
    reread: Reread | None
    readiness: Readiness
    replay_room: RoomWait
    log_room: RoomWait
    servers: Servers
    own_tokens: OwnTokens
    connections: Connections
    watchdog: Watchdog
    membership: Membership | None


@dataclass(frozen=True, slots=True)
class Ground:
    """The open data directory, the inputs and the settings. `patient` is that of `DelayServer.open`."""

    opened: Opened
    outside: Outside
    settings: Settings
    pacing: Pacing
    runtime: Runtime
    patient: bool

    @property
    def files(self) -> Files:
        """The open files."""
        return self.opened.files

    @property
    def names(self) -> Names:
        """The table of names."""
        return self.opened.files.names

    @property
    def server_id(self) -> str:
        """The server id as clients see it."""
        return f"{self.opened.directory.server_id:012x}"

    def path(self, name: str) -> str:
        """The path of a file or folder of the data directory."""
        return f"{self.opened.directory.path}/{name}"
