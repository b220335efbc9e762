"""`delayserver transactions`: ends transactions that no producer ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal import receipts as by_receipt

if TYPE_CHECKING:
    from delayserver.client import Client, DelayServerError, Ended


@click.group
def transactions() -> None:
    """End transactions by hand: messages that were prepared, and that their producer neither commits nor rolls back."""


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
