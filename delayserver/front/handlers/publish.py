"""`publish` in rows or in columns."""

from __future__ import annotations

from typing import Any

from delayserver.front.connection import Connection
from delayserver.front.handlers.one_way import unless_one_way
from delayserver.front.handlers.reading import rejected_rows
from delayserver.front.handlers.send import read_columns
from delayserver.operations.sending.publish import NO_TIMES, Publish, PublishedColumns, PublishedRows
from delayserver.protocol.arguments import one_form
from delayserver.protocol.columns import pack_column
from delayserver.protocol.errors import DelayServerError, InvalidArgument, error_to_map
from delayserver.protocol.frames import RequestFrame, encode_reply


class PublishHandlers:
    """Requests that bring messages for now."""

    def __init__(self, publish: Publish, batch_messages_max: int) -> None:
        self._publish = publish
        self._batch_messages_max = batch_messages_max

    def publish(self, connection: Connection, request: RequestFrame) -> None:
        """Stores messages in rows or columns. The reply follows the sync."""
        arguments = request.arguments
        rows_alone = "count" not in arguments and arguments.get("messages") is not None  # by far the most requests
        if rows_alone or one_form(arguments, ("messages", "count")) == "messages":
            self._rows(connection, request)
        else:
            self._columns(connection, request)

    def _rows(self, connection: Connection, request: RequestFrame) -> None:
        request_id = request.id

        def answer(published: PublishedRows | DelayServerError) -> None:
            if isinstance(published, DelayServerError):
                connection.fail(request_id, published)
                return
            results: list[dict[str, Any]] = [
                {"message_id": message_id, "subject": subject, "position": position}
                for message_id, subject, position in published.messages
            ]
            for rejection in published.rejections:
                results.insert(rejection.index, error_to_map(rejection.error))
            connection.reply(encode_reply(request_id, {"results": results}))

        messages = request.arguments["messages"]
        count = len(messages) if type(messages) is list else 1
        self._publish.rows(messages, unless_one_way(connection, request, count, answer))

    def _columns(self, connection: Connection, request: RequestFrame) -> None:
        request_id = request.id

        def answer(published: PublishedColumns | DelayServerError) -> None:
            if isinstance(published, DelayServerError):
                connection.fail(request_id, published)
                return
            reply = {
                "accepted": len(published.position),
                "first_sequence": published.first_sequence,
                "position": pack_column(published.position),
                "rejected": rejected_rows([(each.index, each.error) for each in published.rejections]),
            }
            connection.reply(encode_reply(request_id, reply))

        messages = read_columns(request.arguments, self._batch_messages_max, _now)
        self._publish.columns(messages, unless_one_way(connection, request, len(messages.bodies.lengths), answer))


def _now(arguments: dict[str, Any], _count: int) -> None:
    """A published message gives no due time. Raises InvalidArgument."""
    for name in ("due_ms", "delay_ms", "delay_level"):
        if arguments.get(name) is not None:
            raise InvalidArgument(NO_TIMES)
