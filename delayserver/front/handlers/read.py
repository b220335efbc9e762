"""`read`."""

from __future__ import annotations

from functools import partial

from delayserver.config.settings import BrokerSettings
from delayserver.front.connection import Connection
from delayserver.front.handlers.message_replies import MessagesReply
from delayserver.operations.groups.queue_reads import QueueReads
from delayserver.protocol.arguments import invalid
from delayserver.protocol.frames import RequestFrame
from delayserver.protocol.schema.stored import ReadMessages
from delayserver.protocol.schema.structs import read_request


class ReadHandlers:
    """Requests for messages without a group."""

    def __init__(self, reads: QueueReads, settings: BrokerSettings) -> None:
        self._reads = reads
        self._bounds = (("max_messages", 1, settings.pull_messages_max), ("wait_ms", 0, settings.wait_ms_max))

    async def read(self, connection: Connection, request: RequestFrame) -> None:
        """Reads messages without a group."""
        asked = read_request(request.arguments, ReadMessages)
        for name, lowest, bound in self._bounds:
            value = getattr(asked, name)
            if value > bound:
                raise invalid(name, f"an integer from {lowest} to {bound}", value)
        # Below 0: no `cancel_wait` names it.
        waiting = connection.waits.begin(-request.id)
        try:
            with waiting:
                found = await connection.in_room(partial(self._reads.read_or_wait, asked))
        finally:
            connection.waits.end(-request.id, waiting)
        if waiting.cancelled_caught:  # the connection has ended
            return
        reply = MessagesReply(connection, request.id, asked.subject, asked.columns, self._reads.name, leased=False)
        fields = {"status": found.status, "first": found.first, "end": found.end, "next": found.next}
        await reply.send(found.found, fields)
