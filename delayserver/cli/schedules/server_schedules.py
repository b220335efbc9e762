"""The commands of `delayserver schedule` that ask a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from delayserver.cli.messages.send import read_body, read_properties
from delayserver.cli.schedules.rule_options import RuleTexts, rule_options
from delayserver.cli.schedules.schedule_lines import schedule_record, schedule_table
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json
from delayserver.config.units import format_instant
from delayserver.recurring.firing import Misfire

if TYPE_CHECKING:
    from delayserver.client import Schedule, ScheduleTerms


@click.command
@click.argument("name")
@click.argument("body", required=False)
@click.option("--subject", required=True, metavar="SUBJECT", help="The subject of the messages.")
@rule_options
@click.option(
    "--jitter", type=options.DURATION, default=0, metavar="DURATION", help="Each comes late by up to so much."
)
@click.option(
    "--misfire",
    type=click.Choice([each.value for each in Misfire]),
    default=Misfire.LATEST.value,
    show_default=True,
    help="What fires of the moments that were missed by more than a minute.",
)
@click.option(
    "--catch-up",
    type=options.DURATION,
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="Missed moments that are older never fire.",
)
@click.option("--template", is_flag=True, help="Replace ${due_ms}, ${due}, ${name} and ${run} in the body.")
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False), help="Take the body from a file.")
@click.option("--property", "properties", multiple=True, metavar="KEY=VALUE", help="A property; may be repeated.")
@click.option("--tag", metavar="TAG", help="The kind of the messages; consumers can filter by it.")
@click.option("--order-key", metavar="KEY", help="Messages of one key are consumed one after the other.")
@options.server
@options.as_json
def create(
    name: str,
    body: str | None,
    subject: str,
    template: bool,
    path: str | None,
    properties: tuple[str, ...],
    tag: str | None,
    order_key: str | None,
    server: str,
    as_json: bool,
    **values: Any,
) -> None:
    """Make the schedule NAME, or give it another definition. The server sends BODY to the subject at each moment.

    With the definition that it has, nothing changes. BODY `-` is stdin.

    \b
    delayserver schedule create daily --cron '0 9 * * 1-5' --zone Europe/Berlin --subject reports 'make the report'
    delayserver schedule create poll --every 30s --jitter 5s --subject polls '{"due": "${due}"}' --template
    """
    content = read_body(body, path)
    with options.connect(server) as client:
        made = client.put_schedule(
            name,
            subject,
            content,
            properties=read_properties(properties) or None,
            tag=tag,
            order_key=order_key,
            template=template,
            **_terms(values),
        )
    _tell(made, as_json)


def _terms(values: dict[str, Any]) -> ScheduleTerms:
    """The terms that options said. Raises UsageError unless exactly one of them says when."""
    assert RuleTexts(values["cron"], values["every_ms"], values["at"]).given
    terms: dict[str, Any] = {
        "cron": values["cron"],
        "every": values["every_ms"],
        "at": values["at"],
        "zone": values["zone"],
        "gap": values["gap"],
        "overlap": values["overlap"],
        "start": values["start_ms"],
        "end": values["end_ms"],
        "times": values["times"],
        "days_out": values["days_out"],
        "jitter": values["jitter"],
        "misfire": values["misfire"],
        "catch_up": values["catch_up"],
    }
    given: ScheduleTerms = {name: value for name, value in terms.items() if value is not None}  # type: ignore[assignment]
    return given


@click.command("list")
@click.option(
    "--max", "maximum", type=options.Whole(min=1), default=1_000, show_default=True, help="End after this many."
)
@options.server
@options.as_json
def list_schedules(maximum: int, server: str, as_json: bool) -> None:
    """List schedules in the order of their names."""
    with options.connect(server) as client:
        found = client.schedules(maximum)
    if as_json:
        for each in found:
            print_json(schedule_record(each))
        return
    for line in schedule_table(found) if found else ["there are no schedules"]:
        click.echo(line)


@click.command
@click.argument("name")
@options.server
@options.as_json
def show(name: str, server: str, as_json: bool) -> None:
    """Show the schedule NAME with its definition."""
    with options.connect(server) as client:
        _tell(client.schedule(name), as_json)


@click.command
@click.argument("name")
@options.server
@options.as_json
def pause(name: str, server: str, as_json: bool) -> None:
    """Pause the schedule NAME: its moments until it is resumed never fire."""
    with options.connect(server) as client:
        _tell(client.pause_schedule(name), as_json)


@click.command
@click.argument("name")
@options.server
@options.as_json
def resume(name: str, server: str, as_json: bool) -> None:
    """Go on with the schedule NAME, at its first moment from now on."""
    with options.connect(server) as client:
        _tell(client.resume_schedule(name), as_json)


@click.command
@click.argument("name")
@options.server
@options.as_json
def run(name: str, server: str, as_json: bool) -> None:
    """Send a message of the schedule NAME now, beside its moments."""
    with options.connect(server) as client:
        sent = client.run_schedule(name)
    if as_json:
        print_json(asdict(sent))
        return
    click.echo(f"due      {format_instant(sent.due_ms)}")
    click.echo(f"id       {sent.message_id}")
    click.echo(f"receipt  {sent.receipt}")


@click.command
@click.argument("name")
@options.server
def delete(name: str, server: str) -> None:
    """Delete the schedule NAME. The messages that it has made stay."""
    with options.connect(server) as client:
        client.delete_schedule(name)


def _tell(schedule: Schedule, as_json: bool) -> None:
    if as_json:
        print_json(schedule_record(schedule))
        return
    for line in schedule_table([schedule]):
        click.echo(line)


COMMANDS = (create, list_schedules, show, pause, resume, run, delete)
