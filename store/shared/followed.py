"""How far a member has followed the shared log: found in its own message_log, which is its copy of the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from store.disk.filesystem import FileSystem
from store.errors import CorruptionError
from store.logs.log_scan import LogScan
from store.logs.message_log import MessageLog
from store.records.batches import KIND_FOLLOWED, FollowedBatch
from store.records.fast_reader import Blobs, FastReader
from store.records.file_header import FILE_HEADER_BYTES
from store.shared.envelope import LogWriter
from store.shared.log_order import NOBODY

_COLUMNS = tuple(name for name, _ in FollowedBatch.schema.fields)


@dataclass(frozen=True, slots=True)
class FollowedTo:
    """A place of the shared log.

    `position`: the next one to read. `epoch`, `index`, `writer`: of the last valid record before it. `horizon_ms`: nothing
    that is due later was attempted before it. `ahead`: so many of the records that come next are in message_log already.
    `wall_us`: when that record was written, by the clock of its writer; 0 where it is not known. `barrier`: the version of
    the log from there on."""

    position: int = 0
    epoch: int = 0
    index: int = 0
    writer: LogWriter = NOBODY
    horizon_ms: int = 0
    ahead: int = 0
    wall_us: int = 0
    barrier: int = 0

    def at(self, position: int) -> FollowedTo:
        """The place where all but the next position to read is as here. A member moves on at each record of the log: this
        costs a quarter of a `replace`."""
        return FollowedTo(
            position, self.epoch, self.index, self.writer, self.horizon_ms, self.ahead, self.wall_us, self.barrier
        )


def marker(came: Sequence[tuple[FollowedTo, int]], place: FollowedTo) -> FollowedBatch:
    """The record of message_log that stands behind all records before a place. `came` has the place behind each record of
    the shared log that brought some of them, and how many; and the places around claims and behind barriers, with 0."""
    rows = [*came, (place, 0)]
    places = [each for each, _ in rows]
    return FollowedBatch.filled(
        len(rows),
        position=np.array([each.position for each in places], np.int64),
        epoch=np.array([each.epoch for each in places], np.uint32),
        record_index=np.array([each.index for each in places], np.uint64),
        member=np.array([each.writer.member for each in places], np.uint32),
        instance=np.array([each.writer.instance for each in places], np.uint64),
        horizon_ms=np.array([each.horizon_ms for each in places], np.int64),
        records=np.array([count for _, count in rows], np.uint32),
        wall_us=np.array([each.wall_us for each in places], np.int64),
        barrier=np.array([each.barrier for each in places], np.uint32),
    )


def places_in(batch: FollowedBatch) -> list[tuple[FollowedTo, int]]:
    """The places that a record of message_log names, in order, and how many of the records in front came up to each."""
    columns = (batch.position, batch.epoch, batch.record_index, batch.member, batch.instance, batch.horizon_ms)
    rows = zip(*[column.tolist() for column in (*columns, batch.wall_us, batch.barrier, batch.records)], strict=True)
    return [
        (FollowedTo(position, epoch, index, LogWriter(member, instance), horizon_ms, 0, wall_us, barrier), count)
        for position, epoch, index, member, instance, horizon_ms, wall_us, barrier, count in rows
    ]


def place_in(batch: FollowedBatch) -> FollowedTo:
    """The last place that a record of message_log names."""
    return places_in(batch)[-1][0]


def followed_to(log: MessageLog, offset: int) -> FollowedTo:
    """Where the last process left the shared log: from the segment that holds `offset` and those behind it, or from all
    segments where these do not say it. Raises CorruptionError where damage hides it."""
    base, _ = log.locate(offset)
    start = max(base + FILE_HEADER_BYTES, log.first)
    found, marked = _scan(log, start)
    return found if marked or start == log.first else _scan(log, log.first)[0]


def _scan(log: MessageLog, start: int) -> tuple[FollowedTo, bool]:
    place, marked, ahead = FollowedTo(), False, 0
    scan = LogScan(log, start, log.end)
    for entry in scan:
        batch = entry.batch
        if isinstance(batch, FollowedBatch):
            place, marked, ahead = place_in(batch), True, 0
        else:
            ahead += 1
    if scan.has_gaps:
        raise CorruptionError("message_log", start, "damage hides how far this member has followed the shared log")
    return replace(place, ahead=ahead), marked


def followed_in(fs: FileSystem, segments: Sequence[tuple[str, int]]) -> FollowedTo | None:
    """As `followed_to`, but for `ahead`, of a directory that this process does not work on; None for that of no member.
    `segments` of its message_log, in order: the path of each, and up to where it is read. One that has gone meanwhile is
    passed over. So are damage, and what stands behind a record of a newer program. Raises StoreError (the disk fails)."""
    for path, size in reversed(segments):
        found: FollowedTo | None = None
        try:
            file = fs.open(path, write=False)
        except FileNotFoundError:
            continue
        try:
            for records in FastReader(file, FILE_HEADER_BYTES, size, blobs=Blobs.SKIP):
                mine = records.of_kind(KIND_FOLLOWED)
                if len(mine):
                    columns = mine.columns_alone(FollowedBatch, _COLUMNS)
                    found = place_in(FollowedBatch(**columns))
        finally:
            file.close()
        if found is not None:
            return found
    return None
