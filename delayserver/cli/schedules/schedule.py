"""`delayserver schedule`: shows when a recurrence fires."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import click

from delayserver.cli.schedules.moment_lines import choices_line, has_choices, moment_lines, moment_record
from delayserver.cli.schedules.rule_options import RuleTexts, recurrence_of, rule_options, wrong
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json
from delayserver.config.units import format_instant
from delayserver.recurring.recurrence_errors import NeverFires


@click.group
def schedule() -> None:
    """What fires again and again: cron expressions, intervals, times of a zone.

    A zone changes its clock, and some times of a day are left out or come twice then. --gap and --overlap say what
    becomes of them, and the preview shows it.
    """


@schedule.command("next")
@rule_options
@click.option("--count", type=options.Whole(min=1), default=10, show_default=True, metavar="N", help="So many moments.")
@click.option(
    "--after", "after_ms", type=options.INSTANT, metavar="TIME", help="Moments behind this time, instead of now."
)
@options.as_json
@click.pass_context
def next_moments(context: click.Context, /, count: int, after_ms: int | None, as_json: bool, **values: Any) -> None:
    """Show the next moments of a rule. No server is asked.

    The exit code is 1 if there is none.

    \b
    delayserver schedule next --cron '0 9 * * 1-5' --zone Europe/Berlin
    delayserver schedule next --cron '30 2 * * *' --zone Europe/Berlin --after 2027-03-26T00:00Z --gap skip
    delayserver schedule next --every 90m --start 2027-01-01T00:00Z --json
    """
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
