"""`delayserver cancel`: cancels messages before they are due."""

from __future__ import annotations

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal import receipt_batches as by_receipt
from delayserver.protocol.outcomes import Outcome


@click.command
@by_receipt.argument
@by_receipt.ids_option
@options.server
@options.as_json
@click.pass_context
def cancel(context: click.Context, receipts: tuple[str, ...], ids: tuple[str, ...], server: str, as_json: bool) -> None:
    """Cancel the messages with these receipts; `-` reads receipts from stdin, one a line. Or `cancel SUBJECT --id ID`.

    The outcome is one of cancelled, already_cancelled, delivered, expired, dead_lettered, retired (its window is past
    retention), too_late (an attempt is running, or its result is unknown after a crash) and unknown. What is answered
    `cancelled` is never delivered. The exit code is 0 if every message is cancelled, now or before, and 1 otherwise.
    """
    names, target = by_receipt.named(receipts, ids)
    with options.connect(server) as client:
        code = by_receipt.answer_each(
            client,
            names,
            lambda batch: client.cancel_many(list(map(target, batch))),
            lambda receipt, result: {"receipt": result.receipt or receipt, "outcome": result.outcome.label},
            lambda record: f"{record['receipt']}  {record['outcome']}",
            as_json,
            lambda result: result.outcome in (Outcome.CANCELLED, Outcome.ALREADY_CANCELLED),
        )
    context.exit(code)
