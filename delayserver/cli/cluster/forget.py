"""`delayserver cluster forget`: takes a member that is gone out of the list of members."""

from __future__ import annotations

import click

from delayserver.cli.cluster.cluster_options import ask_member, cluster_file, require_known
from delayserver.cli.kafka.on_kafka import read_map, write_note
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible


@click.command
@click.option("--member", "name", required=True, metavar="MEMBER", help="The member that is gone.")
@click.option("--down", is_flag=True, help="Forget it even if it answers: it will be stopped.")
@cluster_file
@options.access
@options.as_json
def forget(name: str, down: bool, path: str | None, as_json: bool) -> None:
    """Take a member that is gone for good out of the list of members.

    Then `cluster status` shows it no longer, and `cluster trim` waits for it no longer. A member that answers is refused,
    also one that refuses the token. If it is started again, it is a member again.
    """
    from delayserver.members.member_map import Forgotten

    known = read_map(path).members.get(name)
    if known is None:
        raise click.ClickException(visible(f"the cluster has no member {name}: delayserver cluster status"))
    if not down:
        asked = ask_member(name, known.shard, known.address)
        require_known(asked)
        if asked.standing is not None and asked.name == name:
            raise click.ClickException(
                visible(f"{name} answers at {known.address}. Stop it first, or give --down if it will be stopped")
            )
    if name in write_note(path, Forgotten(name, known.instance)).members:
        raise click.ClickException(visible(f"{name} has been started again meanwhile, so it stays a member"))
    if as_json:
        print_json({"member": name, "shard": known.shard, "address": known.address})
    else:
        click.echo(visible(f"{name} of shard {known.shard} is no member any more."))
