"""The nodes at which a client publishes subjects that its own server does not store. No I/O.

Order holds only within a node, since each gives positions by itself. A publish in columns is one record, all or
nothing; a node for each key would split it. The price is that one node takes all publishes of a subject.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from delayserver.protocol.errors import PublishedElsewhere
from delayserver.protocol.schema.node_routes import Node

SUBJECTS_MAX: Final = 4096
"""Subjects that the table remembers. Beyond it the table begins anew, and each subject costs one more request."""
FAILED_MAX: Final = 256
"""Nodes that failed and are remembered. Beyond it they are forgotten, and may be tried first again."""

_OF_STATE: Final = {"down": 2, "draining": 3}


class PublishedAt:
    """A node for each subject. It stays the same while it works, so that messages keep their order.

    Subjects spread over the nodes of a route by their hash, so that all clients publish a subject at the same node while
    all nodes work. A node that failed, or that the server calls down or draining, comes behind the others.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._failed: set[str] = set()

    def get(self, subject: str) -> str | None:
        """The address of the node of a subject; None if the client's own server stores it, as far as is known."""
        return self._nodes.get(subject)

    def choices(self, subject: str, nodes: Sequence[Node], own_address: str) -> list[str]:
        """The nodes of a subject's route in the order in which they are to be tried. Raises `PublishedElsewhere` if only the
        refusing server is one."""
        others = [node for node in nodes if node.address != own_address]
        if not others:
            raise PublishedElsewhere(f"the route of {subject!r} names no other node than {own_address}, which refused")
        taking = [node for node in others if node.weight] or others

        def place(node: Node) -> tuple[int, int]:
            trouble = max(_OF_STATE.get(node.state, 0), int(node.address in self._failed))
            return trouble, -crc32(f"{subject} {node.address}".encode())

        return [node.address for node in sorted(taking, key=place)]

    def learn(self, subject: str, address: str) -> None:
        """Remembers the address at which a subject is published from now on."""
        if len(self._nodes) >= SUBJECTS_MAX:
            self._nodes.clear()
        self._nodes[subject] = address

    def trust(self, address: str) -> None:
        """Forgets the failure of a node, because it stored messages."""
        self._failed.discard(address)

    def distrust(self, subject: str, address: str) -> None:
        """Remembers that a node failed or refused. The next publish of the subject asks for the route, and prefers
        other nodes."""
        self._nodes.pop(subject, None)
        if len(self._failed) >= FAILED_MAX:
            self._failed.clear()
        self._failed.add(address)
