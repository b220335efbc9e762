"""`delayserver cluster init`: makes the topics of a cluster, and founds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delayserver.cli.cluster.cluster_options import cluster_file
from delayserver.cli.kafka.on_kafka import on_kafka
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json

if TYPE_CHECKING:
    from delayserver.config.cluster_file import ClusterFile
    from delayserver.members.founding import Engines, FoundedNow


@click.command
@cluster_file
@click.option("--shards", type=options.Whole(1, 1024), default=1, show_default=True, help="How many shards it has.")
@options.as_json
def init(path: str | None, shards: int, as_json: bool) -> None:
    """Make what is missing of a cluster: its topics with the right settings, and the ids of its shards.

    Whatever is there stays as it is, so the command may be repeated. A topic of another program, or one with other
    settings, is refused by name.
    """

    async def work(_file: ClusterFile, engines: Engines) -> FoundedNow:
        from delayserver.members.founding import found_cluster
        from delayserver.runtime.chance import system_chance

        return await found_cluster(engines, shards, system_chance())

    done = on_kafka(path, work)
    if as_json:
        print_json(
            {"cluster_id": done.founded.cluster_id, "shards": list(done.founded.shards), "made": list(done.made)}
        )
        return
    for text in done.made:
        click.echo(f"made {text}")
    if not done.made:
        click.echo("Everything was there already.")
