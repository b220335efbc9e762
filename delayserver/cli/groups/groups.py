"""`delayserver groups`: consumer groups and their backlogs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from delayserver.cli.groups.group_policy import policy
from delayserver.cli.groups.waiting_key_commands import list_waiting, retry_waiting, skip_waiting
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible
from delayserver.config.units import format_duration
from delayserver.runtime.clock import SystemClock

if TYPE_CHECKING:
    from delayserver.client import ConsumerGroup

HEADINGS = (
    "SUBJECT",
    "GROUP",
    "POSITION",
    "END",
    "LAG",
    "LEASED",
    "RETRYING",
    "EXPIRED",
    "FILTERED",
    "DEAD",
    "WAITING",
    "OLDEST",
)


@click.group
def groups() -> None:
    """Consumer groups of a node."""


for _command in (policy, list_waiting, skip_waiting, retry_waiting):
    groups.add_command(_command)


@groups.command("list")
@click.argument("subject", required=False)
@options.server
@options.shard
@options.as_json
def list_groups(subject: str | None, server: str, as_json: bool) -> None:
    """List the consumer groups of a node, or those of SUBJECT.

    POSITION: everything before it is acked. END: where the next message goes. LAG: messages that are not acked; LEASED and
    RETRYING are some of those. EXPIRED: messages that expired before they were acked. FILTERED: messages that the
    group's filter kept from it since the node started. DEAD: messages that were given up; see `delayserver dead`.
    WAITING: order keys that wait for a failed message; see `delayserver groups waiting`. OLDEST: how long ago the oldest
    message that is not acked was due; with --json its due time, oldest_ms.
    """
    with options.connect(server) as client:
        found = client.groups(subject)
        if as_json:
            for group in found:
                print_json(asdict(group))
            return
        now_ms = SystemClock().now_ms()
        rows = [HEADINGS, *[_cells(group, now_ms) for group in found]]
    if len(rows) == 1:
        click.echo("no consumer group has pulled from this node" + (f" for {visible(subject)}" if subject else ""))
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        names = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        click.echo("  ".join([*names, *numbers]))


@groups.command("seek")
@click.argument("subject")
@click.option("--group", required=True, metavar="NAME", help="The consumer group.")
@click.option(
    "--to",
    "goal",
    required=True,
    type=options.GOAL,
    metavar="earliest|latest|TIME|POSITION",
    help="Where it goes on. TIME is ISO 8601 with zone: the first message dispatched at or after it.",
)
@options.server
@options.as_json
def seek_group(subject: str, group: str, goal: str | int | datetime, server: str, as_json: bool) -> None:
    """Let a consumer group of SUBJECT go on at another position.

    Every message from there on comes as if for the first time. Consumers of the group lose the leases that they have:
    their acks are unknown. Redeliveries that wait at the node are dropped; those on their way still come.
    """
    with options.connect(server) as client:
        sought = client.seek(subject, group, goal)
    if as_json:
        print_json({"subject": subject, "group": group, **asdict(sought)})
        return
    click.echo(f"{visible(group)} goes on at {sought.position:,} of {sought.first:,} to {sought.end:,}")


@groups.command("remove")
@click.argument("subject")
@click.option("--group", required=True, metavar="NAME", help="The consumer group.")
@click.option("--yes", is_flag=True, help="Remove it without asking.")
@options.server
@options.as_json
def remove_group(subject: str, group: str, yes: bool, server: str, as_json: bool) -> None:
    """Forget a consumer group of SUBJECT: its position, what its consumers hold, and its redeliveries.

    Its messages are kept for other groups. If one of its consumers pulls again, that makes a new group. The policy and the
    filter of the name stay.
    """
    with options.connect(server) as client:
        found = client.group(subject, group)
        if not yes and not as_json:
            click.confirm(f"{visible(group)} has {found.lag:,} messages before it. Remove it?", abort=True)
        if not yes and as_json:
            raise click.UsageError("with --json, say --yes")
        client.remove_group(subject, group)
    if as_json:
        print_json({"subject": subject, "group": group, "removed": True})
        return
    click.echo(f"removed {visible(group)} of {visible(subject)}")


def _cells(group: ConsumerGroup, now_ms: int) -> tuple[str, ...]:
    counts = (group.expired, group.filtered, group.dead_letters, group.waiting_keys)
    numbers = (group.position, group.end, group.lag, group.leased, group.retrying, *counts)
    age = "-" if group.oldest_ms is None else format_duration(max(now_ms - group.oldest_ms, 0) // 1000 * 1000)
    return (visible(group.subject), visible(group.group), *[f"{number:,}" for number in numbers], age)
