"""`delayserver cluster trim`: removes from the log of a shard what backups and all members have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from delayserver.cli.backup.backup_places import THERE, backups_in
from delayserver.cli.cluster.cluster_options import cluster_file, log_position
from delayserver.cli.kafka.on_kafka import on_kafka
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json

if TYPE_CHECKING:
    from delayserver.config.cluster_file import ClusterFile
    from delayserver.members.founding import Engines
    from delayserver.members.member_map import Announced, MemberMap
    from delayserver.runtime.shared_log import LogDescription


@click.command
@cluster_file
@click.option("--backups", "place", required=True, type=THERE, metavar="DIR",
              help="Where the backups of the shard lie: a folder, or a URL.")  # fmt: skip
@click.option("--without", multiple=True, metavar="NAME",
              help="A member that is gone. If it comes back, it needs a backup. May be given several times.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@options.access
@options.as_json
def trim(path: str, place: str, without: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Remove from the log of a shard what nobody needs: up to where the last two checked backups go on, and where every
    member would read on after a restart.

    Without two backups that `delayserver backup check` found clean, nothing is removed. Kafka itself removes nothing: a
    member refuses a topic with a retention. The shard is that of the file.
    """
    from delayserver.backup.coverage import find_coverage

    async def look(file: ClusterFile, engines: Engines) -> tuple[MemberMap, LogDescription]:
        return await engines.read_map(), await engines.shards.open(file.shard).describe()

    async def remove(file: ClusterFile, engines: Engines) -> None:
        await engines.shards.open(file.shard).trim(coverage.trims_to)

    shard, (found, log) = on_kafka(path, _shard_of), on_kafka(path, look)
    if found.founded is None:
        raise click.ClickException("there is no cluster yet: delayserver cluster init")
    members = _positions([each for each in found.of_shard(shard) if each.name not in without])
    server_id = found.identity(shard).server_id
    with backups_in(place) as repository:
        healed = found.healed.get(shard)
        until = -1 if healed is None else healed.until
        coverage = find_coverage(repository, server_id, log.first, log.end, members, until)
    removes = 0 if dry_run else coverage.trims_to - log.first
    if removes:
        on_kafka(path, remove)
    if as_json:
        print_json(
            {
                "shard": shard,
                "first": log.first,
                "end": log.end,
                "covered": coverage.covered,
                "trims_to": coverage.trims_to,
                "removed": removes,
                "backups": list(coverage.backups),
                "members": members,
                "refusal": coverage.refusal,
            }
        )
    if coverage.refusal:
        raise click.ClickException(coverage.refusal)
    if not as_json:
        click.echo(f"shard {shard}: {coverage.text}")
        said = f"the positions {log.first} to {coverage.trims_to}" if coverage.trims_to > log.first else "nothing"
        click.echo(f"{said} would be removed" if dry_run else f"{said} removed")


async def _shard_of(file: ClusterFile, _engines: Engines) -> int:
    return file.shard


def _positions(members: Iterable[Announced]) -> dict[str, int]:
    """Where each member would read on, by name. Fails for one that does not say it."""
    from delayserver.protocol.errors import DelayServerError

    positions: dict[str, int] = {}
    for member in members:
        try:
            position = log_position(member)
        except (DelayServerError, click.ClickException) as error:
            raise click.ClickException(
                f"member {member.name} at {member.address} does not say how far it is ({error}). Start it, or give "
                f"--without {member.name}: it then starts from a backup"
            ) from None
        if position is None:
            raise click.ClickException(
                f"the server at {member.address} is not the member {member.name} of shard {member.shard} any more"
            )
        positions[member.name] = position
    return positions
