"""`delayserver cluster switch`: hands the leadership of a shard over, before work on a machine."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

import click

from delayserver.cli.cluster.cluster_options import ANSWER_S, Asked, ask_member, ask_members, cluster_file, members
from delayserver.cli.kafka.on_kafka import read_map
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible

WAIT_S: Final = 15.0
"""A takeover takes a second or two at the worst."""
LOOK_S: Final = 0.05


@click.command
@click.option("--shard", type=options.Whole(0), default=0, show_default=True, help="Counted from 0.")
@click.option("--to", "heir", required=True, metavar="MEMBER", help="The member that leads then.")
@cluster_file
@members
@options.access
@options.as_json
def switch(shard: int, heir: str, path: str | None, servers: str | None, as_json: bool) -> None:
    """Have another member lead a shard. The primary takes nothing new, settles what it has begun, and hands over.

    Messages wait for less than half a second, and none is delivered twice. The former primary goes on as a standby.
    """
    if path is None and servers is None:
        raise click.UsageError("say which cluster: --cluster FILE, or --server HOST:PORT,HOST:PORT")
    map_ = None if path is None or servers is not None else read_map(path)
    if map_ is not None and shard >= len(map_.shards):
        raise click.ClickException(f"the cluster has no shard {shard}: delayserver cluster status")
    asked = [each for each in ask_members(servers, map_) if each.shard in (shard, None)]
    answering = [each for each in asked if each.standing is not None]
    to = next((each for each in answering if each.name == heir), None)
    if to is None:
        names = ", ".join([each.name for each in answering]) or "none"
        silent = [f"{each.name or each.address} does not: {each.reason}" for each in asked if each.standing is None]
        reasons = "; ".join([f"no member {heir} of shard {shard} answers; those that do: {names}", *silent])
        raise click.ClickException(visible(reasons))
    primary = _primary(answering, to)
    if primary is None:
        raise click.ClickException(f"shard {shard} has no primary that answers: wait for the takeover, then look again")
    if primary.name == heir and not as_json:
        click.echo(visible(f"{heir} leads shard {shard} already."))
        return
    leads = switch_to(primary, to)
    if as_json:
        print_json({"shard": shard, "primary": heir, "epoch": leads})
    else:
        click.echo(visible(f"{heir} leads shard {shard} since epoch {leads}; it was {primary.name}."))


def _primary(answering: list[Asked], to: Asked) -> Asked | None:
    """The primary among the members that answer. Where it is none of them, the member that one of them names."""
    assert to.standing is not None
    known = next((each for each in answering if each.standing is not None and each.standing.role == "primary"), None)
    if known is None and to.standing.primary:
        named = ask_member("", None, to.standing.primary)
        standing = named.standing
        known = named if standing and (standing.role, standing.shard) == ("primary", to.shard) else None
    return known


def require_undamaged(heir: Asked) -> None:
    """Raises ClickException for a member that answers, and can never lead as it is."""
    if heir.standing is not None and heir.standing.damaged:
        raise click.ClickException(visible(f"{heir.name} is damaged, and never leads: choose another member"))


def switch_to(primary: Asked, to: Asked) -> int:
    """Have the primary hand over to a member that answers, and wait until that leads: its epoch."""
    if primary.name != to.name:
        _hand_over(primary, to)
    return _wait_until_it_leads(to)


def _hand_over(primary: Asked, to: Asked) -> None:
    from delayserver.client import Client

    require_undamaged(to)
    assert to.standing is not None
    if to.standing.lag_records is None:
        raise click.ClickException(f"{to.name} does not reach Kafka, so it cannot lead")
    with Client(primary.address, timeout_s=WAIT_S, retries=0, **options.client_arguments()) as client:
        client.switch_primary(to.name)


def _wait_until_it_leads(to: Asked) -> int:
    from delayserver.client import Client
    from delayserver.protocol.errors import DelayServerError

    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        with (
            suppress(DelayServerError),
            Client(to.address, timeout_s=ANSWER_S, retries=0, **options.client_arguments()) as client,
        ):
            standing = client.cluster_standing()
            if standing.role == "primary":
                return standing.epoch
        time.sleep(LOOK_S)
    raise click.ClickException(
        f"{to.name} does not lead after {WAIT_S:.0f} s; another member may: delayserver cluster status"
    )
