"""`delayserver cluster init`: makes the topics of a cluster, and founds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delayserver.cli.cluster.cluster_options import cluster_file
from delayserver.cli.kafka.on_kafka import on_kafka
from delayserver.cli.recover.recover_options import usage_of_directory
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json

if TYPE_CHECKING:
    from delayserver.config.cluster_file import ClusterFile
    from delayserver.members.founding import Engines, FoundedNow


@click.command
@cluster_file
@click.option(
    "--shards", type=options.Whole(1, 1024), help="How many shards it has. Default: 1, or one for each --from."
)
@click.option("--from", "directories", multiple=True, type=click.Path(exists=True, file_okay=False), metavar="DIR",
              help="The directory of a single server, which becomes a shard. Several: in their order.")  # fmt: skip
@options.as_json
def init(path: str | None, shards: int | None, directories: tuple[str, ...], as_json: bool) -> None:
    """Make what is missing of a cluster: its topics with the right settings, and the ids of its shards.

    Whatever is there stays as it is, so the command may be repeated. A topic of another program, or one with other
    settings, is refused by name.

    With --from the cluster has the messages of a server. Stop that server first. Its directory becomes the first member's:
    start it with serve --cluster. All other members begin with a backup of it.
    """
    if directories and shards not in (None, len(directories)):
        raise click.UsageError(f"--shards {shards} with {len(directories)} directories: give one --from for each shard")

    async def work(_file: ClusterFile, engines: Engines) -> FoundedNow:
        from delayserver.crossing.founding_on_directories import found_on
        from delayserver.members.founding import found_cluster
        from delayserver.runtime.chance import system_chance
        from delayserver.runtime.runtime import Runtime
        from store.disk.filesystem import RealFileSystem

        if directories:
            roots = [each.rstrip("/") or "/" for each in directories]
            return await found_on(engines, RealFileSystem(), roots, Runtime.on())
        return await found_cluster(engines, shards or 1, system_chance())

    with usage_of_directory():
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
    elif directories:
        click.echo(
            "Start the first member on its directory (serve --cluster), then back it up, and restore the others."
        )
