"""The connections of all fronts: how many are open, what they hold in memory, and which errors they were answered."""

from __future__ import annotations

from delayserver.state.connections.connection_memory import ConnectionMemory
from delayserver.state.connections.newcomers import Newcomers
from delayserver.state.connections.parties import Parties


class Connections:
    """One for a server. Writers: the fronts; `status` reads it."""

    __slots__ = ("errors", "memory", "newcomers", "one_way_refused", "open", "parties")

    def __init__(self, memory: ConnectionMemory, parties: Parties) -> None:
        self.memory = memory
        self.parties = parties
        self.newcomers = Newcomers()
        self.open = 0
        # Errors that went to clients, by name. The names come from a fixed set.
        self.errors: dict[str, int] = {}
        # Messages of one-way requests that were refused.
        self.one_way_refused = 0

    def count_opened(self) -> None:
        """Counts an accepted connection."""
        self.open += 1

    def count_closed(self) -> None:
        """Counts the end of a connection."""
        self.open -= 1

    def count_error(self, name: str) -> None:
        """One more error of this name went to a client."""
        self.errors[name] = self.errors.get(name, 0) + 1

    def count_one_way_refused(self, messages: int) -> None:
        """So many more messages of one-way requests were refused."""
        self.one_way_refused += messages

    def check_invariants(self) -> None:
        """No connection ends twice, and the memory adds up. For tests."""
        assert 0 <= len(self.newcomers) <= self.open
        self.parties.check_invariants()
        self.memory.check_invariants()
