"""Writes a data directory like that of a server with ten million messages, through the store's logs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from delayserver.protocol.outcomes import Outcome
from store.disk.filesystem import FileSystem
from store.logs.dispatch_log import DispatchKey, DispatchLog
from store.logs.message_log import MessageLog
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import I64, U32, MessageBatch, OutcomeBatch
from store.tables.identity import DataDirectory
from store.tables.names import BROKER_GROUP, SUBJECT, Names

WINDOW_MS = 60_000
START_MS = 1_767_225_600_000  # 2026-01-01T00:00Z
SUBJECTS = 20
BODY_BYTES = 100
# Rows of a record, as many as in one group commit of a busy server.
_BATCH_ROWS = 8192
_SEGMENT_BYTES = 256 << 20
_SERVER_ID = 0xA0D17


@dataclass(frozen=True, slots=True)
class BenchDirectory:
    """The written directory."""

    path: str
    messages: int
    subjects: tuple[str, ...]


@dataclass(slots=True)
class _Logs:
    message: MessageLog
    schedule: ScheduleLog
    dispatch: DispatchLog
    subjects: U32
    group: int


def write_directory(fs: FileSystem, path: str, messages: int, *, bodies: bool = True) -> BenchDirectory:
    """Fills an empty directory with messages over an hour of due times, of which about one in a hundred is cancelled.

    With `bodies` False it writes only dispatch_log, which is enough for a latency report.
    """
    directory = DataDirectory.open(fs, path, random_server_id=lambda: _SERVER_ID)
    names = Names.open(fs, path, _SERVER_ID)
    subjects = tuple([f"orders.{index:02d}" for index in range(SUBJECTS)])
    logs = _Logs(
        MessageLog.open(fs, f"{path}/message_log", _SERVER_ID, segment_bytes=_SEGMENT_BYTES),
        ScheduleLog(fs, f"{path}/schedule_log", _SERVER_ID, WINDOW_MS),
        DispatchLog(fs, f"{path}/dispatch_log", _SERVER_ID, WINDOW_MS, reserve_bytes=0),
        names.intern(SUBJECT, list(subjects)),
        int(names.intern(BROKER_GROUP, ["default"])[0]),
    )
    windows = max(1, min(60, messages // _BATCH_ROWS))
    for sequence in range(1, messages + 1, _BATCH_ROWS):
        count = min(_BATCH_ROWS, messages + 1 - sequence)
        _write_batch(logs, np.arange(sequence, sequence + count, dtype=np.int64), windows, bodies=bodies)
    for log in (logs.schedule, logs.dispatch, logs.message):
        log.sync()
        log.close()
    names.close()
    directory.close()
    return BenchDirectory(path, messages, subjects)


def _write_batch(logs: _Logs, sequence: I64, windows: int, *, bodies: bool) -> None:
    """Writes one record of each log, with messages of one window that vary by a hash of their sequence."""
    count = len(sequence)
    mixed = (sequence.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)
    start_ms = START_MS + int(sequence[0] // _BATCH_ROWS % windows) * WINDOW_MS
    due_ms = start_ms + (mixed % np.uint64(WINDOW_MS)).astype(np.int64)
    accepted_us = np.full(count, START_MS * 1000 - 60_000_000, np.int64) + sequence
    subject = logs.subjects[(mixed % np.uint64(SUBJECTS)).astype(np.intp)]
    if bodies:
        messages = MessageBatch.filled(
            count,
            sequence=sequence,
            due_ms=due_ms,
            accepted_us=accepted_us,
            subject=subject,
            bodies_length=BODY_BYTES,
            bodies=bytes(count * BODY_BYTES),
        )
        logs.message.append([messages])
        logs.schedule.append(ScheduleKey(start_ms, ScheduleSource.DIRECT), messages)
    cancelled = mixed % np.uint64(100) == 0
    released_us = due_ms * 1000 + (mixed % np.uint64(1500)).astype(np.int64)
    dispatched_us = released_us + 400 + (mixed % np.uint64(7001)).astype(np.int64)
    outcomes = OutcomeBatch.filled(
        count,
        sequence=sequence,
        due_ms=due_ms,
        accepted_us=accepted_us,
        loaded_us=START_MS * 1000 - 30_000_000,
        released_us=np.where(cancelled, 0, released_us),
        queued_us=np.where(cancelled, 0, released_us + 300),
        dispatched_us=np.where(cancelled, 0, dispatched_us),
        settled_us=dispatched_us + 900,
        subject=subject,
        broker_group=logs.group,
        attempts=np.where(cancelled, 0, 1).astype(np.uint32),
        outcome=np.where(cancelled, int(Outcome.CANCELLED), int(Outcome.DELIVERED)).astype(np.uint8),
    )
    logs.dispatch.append(DispatchKey(start_ms, False), outcomes)
