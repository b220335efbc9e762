"""Rule 8, asserted: what a live server holds in memory against what its settings allow, looked at again and again.

Every bound is made of settings alone. Where the server goes beyond a bound on purpose, by one step of its work, that step
stands here with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.dispatch.broker_group import KEYED_BATCHES_MAX
from delayserver.server.delay_server import DelayServer
from tests.fakes.invariants import check_server
from tests.simulation.failures import SimulationFailure
from tests.simulation.host import Host

# Files in use are never closed: the pieces of work of a server that may each hold one beyond the table's bound.
FILES_IN_USE_MAX = 8
DAMAGES_MAX = 1000
# A request or a reply of the workload.
LARGEST_FRAME_BYTES = 256 * 1024
# Counts are compared at every look; structures check themselves at every so many, since that goes through all they hold.
LOOKS_PER_CHECK = 4


class Bounds:
    """Looks at servers while they run, and remembers how close they came."""

    def __init__(self, rows_at_once: int, clients: int, in_turn: Collection[str] = ()) -> None:
        """`rows_at_once`: the most rows that all clients together send at the same time; `clients`: how many there are.
        `in_turn`: the hosts that lead one shard in turn, each by its own clock."""
        # A group commit and a round of replay hold one request of every client.
        self._burst = rows_at_once
        self._clients = clients
        self._in_turn = in_turn
        # Bytes of redeliveries of each group that a life of a member took over.
        self._taken_over: dict[tuple[str, int, GroupKey], int] = {}
        self.highest: dict[str, float] = {}
        self.looks = 0

    def look(self, host: Host, note: Callable[..., None]) -> None:
        """Compare all. Raises SimulationFailure."""
        server = host.server
        if server is None or not host.alive or host.disk.dead:
            return
        self.looks += 1
        for name, value, bound in self._held(host, server):
            self.highest[name] = max(self.highest.get(name, 0.0), value / max(bound, 1))
            if value > bound:
                note("bounds", "FAILURE", host=host.name, name=name, value=value, bound=bound)
                raise SimulationFailure(f"{host.name} holds {value} {name}, its settings allow {bound}")
        if self.looks % LOOKS_PER_CHECK == 0:
            check_server(server)

    def _held(self, host: Host, server: DelayServer) -> Iterator[tuple[str, int, int]]:
        settings = server.settings
        wheel, dispatch, storage = settings.wheel, settings.dispatch, settings.storage
        nodes = max(len(group.nodes) for group in server.parts.state.residency.groups.values())
        attempts = (dispatch.workers + KEYED_BATCHES_MAX * nodes) * dispatch.batch_messages_max
        held = server.parts.state.residency.rows_held
        # What is due already is not dropped: it has a place in the queues, which have their own bound. So one burst may
        # come on top, and one row, since a load always brings at least one.
        groups = sum(min(attempts, group.rows_held) for group in server.parts.state.residency.groups.values())
        yield (
            "rows in wheel, queues and flight",
            len(server.parts.state.wheel) + held,
            wheel.rows_max + self._burst + groups + 1,
        )
        for group in server.parts.state.residency.groups.values():
            # Rows with an order key have batches of their own at each node.
            attempts = (dispatch.workers + KEYED_BATCHES_MAX * len(group.nodes)) * dispatch.batch_messages_max
            # Rows of failed attempts come back to the front whatever stands behind them.
            yield f"rows in the queue of {group.name}", len(group.queue), dispatch.queue_rows_max + attempts
            yield f"rows in flight to {group.name}", len(group.in_flight()), attempts
            yield f"windows to read again for {group.name}", len(group.spilled), max(len(server.parts.state.book), 1)
        yield (
            "outcomes not written",
            server.parts.state.decided.rows_waiting,
            dispatch.outcome_rows_max + attempts + self._burst,
        )
        yield (
            "bytes to replay",
            server.parts.state.positions.lag_bytes,
            storage.replay_lag_bytes_max + storage.group_bytes_max,
        )
        dispatch_files = max(storage.open_files_max // 8, 8)
        schedule_files = storage.open_files_max - dispatch_files
        opened = server.parts.opened
        yield "open schedule files", opened.files.schedule.open_file_count(), schedule_files + FILES_IN_USE_MAX
        yield "open dispatch files", opened.files.dispatch.open_file_count(), dispatch_files + FILES_IN_USE_MAX
        yield (
            "bytes in the broker's cache",
            server.parts.broker.core.state.files.store.cache_bytes,
            settings.broker.cache_bytes_max,
        )
        if not host.clock.step_count:
            # What a clock that was ahead let the broker forget is counted again after a restart at the right time.
            for key, group_of in server.parts.broker.core.state.groups.items():
                held, most = group_of.redelivery_bytes, settings.broker.redelivery_bytes_max
                if host.name in self._in_turn:
                    # Each member forgets by its own clock what has been retired. With clocks that are an hour apart one may
                    # count what several others wrote, each up to the bound: there is no bound for that. It adds nothing.
                    most = max(most, self._taken_over.setdefault((host.name, host.lives, key), held))
                yield "bytes of redeliveries", held, most
        yield "waiting pulls", server.parts.broker.pulls.waiting, min(settings.broker.waiting_pulls_max, self._clients)
        yield "connections", server.connections.open, settings.listen.connections_max
        memory = server.connections.memory
        # One frame may go on whatever the others hold; and each connection may have one reply that was made while there was
        # room, and each client the replies of one burst of sends.
        beyond = LARGEST_FRAME_BYTES * (1 + 2 * self._clients)
        yield "bytes held for connections", memory.used_bytes, memory.bytes_max + beyond
        yield "names of subjects and groups", len(opened.files.names), settings.message.subjects_max
        yield "damages", len(server.damage.corruption), DAMAGES_MAX
