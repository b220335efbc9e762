"""Writes groups to the message_log of this process: the one `RecordWriter` of a single server.

While the disk is quick, a small group is synced on the event loop, because a worker thread costs as much as such a sync. A
large group is synced in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from delayserver.protocol.errors import DelayServerError, StorageFailed
from delayserver.runtime.log_appender import AppendedRecords, LogAppender
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.sequence_source import SequenceSource
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.positions.gathering import CommitGroup
from store.records.column_batch import ColumnBatch
from store.records.message_rows import MessageRows


class MessageLogWriter:
    """Appends and syncs. The only writer of message_log while the server runs."""

    def __init__(
        self, appender: LogAppender, sequences: SequenceSource, accepted: AcceptedLog, runtime: Runtime
    ) -> None:
        self._appender = appender
        self._sequences = sequences
        self._accepted = accepted
        self._workers = runtime.workers
        self._stages = runtime.stages

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
        self._stages.commit_wait.add(appended.started_us - group.gathered_us)
        self._stages.sync.add(appended.ended_us - appended.started_us)

    def unknown(self) -> DelayServerError:
        """As `RecordWriter.unknown`."""
        return StorageFailed("the server stopped before it knew; look the message up")
