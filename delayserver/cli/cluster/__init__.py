"""`delayserver cluster`: founds a cluster, shows its members, moves its leadership, and forgets members that are gone."""

from __future__ import annotations

import click

from delayserver.cli.cluster.forget import forget
from delayserver.cli.cluster.init import init
from delayserver.cli.cluster.status import status
from delayserver.cli.cluster.switch import switch
from delayserver.cli.cluster.trim import trim


@click.group(
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a topic of the cluster is set up wrongly or lost.",
)
def cluster() -> None:
    """Found a cluster, show its members, and move its leadership."""


for command in (forget, init, status, switch, trim):
    cluster.add_command(command)
