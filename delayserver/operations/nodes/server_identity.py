"""The identity of this process, for clients and other servers."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver import __version__
from delayserver.state.shard.cluster_map import ClusterMap


@dataclass(frozen=True, slots=True)
class Identity:
    """The id of the data directory (12 hex digits), the role (server or lone broker), the shards of the cluster, and the
    program version."""

    server_id: str
    role: str
    map: ClusterMap
    version: str = __version__
