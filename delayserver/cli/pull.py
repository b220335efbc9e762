"""`delayserver pull`: receives due messages for a consumer group."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import body_fields, delivery_record, print_json, visible, visible_block
from delayserver.config.units import format_duration, format_instant

if TYPE_CHECKING:
    from delayserver.client import Client
    from delayserver.client.messages import Delivery


@click.command
@click.argument("subject")
@click.option("--group", required=True, metavar="NAME", help="The consumer group; each gets every message once.")
@click.option("--max", "maximum", type=click.IntRange(min=1), default=1, show_default=True, help="End after this many.")
@click.option(
    "--wait", "wait_ms", type=options.DURATION, default="0s", show_default=True, help="Wait this long for them."
)
@click.option("--ack", is_flag=True, help="Acknowledge what was printed; otherwise it comes again after a timeout.")
@click.option("--ack-timeout", "ack_timeout_ms", type=options.DURATION, help="That timeout.  [default: the server's]")
@options.server
@options.as_json
def pull(
    subject: str,
    group: str,
    maximum: int,
    wait_ms: int,
    ack: bool,
    ack_timeout_ms: int | None,
    server: str,
    as_json: bool,
) -> None:
    """Print messages of SUBJECT as they come, until there were --max of them or the --wait is over. SUBJECT is one
    subject; patterns are for routes.

    With --ack a message is acknowledged after it is printed, so that one whose output was lost comes again. Where that
    took longer than the ack timeout, as into a pager, it comes again too, and the exit code is 1.
    """
    received = 0
    unknown = 0
    deadline_s = time.monotonic() + wait_ms / 1000
    with options.connect(server) as client:
        pull_messages_max = client.hello().limits.pull_messages_max
        while True:
            deliveries = client.pull(
                subject,
                group,
                min(maximum - received, pull_messages_max),
                wait_s=max(0.0, deadline_s - time.monotonic()),
                ack_timeout_s=None if ack_timeout_ms is None else ack_timeout_ms / 1000,
            )
            for delivery in deliveries:
                _print(delivery, as_json)
            if ack and deliveries:
                unknown += client.ack(subject, group, deliveries).unknown
            received += len(deliveries)
            if received >= maximum or (time.monotonic() >= deadline_s and not deliveries):
                break
        elsewhere = [] if received or as_json else _nodes_elsewhere(client, subject)
    if not as_json:
        _print_hint(received, wait_ms, ack, elsewhere)
    if unknown:
        raise click.ClickException(
            f"{unknown} of {received} were not in flight any more and may come again; use a longer --ack-timeout"
        )


def _print(delivery: Delivery, as_json: bool) -> None:
    record = delivery_record(delivery)
    if as_json:
        print_json(record)
        return
    late = format_duration(round(record["lateness_ms"], 1))
    attempt = f", attempt {delivery.attempt}" if delivery.attempt > 1 else ""
    click.echo(f"{format_instant(delivery.due_ms)}  {late} late{attempt}  {visible(delivery.message_id)}")
    fields = body_fields(delivery.body)
    encoding = f"  ({fields['body_encoding']})" if "body_encoding" in fields else ""
    for name, value in delivery.properties.items():
        click.echo(f"    {visible(name)}={visible(value)}")
    body = visible_block(fields["body"]).replace("\n", "\n    ") or "(empty)"
    click.echo(f"    {body}{encoding}")


def _nodes_elsewhere(client: Client, subject: str) -> list[str]:
    """The broker nodes to which the server delivers this subject; empty if it uses its embedded broker."""
    groups = client.status().get("groups") or {}
    name = client.route(subject=subject).group
    addresses = [node["address"] for node in groups.get(name, {}).get("nodes", [])]
    return [] if "embedded" in addresses else addresses


def _print_hint(received: int, wait_ms: int, ack: bool, elsewhere: list[str]) -> None:
    if elsewhere:
        click.echo(f"nothing here: this subject goes to {', '.join(elsewhere)}; pull there, with --server", err=True)
    elif not received:
        click.echo(f"nothing was due within {format_duration(wait_ms)}" if wait_ms else "nothing is due", err=True)
    elif not ack:
        click.echo("not acknowledged, so this comes again after the ack timeout; --ack settles it", err=True)
