"""The queues, tables and caches of the server against their bounds, for `metrics`."""

from __future__ import annotations

from delayserver.broker.service.broker import Broker
from delayserver.config.settings import Settings
from delayserver.operations.groups.consuming import Consuming
from delayserver.protocol.figures import QueueUse
from delayserver.state.connections.connections import Connections
from delayserver.state.decisions.decided import Decided
from delayserver.state.files import Files
from delayserver.state.memory.residency import Residency
from delayserver.state.positions.gathering import Gathering
from delayserver.state.positions.log_queue import LogQueue
from store.tables.names import SUBJECT, TAG


class Receiving:
    """The queues between the connections and schedule_log."""

    def __init__(self, connections: Connections, gathering: Gathering, log_queue: LogQueue) -> None:
        self._connections = connections
        self._gathering = gathering
        self._log_queue = log_queue

    def read(self, settings: Settings) -> list[QueueUse]:
        """Those of now."""
        connections, log_queue = self._connections, self._log_queue
        return [
            QueueUse("connections", connections.open, settings.listen.connections_max),
            QueueUse("connection_bytes", connections.memory.used_bytes, connections.memory.bytes_max),
            QueueUse("gathered_bytes", self._gathering.size_bytes, settings.storage.gather_bytes_max),
            QueueUse("replay_bytes", log_queue.positions.lag_bytes, settings.storage.replay_lag_bytes_max),
            QueueUse("replay_memory_bytes", log_queue.size_bytes, log_queue.bytes_max),
        ]


class Serving:
    """The queues between the broker and its consumers."""

    def __init__(self, broker: Broker, consuming: Consuming) -> None:
        self._broker = broker
        self._consuming = consuming

    def read(self, settings: Settings) -> list[QueueUse]:
        """Those of now."""
        return [
            QueueUse("waiting_pulls", self._consuming.waiting_pulls, settings.broker.waiting_pulls_max),
            QueueUse("broker_cache_bytes", self._broker.state.files.store.cache_bytes, settings.broker.cache_bytes_max),
            QueueUse("consumer_groups", len(self._broker.state.groups), settings.broker.groups_max),
        ]


class QueuesReader:
    """Reads them all."""

    def __init__(
        self,
        settings: Settings,
        receiving: Receiving,
        files: Files,
        residency: Residency,
        decided: Decided,
        serving: Serving,
    ) -> None:
        self._settings = settings
        self._receiving = receiving
        self._files = files
        self._residency = residency
        self._decided = decided
        self._serving = serving

    def read(self) -> list[QueueUse]:
        """Those of now, in the order in which a message passes them."""
        settings, files, residency = self._settings, self._files, self._residency
        in_memory = len(residency.wheel) + residency.rows_queued
        return [
            *self._receiving.read(settings),
            QueueUse("memory_rows", in_memory, settings.wheel.rows_max),
            *[
                QueueUse("group_rows", len(group.queue), group.rows_max, group.name)
                for group in residency.groups.values()
                if not group.is_internal
            ],
            QueueUse("outcome_rows", self._decided.rows_waiting, settings.dispatch.outcome_rows_max),
            *self._serving.read(settings),
            QueueUse("subjects", files.names.count(SUBJECT), settings.message.subjects_max),
            QueueUse("tags", files.names.count(TAG), settings.message.tags_max),
            QueueUse(
                "open_files",
                files.schedule.open_file_count() + files.dispatch.open_file_count(),
                settings.storage.open_files_max,
            ),
        ]
