"""The clients behind the connections. Connections of one client share what it may use: places, event-loop time, memory.

A client is a token. Without a token it is an address. On a server that asks for tokens, all connections without one share
one account of event-loop time, and none of them has a part of the pool of memory.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final

from delayserver.protocol.addresses import counted_address, host_of
from delayserver.runtime.fair_shares import Account

KEPT_MAX: Final = 4096
"""Clients without a connection that are remembered. A client that comes again at once finds its account as it left it."""


class Party:
    """One client. Only `Parties` and `ConnectionMemory` change it."""

    __slots__ = ("account", "connections", "frames", "key", "used_bytes")

    def __init__(self, key: str, account: Account) -> None:
        """`key` is empty for a connection that stands for itself."""
        self.key = key
        # The event-loop time of all its connections.
        self.account = account
        self.connections = 0
        # Bytes of the pool that its connections have, and frames that have or will get room there.
        self.used_bytes = 0
        self.frames = 0

    def count(self, connections: int) -> None:
        """So many more connections, or fewer."""
        self.connections += connections

    def use(self, more_bytes: int) -> None:
        """So many more bytes of the pool, or fewer."""
        self.used_bytes += more_bytes

    def admit(self, frames: int) -> None:
        """So many more frames have or will get room, or fewer."""
        self.frames += frames


class Parties:
    """All clients that have connections, and those that had some just now. Writers: the connections."""

    def __init__(self, shared_networks: tuple[str, ...]) -> None:
        """In `shared_networks` an address stands for many clients: each connection is a client of its own there."""
        self._shared = [ipaddress.ip_network(network) for network in shared_networks]
        self._parties: OrderedDict[str, Party] = OrderedDict()
        self._strangers = Account()

    def of_address(self, peer: str) -> Party:
        """The client at HOST:PORT."""
        address = counted_address(host_of(peer), self._shared)
        return self._party(f"address {address}") if address else self.alone()

    def of_token(self, token_id: str) -> Party:
        """The client with this token."""
        return self._party(f"token {token_id}")

    def alone(self) -> Party:
        """A client that has one connection."""
        return Party("", Account())

    @property
    def strangers(self) -> Account:
        """The account of all connections without a token, where one is asked for."""
        return self._strangers

    def join(self, party: Party) -> None:
        """One more connection of this client."""
        party.count(1)

    def leave(self, party: Party) -> None:
        """One connection fewer."""
        party.count(-1)
        if not party.connections and party.key:
            self._parties.move_to_end(party.key)
            self._forget()

    def _party(self, key: str) -> Party:
        party = self._parties.get(key)
        if party is None:
            party = self._parties[key] = Party(key, Account())
        return party

    def _forget(self) -> None:
        """Forgets the clients that left first. Those with connections stay."""
        while len(self._parties) > KEPT_MAX:
            key, party = self._parties.popitem(last=False)
            if party.connections:
                self._parties[key] = party
                return

    def check_invariants(self) -> None:
        """No client has fewer than no connections or bytes. For tests."""
        for party in self._parties.values():
            assert min(party.connections, party.used_bytes, party.frames) >= 0
