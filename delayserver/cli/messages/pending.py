"""`delayserver pending`: how many messages wait, by due time or by subject, and which ones."""

from __future__ import annotations

import click
from msgspec.structs import asdict

from delayserver.cli.messages.pending_list import list_messages
from delayserver.cli.messages.pending_tail import tail_messages
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible
from delayserver.config.units import format_duration, format_instant


@click.command
@click.option(
    "--by",
    type=click.Choice(["minute", "hour", "subject"]),
    default=None,
    help="What each line counts. Default: hour.",
)
@click.option("--list", "lists", is_flag=True, help="Print the messages, the earliest due time first.")
@click.option("--tail", "tails", is_flag=True, help="Print each message when it becomes due, until you stop it.")
@click.option("--from", "from_ms", type=options.INSTANT, metavar="TIME", help="Leave out what is due before.")
@click.option(
    "--to", "to_ms", type=options.INSTANT, metavar="TIME", help="Leave out what is due at this time or later."
)
@click.option("--subject", metavar="PATTERN", help="Of the messages, only those of this subject or pattern.")
@click.option("--tag", metavar="TAG", help="Of the messages, only those with this tag.")
@click.option("--where", metavar="EXPRESSION", help="Of the messages, only those with such properties.")
@click.option("--latest", is_flag=True, help="With --list: the latest due time first.")
@click.option("--body", "bodies", is_flag=True, help="With --list: also properties and bodies.")
@click.option("--max", "maximum", type=options.Whole(min=1), default=None, help="With --list: end after this many.")
@options.server
@options.shard
@options.as_json
def pending(
    by: str | None,
    lists: bool,
    tails: bool,
    from_ms: int | None,
    to_ms: int | None,
    subject: str | None,
    tag: str | None,
    where: str | None,
    latest: bool,
    bodies: bool,
    maximum: int | None,
    server: str,
    as_json: bool,
) -> None:
    """Count the pending messages by the minute or hour in which they are due, or by subject, or list them.

    A day that is far away, or long overdue, can be one line. The server adds up counters, however many messages there are.

    --list prints the messages themselves. It asks for a page at a time, and messages may come and go meanwhile.

    --tail prints each message at its due time, if it still waits shortly before. A message that is sent less than a second
    before its due time may be missing.
    """
    if lists and tails:
        raise click.UsageError("give either --list or --tail")
    if by is not None and (lists or tails):
        raise click.UsageError("--by counts: it does not go with --list and --tail")
    if not lists and not tails and (subject, tag, where) != (None, None, None):
        raise click.UsageError("--subject, --tag and --where select messages: give --list or --tail too")
    if not lists and (latest or bodies or maximum is not None):
        raise click.UsageError("--latest, --body and --max go with --list")
    if tails and (from_ms, to_ms) != (None, None):
        raise click.UsageError("--tail prints what becomes due from now on: it takes no --from and no --to")
    if by == "subject" and (from_ms is not None or to_ms is not None):
        raise click.UsageError("--by subject counts all times together: it takes no --from and no --to")
    with options.connect(server) as client:
        if lists:
            found = client.pending_messages(
                subject, from_ms=from_ms, to_ms=to_ms, tag=tag, where=where, latest_first=latest, bodies=bodies
            )
            list_messages(found, maximum, as_json)
        elif tails:
            tail_messages(client, subject, tag, where, as_json)
        elif by == "subject":
            subjects = sorted(client.pending_by_subject(), key=lambda each: -each.pending)
            records = [asdict(each) for each in subjects]
            _print(records, [(visible(each.subject), "", each.pending) for each in subjects], as_json)
        else:
            buckets = client.pending(by or "hour", from_ms=from_ms, to_ms=to_ms)
            records = [asdict(each) for each in buckets]
            lines = [(format_instant(each.start_ms), format_duration(each.width_ms), each.pending) for each in buckets]
            _print(records, lines, as_json)


def _print(records: list[dict[str, object]], lines: list[tuple[str, str, int]], as_json: bool) -> None:
    """Print counts: objects, or a line for each name, width and number."""
    if as_json:
        for record in records:
            print_json(record)
        return
    if not lines:
        click.echo("nothing is pending")
    width = max([len(name) for name, _, _ in lines], default=0)
    for name, span, count in lines:
        click.echo(f"{name.ljust(width)}  {span + '  ' if span else ''}{count:>12,}")
