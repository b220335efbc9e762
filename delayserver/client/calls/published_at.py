"""The nodes at which a client publishes subjects that its own server does not store. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from delayserver.client.values.messages import Node
from delayserver.protocol.errors import PublishedElsewhere

SUBJECTS_MAX: Final = 4096
"""Subjects that the table remembers. Beyond it the table begins anew, and each subject costs one more request."""


class PublishedAt:
    """A node for each subject. It stays the same while it works, so that messages keep their order."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._failures = 0

    def get(self, subject: str) -> str | None:
        """The address of the node of a subject; None if the client's own server stores it, as far as is known."""
        return self._nodes.get(subject)

    def learn(self, subject: str, nodes: Sequence[Node], own_address: str) -> str:
        """Choose one of the nodes of a subject's route. Raises `PublishedElsewhere` if only the refusing server is one."""
        others = [node.address for node in nodes if node.address != own_address]
        if not others:
            raise PublishedElsewhere(f"the route of {subject!r} names no other node than {own_address}, which refused")
        if len(self._nodes) >= SUBJECTS_MAX:
            self._nodes.clear()
        address = self._nodes[subject] = others[self._failures % len(others)]
        return address

    def forget(self, subject: str) -> None:
        """The node of a subject failed or refused: the next publish asks for the route, and takes another node."""
        if self._nodes.pop(subject, None) is not None:
            self._failures += 1
