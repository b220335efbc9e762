"""Which member of which shard this process is."""

from __future__ import annotations

from dataclasses import dataclass

from store.shared.envelope import LogWriter, ShardIdentity


@dataclass(frozen=True, slots=True)
class Seat:
    """`shard` is the number of its log, `identity` the ids that its records carry. `me` is this member and the instance of
    its process, `name` and `address` what the others call it. `http` is the URL of its HTTP interface; empty: none."""

    shard: int
    identity: ShardIdentity
    me: LogWriter
    name: str
    address: str
    http: str = ""
