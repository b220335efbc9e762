"""`status` and `route`."""

from __future__ import annotations

from dataclasses import asdict

from delayserver.front.connection import Connection
from delayserver.front.handlers.status_map import status_map
from delayserver.operations.routing import Routing
from delayserver.operations.status import Status
from delayserver.protocol.arguments import invalid, one_form
from delayserver.protocol.frames import Request, encode_reply


class LookingHandlers:
    """Requests that look at the server and change nothing."""

    def __init__(self, status: Status, routing: Routing) -> None:
        self._status = status
        self._routing = routing

    def status(self, connection: Connection, request: Request) -> None:
        """Counts and health."""
        connection.reply(encode_reply(request.id, status_map(self._status.now())))

    def route(self, connection: Connection, request: Request) -> None:
        """The nodes of a group, by its name or by a subject."""
        arguments = request.arguments
        if one_form(arguments, ("group", "subject")) == "group":
            route = self._routing.of_group(arguments["group"])
        else:
            subject = arguments["subject"]
            if type(subject) is not str:
                raise invalid("subject", "a text", subject)
            route = self._routing.of_subject(subject)
        connection.reply(encode_reply(request.id, asdict(route)))
