"""`delayserver pending`: how many messages wait, by due time or by subject."""

from __future__ import annotations

import click
from msgspec.structs import asdict

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible
from delayserver.config.units import format_duration, format_instant


@click.command
@click.option(
    "--by",
    type=click.Choice(["minute", "hour", "subject"]),
    default="hour",
    show_default=True,
    help="What each line counts.",
)
@click.option("--from", "from_ms", type=options.INSTANT, metavar="TIME", help="Leave out what is due before.")
@click.option(
    "--to", "to_ms", type=options.INSTANT, metavar="TIME", help="Leave out what is due at this time or later."
)
@options.server
@options.shard
@options.as_json
def pending(by: str, from_ms: int | None, to_ms: int | None, server: str, as_json: bool) -> None:
    """Count the pending messages by the minute or hour in which they are due, or by subject.

    A day that is far away, or long overdue, can be one line. The server adds up counters, however many messages there are.
    """
    if by == "subject" and (from_ms is not None or to_ms is not None):
        raise click.UsageError("--by subject counts all times together: it takes no --from and no --to")
    with options.connect(server) as client:
        if by == "subject":
            subjects = sorted(client.pending_by_subject(), key=lambda each: -each.pending)
            records = [asdict(each) for each in subjects]
            lines = [(visible(each.subject), "", each.pending) for each in subjects]
        else:
            buckets = client.pending(by, from_ms=from_ms, to_ms=to_ms)
            records = [asdict(each) for each in buckets]
            lines = [(format_instant(each.start_ms), format_duration(each.width_ms), each.pending) for each in buckets]
    if as_json:
        for record in records:
            print_json(record)
        return
    if not lines:
        click.echo("nothing is pending")
    width = max([len(name) for name, _, _ in lines], default=0)
    for name, span, count in lines:
        click.echo(f"{name.ljust(width)}  {span + '  ' if span else ''}{count:>12,}")
