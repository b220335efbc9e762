"""Calls about sent messages (cancel, reschedule, lookup) and about the server (status, groups, route). No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from delayserver.client.calls.core import Call
from delayserver.client.calls.send_calls import doubt_rows, text_map
from delayserver.client.values.messages import MessageKey, Status
from delayserver.protocol.columns import I64, U8, pack_column, unpack_column
from delayserver.protocol.errors import DelayServerError, InvalidArgument, MalformedFrame, error_from_map
from delayserver.protocol.operation_names import CANCEL, LOOKUP, RESCHEDULE, STATUS
from delayserver.protocol.outcomes import OUTCOMES_BY_LABEL
from delayserver.protocol.schema.fates import CancelResult, ItemToMove, LookupResult, RescheduleResult
from delayserver.protocol.schema.structs import arguments_of, read_reply
from delayserver.protocol.schema.words import WithOutcome

T = TypeVar("T")
Row = TypeVar("Row", bound=WithOutcome)

Target: TypeAlias = str | MessageKey
"""A message that was sent: its receipt, or its key."""


def cancel_call(targets: Sequence[Target]) -> Call[list[CancelResult | DelayServerError]]:
    """Cancel many. Repeatable: a second attempt says "already cancelled" of messages that the first one cancelled."""
    return rows_call(CANCEL, _target_arguments(targets), len(targets), CancelResult, doubt=doubt_rows)


def cancel_columns_call(due_ms: ArrayLike, sequence: ArrayLike) -> Call[NDArray[np.uint8]]:
    """Cancel many by due time and sequence; gives the outcome codes, u8[n]."""
    due_column, sequence_column = np.atleast_1d(np.asarray(due_ms)), np.atleast_1d(np.asarray(sequence))
    count = len(sequence_column)
    if due_column.shape != (count,) or due_column.dtype.kind not in "iu" or sequence_column.dtype.kind not in "iu":
        raise InvalidArgument("due_ms and sequence must be integer arrays of one length")
    arguments = {
        "count": count,
        "due_ms": pack_column(due_column, I64),
        "sequence": pack_column(sequence_column, I64),
    }
    return Call(CANCEL, arguments, lambda result, _: unpack_column(result["outcome"], count, U8, "outcome"))


def reschedule_call(
    target: Target,
    due_ms: int,
    body: bytes | str | None,
    properties: Mapping[str, str] | None,
    expires_ms: int | None,
) -> Call[RescheduleResult]:
    """Cancel and send in one atomic step. Not repeatable: a second attempt would say "already cancelled" and hide the new
    receipt.
    """
    item = ItemToMove(
        due_ms=due_ms,
        body=body,
        properties=None if properties is None else text_map(properties),
        expires_ms=expires_ms,
    )
    if isinstance(target, MessageKey):
        name: dict[str, Any] = {
            "subject": target.subject,
            "message_id": target.message_id,
            "message_due_ms": target.due_ms,
        }
    else:
        name = {"receipt": target}
    arguments = {"items": [name | arguments_of(item)]}
    return Call(RESCHEDULE, arguments, lambda result, _: only_row(_rows(result, 1, RescheduleResult)), repeatable=False)


def lookup_call(
    targets: Sequence[Target], *, body: bool = False, times: bool = False
) -> Call[list[LookupResult | DelayServerError]]:
    """Ask what became of many messages, with ``body`` what they say, and with ``times`` when they passed each stage."""
    arguments = _target_arguments(targets) | ({"body": True} if body else {}) | ({"times": True} if times else {})
    return rows_call(LOOKUP, arguments, len(targets), LookupResult)


def rows_call(
    operation: str,
    arguments: dict[str, Any],
    count: int,
    kind: type[Row],
    doubt: Callable[[list[Row | DelayServerError], DelayServerError], list[Row | DelayServerError]] | None = None,
) -> Call[list[Row | DelayServerError]]:
    """A call about ``count`` messages, whose reply has a row of this type or an error for each."""
    return Call(operation, arguments, lambda result, _: _rows(result, count, kind), doubt=doubt)


def status_call() -> Call[Status]:
    """The server's status map as it is."""
    return Call(STATUS, {}, lambda result, _: result)


def only_row(rows: Sequence[T | DelayServerError]) -> T:
    """The one row of a request of one. Raises it if it is an error."""
    row = rows[0]
    if isinstance(row, DelayServerError):
        raise row
    return row


def _target_arguments(targets: Sequence[Target]) -> dict[str, Any]:
    if all(isinstance(target, str) for target in targets):
        return {"receipts": list(targets)}
    keys = [target for target in targets if isinstance(target, MessageKey)]
    if len(keys) != len(targets):
        others = [type(target).__name__ for target in targets if not isinstance(target, (str, MessageKey))]
        if others:
            raise InvalidArgument(
                f"a message is named by its receipt (a text: `sent.receipt`) or a MessageKey, not by {others[0]}; "
                "several go to cancel_many and lookup_many"
            )
        raise InvalidArgument("give either receipts or message keys, not both in one request")
    return {"messages": [{"subject": k.subject, "message_id": k.message_id, "due_ms": k.due_ms} for k in keys]}


def _rows(result: dict[str, Any], count: int, kind: type[Row]) -> list[Row | DelayServerError]:
    rows = result["results"]
    if len(rows) != count:
        raise MalformedFrame(f"the server answered {len(rows)} of {count} items")
    return [error_from_map(row) if "error" in row else _row(row, kind) for row in rows]


def _row(row: dict[str, Any], kind: type[Row]) -> Row:
    if row["outcome"] not in OUTCOMES_BY_LABEL:
        raise ValueError(f"this client does not know the outcome {row['outcome']!r}")
    return read_reply(row, kind)
