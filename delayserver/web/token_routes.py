"""Where consumers of a subject find its messages: at this gateway's server, or at other nodes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from anyio import current_time

from delayserver.client import AsyncClient
from delayserver.protocol.errors import DelayServerError
from delayserver.web.problems import Problem

AGAIN_S: Final = 5.0
"""A route is asked for again after this long: a reload may change it."""
SUBJECTS_MAX: Final = 256
"""Routes that are remembered for each token."""
SUBJECT_CHARACTERS_MAX: Final = 1_000
"""A longer subject is not remembered: names of clients take no memory without a bound."""


class TokenRoutes:
    """The routes of the subjects that one token pulls."""

    def __init__(self, client: AsyncClient, server: str) -> None:
        """`server`: the address at which the client reaches the server."""
        self._client = client
        self._server = server
        # By subject: when the server was asked, and the other nodes.
        self._known: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()

    async def elsewhere(self, subject: str) -> tuple[str, ...]:
        """The addresses of the nodes that have the messages of a subject; empty if the server itself has some of them."""
        asked_s, nodes = self._known.get(subject, (-AGAIN_S, ()))
        if current_time() - asked_s < AGAIN_S:
            return nodes
        try:
            found = (await self._client.route(subject=subject)).nodes
        except DelayServerError:
            return ()  # The pull has an error of its own.
        # An older server does not mark its own node.
        here = any(node.here or node.address == self._server for node in found)
        nodes = () if here else tuple([node.address for node in found])
        if len(subject) <= SUBJECT_CHARACTERS_MAX:
            self._known[subject] = (current_time(), nodes)
            self._known.move_to_end(subject)
            if len(self._known) > SUBJECTS_MAX:
                self._known.popitem(last=False)
        return nodes

    async def require_here(self, subject: str) -> None:
        """Raises `Problem` with the nodes that have the messages of a subject, where the server itself has none."""
        nodes = await self.elsewhere(subject)
        if nodes:
            raise pull_there(nodes)


NOT_HERE: Final = frozenset({"deliveries_unknown", "group_unknown", "letter_unknown", "position_out_of_range"})
"""Errors that a request about a subject meets at a server that has nothing of it."""


def pull_there(nodes: tuple[str, ...]) -> Problem:
    """The problem of a pull from a server that delivers the subject to other nodes."""
    return Problem(
        421,
        "consumed_elsewhere",
        f"the messages of this subject are at {', '.join(nodes)}: pull there, or from a gateway of each node",
        fields={"nodes": list(nodes)},
    )
