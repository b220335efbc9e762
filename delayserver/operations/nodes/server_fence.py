"""Decides which process of a server may deliver to this node, and over which connection. Pure: no I/O, no clock.

A node keeps the keys (server id, sequence, redelivery) of its messages. A key means one message only while one process
delivers under a server id. So the newest process wins, and the older ones are fenced off.

An older instance is refused until the newer one has been gone for a minute. It connects again after a pause that
doubles. An old connection is never taken again: it may carry bytes of a dead process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from delayserver.protocol.errors import DuplicateServerId, InvalidArgument, Superseded

# A fenced process is admitted again when the newer one has been disconnected for this long. A server pauses less
# between two attempts (`backoff_ms_max`, 30 s), so a short disconnection changes nothing.
HOLD_MS = 60_000
# Servers that are remembered, and older processes per server.
SERVERS_MAX = 1024
PROCESSES_MAX = 16


@dataclass(slots=True)
class FencedServer:
    """One server id and the process that owns it at this node."""

    owner: str
    connection: int
    """The newest connection with an admitted request."""
    open: bool = True
    active_us: int = 0
    """When the owner was last seen, monotonic."""
    older: dict[str, None] = field(default_factory=dict)
    """Processes that a newer one has replaced, the most recent last."""
    refused: int = 0
    """Requests refused because two processes have this id."""
    refused_us: int | None = None

    def own(self, instance: str) -> None:
        """Makes a process the owner in place of the present one."""
        self.older.pop(instance, None)
        if self.owner:
            self.older[self.owner] = None
        while len(self.older) > PROCESSES_MAX:
            del self.older[next(iter(self.older))]
        self.owner = instance

    def take(self, connection: int, now_us: int) -> None:
        """Notes an admitted request on this connection."""
        self.connection, self.open, self.active_us = connection, True, now_us

    def close(self, now_us: int) -> None:
        """Notes the end of the newest connection."""
        self.open, self.active_us = False, now_us

    def refuse(self, now_us: int) -> None:
        """Counts a refused request."""
        self.refused += 1
        self.refused_us = now_us


class ServerFence:
    """Admits requests of servers. `instance` is the random id of a process; "" if the process sends none."""

    def __init__(self) -> None:
        self._servers: dict[int, FencedServer] = {}
        self._owners: dict[int, int] = {}  # connection → server id, of connections that are the newest of a server

    def admit(self, server_id: int, instance: str, connection: int, now_us: int) -> bool:
        """Admits a request of a server. True if another process claimed its id within the last minute.

        `connection` is the number of a connection in the order of acceptance. Raises Superseded for an older connection
        and DuplicateServerId while a newer process is active. A server without an instance does not know Superseded and
        gets InvalidArgument.
        """
        known = self._servers.pop(server_id, None)
        if known is None:
            known = FencedServer(instance, connection)
        self._servers[server_id] = known  # most recently used last
        if connection < known.connection:
            why = "this server delivers over a newer connection; what comes over an older one is too late"
            raise Superseded(why) if instance else InvalidArgument(why)
        if instance != known.owner:
            if instance in known.older and self._active(known, now_us):
                self._refuse(known, server_id, now_us)
            known.own(instance)
        self._take(known, server_id, connection, now_us)
        return self._contested(known, now_us)

    def _take(self, known: FencedServer, server_id: int, connection: int, now_us: int) -> None:
        if self._owners.get(connection) != server_id:
            self._owners.pop(known.connection, None)
            self._owners[connection] = server_id
        known.take(connection, now_us)
        while len(self._servers) > SERVERS_MAX:
            gone = next(iter(self._servers))
            self._owners.pop(self._servers.pop(gone).connection, None)

    def _active(self, known: FencedServer, now_us: int) -> bool:
        return known.open or now_us - known.active_us < HOLD_MS * 1000

    def _contested(self, known: FencedServer, now_us: int) -> bool:
        return known.refused_us is not None and now_us - known.refused_us < HOLD_MS * 1000

    def _refuse(self, known: FencedServer, server_id: int, now_us: int) -> None:
        known.refuse(now_us)
        raise DuplicateServerId(
            f"a newer process with the server id {server_id:012x} delivers here: two servers run on copies of one data "
            "directory; stop one of them",
            retry_after_ms=HOLD_MS,
        )

    def close_connection(self, connection: int, now_us: int) -> None:
        """Notes the end of a connection."""
        server_id = self._owners.pop(connection, None)
        if server_id is not None:
            self._servers[server_id].close(now_us)

    def duplicates(self, now_us: int) -> list[dict[str, Any]]:
        """Server ids claimed by several processes since the start, for `status`. `now`: within the last minute."""
        return [
            {"server_id": f"{server_id:012x}", "refused": known.refused, "now": self._contested(known, now_us)}
            for server_id, known in self._servers.items()
            if known.refused
        ]

    def check_invariants(self) -> None:
        """Asserts that each open owner is found by its connection and that no owner counts as an older process."""
        assert len(self._servers) <= SERVERS_MAX
        for connection, server_id in self._owners.items():
            assert self._servers[server_id].connection == connection and self._servers[server_id].open
        for known in self._servers.values():
            assert known.owner not in known.older and len(known.older) <= PROCESSES_MAX
            assert (known.refused_us is None) == (known.refused == 0)
