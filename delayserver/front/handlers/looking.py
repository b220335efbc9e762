"""`status` and `route`."""

from __future__ import annotations

from delayserver.front.connection import Connection
from delayserver.operations.figures.status import Status
from delayserver.operations.nodes.routing import Routing
from delayserver.protocol.figure_fields import as_map
from delayserver.protocol.frames import RequestFrame, encode_reply
from delayserver.protocol.schema.node_routes import AskRoute
from delayserver.protocol.schema.structs import read_request, result_of


class LookingHandlers:
    """Requests that look at the server and change nothing."""

    def __init__(self, status: Status, routing: Routing) -> None:
        self._status = status
        self._routing = routing

    def status(self, connection: Connection, request: RequestFrame) -> None:
        """Counts and health."""
        connection.reply(encode_reply(request.id, as_map(self._status.now())))

    def route(self, connection: Connection, request: RequestFrame) -> None:
        """The nodes of a group as a client of this connection reaches them."""
        route = self._routing.route(read_request(request.arguments, AskRoute))
        connection.reply(encode_reply(request.id, result_of(route.with_own_address(connection.transport.here))))
