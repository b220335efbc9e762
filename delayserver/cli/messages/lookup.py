"""`delayserver lookup`: the states of messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal import receipt_batches as by_receipt
from delayserver.cli.terminal.output import body_fields, visible, visible_block, without_none
from delayserver.config.units import format_instant
from delayserver.protocol.outcomes import Outcome

if TYPE_CHECKING:
    from delayserver.client import LookupResult


@click.command
@by_receipt.argument
@by_receipt.ids_option
@click.option("--body", is_flag=True, help="Also print what the message says, as long as the server has it.")
@click.option("--times", is_flag=True, help="Also print when each message was accepted, loaded, due and handed off.")
@options.server
@options.as_json
@click.pass_context
def lookup(
    context: click.Context,
    receipts: tuple[str, ...],
    ids: tuple[str, ...],
    body: bool,
    times: bool,
    server: str,
    as_json: bool,
) -> None:
    """Say what became of the messages with these receipts; `-` reads receipts from stdin, one a line. Or `lookup SUBJECT
    --id ID`.

    The outcome is one of pending, in_flight, retrying, delivered, cancelled, expired, deduplicated, dead_lettered,
    retired (by retention) and unknown; of a transaction prepared, committed or rolled_back. The exit code is 1 if one
    is unknown.
    """
    names, target = by_receipt.named(receipts, ids)
    with options.connect(server) as client:
        look_up = partial(client.lookup_many, body=body, times=times)
        code = by_receipt.answer_each(
            client, names, lambda batch: look_up(list(map(target, batch))), _record, _line, as_json, _is_known
        )
    context.exit(code)


def _is_known(result: LookupResult) -> bool:
    return result.outcome is not Outcome.UNKNOWN


def _record(receipt: str, result: LookupResult) -> dict[str, Any]:
    return without_none(
        {
            "receipt": result.receipt or receipt,
            "outcome": result.outcome.label,
            "subject": result.subject,
            "due_ms": result.due_ms,
            "dispatched_ms": None if result.dispatched_us is None else result.dispatched_us / 1000,
            "attempts": result.attempts,
            "unanswered_elsewhere": result.unanswered_elsewhere,
            "broker_group": result.broker_group,
            "original_receipt": result.original_receipt,
            "rescheduled_to": result.rescheduled_to,
            "message_id": result.message_id,
            "expires_ms": result.expires_ms or None,
            "tag": result.tag,
            "order_key": result.order_key,
            "properties": result.properties or None,
            "times": result.times,
            **({} if result.body is None else body_fields(result.body)),
        }
    )


def _line(record: dict[str, Any]) -> str:
    words = [record["receipt"], record["outcome"]]
    if "subject" in record:
        words.append(f"subject {record['subject']}")
    if "due_ms" in record:
        words.append(f"due {format_instant(record['due_ms'])}")
    if record.get("dispatched_ms"):
        words.append(f"dispatched {format_instant(record['dispatched_ms'])}")
    if "original_receipt" in record:
        words.append(f"copy of {record['original_receipt']}")
    if "rescheduled_to" in record:
        words.append(f"rescheduled to {record['rescheduled_to']}")
    times = [
        f"{name.removesuffix('_us').replace('_', ' '):<10}  {format_instant(time_us // 1000)}"
        for name, time_us in record.get("times", {}).items()
    ]
    line = "\n    ".join(["  ".join(words), *times])
    if "body" not in record:
        return line
    named = [f"{visible(name)}={visible(value)}" for name, value in record.get("properties", {}).items()]
    encoding = f"  ({record['body_encoding']})" if "body_encoding" in record else ""
    text = visible_block(record["body"]).replace("\n", "\n    ") or "(empty)"
    return "\n    ".join([line, *named, text + encoding])
