"""`send` in rows or in columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.front.connection import Connection
from delayserver.front.handlers.one_way import unless_one_way
from delayserver.front.handlers.reading import optional_ragged, read_due, read_tags, rejected_rows
from delayserver.operations.messages.repeats import Repeats
from delayserver.operations.sending.send import Sending, SentColumns, SentRows
from delayserver.protocol.arguments import boolean, invalid, one_form
from delayserver.protocol.columns import I64, U32, pack_column, unpack_column, unpack_count, unpack_ragged
from delayserver.protocol.errors import BatchTooLarge, DelayServerError, InvalidArgument, error_to_map
from delayserver.protocol.frames import RequestFrame, encode_reply
from delayserver.protocol.message_columns import DueColumn, MessageColumns
from delayserver.protocol.receipts import format_receipt
from delayserver.runtime.fair_turns import Work


class SendHandlers:
    """Requests that bring messages."""

    def __init__(self, send: Sending, batch_messages_max: int, server_id: str, repeats: Repeats | None) -> None:
        """`repeats`: None where no message can be a copy."""
        self._send = send
        self._batch_messages_max = batch_messages_max
        self._server_id = server_id
        self._repeats = repeats

    def send(self, connection: Connection, request: RequestFrame) -> None:
        """Accepts messages in rows or columns. The reply follows the sync."""
        arguments = request.arguments
        rows_alone = "count" not in arguments and arguments.get("messages") is not None  # by far the most requests
        if rows_alone or one_form(arguments, ("messages", "count")) == "messages":
            self._send_rows(connection, request)
        else:
            self._send_columns(connection, request)

    def _send_rows(self, connection: Connection, request: RequestFrame) -> None:
        request_id = request.id

        def answer(sent: SentRows | DelayServerError) -> None:
            if isinstance(sent, DelayServerError):
                connection.fail(request_id, sent)
                return
            results = [
                {
                    "receipt": receipt,
                    "message_id": message_id,
                    "subject": subject,
                    "due_ms": due_ms,
                    "sequence": sequence,
                }
                for receipt, message_id, subject, due_ms, sequence in sent.messages
            ]
            reply, told = {"results": results}, None
            if repeats is not None and results:
                told = partial(self._told_rows, repeats, connection.work(), [*results], reply)
            for rejection in sent.rejections:
                results.insert(rejection.index, error_to_map(rejection.error))
            if told is None or not connection.goes_on(request, told):
                connection.reply(encode_reply(request_id, reply))

        repeats = self._asked(request.arguments) if "tell_duplicates" in request.arguments else None
        messages = request.arguments["messages"]
        count = len(messages) if type(messages) is list else 1
        self._send.rows(messages, unless_one_way(connection, request, count, answer))

    def _send_columns(self, connection: Connection, request: RequestFrame) -> None:
        request_id = request.id

        def answer(sent: SentColumns | DelayServerError) -> None:
            if isinstance(sent, DelayServerError):
                connection.fail(request_id, sent)
                return
            reply = {
                "accepted": len(sent.due_ms),
                "first_sequence": sent.first_sequence,
                "due_ms": pack_column(sent.due_ms),
                "rejected": rejected_rows([(each.index, each.error) for each in sent.rejections]),
            }
            if repeats is not None and len(sent.due_ms):
                told = partial(self._told_columns, repeats, connection.work(), sent, reply)
                if connection.goes_on(request, told):
                    return
            connection.reply(encode_reply(request_id, reply))

        repeats = self._asked(request.arguments) if "tell_duplicates" in request.arguments else None
        messages = read_columns(request.arguments, self._batch_messages_max, read_due)
        self._send.columns(messages, unless_one_way(connection, request, len(messages.bodies.lengths), answer))

    def _asked(self, arguments: dict[str, Any]) -> Repeats | None:
        """None unless the sender wants to know which of its messages are copies. Raises InvalidArgument."""
        return self._repeats if boolean(arguments, "tell_duplicates") else None

    async def _told_rows(
        self, repeats: Repeats, work: Work, accepted: list[dict[str, Any]], reply: dict[str, Any]
    ) -> dict[str, Any]:
        """The reply, of which the accepted rows say whether they are copies."""
        sequence = np.array([row["sequence"] for row in accepted], np.int64)
        found = await repeats.among(sequence, np.array([row["due_ms"] for row in accepted], np.int64), work)
        if found is not None:
            for row in accepted:
                row["duplicate"] = False
            for place, original, outcome in found:
                row = accepted[place]
                row["duplicate"] = True
                row["original_receipt"] = format_receipt(self._server_id, row["due_ms"], original)
                row["outcome"] = outcome.label
        return reply

    async def _told_columns(
        self, repeats: Repeats, work: Work, sent: SentColumns, reply: dict[str, Any]
    ) -> dict[str, Any]:
        sequence = np.arange(sent.first_sequence, sent.first_sequence + len(sent.due_ms), dtype=np.int64)
        found = await repeats.among(sequence, sent.due_ms, work)
        if found is not None:
            reply["duplicates"] = [
                [sent.first_sequence + place, original, outcome.label] for place, original, outcome in found
            ]
        return reply


def read_columns(
    arguments: dict[str, Any], count_max: int, due: Callable[[dict[str, Any], int], DueColumn | None]
) -> MessageColumns:
    """The messages of a request in columns; `due` reads their due times. Raises InvalidArgument, BatchTooLarge."""
    get = arguments.get
    count = unpack_count(get("count"), 1 << 31)
    if count > count_max:
        raise BatchTooLarge(f"{count} messages; at most {count_max} in one request")
    if count == 0:
        raise InvalidArgument("count must be at least 1")
    bodies = unpack_ragged(get("bodies"), get("body_length"), count, "bodies", "body_length")
    expires_ms = get("expires_ms")
    return MessageColumns(
        due(arguments, count),
        bodies,
        *_read_subjects(arguments, count),
        optional_ragged(arguments, count, "message_ids", "message_id_length"),
        optional_ragged(arguments, count, "properties", "properties_length"),
        None if expires_ms is None else unpack_column(expires_ms, count, I64, "expires_ms"),
        *read_tags(arguments, count),
        optional_ragged(arguments, count, "order_keys", "order_key_length"),
    )


def _read_subjects(arguments: dict[str, Any], count: int) -> tuple[list[Any], NDArray[np.uint32] | None]:
    """The subjects, and the index of each message's subject, u32[n]; None if all messages have one subject. Raises
    InvalidArgument."""
    subject, subjects = arguments.get("subject"), arguments.get("subjects")
    if subject is not None and subjects is not None:
        raise InvalidArgument("subject and subjects are both given; give one of them")
    if subject is not None:
        return [subject], None
    if type(subjects) is not list or not subjects:
        raise invalid("subjects", "a list of at least one text, beside subject_index (or give subject)", subjects)
    index = unpack_column(arguments.get("subject_index"), count, U32, "subject_index")
    if int(index.max()) >= len(subjects):
        raise InvalidArgument(f"subject_index goes up to {int(index.max())}, but there are {len(subjects)} subjects")
    return subjects, index
