"""The message_log: messages and cancels, in arrival order. Rolling segments named by their first byte offset (20 digits).

An offset here is logical: the base of a segment plus the position in its file. A sealed segment is whole and synced
before its successor bears its name, so damage in it is always corruption. The next segment is preallocated. The bytes
ahead of the tail are overwritten with zeros when the disk has time, because a sync of an overwrite costs half of a sync of a
growing file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from store.disk.filesystem import BLOCK_BYTES, FileSystem
from store.disk.tail_image import TailImage
from store.errors import CorruptionError, DiskFullError, StoreError
from store.logs.message_log_opening import LogDamage, Opening, segment_path
from store.logs.next_segment import NextSegment, next_segment
from store.records.segment import (
    FILE_HEADER_BYTES,
    FILE_MESSAGE_LOG,
    Appendable,
    Appended,
    FileHeader,
    ScanReport,
    Segment,
)

__all__ = ["LogDamage", "LogEntry", "MessageLog", "WarmStep"]

# Zeros written ahead of the tail in one go: less while there is enough ahead, since the sync of a step slows appends down,
# and more while the writer gains on it. With steps of the first kind alone, clients that send 20 MB/s outran the zeros.
WARM_STEP_BYTES = 1 << 18
WARM_STEP_BYTES_MAX = 1 << 20
# The next segment is made when so many parts of the last one are left. Even a disk that fills a segment in a second has
# a quarter of a second for it.
LEFT_PART = 4


class LogEntry(NamedTuple):
    """A batch of the log with its logical start and end offset; as rows only straight from its append."""

    start: int
    end: int
    batch: Appendable


class WarmStep(NamedTuple):
    """Zeros ahead of the tail, up to an offset in the file of its segment; of use once `file` is synced."""

    segment: Segment
    stop: int


class MessageLog:
    """Append, sync, read from an offset, retire. One writer; reading below `synced` may happen in another thread."""

    def __init__(self, opening: Opening, segment_bytes: int) -> None:
        """Use `open`. `opening` has run; the directory is durable but for the name of the last segment."""
        self._fs = opening.fs
        self._kind = opening.kind
        self._directory = opening.directory
        self._server_id = opening.server_id
        self._segment_bytes = segment_bytes
        self._table = opening.table
        self._warmed = self._warm = 0
        self._image: TailImage | None = None
        self._next: NextSegment | None = None
        self._making_next = False
        self.damages = opening.damages
        if opening.tail_base is not None:
            self._add_segment(opening.tail_base)
        elif self._tail[1].end < segment_bytes:
            self._tail[1].preallocate(segment_bytes)
        # Some file systems in user space never count names; there a deletion goes unseen.
        self._counts_names = self._tail[1].file.has_name()

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
        behind it is verified and a torn end cut off. Corruption goes to `damages`, the log stays usable: it goes on
        behind `valid_to` and behind every file, so that no offset is used twice.
        `kind` is the file kind: the broker's store is the same log of other records.

        Raises FormatError (a file of another server or program, renamed, newer), DiskFullError."""
        fs.make_directory(directory)
        opening = Opening(fs, directory, server_id, kind, valid_to)
        opening.run()
        log = cls(opening, segment_bytes)
        # A process that was killed may have made the tail and not its name durable: what is synced in it now must not
        # vanish with the name.
        fs.sync_directory(directory)
        return log

    def require_readable(self) -> None:
        """Raises UnreadableError if the disk could not read something when the log was opened: it may read that later."""
        for found in self.damages:
            if found.damage.errno:
                raise found.error()

    def _add_segment(self, base: int) -> Segment:
        header = FileHeader(self._kind, self._server_id, base)
        segment = Segment.create(
            self._fs, segment_path(self._directory, base), header, allocate_bytes=self._segment_bytes
        )
        self._table = self._table.with_segment(base, segment)
        self._warmed = self._warm = 0
        return segment

    def _adopt(self, prepared: NextSegment, base: int, full: Segment) -> Segment | None:
        """Go on in the prepared file. None where that does not work: then the way without it says why."""
        path = segment_path(self._directory, base)
        if self._fs.exists(path):
            prepared.drop()
            return None
        header = FileHeader(self._kind, self._server_id, base)
        try:
            segment = Segment.adopt(self._fs, prepared.path, path, header, prepared.length, full)
        except (DiskFullError, FileNotFoundError):
            return None
        self._table = self._table.with_segment(base, segment)
        self._warmed = self._warm = prepared.zero_bytes
        return segment

    @property
    def _tail(self) -> tuple[int, Segment]:
        table = self._table
        return table.bases[-1], table.segments[-1]

    @property
    def end(self) -> int:
        """Logical offset behind the last appended record."""
        base, segment = self._tail
        return base + segment.end

    @property
    def synced(self) -> int:
        """Logical offset below which everything is durable, or counts as that."""
        base, segment = self._tail
        if not segment.is_named:  # the segment before may have records that wait for the same sync
            base, segment = self._table.bases[-2], self._table.segments[-2]
        return base + max(segment.synced, segment.assumed)

    @property
    def lengths(self) -> dict[str, int]:
        """How many bytes of each segment hold records, by the path at which a start finds it. The file may be longer."""
        return {segment_path(self._directory, base): segment.end for base, segment in self._table}

    @property
    def first(self) -> int:
        """Logical offset of the oldest record position kept."""
        return self._table.bases[0] + FILE_HEADER_BYTES

    # -- the next segment

    @property
    def prepare_from(self) -> int:
        """The logical offset at which a next segment is to be made: one that is there already serves until then."""
        base, segment = self._tail
        due = self._segment_bytes - self._segment_bytes // LEFT_PART
        if self._next is None:
            return base + due
        return base + max(self._segment_bytes + due, segment.end + 1)  # a group may be longer than a segment

    @property
    def segment_bytes(self) -> int:
        """The length of a segment, which a next one takes of the disk."""
        return self._segment_bytes

    def preparation(self, zero_bytes: int = 0) -> NextSegment | None:
        """The segment to make now, from `prepare_from` on; None if there is none. Call its `make`, which may run in a thread
        beside appends. Then call `adopt_prepared` or `give_up_preparing` in the writer's own thread of control.
        `zero_bytes`: how much is to be warm from the start."""
        # A tail without its name still has the name of a prepared one.
        if self._making_next or not self._tail[1].is_named or self.end < self.prepare_from:
            return None
        self._making_next = True
        return next_segment(self._fs, self._directory, self._segment_bytes, zero_bytes)

    def adopt_prepared(self, made: NextSegment) -> None:
        """Keeps the next segment that a thread has made. The log goes on in it when the last segment is full."""
        self._next, self._making_next = made, False

    def give_up_preparing(self) -> None:
        """Goes on without a next segment, because it could not be made. The append that finds the last segment full
        then makes one."""
        self._making_next = False

    def drop_prepared(self) -> None:
        """Give the room of an unused next segment back."""
        prepared, self._next = self._next, None
        if prepared is not None:
            prepared.drop()

    def growth_bytes(self, size_bytes: int) -> int:
        """How many bytes of the disk an append of about this size takes beside what is allocated: of a full segment the
        next one as a whole, unless it is made already."""
        _, segment = self._tail
        if segment.end >= self._segment_bytes:
            made = self._segment_bytes if self._next is not None else 0
            return max(self._segment_bytes, size_bytes) - made
        return max(segment.end + size_bytes - max(segment.allocated, segment.end), 0)

    def append(self, batches: Sequence[Appendable]) -> list[LogEntry]:
        """Write one group without syncing. Raises DiskFullError (nothing appended), StoreError, SyncFailedError."""
        base, segment = self._writable()
        return _entries(base, segment.append_all(batches), batches)

    def append_durably(self, batches: Sequence[Appendable]) -> list[LogEntry]:
        """Appends and syncs in the fastest way for this disk. Raises DiskFullError (nothing appended), StoreError,
        SyncFailedError."""
        base, segment = self._writable()
        if self._image is None:
            self._image = TailImage()
        return _entries(base, segment.append_durably(batches, self._warm, self._image), batches)

    def append_assumed(self, batches: Sequence[Appendable]) -> list[LogEntry]:
        """Appends; what is in the page cache counts as durable, by the operator's decision: durability `os`. Raises what
        `append_durably` does."""
        base, segment = self._writable()
        return _entries(base, segment.append_assumed(batches), batches)

    def _writable(self) -> tuple[int, Segment]:
        base, segment = self._tail
        return self._roll(base, segment) if segment.end >= self._segment_bytes else (base, segment)

    def _roll(self, base: int, segment: Segment) -> tuple[int, Segment]:
        """Go on in the next segment. Its base is the length of the full one on, which is whole and synced before any start
        can find the successor."""
        following = base + segment.end
        prepared, self._next = self._next, None
        adopted = self._adopt(prepared, following, segment) if prepared is not None else None
        if adopted is not None:
            return following, adopted
        segment.seal()
        return following, self._add_segment(following)

    def sync(self) -> int:
        """Make everything appended durable; returns the logical offset synced to. Raises SyncFailedError."""
        base, segment = self._tail
        segment.sync()
        return base + segment.synced

    @property
    def is_named(self) -> bool:
        """Whether a start finds the last segment. The first sync of an adopted one gives it its name."""
        return self._tail[1].is_named

    def require_name(self) -> None:
        """To be called between a sync and its acknowledgement: a file that was deleted is gone with its process, however
        well it was synced. Raises StoreError; what was appended must not be acknowledged then."""
        segment = self._table.segments[-1]
        if self._counts_names and not segment.file.has_name():
            raise StoreError(
                f"{segment.path}: the file was deleted while the server ran; nothing is accepted any more. "
                "Put the data directory back from a copy, then start the server again"
            )

    def sync_assumed(self) -> None:
        """Make durable what only counts as that: a checkpoint is about to point behind it. May run in a thread beside
        appends. Raises SyncFailedError."""
        _, segment = self._tail
        if segment.assumed > segment.synced:
            segment.sync()

    def warm_ahead(self, ahead_bytes: int) -> WarmStep | None:
        """Overwrite one step of preallocated space ahead of the tail with zeros; None when enough is warm.

        Safe beside appends only from the writer's own thread of control, between two appends.
        """
        _, segment = self._tail
        start = max(self._warmed, (segment.end + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES)
        step_bytes = WARM_STEP_BYTES if start >= segment.end + ahead_bytes // 2 else WARM_STEP_BYTES_MAX
        stop = min(start + step_bytes, segment.allocated // BLOCK_BYTES * BLOCK_BYTES)
        if start >= segment.end + ahead_bytes or start >= stop:
            return None
        if not segment.write_zeros(start, stop):
            return None
        self._warmed = stop
        return WarmStep(segment, stop)

    def sync_warm(self, step: WarmStep) -> None:
        """Make the zeros durable, so that what overwrites them needs nothing else. May run in a thread beside appends.
        Raises SyncFailedError: final, like that of `sync`."""
        step.segment.file.datasync()

    def use_warm(self, step: WarmStep) -> None:
        """Lets small groups go straight over zeros that are durable."""
        if self._tail[1] is step.segment:
            self._warm = step.stop

    def read(self, offset: int, stop: int, bytes_max: int) -> list[LogEntry]:
        """Entries from `offset` (a record boundary) up to `stop`, about `bytes_max` bytes, at least one if any.

        Raises CorruptionError if damage stands right at `offset` (what is readable before it is returned first);
        `skip_damage` says where to go on.
        """
        entries: list[LogEntry] = []
        total = 0
        try:
            while offset < stop and total < bytes_max:
                base, segment = self.locate(offset)
                position = max(offset - base, FILE_HEADER_BYTES)
                limit = min(segment.end, stop - base)
                for header, batch in segment.records(position, limit):
                    entries.append(LogEntry(base + header.offset, base + header.end, batch))
                    position = header.end
                    total += header.end - header.offset
                    if total >= bytes_max:
                        return entries
                if position < limit:
                    raise CorruptionError(segment.path, position, "no record where one must be")
                offset = base + limit
                if limit == segment.end:
                    offset = self._following(base, segment)
        except CorruptionError:
            if not entries:
                raise
        return entries

    def _following(self, base: int, segment: Segment) -> int:
        """The first record's offset in the next segment, or the end of the log. Raises CorruptionError at a gap."""
        following = self._table.after(base)
        if following is None:
            return base + segment.end + FILE_HEADER_BYTES
        if base + segment.end < following:
            raise CorruptionError(segment.path, segment.end, f"the log goes on at offset {following} only")
        return following + FILE_HEADER_BYTES

    def skip_damage(self, offset: int) -> int:
        """The first readable record behind damage at `offset` (logical), or the start of the next segment, or `end`."""
        base, segment = self.locate(offset)
        position = max(offset - base, FILE_HEADER_BYTES)
        if position < segment.end:
            for header, _ in segment.records(position, segment.end, ScanReport(position)):
                return base + header.offset
        following = self._table.after(base)
        return base + segment.end if following is None else following

    def locate(self, offset: int) -> tuple[int, Segment]:
        """The base and segment that hold a logical offset; of `end` the tail's, for a sync in another thread."""
        table = self._table
        index = max(bisect_right(table.bases, offset) - 1, 0)
        return table.bases[index], table.segments[index]

    def segments(self) -> list[tuple[int, int, str]]:
        """(base, logical end, path) of every segment, oldest first."""
        return [(base, base + segment.end, segment.path) for base, segment in self._table]

    def retire(self, below: int) -> list[str]:
        """Remove sealed segments that end at or below a logical offset; returns their paths. No reader may use them."""
        removed = []
        while len(self._table.bases) > 1:
            base, segment = self._table.bases[0], self._table.segments[0]
            if base + segment.end > below or not self._table.segments[1].is_named:
                break
            self._table = self._table.without_first()
            segment.close()
            self._fs.remove(segment.path)
            # One by one: if a later removal reached the disk and an earlier one did not, there would be a gap.
            self._fs.sync_directory(self._directory)
            removed.append(segment.path)
        return removed

    def close(self) -> None:
        """Close all files; what was not synced may be lost."""
        for _, segment in self._table:
            segment.close()


def _entries(base: int, places: Sequence[Appended], batches: Sequence[Appendable]) -> list[LogEntry]:
    if len(batches) == 1:  # a single send waits for this
        (start, end, _), (batch,) = places[0], batches
        return [LogEntry(base + start, base + end, batch)]
    return [LogEntry(base + place.start, base + place.end, batch) for place, batch in zip(places, batches, strict=True)]
