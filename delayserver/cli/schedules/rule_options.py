"""The options that say when something recurs, and the recurrence that they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from delayserver.cli.terminal import options
from delayserver.recurring.clock_changes import ClockChoices, GapChoice, OverlapChoice
from delayserver.recurring.cron_expression import Cron
from delayserver.recurring.days_out import DaysOut
from delayserver.recurring.recurrence import TIMES_MAX, Recurrence, Rule, Span, default_choices
from delayserver.recurring.recurrence_errors import RecurrenceInvalid
from delayserver.recurring.simple_rules import Every, Once
from delayserver.recurring.zones import Zone

Command = TypeVar("Command", bound=Callable[..., Any])

RULES: Final = ("cron", "every", "at")


@dataclass(frozen=True)
class RuleTexts:
    """What the options said."""

    cron: str | None
    every_ms: int | None
    at: str | None

    @property
    def given(self) -> str:
        """The one option that says the rule. Raises UsageError unless exactly one was given."""
        values = zip(RULES, (self.cron, self.every_ms, self.at), strict=True)
        given = [name for name, value in values if value is not None]
        if len(given) == 1:
            return given[0]
        if given:
            raise click.UsageError(f"give only one of {' and '.join(f'--{name}' for name in given)}")
        raise click.UsageError("say when: --cron '0 9 * * 1-5', --every 90m, or --at 2027-03-28T09:00")

    def rule(self, from_ms: int) -> Rule:
        """The rule. An interval counts from `from_ms`. Raises RecurrenceInvalid, and UsageError as `given`."""
        match self.given:
            case "cron":
                return Cron.parse(self.cron or "")
            case "at":
                return Once.parse(self.at or "")
        return Every(self.every_ms or 0, from_ms)


def rule_options(command: Command) -> Command:
    """Adds the options of a recurrence. The command gets their values by name, and hands them to `recurrence_of`."""
    added = [
        click.option("--cron", metavar="EXPRESSION", help="Five fields, six with seconds in front, or @daily."),
        click.option(
            "--every",
            "every_ms",
            type=options.DURATION,
            metavar="DURATION",
            help="This far apart, such as 90m, counted from --start, or else from now.",
        ),
        click.option("--at", metavar="TIME", help="Once, at this time of the zone: 2027-03-28T09:00."),
        click.option("--zone", default="UTC", show_default=True, metavar="NAME", help="A zone, such as Europe/Berlin."),
        click.option(
            "--gap",
            type=click.Choice([each.value for each in GapChoice]),
            help="What becomes of a time that the clock leaves out.",
        ),
        click.option(
            "--overlap",
            type=click.Choice([each.value for each in OverlapChoice]),
            help="What becomes of a time that the clock shows twice.",
        ),
        click.option("--start", "start_ms", type=options.INSTANT, metavar="TIME", help="Nothing before this time."),
        click.option("--end", "end_ms", type=options.INSTANT, metavar="TIME", help="Nothing at this time or later."),
        click.option(
            "--times", type=options.Whole(1, TIMES_MAX), metavar="N", help="Only so many times from --start on."
        ),
        click.option(
            "--except",
            "days_out",
            multiple=True,
            metavar="DAY",
            help="Not on this day: 2027-12-24, 12-25 of each year, or sun; may be repeated.",
        ),
    ]
    for option in reversed(added):
        command = option(command)
    return command


def recurrence_of(values: dict[str, Any], now_ms: int) -> Recurrence:
    """The recurrence that options said. An interval without a start counts from `now_ms`.

    Raises click.BadParameter, which names the option that is wrong, and UsageError.
    """
    texts = RuleTexts(values["cron"], values["every_ms"], values["at"])
    given = texts.given
    try:
        start_ms = values["start_ms"]
        rule = texts.rule(now_ms if start_ms is None else start_ms)
        default = default_choices(rule)
        choices = ClockChoices(
            GapChoice(values["gap"] or default.gap), OverlapChoice(values["overlap"] or default.overlap)
        )
        span = Span(start_ms, values["end_ms"], values["times"])
        return Recurrence(rule, Zone.named(values["zone"]), choices, span, DaysOut.parse(values["days_out"]))
    except RecurrenceInvalid as error:
        raise wrong(error, given) from None


def wrong(error: RecurrenceInvalid, given: str) -> click.BadParameter:
    """The error of a command for one of the rules. `given` is the option of the rule."""
    field = given if error.field == "rule" else error.field
    return click.BadParameter(str(error), param_hint=f"--{field}")
