"""`delayserver cluster status`: who leads, how far the standbys are, and what Kafka has."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import click

from delayserver.cli.cluster.cluster_options import Asked, ask_members, cluster_file, members
from delayserver.cli.kafka.on_kafka import on_kafka
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible

if TYPE_CHECKING:
    from delayserver.config.cluster_file import ClusterFile
    from delayserver.members.founding import Engines
    from delayserver.members.member_map import MemberMap
    from delayserver.runtime.shared_log import LogDescription


@click.command
@cluster_file
@members
@options.access
@options.as_json
def status(path: str | None, servers: str | None, as_json: bool) -> None:
    """Show who leads, how far the standbys are, what happens if a member dies now, and what Kafka has.

    With --cluster the members are those in the map of the cluster, and the settings of its topics are checked: a wrong one
    is an error, with the command that mends it. With --server alone only these members are asked. With --json: a line a
    member. The role is `primary`, `standby`, `taking_over` or `down`.
    """
    if path is None and servers is None:
        raise click.UsageError("say which cluster: --cluster FILE, or --server HOST:PORT")
    map_, logs = (None, []) if path is None else on_kafka(path, _look)
    asked = ask_members(servers, map_)
    for shard, of_shard in groupby(asked, key=lambda each: each.shard):
        if as_json:
            for each in of_shard:
                print_json(_record(each))
        else:
            _tell(shard, list(of_shard))
    if not as_json:
        for shard, log in enumerate(logs[:-1]):
            click.echo(
                f"Kafka, shard {shard}: {log.copies} copies, {log.in_sync_min} of them before a record counts, "
                f"{log.end - log.first:,} positions kept"
            )
    from delayserver.members.founding import require_fit

    require_fit(logs)


async def _look(_file: ClusterFile, engines: Engines) -> tuple[MemberMap, list[LogDescription]]:
    """The map, and the logs of the shards and of the map."""
    map_ = await engines.read_map()
    shards = 0 if map_.founded is None else len(map_.founded.shards)
    logs = [await engines.shards.open(shard).describe() for shard in range(shards)]
    return map_, [*logs, await engines.map.open(0).describe()]


def _record(each: Asked) -> dict[str, object]:
    standing = each.standing
    if standing is None:
        return {
            "shard": each.shard, "member": each.name or None, "role": "down", "epoch": None, "lag_records": None,
            "lag_ms": None, "address": each.address, "reason": each.reason,
        }  # fmt: skip
    return {
        "shard": standing.shard, "member": standing.member, "role": standing.role, "epoch": standing.epoch,
        "lag_records": standing.lag_records, "lag_ms": standing.lag_ms, "address": each.address,
    }  # fmt: skip


def _tell(shard: int | None, of_shard: list[Asked]) -> None:
    click.echo("members that do not answer" if shard is None else f"shard {shard}")
    width = max([len(each.name or each.address) for each in of_shard])
    for each in of_shard:
        standing = each.standing
        if standing is None:
            text = f"down         {each.address}: {each.reason}"
        else:
            text = f"{standing.role:<11}  {each.address}, epoch {standing.epoch}"
            if standing.lag_records is None:
                text += f", its log does not answer; the last record came {standing.lag_ms:,} ms ago"
            elif standing.role == "standby":
                text += f", {standing.lag_records:,} records ({standing.lag_ms:,} ms) behind"
        click.echo(visible(f"  {each.name or each.address:<{width}}  {text}"))
    for each in of_shard:
        if each.standing is not None:
            click.echo(visible(f"  if {each.name} dies now: {_if_it_dies(each, of_shard)}"))


def _if_it_dies(dying: Asked, of_shard: list[Asked]) -> str:
    standbys = [each for each in of_shard if each.standing is not None and each is not dying]
    assert dying.standing is not None
    if dying.standing.role == "standby":
        if len(standbys) == 1:
            return "nothing stops, but the primary has no standby then"
        return "nothing stops"
    if not standbys:
        return "NOTHING IS SERVED until it, or another member, is back: it has no standby"
    names = " or ".join([each.name for each in standbys])
    return f"{names} goes on, some two seconds later"
