"""`delayserver transactions`: lists open transactions, and ends those that no producer ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from delayserver.cli.terminal import options
from delayserver.cli.terminal import receipt_batches as by_receipt
from delayserver.cli.terminal.output import print_json, visible
from delayserver.config.units import format_instant

if TYPE_CHECKING:
    from delayserver.client import Client, DelayServerError, Ended, OpenTransaction

HEADINGS = ("RECEIPT", "SUBJECT", "GROUP", "PREPARED", "CHECKS", "NEXT", "POLICY")


@click.group
def transactions() -> None:
    """List and end transactions: messages that were prepared, and that their producer neither commits nor rolls back."""


@transactions.command(name="list")
@click.option(
    "--max", "maximum", type=options.Whole(min=1), default=1_000, show_default=True, help="End after this many."
)
@options.server
@options.shard
@options.as_json
def list_open(maximum: int, server: str, as_json: bool) -> None:
    """List the transactions that are neither committed nor rolled back.

    CHECKS is the number of check-backs so far, and of all. NEXT is the time of the next one, or after the last one of the
    end by the policy.
    """
    with options.connect(server) as client:
        found = client.transactions(maximum)
    if as_json:
        for each in found:
            print_json(asdict(each))
        return
    if not found:
        click.echo("no transaction is open")
        return
    rows = [HEADINGS, *[_cells(each) for each in found]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=True)]).rstrip())


def _cells(each: OpenTransaction) -> tuple[str, ...]:
    return (
        each.receipt,
        visible(each.subject),
        visible(each.group),
        format_instant(each.accepted_us // 1000) if each.accepted_us else "-",
        f"{each.checks}/{each.checks_max}",
        format_instant(each.next_check_ms),
        each.policy,
    )


@transactions.command
@by_receipt.argument
@options.server
@options.as_json
@click.pass_context
def commit(context: click.Context, receipts: tuple[str, ...], server: str, as_json: bool) -> None:
    """Make the messages with these receipts visible; `-` reads receipts from stdin, one a line.

    Prints the receipt of each visible message. The exit code is 1 if one had ended otherwise before, or is unknown.
    """
    context.exit(_end(receipts, server, as_json, lambda client: client.commit_many))


@transactions.command
@by_receipt.argument
@options.server
@options.as_json
@click.pass_context
def rollback(context: click.Context, receipts: tuple[str, ...], server: str, as_json: bool) -> None:
    """End the transactions with these receipts, so that no consumer gets their messages; `-` reads receipts from stdin, one
    a line.

    The exit code is 1 if one had ended otherwise before, or is unknown.
    """
    context.exit(_end(receipts, server, as_json, lambda client: client.rollback_many))


def _end(
    receipts: Sequence[str],
    server: str,
    as_json: bool,
    operation: Callable[[Client], Callable[[Sequence[str]], Sequence[Ended | DelayServerError]]],
) -> int:
    with options.connect(server) as client:
        return by_receipt.answer_each(client, receipts, operation(client), _record, _line, as_json)


def _record(_receipt: str, ended: Ended) -> dict[str, Any]:
    record: dict[str, Any] = {"receipt": ended.receipt, "outcome": ended.outcome.label}
    if ended.new_receipt is not None:
        record |= {"new_receipt": ended.new_receipt, "due_ms": ended.due_ms}
    return record


def _line(record: dict[str, Any]) -> str:
    return "  ".join([record["receipt"], record["outcome"], record.get("new_receipt", "")]).rstrip()
