"""Schedule files for the tests of the logs: one minute, one day, and what is put into them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from store.errors import CorruptionError
from store.logs.due_windows import day_of
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.logs.window_files import FileUse
from store.records.batches import MessageBatch
from tests.fakes.disk import FakeDisk
from tests.fakes.rows import messages

MINUTE = 1_795_252_500_000
KEY = ScheduleKey(MINUTE, ScheduleSource.DIRECT)
DAY = ScheduleKey(day_of(MINUTE), ScheduleSource.DAY)
ROOT = "/data/schedule_log"


def opened(
    disk: FakeDisk,
    open_files_max: int = 256,
    *,
    server_id: int = 7,
    on_damage: Callable[[CorruptionError], None] | None = None,
) -> ScheduleLog:
    return ScheduleLog(disk, ROOT, server_id, 60_000, FileUse(open_files_max, on_damage=on_damage))


def filled(disk: FakeDisk, counts: list[int], key: ScheduleKey = KEY) -> tuple[ScheduleLog, MessageBatch]:
    """A log with records of these sizes in one file, synced after each, and all its rows."""
    log, parts, sequence = opened(disk), [], 1
    for count in counts:
        parts.append(messages(sequence, count, due_ms=key.start_ms))
        log.append(key, parts[-1])
        log.sync()
        sequence += count + 1
    return log, MessageBatch.concatenate(parts)


def assert_same(left: MessageBatch, right: MessageBatch) -> None:
    for name, _ in MessageBatch.schema.fields:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), name)
    for name in MessageBatch.schema.blobs:
        assert bytes(getattr(left, name)) == bytes(getattr(right, name)), name


def whole(log: ScheduleLog, key: ScheduleKey = KEY) -> MessageBatch:
    return MessageBatch.concatenate([batch for _, batch in log.batches(key)])
