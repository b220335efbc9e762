"""`delayserver cluster`: founds a cluster, shows its members and shards, moves them, forgets members, and heals a log."""

from __future__ import annotations

import click

from delayserver.cli.cluster.add_shard import add_shard
from delayserver.cli.cluster.drain_shard import drain_shard
from delayserver.cli.cluster.forget import forget
from delayserver.cli.cluster.heal import heal
from delayserver.cli.cluster.init import init
from delayserver.cli.cluster.leave import leave
from delayserver.cli.cluster.move import move
from delayserver.cli.cluster.status import status
from delayserver.cli.cluster.switch import switch
from delayserver.cli.cluster.trim import trim


@click.group(
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a topic of the cluster is set up wrongly or lost.",
)
def cluster() -> None:
    """Found a cluster, show its members and shards, and move them."""


for command in (add_shard, drain_shard, forget, heal, init, leave, move, status, switch, trim):
    cluster.add_command(command)
