"""`send` in rows or in columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.front.connection import Connection
from delayserver.front.handlers.reading import read_due, rejected_rows
from delayserver.operations.send import Send, SentColumns, SentRows
from delayserver.protocol.arguments import invalid, one_form
from delayserver.protocol.columns import I64, U32, Ragged, pack_column, unpack_column, unpack_count, unpack_ragged
from delayserver.protocol.errors import BatchTooLarge, DelayServerError, InvalidArgument, error_to_map
from delayserver.protocol.frames import Request, encode_reply
from delayserver.protocol.message_columns import MessageColumns


class SendHandlers:
    """Requests that bring messages."""

    def __init__(self, send: Send, batch_messages_max: int) -> None:
        self._send = send
        self._batch_messages_max = batch_messages_max

    def send(self, connection: Connection, request: Request) -> None:
        """Accepts messages in rows or columns. The reply follows the sync."""
        if one_form(request.arguments, ("messages", "count")) == "messages":
            self._send_rows(connection, request)
        else:
            self._send_columns(connection, request)

    def _send_rows(self, connection: Connection, request: Request) -> None:
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
            for rejection in sent.rejections:
                results.insert(rejection.index, error_to_map(rejection.error))
            connection.reply(encode_reply(request_id, {"results": results}))

        self._send.rows(request.arguments["messages"], answer)

    def _send_columns(self, connection: Connection, request: Request) -> None:
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
            connection.reply(encode_reply(request_id, reply))

        self._send.columns(self._read_columns(request.arguments), answer)

    def _read_columns(self, arguments: dict[str, Any]) -> MessageColumns:
        """Raises InvalidArgument, BatchTooLarge."""
        get = arguments.get
        count = unpack_count(get("count"), 1 << 31)
        if count > self._batch_messages_max:
            raise BatchTooLarge(f"{count} messages; at most {self._batch_messages_max} in one send")
        if count == 0:
            raise InvalidArgument("count must be at least 1")
        bodies = unpack_ragged(get("bodies"), get("body_length"), count, "bodies", "body_length")
        expires_ms = get("expires_ms")
        return MessageColumns(
            read_due(arguments, count),
            bodies,
            *_read_subjects(arguments, count),
            _optional(arguments, count, "message_ids", "message_id_length"),
            _optional(arguments, count, "properties", "properties_length"),
            None if expires_ms is None else unpack_column(expires_ms, count, I64, "expires_ms"),
        )


def _read_subjects(arguments: dict[str, Any], count: int) -> tuple[list[Any], NDArray[np.uint32] | None]:
    """The subjects, and the index of each message's subject, u32[n]; None if all messages have one subject. Raises
    InvalidArgument."""
    subject, subjects = arguments.get("subject"), arguments.get("subjects")
    if subject is not None:
        return [subject], None
    if type(subjects) is not list or not subjects:
        raise invalid("subjects", "a list of at least one text, beside subject_index (or give subject)", subjects)
    index = unpack_column(arguments.get("subject_index"), count, U32, "subject_index")
    if int(index.max()) >= len(subjects):
        raise InvalidArgument(f"subject_index goes up to {int(index.max())}, but there are {len(subjects)} subjects")
    return subjects, index


def _optional(arguments: dict[str, Any], count: int, name: str, lengths_name: str) -> Ragged | None:
    """Ragged bytes, or None if the request gives neither argument. Raises InvalidArgument."""
    blob, lengths = arguments.get(name), arguments.get(lengths_name)
    if blob is None and lengths is None:
        return None
    return unpack_ragged(blob, lengths, count, name, lengths_name)
