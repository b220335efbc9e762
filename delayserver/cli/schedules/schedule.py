"""`delayserver schedule`: what fires again and again, at a server and as a preview."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import click
from msgspec.structs import asdict

from delayserver.cli.schedules.moment_lines import choices_line, has_choices, moment_lines, moment_record
from delayserver.cli.schedules.rule_options import RuleTexts, recurrence_of, rule_options, wrong
from delayserver.cli.schedules.server_schedules import COMMANDS
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible
from delayserver.config.units import format_instant
from delayserver.recurring.recurrence_errors import NeverFires


@click.group
def schedule() -> None:
    """What fires again and again: cron expressions, intervals, times of a zone.

    A zone changes its clock, and some times of a day are left out or come twice then. --gap and --overlap say what
    becomes of them, and the preview shows it.
    """


for each in COMMANDS:
    schedule.add_command(each)


@schedule.command("next")
@click.argument("name", required=False)
@rule_options
@click.option("--count", type=options.Whole(min=1), default=10, show_default=True, metavar="N", help="So many moments.")
@click.option(
    "--after", "after_ms", type=options.INSTANT, metavar="TIME", help="Moments behind this time, instead of now."
)
@options.server
@options.as_json
@click.pass_context
def next_moments(
    context: click.Context,
    /,
    name: str | None,
    count: int,
    after_ms: int | None,
    server: str,
    as_json: bool,
    **values: Any,
) -> None:
    """Show the next firings of the schedule NAME, or of a rule. For a rule no server is asked.

    The exit code is 1 if there is none.

    \b
    delayserver schedule next daily --count 3
    delayserver schedule next --cron '0 9 * * 1-5' --zone Europe/Berlin
    delayserver schedule next --cron '30 2 * * *' --zone Europe/Berlin --after 2027-03-26T00:00Z --gap skip
    delayserver schedule next --every 90m --start 2027-01-01T00:00Z --json
    """
    if name is not None:
        if any(values[rule] is not None for rule in ("cron", "every_ms", "at")) or after_ms is not None:
            raise click.UsageError("give the name of a schedule or a rule, not both")
        context.exit(_of_server(name, count, server, as_json=as_json))
    from delayserver.runtime.clock import SystemClock

    now_ms = SystemClock().now_ms()
    after_ms = now_ms if after_ms is None else after_ms
    recurrence = recurrence_of(values, after_ms)
    moments = islice(recurrence.moments(after_ms), count)
    first = next(moments, None)
    if first is None:
        try:
            recurrence.check()
        except NeverFires as error:
            given = RuleTexts(values["cron"], values["every_ms"], values["at"]).given
            raise wrong(error, given) from None
        if not as_json:
            click.echo(f"nothing fires after {format_instant(after_ms)}")
        context.exit(1)
    found = chain([first], moments)
    if as_json:
        for moment in found:
            print_json(moment_record(moment, recurrence))
        return
    for line in moment_lines(recurrence, found, after_ms, now_ms):
        click.echo(line)
    if has_choices(recurrence, after_ms):
        click.echo(f"\n{choices_line(recurrence)}")


def _of_server(name: str, count: int, server: str, *, as_json: bool) -> int:
    """Prints the next firings of a schedule. Returns the exit code: 1 if there is none."""
    with options.connect(server) as client:
        firings = client.next_firings(name, count)
    for firing in firings:
        if as_json:
            print_json(asdict(firing))
        else:
            click.echo(format_instant(firing.due_ms))
    if not firings and not as_json:
        click.echo(f"{visible(name)} fires no more, or is paused")
    return 0 if firings else 1
