"""The answer to `status`: counts by the balance of rule 3, lateness, and the health of every part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayserver import __version__
from delayserver.protocol.outcomes import Outcome

if TYPE_CHECKING:
    from delayserver.server import DelayServer

BALANCE = (Outcome.DELIVERED, Outcome.CANCELLED, Outcome.DEAD_LETTERED, Outcome.EXPIRED, Outcome.DEDUPLICATED)


class Status:
    """Reads the parts of a server; changes nothing."""

    def __init__(self, server: DelayServer) -> None:
        self._server = server
        self._started_us = server.clock.monotonic_us()

    def to_map(self) -> dict[str, Any]:
        """All of it, as a map for people and monitors."""
        server = self._server
        outcomes = {code.label: int(server.recorder.durable_totals[int(code)]) for code in BALANCE}
        accepted = server.commit.accepted_before + server.commit.accepted
        return {
            "ready": server.ready and not server.stopping.is_set(),
            "role": server.role,
            "server_id": f"{server.opened.directory.server_id:012x}",
            "version": __version__,
            "uptime_s": (server.clock.monotonic_us() - self._started_us) // 1_000_000,
            "accepted": accepted,
            **outcomes,
            "pending": accepted - sum(outcomes.values()),
            "early": server.lateness.early,
            "lateness_ms": server.lateness.summary_ms(),
            "clock": {
                "server_us": server.clock.now_us(),
                "steps": server.housekeeping.clock_steps,
                "step_last_ms": server.housekeeping.clock_step_last_ms,
            },
            "connections": server.front.connections,
            "errors": dict(sorted(server.handlers.errors.items())),
            "corruption": list(server.opened.damages),
            "storage": self._storage(),
            "wheel": self._wheel(),
            "groups": {group.name: self._group(group) for group in server.groups.values()},
            "broker": self._broker(),
        }

    def _storage(self) -> dict[str, Any]:
        server = self._server
        return {
            "durability": server.settings.storage.durability,
            "disk_free_bytes": server.housekeeping.free_bytes,
            "disk_low": server.housekeeping.disk_low,
            "replay_lag_bytes": server.replayer.lag_bytes,
            "group_commits": server.commit.groups,
            "commit_us_max": server.commit.sync_us_max,
            "checkpoints": server.checkpointing.written,
            "outcomes_waiting": server.recorder.rows_waiting,
            "open_files": server.opened.schedule.open_file_count() + server.opened.dispatch.open_file_count(),
            "subjects": len(server.opened.names),
            "oldest_due_ms": server.retention.oldest_due_ms(),
            "oldest_incomplete_window_ms": server.book.oldest_incomplete_ms,
            "incomplete_windows": len(server.book),
        }

    def _wheel(self) -> dict[str, Any]:
        server = self._server
        return {
            "rows": len(server.wheel),
            "bytes": server.wheel.nbytes,
            "next_due_ms": server.wheel.next_due_ms(),
            "loads": server.loader.loads,
            "evictions": server.loader.evictions,
        }

    def _group(self, group: Any) -> dict[str, Any]:
        counters = group.counters
        return {
            "waiting": len(group.queue),
            "in_flight": len(group.in_flight()),
            "delivered": counters.delivered,
            "attempts_failed": counters.attempts_failed,
            "duplicates_suppressed": counters.duplicates_suppressed,
            "failed_over": counters.failed_over,
            "uncertain_failovers": counters.uncertain_failovers,
            "dropped_from_memory": counters.dropped_from_memory,
            "nodes": [
                {
                    "address": node.broker.address,
                    "weight": node.weight,
                    "circuit": "open" if node.open_circuit else "closed",
                    "failures": node.failures_total,
                    "last_error": node.last_error,
                }
                for node in group.nodes
            ],
        }

    def _broker(self) -> dict[str, Any]:
        status = self._server.broker.status()
        status["waiting_pulls"] = self._server.pulls.waiting
        status["damages"] = list(self._server.broker.damages)
        return status
