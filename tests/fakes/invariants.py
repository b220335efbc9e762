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
        server.gathering,
        server.log_queue,
        server.positions,
        server.balance,
        server.book,
        server.drains,
        server.cursors,
        server.wheel,
        server.routes,
        server.residency,
        server.decided,
        server.decided.open_messages,
        server.opened.attempted,
        server.lateness,
        server.broker,
        server.pulls,
        server.connections.memory,
        server.fair_turns.shares,
        *[node for group in server.residency.groups.values() for node in group.nodes],
    )
    for part in parts:
        part.check_invariants()
