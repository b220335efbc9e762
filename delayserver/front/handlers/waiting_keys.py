"""`waiting_keys`."""

from __future__ import annotations

from typing import Any

from delayserver.front.connection import Connection
from delayserver.front.handlers.chosen import POSITION_MAX, read_positions, read_reason
from delayserver.front.handlers.names import read_names
from delayserver.operations.groups.waiting_keys import LIST_MAX, RETRY_MAX, SKIP_MAX, WaitingKeyOperations
from delayserver.protocol.arguments import integer, invalid
from delayserver.protocol.frames import Request

_ACTIONS = ("list", "skip", "retry")


class WaitingKeyHandlers:
    """Requests about order keys that wait for a message that has failed."""

    def __init__(self, operations: WaitingKeyOperations) -> None:
        self._operations = operations

    async def waiting_keys(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """Does what `action` says with the waiting keys of one group."""
        arguments = request.arguments
        action = arguments.get("action")
        if action not in _ACTIONS:
            raise invalid("action", "one of list, skip, retry", action)
        subject, group = read_names(arguments)
        if action == "list":
            after = integer(arguments, "after", -1, POSITION_MAX, -1)
            page = await self._operations.page(subject, group, after, integer(arguments, "max", 1, LIST_MAX, LIST_MAX))
            keys = [each._asdict() for each in page.keys]
            return {"keys": keys, "next": page.next, "left": page.left, "unreadable": page.unreadable}
        wanted = read_positions(arguments)
        if action == "retry":
            count_max = integer(arguments, "max", 1, RETRY_MAX, RETRY_MAX)
            retried, left = self._operations.retry(subject, group, wanted, count_max)
            return {"retried": retried, "left": left}
        count_max = integer(arguments, "max", 1, SKIP_MAX, SKIP_MAX)
        skipped, left = await self._operations.skip(subject, group, wanted, count_max, read_reason(arguments))
        return {"skipped": skipped, "left": left}
