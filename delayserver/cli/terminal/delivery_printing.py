"""Prints messages that a consumer gets, as `pull` and `consume` do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delayserver.cli.terminal.output import body_fields, delivery_record, print_json, visible, visible_block
from delayserver.config.units import format_duration, format_instant

if TYPE_CHECKING:
    from delayserver.client.values.messages import Delivery


def print_delivery(delivery: Delivery, *, as_json: bool) -> None:
    """Print a message: a JSON object, or lines for people."""
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
