"""`group`, `seek`, `remove_group` and `read`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from delayserver.config.settings import BrokerSettings
from delayserver.front.connection import Connection
from delayserver.front.handlers.consuming import TIME_MS_MAX
from delayserver.front.handlers.messages import MessagesReply
from delayserver.operations.groups.positions import (
    EARLIEST,
    LATEST,
    POSITION,
    TIME,
    Goal,
    QueuePositions,
    Read,
)
from delayserver.protocol.arguments import boolean, integer, invalid, one_form
from delayserver.protocol.frames import Request

_I64_MAX = (1 << 63) - 1


class PositionHandlers:
    """Requests about positions."""

    def __init__(self, positions: QueuePositions, settings: BrokerSettings) -> None:
        self._positions = positions
        self._settings = settings

    async def group(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """One consumer group with its backlog."""
        found = await self._positions.group(*_names(request.arguments))
        return asdict(found.row) | {"subject": found.subject, "group": found.group, "dead_letters": found.dead_letters}

    async def seek(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """Moves a group. Durable before the reply."""
        sought = await self._positions.seek(*_names(request.arguments), _goal(request.arguments))
        return asdict(sought)

    async def remove_group(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """Removes a group. Durable before the reply."""
        await self._positions.remove(*_names(request.arguments))
        return {}

    async def read(self, connection: Connection, request: Request) -> None:
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
                found = await connection.in_room(partial(self._positions.read_or_wait, read))
        finally:
            connection.waits.end(-request.id, waiting)
        if waiting.cancelled_caught:  # the connection has ended
            return
        reply = MessagesReply(connection, request.id, str(subject), columns, self._positions.name, leased=False)
        fields = {"status": found.status, "first": found.first, "end": found.end, "next": found.next}
        await reply.send(found.found, fields)


def _names(arguments: dict[str, Any]) -> tuple[Any, Any]:
    """Subject and group as they came: the operation checks them."""
    return arguments.get("subject"), arguments.get("group")


def _goal(arguments: dict[str, Any]) -> Goal:
    """Where a seek goes. Raises InvalidArgument."""
    form = one_form(arguments, ("to", "time_ms", "position"))
    if form == "time_ms":
        return Goal(TIME, integer(arguments, form, 0, TIME_MS_MAX) * 1000)
    if form == "position":
        return Goal(POSITION, integer(arguments, form, -_I64_MAX, _I64_MAX))
    if arguments["to"] not in (EARLIEST, LATEST):
        raise invalid("to", f'"{EARLIEST}" or "{LATEST}"', arguments["to"])
    return Goal(arguments["to"])
