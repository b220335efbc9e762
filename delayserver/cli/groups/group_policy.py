"""`delayserver groups policy`: shows and sets how a consumer group is served."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible
from delayserver.config.units import format_duration

if TYPE_CHECKING:
    from delayserver.client.calls.policy_calls import GroupPolicy


@click.command("policy")
@click.argument("subject")
@click.option("--group", required=True, metavar="NAME", help="The consumer group.")
@click.option("--attempts", type=click.INT, metavar="N", help="Dead letter after this many; 0: without end.")
@click.option("--first", "first_ms", type=options.DURATION, help="The first pause before a redelivery.")
@click.option("--factor", type=click.FLOAT, metavar="N", help="Each pause is so many times the one before.")
@click.option("--cap", "cap_ms", type=options.DURATION, help="The longest pause.")
@click.option(
    "--first-level", type=options.LEVEL, metavar="NAME|N", help="Pauses are the delay levels, from this one on."
)
@click.option("--tags", metavar="TAGS", help="The group gets only messages with one of these tags; '*': all.")
@click.option("--where", metavar="EXPR", help="The group gets only messages with such properties.")
@click.option(
    "--failed-key", type=click.Choice(["skip", "wait"]), help="After the last attempt an order key goes on, or waits."
)
@click.option("--reset", is_flag=True, help="Set everything back to the defaults first.")
@options.server
@options.as_json
def policy(
    subject: str,
    group: str,
    attempts: int | None,
    first_ms: int | None,
    factor: float | None,
    cap_ms: int | None,
    first_level: int | timedelta | None,
    tags: str | None,
    where: str | None,
    failed_key: str | None,
    reset: bool,
    server: str,
    as_json: bool,
) -> None:
    """Show the policy of a consumer group of SUBJECT; with options, change it first.

    After a nack or an ack timeout a message comes again, after a pause. After --attempts it becomes a dead letter, in the
    subject SUBJECT.dead.GROUP. The policy is that of this node.
    """
    given: dict[str, Any] = {
        "attempts": attempts,
        "first_ms": first_ms,
        "factor": factor,
        "cap_ms": cap_ms,
        "tags": tags,
        "where": where,
        "failed_key": failed_key,
    }
    with options.connect(server) as client:
        if first_level is not None:
            given["first_level"] = options.level_number(client.connect(), first_level)
        changes = {name: value for name, value in given.items() if value is not None}
        if changes or reset:
            found = client.set_policy(subject, group, reset=reset, **changes)
        else:
            found = client.policy(subject, group)
    if as_json:
        print_json(asdict(found))
    else:
        click.echo(f"group     {visible(found.group)} of {visible(found.subject)}")
        click.echo(f"attempts  {found.attempts or 'without end'}")
        click.echo(f"pauses    {_pauses(found)}")
        for name, title in (("tags", "tags"), ("where", "where"), ("failed_key", "keys")):
            if found.settings.get(name) is not None:
                click.echo(f"{title:<8}  {visible(found.settings[name])}")


def _pauses(found: GroupPolicy) -> str:
    if found.first_ms is None:
        return ", ".join([format_duration(level) for level in found.levels_ms]) + ", and so on"
    first, cap = format_duration(found.first_ms), format_duration(found.cap_ms or 0)
    return f"{first}, each {found.factor:g} times the one before, at most {cap}"
