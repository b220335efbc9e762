"""`dead_letters`."""

from __future__ import annotations

from typing import Any

from delayserver.front.connection import Connection
from delayserver.front.handlers.chosen import POSITION_MAX, read_positions
from delayserver.front.handlers.names import read_names
from delayserver.operations.groups.consuming import DELAY_MS_MAX
from delayserver.operations.groups.dead_letters import (
    DROP_MAX,
    LIST_MAX,
    RATE_MAX,
    RATE_MIN,
    RESEND_MAX,
    DeadLetter,
    DeadLetterOperations,
)
from delayserver.protocol.arguments import boolean, integer, invalid
from delayserver.protocol.frames import Request

_ACTIONS = ("list", "resend", "drop")


class DeadLetterHandlers:
    """Requests about dead letters."""

    def __init__(self, operations: DeadLetterOperations) -> None:
        self._operations = operations

    async def dead_letters(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """Does what `action` says with the dead letters of one group."""
        arguments = request.arguments
        action = arguments.get("action")
        if action not in _ACTIONS:
            raise invalid("action", "one of list, resend, drop", action)
        subject, group = read_names(arguments)
        if action == "list":
            return await self._list(arguments, subject, group)
        if action == "drop":
            count_max = integer(arguments, "max", 1, DROP_MAX, DROP_MAX)
            dropped, left = await self._operations.drop(subject, group, read_positions(arguments), count_max)
            return {"dropped": dropped, "left": left}
        resent = await self._operations.resend(
            subject,
            group,
            read_positions(arguments),
            integer(arguments, "max", 1, RESEND_MAX, RESEND_MAX),
            _rate(arguments),
            integer(arguments, "first_ms", 0, DELAY_MS_MAX, 0),
        )
        return {
            "resent": resent.resent,
            "left": resent.left,
            "next_ms": resent.next_ms,
            "unreadable": resent.unreadable,
        }

    async def _list(self, arguments: dict[str, Any], subject: str, group: str) -> dict[str, Any]:
        bodies = boolean(arguments, "bodies")
        after = integer(arguments, "after", -1, POSITION_MAX, -1)
        page = await self._operations.page(subject, group, after, integer(arguments, "max", 1, LIST_MAX, LIST_MAX))
        return {
            "letters": [_row(letter, bodies=bodies) for letter in page.letters],
            "next": page.next,
            "left": page.left,
            "unreadable": page.unreadable,
        }


def _row(letter: DeadLetter, *, bodies: bool) -> dict[str, Any]:
    row = letter._asdict()
    body = row.pop("body")
    return row | {"body_bytes": len(body)} | ({"body": body} if bodies else {})


def _rate(arguments: dict[str, Any]) -> float | None:
    rate = arguments.get("rate")
    if rate is None:
        return None
    if type(rate) not in (int, float) or not RATE_MIN <= rate <= RATE_MAX:
        raise invalid("rate", f"a number of messages a second from {RATE_MIN:g} to {RATE_MAX:g}", rate)
    return float(rate)
