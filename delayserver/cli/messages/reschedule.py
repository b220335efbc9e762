"""`delayserver reschedule`: moves a message to another due time in one atomic step."""

from __future__ import annotations

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.failures import FAILED
from delayserver.cli.terminal.output import print_json, without_none
from delayserver.cli.terminal.receipt_batches import named
from delayserver.config.units import format_instant


@click.command
@click.argument("receipt", metavar="RECEIPT|SUBJECT")
@click.option("--id", "message_id", metavar="ID", help="The message with this id below SUBJECT that waits.")
@options.due_options
@options.server
@options.as_json
@click.pass_context
def reschedule(
    context: click.Context,
    receipt: str,
    message_id: str | None,
    delay_ms: int | None,
    at_ms: int | None,
    server: str,
    as_json: bool,
) -> None:
    """Move the message with this receipt to another due time; --delay 0s delivers it now. Or `reschedule SUBJECT --id ID`.

    The old message is cancelled and a new one with the same content is sent in one step. Any outcome but `cancelled`
    means that nothing was changed, and then the exit code is 1.
    """
    options.check_due(delay_ms, at_ms, required=True)
    (name,), target = named([receipt], () if message_id is None else [message_id])
    with options.connect(server) as client:
        result = client.reschedule(target(name), due_ms=at_ms, delay_ms=delay_ms)
    record = without_none(
        {
            "receipt": result.receipt or name,
            "outcome": result.outcome.label,
            "new_receipt": result.new_receipt,
            "message_id": result.message_id,
            "due_ms": result.due_ms,
            "sequence": result.sequence,
        }
    )
    if as_json:
        print_json(record)
    elif result.new_receipt is None or result.due_ms is None:
        click.echo(f"{record['receipt']}  {record['outcome']}: nothing was changed")
    else:
        click.echo(f"due      {format_instant(result.due_ms)}")
        click.echo(f"receipt  {result.new_receipt}")
    context.exit(FAILED if result.new_receipt is None else 0)
