"""What the message_log of a member has of the shared log, in order: the records that each record of the log brought."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from store.disk.filesystem import FileSystem
from store.records.batches import FollowedBatch
from store.records.column_batch import ColumnBatch
from store.records.segment import FILE_HEADER_BYTES, FILE_MESSAGE_LOG, ScanReport, Segment
from store.shared.followed import FollowedTo, places_in


class CopiedPiece(NamedTuple):
    """The records that one record of the shared log brought, and the place behind it. Without records: only a place. Without
    a place: records that the member had read, and a crash has cut off up to where."""

    place: FollowedTo | None
    records: list[ColumnBatch]


class UncountedError(ValueError):
    """The program that wrote the log did not count its records, so it cannot be told where they came from."""


def log_records(fs: FileSystem, paths: Sequence[str], server_id: int, log_offset: int = 0) -> Iterator[ColumnBatch]:
    """The records of message_log from an offset on, on which no server works. `paths` are its segments, in order. Raises
    FormatError, CorruptionError where a record is damaged, StoreError."""
    for path in paths:
        base = int(path.rpartition("/")[2].partition(".")[0])
        segment = Segment.open(fs, path, FILE_MESSAGE_LOG, server_id, write=False)
        start = max(FILE_HEADER_BYTES, log_offset - base)
        report = ScanReport(start)
        try:
            if start < fs.size(path):
                yield from (batch for _, batch in segment.records(start, report=report))
        finally:
            segment.close()
        if report.damages:
            raise report.damages[0].error(path)


def pieces_in(records: Iterable[ColumnBatch], *, whole: bool) -> Iterator[CopiedPiece]:
    """The pieces of a message_log. `whole`: its records begin where the shared log began. Otherwise the first piece is the
    first place that it names, and what stands before that is left out. Raises UncountedError."""
    waiting: list[ColumnBatch] = []
    for batch in records:
        if not isinstance(batch, FollowedBatch):
            waiting.append(batch)
            continue
        places = places_in(batch)
        if not whole:
            whole = True
            waiting.clear()
            yield CopiedPiece(places[-1][0], [])
            continue
        if sum([count for _, count in places]) != len(waiting):
            raise UncountedError
        first = 0
        for place, count in places:
            yield CopiedPiece(place, waiting[first : first + count])
            first += count
        waiting.clear()
    if waiting:
        yield CopiedPiece(None, waiting)
