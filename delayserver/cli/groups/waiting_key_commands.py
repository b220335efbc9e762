"""`delayserver groups waiting`, `skip` and `retry`: order keys that wait for a message that has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from delayserver.cli.groups import chosen_messages
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible
from delayserver.config.units import format_instant

if TYPE_CHECKING:
    from delayserver.client import WaitingKey


@click.command("waiting")
@chosen_messages.of_group
@chosen_messages.page
@options.server
@options.as_json
def list_waiting(subject: str, group: str, maximum: int, after: int | None, server: str, as_json: bool) -> None:
    """List the order keys of a consumer group of SUBJECT that wait for a message that has failed.

    Each line has the position of the message, its key and id, how often it came, and since when it has failed. After a
    restart of the node a key is here again when its message has failed again.
    """
    with options.connect(server) as client:
        keys = client.waiting_keys(subject, group, maximum, after=after)
    for key in keys:
        if as_json:
            print_json(asdict(key))
        else:
            click.echo(_line(key))
    if not keys and not as_json:
        click.echo(f"no key of {visible(group)} in {visible(subject)} waits for a failed message")


def _line(key: WaitingKey) -> str:
    until = "" if key.next_ms is None else f" until {format_instant(key.next_ms)}"
    behind = f", {key.behind:,} behind it" if key.behind else ""
    return (
        f"{key.position}  {visible(key.order_key)}  {visible(key.message_id)}  attempt {key.attempts}, failing since "
        f"{format_instant(key.since_ms)}, {key.state}{until}{behind}"
    )


@click.command("skip")
@chosen_messages.of_group
@chosen_messages.max_option
@chosen_messages.positions
@click.option("--reason", default="", metavar="TEXT", help="Kept with the dead letters.")
@options.yes
@options.server
@options.as_json
@click.pass_context
def skip_waiting(
    context: click.Context,
    subject: str,
    group: str,
    maximum: int | None,
    positions: tuple[int, ...],
    reason: str,
    yes: bool,
    server: str,
    as_json: bool,
) -> None:
    """Make dead letters of the messages for which order keys wait, so that the keys go on.

    A consumer that has such a message loses its lease. The group needs `attempts` in its policy, or had them once: without,
    it keeps no dead letters, and nothing is skipped. The exit code is 1 if no key waits at a --position.
    """
    with options.connect(server) as client:
        options.confirm(f"Skip messages for which keys of {visible(group)} in {visible(subject)} wait?", yes)
        done = client.skip_waiting_keys(subject, group, maximum, positions=positions or None, reason=reason)
    chosen_messages.answer(context, done, positions, as_json)


@click.command("retry")
@chosen_messages.of_group
@chosen_messages.positions
@options.server
@options.as_json
@click.pass_context
def retry_waiting(
    context: click.Context, subject: str, group: str, positions: tuple[int, ...], server: str, as_json: bool
) -> None:
    """End the pauses of the messages for which order keys wait: consumers get them at once.

    The exit code is 1 if no message at a --position has a pause.
    """
    with options.connect(server) as client:
        done = client.retry_waiting_keys(subject, group, positions=positions or None)
    chosen_messages.answer(context, done, positions, as_json)
