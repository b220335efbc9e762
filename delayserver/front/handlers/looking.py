"""`status` and `route`."""

from __future__ import annotations

from dataclasses import asdict

from delayserver.front.connection import Connection
from delayserver.front.handlers.status_map import status_map
from delayserver.operations.figures.status import Status
from delayserver.operations.nodes.routing import Routing
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
        """The nodes of a group, by its name or by a subject, and the node of an order key."""
        arguments = request.arguments
        order_key = arguments.get("order_key")
        if order_key is not None and (type(order_key) is not str or not order_key):
            raise invalid("order_key", "a text of at least one character", order_key)
        if one_form(arguments, ("group", "subject")) == "group":
            route = self._routing.of_group(arguments["group"], order_key)
        else:
            subject = arguments["subject"]
            if type(subject) is not str:
                raise invalid("subject", "a text", subject)
            route = self._routing.of_subject(subject, order_key)
        fields = asdict(route)
        if order_key is None:
            del fields["key_node"]
        connection.reply(encode_reply(request.id, fields))
