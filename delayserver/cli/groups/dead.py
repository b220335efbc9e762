"""`delayserver dead`: the messages that a consumer group gave up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from delayserver.cli.groups import chosen_messages
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import body_fields, print_json, visible
from delayserver.config.units import format_instant

if TYPE_CHECKING:
    from delayserver.client import DeadLetter


@click.group
def dead() -> None:
    """Dead letters: messages that a consumer group gave up after the attempts of its policy."""


@dead.command("list")
@chosen_messages.of_group
@chosen_messages.page
@options.server
@options.as_json
def list_letters(subject: str, group: str, maximum: int, after: int | None, server: str, as_json: bool) -> None:
    """List the dead letters of a consumer group of SUBJECT, oldest first.

    The reason is `nacked`, `ack_timeout`, or `skipped` by an operator.
    All bytes of a letter are a message of the subject SUBJECT.dead.GROUP.
    """
    with options.connect(server) as client:
        letters = client.dead_letters(subject, group, maximum, after=after, bodies=as_json)
    for letter in letters:
        if as_json:
            record = asdict(letter)
            print_json(record | body_fields(record.pop("body") or b""))
        else:
            click.echo(_line(letter))
    if not letters and not as_json:
        click.echo(f"no dead letters of {visible(group)} in {visible(subject)}")


def _line(letter: DeadLetter) -> str:
    text = f": {visible(letter.text)}" if letter.text else ""
    when = format_instant(letter.dead_ms)
    return f"{letter.position}  {visible(letter.message_id)}  {when}  attempt {letter.attempts}, {letter.reason}{text}"


@dead.command
@chosen_messages.of_group
@chosen_messages.max_option
@chosen_messages.positions
@click.option("--rate", type=click.FLOAT, metavar="N", help="So many a second.  [default: all at once]")
@options.yes
@options.server
@options.as_json
@click.pass_context
def resend(
    context: click.Context,
    subject: str,
    group: str,
    maximum: int | None,
    positions: tuple[int, ...],
    rate: float | None,
    yes: bool,
    server: str,
    as_json: bool,
) -> None:
    """Send dead letters to their consumer group again, oldest first. Their attempts begin anew.

    Can be called again after an interruption: what was sent is no dead letter any more. The exit code is 1 if a --position
    has no dead letter, or if one cannot be read.
    """
    with options.connect(server) as client:
        options.confirm(f"Send dead letters of {visible(group)} in {visible(subject)} again?", yes)
        done = client.resend_dead_letters(subject, group, maximum, positions=positions or None, rate=rate)
    chosen_messages.answer(context, done, positions, as_json)


@dead.command
@chosen_messages.of_group
@chosen_messages.max_option
@chosen_messages.positions
@options.yes
@options.server
@options.as_json
@click.pass_context
def drop(
    context: click.Context,
    subject: str,
    group: str,
    maximum: int | None,
    positions: tuple[int, ...],
    yes: bool,
    server: str,
    as_json: bool,
) -> None:
    """Remove dead letters of a consumer group for good, oldest first.

    The exit code is 1 if a --position has no dead letter.
    """
    with options.connect(server) as client:
        options.confirm(f"Drop dead letters of {visible(group)} in {visible(subject)} for good?", yes)
        done = client.drop_dead_letters(subject, group, maximum, positions=positions or None)
    chosen_messages.answer(context, done, positions, as_json)
