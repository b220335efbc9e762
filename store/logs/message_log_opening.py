"""Opening the message_log after a stop of any kind: which segments there are, where they end, what is wrong with them.

Sealed segments were whole and durable before their successor existed, so whatever is wrong with them is corruption;
only the last one can have a torn end. No offset is ever used twice: where the end of the log is lost, it goes on behind
every offset that may have been given out. FORMAT.md numbers the steps.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, FormatError
from store.logs.next_segment import NEXT_NAME
from store.records.record import ALIGN
from store.records.segment import FILE_HEADER_BYTES, Damage, FileHeader, ScanReport, Segment, is_unfinished

_NAME = re.compile(r"\d{20}\.log")


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Corruption found while opening: the file, and the range of bytes in it."""

    path: str
    damage: Damage

    def __str__(self) -> str:
        return str(self.error())

    def error(self) -> CorruptionError:
        """As an error; UnreadableError where the disk cannot read the range."""
        return self.damage.error(self.path)


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """Bases (logical offsets) and segments, ascending. Never changed, only replaced: a reader in another thread always
    sees a whole one."""

    bases: tuple[int, ...]
    segments: tuple[Segment, ...]

    def __iter__(self) -> Iterator[tuple[int, Segment]]:
        return zip(self.bases, self.segments, strict=True)

    def with_segment(self, base: int, segment: Segment) -> SegmentTable:
        """One more at the end."""
        assert not self.bases or base > self.bases[-1]
        return SegmentTable((*self.bases, base), (*self.segments, segment))

    def without_first(self) -> SegmentTable:
        """Without the oldest."""
        return SegmentTable(self.bases[1:], self.segments[1:])

    def after(self, base: int) -> int | None:
        """The base of the segment behind the one at `base`."""
        index = bisect_right(self.bases, base)
        return self.bases[index] if index < len(self.bases) else None


def segment_path(directory: str, base: int) -> str:
    """Files are named by their base: 20 digits, so that names sort as offsets do."""
    return f"{directory}/{base:020d}.log"


def cut_log(fs: FileSystem, directory: str, server_id: int, kind: int, end: int) -> None:
    """Cut off what a log has behind a logical offset, which is one of a record. A crash leaves it cut, or as it was. The
    log is not open. Raises FormatError, CorruptionError (a header), StoreError."""
    bases = sorted(int(name[:20]) for name in fs.listdir(directory) if _NAME.fullmatch(name))
    while len(bases) > 1 and bases[-1] >= end:  # from the last one on: there is never a gap
        fs.remove(segment_path(directory, bases.pop()))
        fs.sync_directory(directory)
    if bases and not is_unfinished(fs, segment_path(directory, bases[-1])):
        segment = Segment.open(fs, segment_path(directory, bases[-1]), kind, server_id)
        try:
            segment.cut(max(end - bases[-1], FILE_HEADER_BYTES))
        finally:
            segment.close()


class Opening:
    """Fills `table` and `damages`. `tail_base` is where a new segment must begin, None if the last one goes on."""

    def __init__(self, fs: FileSystem, directory: str, server_id: int, kind: int, valid_to: int) -> None:
        self.fs = fs
        self.directory = directory
        self.server_id = server_id
        self.kind = kind
        self._valid_to = valid_to
        self.table = SegmentTable((), ())
        self.damages: list[LogDamage] = []
        self.tail_base: int | None = None

    def run(self) -> None:
        """Raises FormatError (a file of another server or program, renamed, newer), DiskFullError."""
        names = self.fs.listdir(self.directory)
        if NEXT_NAME in names:  # nothing of the log is in it, however far its making came
            self.fs.remove(f"{self.directory}/{NEXT_NAME}")
        bases = sorted(int(name[:20]) for name in names if _NAME.fullmatch(name))
        while bases and is_unfinished(self.fs, self._path(bases[-1])):
            self.fs.remove(self._path(bases.pop()))  # a crash came between making the file and writing its header
        for index, base in enumerate(bases):
            self._take_over(base, bases[index + 1] if index + 1 < len(bases) else None)
        self._report_gaps(bases)
        self.tail_base = self._new_tail(bases)

    def _path(self, base: int) -> str:
        return segment_path(self.directory, base)

    def _take_over(self, base: int, following: int | None) -> None:
        path = self._path(base)
        try:
            segment = Segment.open(self.fs, path, self.kind, self.server_id)
        except CorruptionError as error:
            self._damaged(path, Damage(0, FILE_HEADER_BYTES, error.detail, error.errno))
            segment = Segment.open_by_name(self.fs, path, FileHeader(self.kind, self.server_id, base))
        if segment.header.base != base:
            segment.close()
            raise FormatError(path, f"its header says that it starts at {segment.header.base}: give it its name back")
        start = max(FILE_HEADER_BYTES, self._valid_to - base)
        if following is None:
            damages: list[Damage] = []
            segment.recover(start, damages=damages)
            self._damaged(path, *damages)
        else:
            self._verify_sealed(segment, start, following - base)
        self.table = self.table.with_segment(base, segment)

    def _verify_sealed(self, segment: Segment, start: int, length: int) -> None:
        """A sealed file is whole and exactly as long as its successor's name says. Damage in it is never cut off."""
        size, end = segment.end, min(segment.end, length)
        if start < end:
            segment.trust(end, start)
            report = ScanReport(start)
            for _ in segment.records(start, end, report):
                pass
            self._damaged(segment.path, *report.damages)
            if report.end != end:
                self._damaged(segment.path, Damage(report.end, end, "a sealed segment is cut off"))
        segment.trust(end, end)
        if size > length:
            self._damaged(segment.path, Damage(length, size, "bytes behind the end of a sealed segment"))

    def _report_gaps(self, bases: list[int]) -> None:
        """Files that must have been there: between two segments, and before the first unreplayed byte."""
        if bases and 0 < self._valid_to < bases[0]:
            detail = f"the segments from offset {self._valid_to} to {bases[0]} are missing"
            self._damaged(self._path(bases[0]), Damage(0, 0, detail))
        for (base, segment), (following, _) in pairwise(self.table):
            if base + segment.end < following:
                detail = f"{following - base - segment.end} bytes are missing before the next segment"
                self._damaged(segment.path, Damage(segment.end, following - base, detail))

    def _new_tail(self, bases: list[int]) -> int | None:
        if not bases:
            if self._valid_to:
                self._damaged(self.directory, Damage(0, self._valid_to, "all segments are missing"))
            return _aligned(self._valid_to)
        if bases[-1] + self.table.segments[-1].end < self._valid_to:
            return _aligned(self._valid_to)
        return None

    def _damaged(self, path: str, *damages: Damage) -> None:
        self.damages += [LogDamage(path, damage) for damage in damages]


def _aligned(offset: int) -> int:
    return (offset + ALIGN - 1) // ALIGN * ALIGN
