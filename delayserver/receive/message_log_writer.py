"""Writes groups to the message_log of this process: the one `RecordWriter` of a single server.

While the disk is quick, a small group is synced on the event loop, because a worker thread costs as much as such a sync. A
large group is synced in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from delayserver.config.settings import StorageSettings
from delayserver.runtime.disk_pace import DiskPace
from delayserver.runtime.name_look import NameLook
from delayserver.runtime.runtime import Runtime
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.positions.gathering import CommitGroup, Gathering
from delayserver.state.positions.positions import Positions
from store.errors import DiskFullError
from store.logs.message_log import LogEntry, MessageLog
from store.records.column_batch import ColumnBatch
from store.records.message_rows import MessageRows
from store.tables.identity import SequenceReservation

# The pause between two steps of zeros ahead of the log's end.
WARM_PAUSE_MS = 20


class MessageLogWriter:
    """Appends and syncs. The only writer of message_log while the server runs."""

    def __init__(
        self,
        log: MessageLog,
        sequences: SequenceReservation,
        gathering: Gathering,
        accepted: AcceptedLog,
        positions: Positions,
        settings: StorageSettings,
        runtime: Runtime,
    ) -> None:
        self._log = log
        self._sequences = sequences
        self._gathering = gathering
        self._accepted = accepted
        self._durable = positions.durable
        self._settings = settings
        self._workers = runtime.workers
        self._clock = runtime.clock
        self._stages = runtime.stages
        self._pace = DiskPace()
        self._name = NameLook(log.require_name)
        self.groups = 0
        self.sync_us_max = 0

    def takes_now(self, size_bytes: int) -> bool:
        """Whether the event loop may wait for the sync: the group is small and the disk quick."""
        return size_bytes <= self._settings.inline_sync_bytes_max and self._pace.quick

    def write_now(self, group: CommitGroup, records: Sequence[ColumnBatch | MessageRows]) -> None:
        """As `RecordWriter.write_now`."""
        self._accept(group, *self._write(records))

    async def write(self, group: CommitGroup, records: Sequence[ColumnBatch | MessageRows]) -> None:
        """As `RecordWriter.write`. A thread appends and syncs."""
        self._accept(group, *await self._workers.run(partial(self._write, records)))

    def _write(self, records: Sequence[ColumnBatch | MessageRows]) -> tuple[list[LogEntry], int, int]:
        """Makes records durable. Returns them, and when their write began and ended. Runs on the event loop or in a thread,
        never twice in parallel."""
        if self._sequences.needs_extension():
            self._sequences.extend()
        started_us = self._clock.monotonic_us()
        if self._settings.durability == "sync":
            entries = self._log.append_durably(records)
        else:
            entries = self._log.append_assumed(records)  # durability "os": the page cache counts as durable
        ended_us = self._clock.monotonic_us()
        self._name.require(ended_us)
        return entries, started_us, ended_us

    def _accept(self, group: CommitGroup, entries: list[LogEntry], started_us: int, ended_us: int) -> None:
        self._accepted.accept(entries, group)
        took_us = ended_us - started_us
        self.groups += 1
        self._stages.commit_wait.add(started_us - group.gathered_us)
        self._stages.sync.add(took_us)
        self.sync_us_max = max(self.sync_us_max, took_us)
        if group.size_bytes <= self._settings.inline_sync_bytes_max:
            self._pace.add_sync(took_us)

    async def warm(self) -> None:
        """Overwrites space ahead of the tail while there is nothing to commit. Raises SyncFailedError."""
        while self._settings.warm_ahead_bytes:
            following = self._durable.value + 1
            step = None
            if self._gathering.is_idle:
                try:
                    step = self._log.warm_ahead(self._settings.warm_ahead_bytes)
                except DiskFullError:
                    await self._clock.sleep_ms(1000)
            if step is not None:
                await self._workers.run(partial(self._log.sync_warm, step))
                self._log.use_warm(step)
            else:
                await self._durable.reached(following)  # an idle server does not poll
            await self._clock.sleep_ms(WARM_PAUSE_MS)
