"""The invariants of all parts of a server, for simulations and for tests that run a whole server."""

from __future__ import annotations

from typing import Protocol

from delayserver.server.delay_server import DelayServer


class Part(Protocol):
    """A part that checks itself."""

    def check_invariants(self) -> None:
        """Assert what always holds."""


def check_server(server: DelayServer) -> None:
    """Assert the invariants of every part that is open. To be called between two steps of the event loop."""
    parts: tuple[Part, ...] = (
        server.parts.gathering,
        server.parts.log_queue,
        server.parts.positions,
        server.parts.balance,
        server.parts.book,
        server.parts.drains,
        server.parts.cursors,
        server.parts.wheel,
        server.parts.routes,
        server.parts.residency,
        server.parts.decided,
        server.parts.decided.open_messages,
        server.parts.opened.attempts.attempted,
        server.parts.lateness,
        server.parts.broker,
        server.parts.pulls,
        server.connections.memory,
        server.fair_turns.shares,
        *[node for group in server.parts.residency.groups.values() for node in group.nodes],
    )
    for part in parts:
        part.check_invariants()
