"""`delayserver cluster add-shard`: one more shard, for members that are started then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delayserver.cli.cluster.cluster_options import cluster_file
from delayserver.cli.kafka.on_kafka import on_kafka
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json

if TYPE_CHECKING:
    from delayserver.config.cluster_file import ClusterFile
    from delayserver.members.founding import Engines
    from delayserver.members.member_map import MemberMap


@click.command("add-shard")
@cluster_file
@options.as_json
def add_shard(path: str | None, as_json: bool) -> None:
    """Add a shard to a cluster: a partition of its topic, and a record in the map. Then start members of it.

    It gets messages without an id of the caller and without an order key. The others stay with the shards of the founding,
    because the same id must meet the same shard.
    """

    async def work(_file: ClusterFile, engines: Engines) -> MemberMap:
        from delayserver.members.founding import add_shard as add
        from delayserver.runtime.chance import system_chance

        return await add(engines, system_chance())

    shard, server_id = list(enumerate(on_kafka(path, work).shards))[-1]
    if as_json:
        print_json({"shard": shard, "server_id": server_id})
    else:
        click.echo(f"shard {shard} is there. Start its members: delayserver serve --cluster FILE --shard {shard}")
