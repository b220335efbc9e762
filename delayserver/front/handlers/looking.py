"""`status` and `route`."""

from __future__ import annotations

from typing import Any

from delayserver.front.connection import Connection
from delayserver.operations.figures.status import Status
from delayserver.operations.nodes.routing import RoutedGroup, Routing
from delayserver.protocol.arguments import invalid, one_form
from delayserver.protocol.figure_fields import as_map
from delayserver.protocol.frames import RequestFrame, encode_reply


class LookingHandlers:
    """Requests that look at the server and change nothing."""

    def __init__(self, status: Status, routing: Routing) -> None:
        self._status = status
        self._routing = routing

    def status(self, connection: Connection, request: RequestFrame) -> None:
        """Counts and health."""
        connection.reply(encode_reply(request.id, as_map(self._status.now())))

    def route(self, connection: Connection, request: RequestFrame) -> None:
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
        connection.reply(encode_reply(request.id, _route_fields(route, connection.transport.here)))


def _route_fields(route: RoutedGroup, own_address: str) -> dict[str, Any]:
    """A route as a client of this connection reaches its nodes. Only the node of this server has the field `here`."""
    nodes = [
        {"address": own_address if node.here else node.address, "weight": node.weight, "state": node.state}
        | {"since_ms": node.since_ms}
        | ({"here": True} if node.here else {})
        for node in route.nodes
    ]
    here = {node.address for node in route.nodes if node.here}
    fields: dict[str, Any] = {"group": route.group, "nodes": nodes}
    if route.key_node is not None:
        fields["key_node"] = own_address if route.key_node in here else route.key_node
    return fields
