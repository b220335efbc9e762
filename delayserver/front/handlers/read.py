"""`read`."""

from __future__ import annotations

from functools import partial

from delayserver.config.settings import BrokerSettings
from delayserver.front.connection import Connection
from delayserver.front.handlers.message_replies import MessagesReply
from delayserver.operations.groups.queue_reads import QueueReads, Read
from delayserver.protocol.arguments import boolean, integer
from delayserver.protocol.frames import RequestFrame

_I64_MAX = (1 << 63) - 1


class ReadHandlers:
    """Requests for messages without a group."""

    def __init__(self, reads: QueueReads, settings: BrokerSettings) -> None:
        self._reads = reads
        self._settings = settings

    async def read(self, connection: Connection, request: RequestFrame) -> None:
        """Reads messages without a group."""
        arguments, settings = request.arguments, self._settings
        columns = boolean(arguments, "columns")
        subject = arguments.get("subject")
        read = Read(
            subject,  # type: ignore[arg-type]  # the operation checks it
            integer(arguments, "position", -_I64_MAX, _I64_MAX),
            integer(arguments, "max_messages", 1, settings.pull_messages_max, 1),
            integer(arguments, "max_bytes", 1, 1 << 62, 8 << 20),
            integer(arguments, "wait_ms", 0, settings.wait_ms_max, 0),
        )
        # Below 0: no `cancel_wait` names it.
        waiting = connection.waits.begin(-request.id)
        try:
            with waiting:
                found = await connection.in_room(partial(self._reads.read_or_wait, read))
        finally:
            connection.waits.end(-request.id, waiting)
        if waiting.cancelled_caught:  # the connection has ended
            return
        reply = MessagesReply(connection, request.id, str(subject), columns, self._reads.name, leased=False)
        fields = {"status": found.status, "first": found.first, "end": found.end, "next": found.next}
        await reply.send(found.found, fields)
