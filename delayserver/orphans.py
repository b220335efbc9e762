"""Outcomes of messages that no schedule file holds any more: a crash or damage took the messages, dispatch_log kept these.

Counts alone would take them for outcomes of the window's other messages, which would then never be loaded. So a start
compares sequences wherever a window may have lost rows. Reads files; may run in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import trio

from delayserver.checkpointing import dispatch_marks, schedule_marks
from store.batches import I64
from store.dispatch_log import DispatchKey, DispatchLog
from store.errors import CorruptionError, FormatError
from store.scan import Damage
from store.schedule_log import ScheduleKey, ScheduleLog, Source
from store.windows import day_of

if TYPE_CHECKING:
    from delayserver.server import DelayServer

logger = logging.getLogger("delayserver")

_FINE = (Source.DIRECT, Source.FROM_DAY)


def count_orphans(schedule: ScheduleLog, dispatch: DispatchLog, starts: Iterable[int]) -> dict[int, int]:
    """Orphaned outcomes by start of the window, for those of `starts` (milliseconds) that have any.

    Messages in damaged records count as there as long as the file counts them, so damage alone makes no orphans. A file
    that cannot be read at all leaves its window out: nothing can be said of it.
    """
    found = {}
    for start in starts:
        try:
            orphans = _count(schedule, dispatch, start)
        except (CorruptionError, FormatError):  # told by whoever needs the file
            continue
        if orphans:
            found[start] = orphans
    return found


async def find_orphans(server: DelayServer) -> None:
    """Outcomes whose messages are gone must not stand for others of their windows, or those would never be loaded."""
    opened, book = server.opened, server.book
    kept = opened.checkpoint.orphans
    if kept is not None:
        book.orphans = dict(zip(kept.start_ms.tolist(), kept.rows.tolist(), strict=True))
    suspects = book.suspects(
        schedule_marks(opened.checkpoint.schedule),
        [damage.key.start_ms for damage in opened.schedule.damages] + _grown(server),
        everywhere=kept is None or bool(opened.log.damages) or server.replayer.met_damage,
    )
    count = partial(count_orphans, opened.schedule, opened.dispatch, suspects)
    found = count() if server.fs.inline else await trio.to_thread.run_sync(count)
    unchanged = {start: rows for start, rows in book.orphans.items() if start not in set(suspects)}
    book.orphans = unchanged | found
    for start, rows in found.items():
        path = opened.dispatch.path(DispatchKey(start, False))
        logger.error("%s: %d outcomes of messages that no schedule file holds; the window is kept", path, rows)


def _grown(server: DelayServer) -> list[int]:
    """Windows with outcomes that the checkpoint does not know: their messages may be lost (durability `os`)."""
    marks, dispatch = dispatch_marks(server.opened.checkpoint.dispatch), server.opened.dispatch
    return [
        key.start_ms
        for key in dispatch.keys()
        if not key.coarse and (key not in marks or dispatch.end(key) > marks[key].end)
    ]


def _count(schedule: ScheduleLog, dispatch: DispatchLog, start_ms: int) -> int:
    ignored: list[Damage] = []
    settled = np.unique(dispatch.outcomes(DispatchKey(start_ms, False), damages=ignored).sequence)
    if not len(settled):
        return 0
    files = [ScheduleKey(start_ms, source) for source in _FINE]
    placed = [_sequences(schedule, file) for file in files]
    counted = sum([schedule.rows(file) for file in files])
    if sum([len(sequences) for sequences in placed]) > counted:
        # A record whose bytes were damaged when the file was taken over is not counted, though its columns can be read:
        # its outcomes stand for nobody either.
        placed = [_verified(schedule, file) for file in files]
    unreadable = counted - sum([len(sequences) for sequences in placed])
    # While a day is drained, the minutes may lack rows that a crash took: they come again from the day's file.
    placed.append(_sequences(schedule, ScheduleKey(day_of(start_ms), Source.DAY)))
    unknown = int(np.count_nonzero(~np.isin(settled, np.concatenate(placed))))
    return max(unknown - max(unreadable, 0), 0)


def _sequences(schedule: ScheduleLog, key: ScheduleKey) -> I64:
    sequences: I64 = schedule.read_columns(key, ("sequence",), damages=[])["sequence"]
    return sequences


def _verified(schedule: ScheduleLog, key: ScheduleKey) -> I64:
    """Of the records that verify as a whole."""
    parts = [batch.sequence for _, batch in schedule.batches(key, damages=[])]
    return np.concatenate([np.zeros(0, np.int64), *parts])
