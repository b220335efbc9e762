"""`delayserver recover trace`: shows the life of one message, with evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from delayserver.cli.recover import recover_options as shared
from delayserver.cli.terminal import options
from delayserver.cli.terminal.failures import FAILED
from delayserver.cli.terminal.output import print_json, visible

if TYPE_CHECKING:
    from delayserver.recover.telling.trace import Evidence, Life


@click.command
@shared.directory
@click.option("--receipt", metavar="R", help="The receipt that `send` returned.")
@click.option("--id", "message_id", metavar="ID", help="The message id: the sender's own or the server's.")
@click.option("--sequence", type=options.Whole(1), metavar="N", help="The sequence number.")
@options.as_json
@click.pass_context
def trace(
    context: click.Context,
    directory: str,
    receipt: str | None,
    message_id: str | None,
    sequence: int | None,
    as_json: bool,
) -> None:
    """Show everything that DIR holds about one message: where it was accepted, scheduled, cancelled, delivered, acked.

    Each line names the file and the offset of its record; `delayserver recover dump FILE` shows the record itself. The
    exit code is 1 if nothing is known of the message, and if it has no outcome where damage may hide one: that is named.
    """
    if sum(value is not None for value in (receipt, message_id, sequence)) != 1:
        raise click.UsageError("name one message: --receipt, --id or --sequence")
    if message_id is not None and not _is_text(message_id):
        raise click.UsageError(f"--id {message_id!r} is no UTF-8, and every id is")
    from delayserver.recover.reading.findings import Findings
    from delayserver.recover.telling.trace import Trace, TracedMessage

    with shared.captured(directory, Findings()) as taken, shared.advancing_bar("reading") as advance:
        wanted = TracedMessage(sequence=sequence or 0, message_id=message_id or "")
        if receipt is not None:
            wanted = _by_receipt(receipt, f"{taken.server_id:012x}")
        work = Trace(taken, advance)
        lives = work.run(wanted)
    for life in lives:
        _print_json(life) if as_json else _print_text(life)
    if not lives:
        hidden = ", or this damage hides its records:" if work.unread else ""
        known = "it was never accepted here, or its window is retired"
        click.echo(f"nothing is known of this message: {known}{hidden}", err=True)
    shared.tell_unread(work.unread)
    if not lives:
        context.exit(FAILED)


def _is_text(argument: str) -> bool:
    """True if the argument was UTF-8; other bytes arrive as surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _by_receipt(text: str, server_id: str) -> Any:
    from delayserver.protocol.errors import ReceiptInvalid
    from delayserver.protocol.receipts import parse_receipt
    from delayserver.recover.telling.trace import TracedMessage

    try:
        receipt = parse_receipt(text.strip())
    except ReceiptInvalid as error:
        raise click.UsageError(str(error)) from error
    if receipt.server_id != server_id:
        raise click.UsageError(f"the receipt is of server {receipt.server_id}, this directory belongs to {server_id}")
    return TracedMessage(sequence=receipt.sequence, due_ms=receipt.due_ms)


def _print_json(life: Life) -> None:
    for item in life.evidence:
        print_json({"message": life.sequence} | _with_time(item))
    print_json({"message": life.sequence, "receipt": life.receipt, "state": life.state})


def _with_time(item: Evidence) -> dict[str, Any]:
    record = item.to_map()
    if item.at_us >= 1 << 62:
        del record["at_us"]
    return record


def _print_text(life: Life) -> None:
    from delayserver.config.units import format_instant

    click.echo(f"message {life.sequence}  receipt {life.receipt or '-'}  state {life.state}")
    for item in life.evidence:
        when = format_instant(item.at_us / 1000) if 0 < item.at_us < 1 << 62 else "-" * 29
        click.echo(f"  {when}  {item.what}")
        click.echo(f"      {item.file} at {item.offset}")
        words = []
        for name, value in item.fields.items():
            if name.endswith("_us") and value:
                words.append(f"{name[:-3]} {format_instant(value / 1000)}")
            elif name.endswith("_ms") and name not in ("lateness_ms",):
                words.append(f"{name[:-3]} {format_instant(value)}")
            else:
                words.append(f"{name} {value}")
        click.echo(f"      {visible(', '.join(words))}")
