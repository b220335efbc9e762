"""Reads the records of messages behind an offset of message_log. Reads files; for a start."""

from __future__ import annotations

from collections.abc import Iterator

from store.logs.log_scan import LogScan
from store.logs.message_log import MessageLog
from store.records.batches import MessageBatch


def written_records(log: MessageLog, start: int) -> Iterator[tuple[int, MessageBatch]]:
    """The messages in records at `start` (a logical offset) or behind it, with their offsets. Skips damage, which the
    replayer reports. Raises DiskError."""
    for entry in LogScan(log, max(start, log.first), log.end):
        if isinstance(entry.batch, MessageBatch):
            yield entry.start, entry.batch
