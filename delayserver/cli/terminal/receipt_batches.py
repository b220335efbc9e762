"""Shared by commands that take receipts: reads them in batches and prints an answer for each."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from delayserver.cli.terminal.failures import FAILED
from delayserver.cli.terminal.output import error_record, print_json, visible, visible_block
from delayserver.protocol.errors import DelayServerError

if TYPE_CHECKING:
    from delayserver.client import Client, MessageKey

Result = TypeVar("Result")

BATCH_MAX: Final = 1_000
"""Receipts in one request, so that answers are printed a thousand at a time. The server may allow fewer."""

argument = click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
ids_option = click.option(
    "--id",
    "ids",
    multiple=True,
    metavar="ID",
    help="The message with this id below SUBJECT that waits; may be repeated.",
)


def named(receipts: Sequence[str], ids: Sequence[str]) -> tuple[Sequence[str], Callable[[str], str | MessageKey]]:
    """The names that were given, receipts or ids, and how to make the target of a call of one. Raises UsageError."""
    if not ids:
        return receipts, lambda receipt: receipt
    if len(receipts) != 1:
        raise click.UsageError("with --id there is one argument, the subject of the messages")
    from delayserver.client import MessageKey

    subject = receipts[0]
    return ids, lambda message_id: MessageKey(subject, message_id)


def answer_each(
    client: Client,
    receipts: Sequence[str],
    ask: Callable[[Sequence[str]], Sequence[Result | DelayServerError]],
    record_of: Callable[[str, Result], dict[str, Any]],
    line_of: Callable[[dict[str, Any]], str],
    as_json: bool,
    is_done: Callable[[Result], bool] = lambda _: True,
) -> int:
    """Asks about all receipts (`-`: those on stdin) and prints each answer. Returns exit code 1 if one was refused, or is
    not done by `is_done`."""
    code = 0
    remaining = _expand(receipts)
    batch_max = min(BATCH_MAX, client.hello().limits.batch_messages_max)
    while batch := list(islice(remaining, batch_max)):
        for receipt, answer in zip(batch, ask(batch), strict=True):
            if isinstance(answer, DelayServerError):
                code = FAILED
                record = error_record(receipt, answer)
                # One line, whatever was given as a receipt.
                line = visible(f"{receipt}  {answer}")
            else:
                code = code if is_done(answer) else FAILED
                record = record_of(receipt, answer)
                line = line_of(record)
            if as_json:
                print_json(record)
            else:
                click.echo(visible_block(line), err=isinstance(answer, DelayServerError))
    return code


def _expand(receipts: Iterable[str]) -> Iterable[str]:
    # Bytes that are not UTF-8 are replaced, so that only the bad receipt is refused and the others are answered.
    for receipt in receipts:
        if receipt == "-":
            if sys.stdin is None:
                raise click.UsageError("the receipts `-` are read from stdin, and stdin is closed")
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(errors="replace")
            yield from (line.strip() for line in sys.stdin if line.strip())
        else:
            # Such bytes of arguments arrive as surrogates.
            yield receipt.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
