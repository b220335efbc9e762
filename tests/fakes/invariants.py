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
        server.parts.state.gathering,
        server.parts.state.log_queue,
        server.parts.state.positions,
        server.parts.state.balance,
        server.parts.state.book,
        server.parts.state.windows.drains,
        server.parts.state.windows.cursors,
        server.parts.state.wheel,
        server.parts.state.routes,
        server.parts.state.residency,
        server.parts.state.decided,
        server.parts.state.decided.open_messages,
        server.parts.opened.attempts.attempted,
        server.parts.dispatch.lateness,
        server.parts.broker.core,
        server.parts.broker.pulls,
        server.connections.memory,
        server.fair_turns.shares,
        *[node for group in server.parts.state.residency.groups.values() for node in group.nodes],
    )
    for part in parts:
        part.check_invariants()
