"""The operation `map`: the shards of a cluster, where they are, and which slots they have."""

from __future__ import annotations

from typing import Annotated

from delayserver.protocol.schema.structs import Reply, Request, says

OPEN = "open"
DRAINING = "draining"
CLOSED = "closed"


class AskMap(Request, frozen=True):
    """The map, when it has another version than the client knows."""

    after: Annotated[int, says("The version that the client has; 0: none.", 41, ge=0, le=1 << 62)] = 0
    wait_ms: Annotated[
        int,
        says(
            "So long it waits for a version above `after`: 0 (the default) to `wait_ms_max`.",
            30_000,
            ge=0,
            le=1 << 62,
        ),
    ] = 0


class ShardPlace(Reply, frozen=True):
    """One shard: who leads it, and who follows."""

    shard: Annotated[int, says("Counted from 0.", 0)]
    server_id: Annotated[str, says("That of all its members. Its receipts begin with it.", "5f3a9c0d2b71")]
    state: Annotated[
        str, says("`open`; `draining`: it takes no new messages; `closed`: it has none left, and no members.", "open")
    ]
    epoch: Annotated[int, says("Its last leadership in the map; 0: none yet.", 7)]
    primary: Annotated[str, says("Where its primary answers, `host:port`; empty: none yet.", "10.0.0.11:20801")]
    standbys: Annotated[list[str], says("Where its other members answer.", ["10.0.0.12:20801"])]


class ShardMap(Reply, frozen=True):
    """The shards of a cluster. A server without a cluster has none, with version 0."""

    version: Annotated[int, says("A later map of the same cluster has a larger one, whichever member gives it.", 42)]
    slots: Annotated[
        list[list[int]],
        says(
            "The owners of the slots: the first, the last and the shard. They cover 0 to 1023, in order.",
            [[0, 511, 0], [512, 1023, 1]],
            written="[[int, int, int]]",
        ),
    ]
    shards: Annotated[list[ShardPlace], says("The shards, in order.")]
