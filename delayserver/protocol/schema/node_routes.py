"""The operation `route`: the nodes of a broker group, from which consumers pull."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from msgspec.structs import replace

from delayserver.protocol.arguments import one_form
from delayserver.protocol.errors import NotRouted
from delayserver.protocol.schema.structs import Reply, Request, says
from delayserver.protocol.schema.words import DUE_MS


class AskRoute(Request, frozen=True):
    """The nodes of a broker group, by its name or by a subject. Raises InvalidArgument."""

    subject: Annotated[str, says("The nodes that get its messages. Give this or `group`.", "orders")] | None = None
    group: (
        Annotated[str, says("A broker group, as the `broker_group` of `lookup`.", "default", error=NotRouted)] | None
    ) = None
    order_key: (
        Annotated[str, says("Whose messages go to one node, the `key_node`.", "customer-42", min_length=1)] | None
    ) = None

    def __post_init__(self) -> None:
        one_form({"group": self.group, "subject": self.subject}, ("group", "subject"))


class Node(Reply, frozen=True):
    """One node of a broker group: ``address`` is ``host:port``, ``weight`` its share.

    ``state`` is what the server knows of it since ``since_ms``: ``up``, ``failing``, ``down``, ``draining``, or ``unknown``
    (it was not tried since the start, or the server is older than this field). ``here``: it is the server that was asked,
    and ``address`` is the one at which this client reached it.
    """

    address: Annotated[str, says("`host:port`.", "10.0.0.7:20801")]
    weight: Annotated[int, says("Its share of the deliveries of the group.", 1)]
    state: Annotated[str, says("What this server knows of the node from its own deliveries.", "up")] = "unknown"
    since_ms: Annotated[int, says("Since when, in milliseconds since 1970.", DUE_MS)] = 0
    here: Annotated[bool, says("True: the node of the server that answers.", True, left_out=True)] = False


class Route(Reply, frozen=True):
    """The broker group of a subject, and its nodes.

    ``key_node`` is the address of the node that gets the next messages of the order key that was asked for, if one was.
    """

    group: Annotated[str, says("The broker group.", "default")]
    nodes: Annotated[list[Node], says("The nodes of the group.")]
    key_node: (
        Annotated[str, says("The node that gets the next messages of the order key.", "10.0.0.7:20801", left_out=True)]
        | None
    ) = None

    def address_of_each(self) -> dict[str | int, str]:
        """The address of each node, by what the node stays the same by: its address."""
        return {node.address: node.address for node in self.nodes}

    def with_own_address(self, address: str) -> Route:
        """The same with another address of the server's own node."""
        return self._readdressed(lambda node, here: address if here else node)

    def from_server_at(self, host: str, port: int) -> Route:
        """The same as a client can reach it that has dialled the answering server there.

        The server's own node gets the dialled address: it works, also through a mapped port. An older server does not mark
        its own node. If it listens on all interfaces, it names an address such as ``0.0.0.0``. Then the dialled host takes
        its place.
        """
        dialled = f"[{host}]" if ":" in host else host

        def reached(address: str, here: bool) -> str:
            its_host, _, its_port = address.rpartition(":")
            if here:
                return f"{dialled}:{port}"
            return f"{dialled}:{its_port}" if its_host.strip("[]") in ("", "0.0.0.0", "::") else address

        return self._readdressed(reached)

    def _readdressed(self, reached: Callable[[str, bool], str]) -> Route:
        """`reached` gets an address, and whether it is that of the answering server."""
        here = {node.address for node in self.nodes if node.here}
        nodes = [replace(node, address=reached(node.address, node.here)) for node in self.nodes]
        key_node = None if self.key_node is None else reached(self.key_node, self.key_node in here)
        return Route(self.group, nodes, key_node)


class RouteOfShards(Route, frozen=True):
    """A route that a client has put together for a cluster of several shards. The node of each shard has the addresses of
    its members, with commas between, and is marked as ``here``. ``shards`` has the number of each such address."""

    shards: dict[str, int] = {}  # noqa: RUF012 - msgspec copies it

    def address_of_each(self) -> dict[str | int, str]:
        """A shard stays the same by its number: the list of its members changes."""
        return {self.shards.get(node.address, node.address): node.address for node in self.nodes}

    def from_server_at(self, host: str, port: int) -> Route:
        """The same: the map has addresses at which clients reach the members."""
        return self
