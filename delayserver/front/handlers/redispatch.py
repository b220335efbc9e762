"""`redispatch`, one slice per request."""

from __future__ import annotations

from typing import Any

from delayserver.front.connection import Connection
from delayserver.operations.nodes.servers import Servers
from delayserver.operations.sending.redispatch import ALLOWED, Position, Redispatch, RedispatchRange
from delayserver.protocol.arguments import boolean, integer, invalid, shown
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import RequestFrame
from delayserver.protocol.outcomes import OUTCOMES_BY_LABEL


class RedispatchHandlers:
    """Requests of operators."""

    def __init__(self, redispatch: Redispatch, servers: Servers) -> None:
        self._redispatch = redispatch
        self._servers = servers

    async def redispatch(self, connection: Connection, request: RequestFrame) -> dict[str, Any]:
        """Redispatches one slice. Replies with the position where the next one begins."""
        arguments = request.arguments
        self._servers.check_redispatch(connection.peer)  # before anything of it is read
        asked, dry_run = _read_asked(arguments), boolean(arguments, "dry_run")
        done = await self._redispatch.slice(connection.peer, asked, _read_position(arguments.get("after")), dry_run)
        following = None if done.next is None else list(done.next)
        return {"messages": done.messages, "next": following, **done.unread.to_map()}


def _read_asked(arguments: dict[str, Any]) -> RedispatchRange:
    from_ms = integer(arguments, "from_ms", 0, (1 << 62) - 1)
    to_ms = integer(arguments, "to_ms", 0, (1 << 62) - 1)
    if from_ms >= to_ms:
        raise InvalidArgument(f"from_ms {from_ms} must lie before to_ms {to_ms}")
    subject = arguments.get("subject")
    if subject is not None and type(subject) is not str:
        raise InvalidArgument(f"no message of the subject {shown(subject)} was ever accepted here")
    labels = arguments.get("outcomes")
    labels = ["delivered"] if labels is None else labels
    known = {outcome.label for outcome in ALLOWED}
    if type(labels) is not list or not labels or not all(type(label) is str and label in known for label in labels):
        raise invalid("outcomes", f"a list of some of {', '.join(sorted(known))}", labels)
    return RedispatchRange(from_ms, to_ms, subject, tuple(OUTCOMES_BY_LABEL[label] for label in labels))


def _read_position(after: object) -> Position | None:
    if after is None:
        return None
    if type(after) is not list or len(after) != 3 or not all(type(part) is int for part in after):
        raise invalid("after", "the `next` of the reply before", after)
    return Position(*after)
