"""Writes groups to the message_log of this process: the one `RecordWriter` of a single server.

While the disk is quick, a small group is synced on the event loop, because a worker thread costs as much as such a sync. A
large group is synced in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from delayserver.config.settings import StorageSettings
from delayserver.runtime.log_appender import AppendedRecords, LogAppender
from delayserver.runtime.runtime import Runtime
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.positions.gathering import CommitGroup, Gathering
from delayserver.state.positions.positions import Positions
from store.errors import DiskFullError
from store.logs.message_log import MessageLog
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
        assumed = settings.durability == "os"
        inline = settings.inline_sync_bytes_max
        self._appender = LogAppender(log, inline, runtime.clock, runtime.workers, assumed=assumed)
        self.groups = 0

    @property
    def sync_us_max(self) -> int:
        """The longest write and sync of a group since the start."""
        return self._appender.sync_us_max

    def takes_now(self, size_bytes: int) -> bool:
        """Whether the event loop may wait for the sync: the group is small and the disk quick."""
        return self._appender.takes_now(size_bytes)

    def write_now(self, group: CommitGroup, records: Sequence[ColumnBatch | MessageRows]) -> None:
        """As `RecordWriter.write_now`."""
        if self._sequences.needs_extension():
            self._sequences.extend()
        self._accept(group, self._appender.append_now(records, group.size_bytes))

    async def write(self, group: CommitGroup, records: Sequence[ColumnBatch | MessageRows]) -> None:
        """As `RecordWriter.write`. A thread appends and syncs."""
        if self._sequences.needs_extension():
            await self._workers.run(self._sequences.extend)
        self._accept(group, await self._appender.append(records, group.size_bytes))

    def _accept(self, group: CommitGroup, appended: AppendedRecords) -> None:
        self._accepted.accept(appended.entries, group)
        self.groups += 1
        self._stages.commit_wait.add(appended.started_us - group.gathered_us)
        self._stages.sync.add(appended.ended_us - appended.started_us)

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
