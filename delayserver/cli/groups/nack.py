"""`delayserver nack`: gives deliveries back, so that they come again."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.failures import FAILED
from delayserver.cli.terminal.output import print_json


@click.command
@click.argument("subject")
@click.argument("deliveries", nargs=-1, required=True, type=options.Whole(0, (1 << 63) - 1), metavar="DELIVERY...")
@click.option("--group", required=True, metavar="NAME", help="The consumer group that has them.")
@click.option("--delay", "delay_ms", type=options.DURATION, help="Come again after this.  [default: the group's pause]")
@click.option(
    "--delay-level", type=options.LEVEL, metavar="NAME|N", help="Come again after this delay level of the node."
)
@click.option("--reason", default="", metavar="TEXT", help="Kept with a message that becomes a dead letter.")
@options.server
@options.as_json
@click.pass_context
def nack(
    context: click.Context,
    subject: str,
    deliveries: tuple[int, ...],
    group: str,
    delay_ms: int | None,
    delay_level: int | timedelta | None,
    reason: str,
    server: str,
    as_json: bool,
) -> None:
    """Give deliveries of SUBJECT back. DELIVERY is the number that `pull --json` prints as `delivery`.

    They come again for the group. One that had its last attempt by the group's policy becomes a dead letter instead. The
    exit code is 1 if one was not in flight.
    """
    delay = None if delay_ms is None else timedelta(milliseconds=delay_ms)
    with options.connect(server) as client:
        level = None if delay_level is None else options.level_number(client.connect(), delay_level)
        done = client.nack(subject, group, deliveries, delay, level=level, reason=reason)
    if as_json:
        print_json(asdict(done))
        context.exit(FAILED if done.unknown else 0)
    click.echo(f"nacked         {done.nacked}")
    for name, count in (("unknown", done.unknown), ("expired", done.expired), ("dead_lettered", done.dead_lettered)):
        if count:
            click.echo(f"{name:<13}  {count}")
    context.exit(FAILED if done.unknown else 0)
