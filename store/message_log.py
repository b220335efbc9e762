"""The message_log: what was asked, in arrival order. Rolling segments named by their first byte offset (20 digits).

An offset here is logical: the base of a segment plus the position in its file. A sealed segment is whole and synced
before its successor exists, so damage in it is always corruption. The next segment is preallocated, and the bytes ahead
of the tail are overwritten with zeros when the disk has time, because a sync of an overwrite costs half of a growing one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sortedcontainers import SortedDict

from store.columns import ColumnBatch
from store.errors import CorruptionError, DiskFullError
from store.filesystem import FileSystem
from store.segment import FILE_HEADER_BYTES, FILE_MESSAGE_LOG, Damage, FileHeader, ScanReport, Segment

# Zeros written ahead of the tail in one go, and how far ahead is enough for a second of single sends.
WARM_STEP_BYTES = 1 << 20
_ZEROS = bytes(WARM_STEP_BYTES)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A batch of the log with its logical start and end offset."""

    start: int
    end: int
    batch: ColumnBatch


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Corruption found while opening, as logical offsets."""

    path: str
    damage: Damage


class MessageLog:
    """Append, sync, read from an offset, retire. One writer; reading below `synced` may happen in another thread."""

    def __init__(
        self, fs: FileSystem, directory: str, server_id: int, segment_bytes: int, kind: int = FILE_MESSAGE_LOG
    ) -> None:
        self._fs = fs
        self._kind = kind
        self._directory = directory
        self._server_id = server_id
        self._segment_bytes = segment_bytes
        self._segments: SortedDict[int, Segment] = SortedDict()
        self._warmed = 0
        self.damages: list[LogDamage] = []

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: str,
        server_id: int,
        *,
        segment_bytes: int,
        valid_to: int = 0,
        kind: int = FILE_MESSAGE_LOG,
    ) -> MessageLog:
        """Open or create. `valid_to` is a logical offset known to be durable and whole (the checkpoint); the tail
        behind it is verified and a torn end cut off. Corruption goes to `damages`, the log stays usable.
        `kind` is the file kind: the broker's store is the same log of other records."""
        log = cls(fs, directory, server_id, segment_bytes, kind)
        fs.make_directory(directory)
        names = [name for name in fs.listdir(directory) if name.endswith(".log")]
        for index, name in enumerate(names):
            path, base = f"{directory}/{name}", int(name[:-4])
            last = index == len(names) - 1
            if last and fs.size(path) < FILE_HEADER_BYTES:
                fs.remove(path)  # a crash came between making the file and writing its header
                continue
            segment = Segment.open(fs, path, kind, server_id)
            log._segments[base] = segment
            if base + segment.end > valid_to or last:
                log._recover(segment, base, max(FILE_HEADER_BYTES, valid_to - base), last)
        if not log._segments:
            log._add_segment(0)
        return log

    def _recover(self, segment: Segment, base: int, start: int, last: bool) -> None:
        damages: list[Damage] = []
        size = segment.file.size()
        report = segment.recover(min(start, size), damages=damages)
        if report.torn and not last:
            damages.append(Damage(report.end, size, "sealed segment is cut off"))
        self.damages += [LogDamage(segment.path, damage) for damage in damages]
        if last and segment.end < self._segment_bytes:
            try:
                segment.file.allocate(self._segment_bytes)
                segment.allocated = self._segment_bytes
            except DiskFullError:
                segment.allocated = 0

    def _add_segment(self, base: int) -> Segment:
        header = FileHeader(self._kind, self._server_id, base)
        path = f"{self._directory}/{base:020d}.log"
        segment = Segment.create(self._fs, path, header, allocate_bytes=self._segment_bytes)
        self._segments[base] = segment
        self._warmed = 0
        return segment

    @property
    def _tail(self) -> tuple[int, Segment]:
        base, segment = self._segments.peekitem(-1)
        return base, segment

    @property
    def end(self) -> int:
        """Logical offset behind the last appended record."""
        base, segment = self._tail
        return int(base + segment.end)

    @property
    def synced(self) -> int:
        """Logical offset below which everything is durable."""
        base, segment = self._tail
        return int(base + segment.synced)

    @property
    def first(self) -> int:
        """Logical offset of the oldest record position kept."""
        return int(self._segments.peekitem(0)[0]) + FILE_HEADER_BYTES

    def append(self, batches: Sequence[ColumnBatch]) -> list[LogEntry]:
        """Write one group without syncing. Raises DiskFullError (nothing appended), StoreError."""
        base, segment = self._tail
        if segment.end >= self._segment_bytes:
            base, segment = self._roll(base, segment)
        places = segment.append_all(batches)
        return [
            LogEntry(base + place.start, base + place.end, batch) for place, batch in zip(places, batches, strict=True)
        ]

    def _roll(self, base: int, segment: Segment) -> tuple[int, Segment]:
        """Seal: whole and synced before the successor exists. The successor's base is the sealed file's length on."""
        segment.sync()
        segment.file.truncate(segment.end)
        segment.file.datasync()
        following = base + segment.end
        return following, self._add_segment(following)

    def sync(self) -> int:
        """Make everything appended durable; returns the logical offset synced to. Raises SyncFailedError."""
        base, segment = self._tail
        segment.sync()
        return int(base + segment.synced)

    def warm_ahead(self, ahead_bytes: int) -> bool:
        """Overwrite one step of preallocated space ahead of the tail with zeros; False when enough is warm.

        Safe beside appends only from the writer's own thread of control, between two appends.
        """
        _, segment = self._tail
        start = max(self._warmed, (segment.end + 4095) // 4096 * 4096)
        if start >= segment.end + ahead_bytes or start + WARM_STEP_BYTES > segment.allocated:
            return False
        segment.file.pwrite(start, [_ZEROS])
        self._warmed = start + WARM_STEP_BYTES
        return True

    def read(self, offset: int, stop: int, bytes_max: int) -> list[LogEntry]:
        """Entries from `offset` (a record boundary) up to `stop`, about `bytes_max` bytes, at least one if any.

        Raises CorruptionError at damage; `skip_damage` says where to go on.
        """
        entries: list[LogEntry] = []
        total = 0
        while offset < stop and total < bytes_max:
            base, segment = self.locate(offset)
            limit = min(segment.end, stop - base)
            position = max(offset - base, FILE_HEADER_BYTES)
            for header, batch in segment.records(position, limit):
                entries.append(LogEntry(base + header.offset, base + header.end, batch))
                total += header.end - header.offset
                if total >= bytes_max:
                    break
            reached = entries[-1].end if entries else offset
            if reached >= base + segment.end or position >= limit:
                offset = base + segment.end + FILE_HEADER_BYTES
            elif reached <= offset:
                raise CorruptionError(segment.path, position, "no record where one must be")
            else:
                offset = reached
        return entries

    def skip_damage(self, offset: int) -> int:
        """The first readable record behind damage at `offset` (logical), or the end of its segment."""
        base, segment = self.locate(offset)
        for header, _ in segment.records(offset - base, segment.end, ScanReport(offset - base)):
            return int(base + header.offset)
        return int(base + segment.end)

    def locate(self, offset: int) -> tuple[int, Segment]:
        """The base and segment that hold a logical offset; of `end` the tail's, for a sync in another thread."""
        index = self._segments.bisect_right(offset) - 1
        base, segment = self._segments.peekitem(max(index, 0))
        return base, segment

    def segments(self) -> list[tuple[int, int, str]]:
        """(base, logical end, path) of every segment, oldest first."""
        return [(base, base + segment.end, segment.path) for base, segment in self._segments.items()]

    def retire(self, below: int) -> list[str]:
        """Remove sealed segments that end at or below a logical offset; returns their paths."""
        removed = []
        while len(self._segments) > 1:
            base, segment = self._segments.peekitem(0)
            if base + segment.end > below:
                break
            segment.close()
            self._fs.remove(segment.path)
            removed.append(segment.path)
            del self._segments[base]
        if removed:
            self._fs.sync_directory(self._directory)
        return removed

    def close(self) -> None:
        """Close all files; what was not synced may be lost."""
        for segment in self._segments.values():
            segment.close()
