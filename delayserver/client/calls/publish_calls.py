"""Calls that publish messages for now: one message as a row, or many messages or arrays as columns. No I/O.

A call is repeatable only if every message has an id of the caller. The server does not look for an earlier publish of the
same id, so after a lost reply a repetition can store a message twice. Consumers recognise it by its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from delayserver.client.calls.core import Call
from delayserver.client.calls.send_calls import (
    SendColumns,
    check_message,
    column_arguments,
    columns_of,
    doubt_rows,
    message_row,
    read_accepted,
    rows_in_doubt,
)
from delayserver.client.values.messages import ColumnsPublished, Message, PublishResult
from delayserver.client.values.timing import Instant
from delayserver.protocol.columns import I64, unpack_column
from delayserver.protocol.errors import DelayServerError, InvalidArgument, error_from_map
from delayserver.protocol.operation_names import PUBLISH
from delayserver.protocol.schema.greetings import ServerInfo


def publish_call(
    subject: str,
    body: bytes | str,
    *,
    message_id: str | None,
    properties: Mapping[str, str] | None,
    expires_ms: Instant | None,
    tag: str | None,
    order_key: str | None,
) -> Call[PublishResult]:
    """Publish one message. Raises the named error of an invalid message."""
    row = message_row(subject, body, message_id, properties, expires_ms, tag, order_key)
    return Call(PUBLISH, {"messages": [row]}, _read_row, message_id is not None)


def _read_row(result: dict[str, Any], _: ServerInfo) -> PublishResult:
    row = result["results"][0]
    if "error" in row:
        raise error_from_map(row)
    return PublishResult(row["message_id"], row["subject"], row["position"])


def publish_columns_call(columns: SendColumns) -> Call[ColumnsPublished]:
    """Publish many messages as columns; ``due_ms`` of the columns is not used. Raises `InvalidArgument` if lengths
    disagree.
    """
    count, arguments = column_arguments(columns)

    def read(result: dict[str, Any], server: ServerInfo) -> ColumnsPublished:
        accepted, rejected = read_accepted(result, count)
        position = unpack_column(result["position"], accepted, I64, "position")
        return ColumnsPublished(
            server.server_id, accepted, int(result["first_sequence"]), position, rejected, result.get("placed")
        )

    def doubt(published: ColumnsPublished, unknown: DelayServerError) -> ColumnsPublished:
        return replace(published, rejected=rows_in_doubt(published.rejected, unknown))

    ids = columns.message_ids
    return Call(PUBLISH, arguments, read, ids is not None and all(ids), doubt=doubt)


def publish_many_call(messages: Sequence[Message]) -> Call[list[PublishResult | DelayServerError]]:
    """Publish messages as one columnar request. The result has one result or error for each message, in order."""
    for message in messages:
        check_message(message)
        if any(time is not None for time in (message.due_ms, message.delay_ms, message.at, message.delay)):
            raise InvalidArgument("a published message is due now; to give it a time, send it")
    message_ids = [message.message_id or "" for message in messages]
    call = publish_columns_call(columns_of(messages, 0, message_ids))

    def read(result: dict[str, Any], server: ServerInfo) -> list[PublishResult | DelayServerError]:
        return _rows_of(call.read(result, server), messages, message_ids)

    return Call(PUBLISH, call.arguments, read, call.repeatable, doubt=doubt_rows)


def _rows_of(
    published: ColumnsPublished, messages: Sequence[Message], message_ids: list[str]
) -> list[PublishResult | DelayServerError]:
    errors = {rejected.index: rejected.error for rejected in published.rejected}
    accepted = zip(published.derived_ids(), published.position.tolist(), strict=True)
    rows: list[PublishResult | DelayServerError] = []
    for index, message in enumerate(messages):
        if index in errors:
            rows.append(errors[index])
            continue
        derived_id, position = next(accepted)
        rows.append(PublishResult(message_ids[index] or derived_id, message.subject, position))
    return rows
