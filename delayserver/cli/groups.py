"""`delayserver groups`: consumer groups and their backlogs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible
from delayserver.config.units import format_duration
from delayserver.runtime.clock import SystemClock

if TYPE_CHECKING:
    from delayserver.client.messages import ConsumerGroup

HEADINGS = ("SUBJECT", "GROUP", "POSITION", "END", "LAG", "LEASED", "RETRYING", "EXPIRED", "OLDEST")


@click.group
def groups() -> None:
    """Consumer groups of a node."""


@groups.command("list")
@click.argument("subject", required=False)
@options.server
@options.as_json
def list_groups(subject: str | None, server: str, as_json: bool) -> None:
    """List the consumer groups of a node, or those of SUBJECT.

    POSITION: everything before it is acked. END: where the next message goes. LAG: messages that are not acked; LEASED and
    RETRYING are some of those. EXPIRED: messages that expired before they were acked. OLDEST: how long ago the oldest
    message that is not acked was due.
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


def _cells(group: ConsumerGroup, now_ms: int) -> tuple[str, ...]:
    numbers = (group.position, group.end, group.lag, group.leased, group.retrying, group.expired)
    age = "-" if group.oldest_ms is None else format_duration(max(now_ms - group.oldest_ms, 0) // 1000 * 1000)
    return (visible(group.subject), visible(group.group), *[f"{number:,}" for number in numbers], age)
