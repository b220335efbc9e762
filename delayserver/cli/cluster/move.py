"""`delayserver cluster move`: a member takes the place of another one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from delayserver.cli.cluster.cluster_options import Asked, ask_member, cluster_file, require_known
from delayserver.cli.cluster.switch import require_undamaged, switch_to
from delayserver.cli.kafka.on_kafka import read_map, write_note
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible

if TYPE_CHECKING:
    from delayserver.members.member_map import Announced, MemberMap

LOOK_S: Final = 0.5
NEAR_RECORDS: Final = 100
"""A standby that is so near to the end of a log that grows takes over as quickly as any other."""


@click.command
@click.option("--shard", type=options.Whole(0), default=0, show_default=True, help="Counted from 0.")
@click.option("--from", "former", required=True, metavar="MEMBER", help="The member that goes.")
@click.option(
    "--to", "heir", required=True, metavar="MEMBER", help="The member that takes its place, and runs already."
)
@cluster_file
@options.access
@options.as_json
def move(shard: int, former: str, heir: str, path: str | None, as_json: bool) -> None:
    """Move a member of a shard to another machine. Start the new member there first: the command waits until it has read
    the log, has it lead if the former one led, and takes that one out of the list of members. Then stop it.
    """
    from delayserver.members.member_map import Forgotten

    if former == heir:
        raise click.UsageError("--from and --to name the same member")
    found = read_map(path)
    goes = _member(found, former, shard, "delayserver cluster status")
    comes = _member(found, heir, shard, f"start it first, delayserver serve --shard {shard}")
    _wait_until_it_follows(comes)
    going = _ask(goes)
    require_known(going)
    standing = going.standing
    led = standing is not None and standing.role != "standby"
    if led:
        switch_to(_ask(goes), _ask(comes))
    if former in write_note(path, Forgotten(former, goes.instance)).members:
        raise click.ClickException(visible(f"{former} has been started again meanwhile, so it stays a member"))
    if as_json:
        print_json({"shard": shard, "from": former, "to": heir, "led": led})
    else:
        done = f"{heir} leads shard {shard} in the place of {former}" if led else f"{heir} follows shard {shard}"
        click.echo(visible(f"{done}. {former} is no member any more: stop it."))


def _member(map_: MemberMap, name: str, shard: int, advice: str) -> Announced:
    known = map_.members.get(name)
    if known is None or known.shard != shard:
        raise click.ClickException(visible(f"shard {shard} has no member {name}: {advice}"))
    return known


def _ask(member: Announced) -> Asked:
    """Ask a member. It is gone where another one has its address now: members of one machine may take each other's ports."""
    asked = ask_member(member.name, member.shard, member.address)
    if asked.standing is None or (asked.name, asked.shard) == (member.name, member.shard):
        return asked
    there = f"{asked.name} of shard {asked.shard} has that address now"
    return Asked(member.name, member.shard, member.address, None, there, gone=True)


def _wait_until_it_follows(member: Announced) -> None:
    """Wait while it answers, and is behind. Fails where it can never lead."""
    while True:
        asked = _ask(member)
        standing = asked.standing
        if standing is None:
            raise click.ClickException(visible(f"{member.name} at {member.address} does not answer: {asked.reason}"))
        require_undamaged(asked)
        if standing.lag_records is not None and standing.lag_records <= NEAR_RECORDS:
            return
        time.sleep(LOOK_S)
