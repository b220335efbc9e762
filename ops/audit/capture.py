"""Captures the files of a data directory and their ends at one moment. Names and offsets; no rows.

Beside a running server, the ends are taken in the order dispatch_log, schedule_log, message_log. So the message of each
captured outcome is captured too. The broker log follows dispatch_log, because a broker stores a message before its
outcome is recorded. Later records are behind these ends.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from ops.audit.boundaries import cut_points
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, FormatError
from store.records.batches import KIND_CANCELS, KIND_FOLLOWED, KIND_MESSAGES
from store.records.file_header import FILE_HEADER_BYTES, FileHeader, decode_file_header, is_unfinished
from store.records.segment import FILE_DISPATCH, FILE_MESSAGE_LOG, FILE_SCHEDULE, FILE_STORE
from store.shared.readable_place import readable_place
from store.tables.identity import read_identity

DISPATCH_LOG, SCHEDULE_LOG, MESSAGE_LOG, BROKER_LOG = "dispatch_log", "schedule_log", "message_log", "broker_log"
PROGRESS_LOG = "progress_log"
# Of the message_log of a member: how far it has followed the shared log.
MARKS = "marks"
# The order described above.
CAPTURE_ORDER = (DISPATCH_LOG, BROKER_LOG, SCHEDULE_LOG, MESSAGE_LOG)
_FOLDERS = {
    BROKER_LOG: "broker/store",
    DISPATCH_LOG: "dispatch_log",
    SCHEDULE_LOG: "schedule_log",
    MESSAGE_LOG: "message_log",
}
_KINDS = {
    BROKER_LOG: FILE_STORE,
    DISPATCH_LOG: FILE_DISPATCH,
    SCHEDULE_LOG: FILE_SCHEDULE,
    MESSAGE_LOG: FILE_MESSAGE_LOG,
}
_ROWS = {MESSAGE_LOG: (KIND_MESSAGES, KIND_CANCELS), MARKS: (KIND_FOLLOWED,)}
_SUFFIX = ".log"
# One task's share of a file: about a second of work, so that a large segment keeps every core busy.
PART_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """Records of one file from `start` to `stop`. The file was durable up to `synced`, so damage below is corruption.
    `base` and `span_ms` are the window of due times of the file (`span_ms` 0: any). `log` is the log that it is of."""

    directory: str
    path: str
    server_id: int
    start: int
    stop: int
    synced: int
    base: int
    span_ms: int
    log: str

    @property
    def size_bytes(self) -> int:
        """Bytes to read, blobs included."""
        return self.stop - self.start

    def is_gone(self, fs: FileSystem) -> bool:
        """Whether retention or the drain of a day has removed the file."""
        return not fs.exists(self.path)

    def has_rows_in(self, kind: int) -> bool:
        """Whether records of this kind are rows of the log. The message_log of a cluster's member has all that its shard
        decided: what became of a message, and what its broker did, is in the member's other logs too."""
        kinds = _ROWS.get(self.log)
        return kinds is None or kind in kinds


@dataclass(frozen=True, slots=True)
class Captured:
    """Parts of one log of one or more directories. `skipped`: paths of files that vanished before they were opened."""

    log: str
    parts: tuple[Part, ...]
    skipped: tuple[str, ...] = ()

    def encode(self) -> str:
        """The parts as a short text, for an option of a Spark reader."""
        rows = [list(asdict(part).values()) for part in self.parts]
        return base64.b64encode(zlib.compress(json.dumps([self.log, rows]).encode())).decode()

    @classmethod
    def decode(cls, text: str) -> Captured:
        """The inverse of `encode`."""
        log, rows = json.loads(zlib.decompress(base64.b64decode(text)))
        return cls(log, tuple([Part(*row) for row in rows]))

    def of_server(self, server_id: int) -> Captured:
        """The parts of one server."""
        return Captured(self.log, tuple([part for part in self.parts if part.server_id == server_id]))

    def vanished(self, fs: FileSystem) -> list[str]:
        """Paths of files that are gone by now, because of retention or the drain of a day."""
        return sorted({*self.skipped, *[part.path for part in self.parts if part.is_gone(fs)]})


def capture(fs: FileSystem, directories: Sequence[str], log: str, part_bytes: int = PART_BYTES) -> Captured:
    """Captures one log now. A file that vanishes before it is opened is `skipped`.

    Its rows may have moved to files that were captured before the move. Raises FormatError (no data directory, a newer
    format, a file of another server), CorruptionError (file header), UpgradeNeededError (of a member whose log has a version
    that this program does not read).
    """
    parts: list[Part] = []
    skipped: list[str] = []
    for directory in directories:
        server_id = read_identity(fs, directory)
        _require_readable(fs, directory, server_id)
        for path in _paths(fs, f"{directory}/{_FOLDERS[log]}", nested=log in (DISPATCH_LOG, SCHEDULE_LOG)):
            try:
                parts += _parts(fs, directory, path, server_id, log, part_bytes)
            except FileNotFoundError:
                skipped.append(path)
    return Captured(log, tuple(parts), tuple(skipped))


def capture_all(fs: FileSystem, directories: Sequence[str], logs: Iterable[str]) -> dict[str, Captured]:
    """Captures several logs at one moment, in CAPTURE_ORDER."""
    wanted = set(logs)
    return {log: capture(fs, directories, log) for log in CAPTURE_ORDER if log in wanted}


def _require_readable(fs: FileSystem, directory: str, server_id: int) -> None:
    segments = []
    for path in sorted(_paths(fs, f"{directory}/{_FOLDERS[MESSAGE_LOG]}", nested=False)):
        with suppress(FileNotFoundError):
            segments.append((path, fs.size(path)))
    readable_place(fs, directory, server_id, segments)


def _paths(fs: FileSystem, folder: str, *, nested: bool) -> list[str]:
    folders = [f"{folder}/{day}" for day in fs.listdir(folder)] if nested else [folder]
    return [f"{inner}/{name}" for inner in folders for name in fs.listdir(inner) if name.endswith(_SUFFIX)]


def _parts(fs: FileSystem, directory: str, path: str, server_id: int, log: str, part_bytes: int) -> list[Part]:
    file = fs.open(path, write=False)
    try:
        size = file.size()
        try:
            header = decode_file_header(file.pread(0, FILE_HEADER_BYTES), path)
        except CorruptionError:
            if is_unfinished(fs, path):
                return []  # a crash came between making the file and writing its header
            raise
        _check_ours(header, path, log, server_id)
        whole = Part(
            directory, path, server_id, FILE_HEADER_BYTES, size, FILE_HEADER_BYTES, header.base, header.span_ms, log
        )
        if size - FILE_HEADER_BYTES <= part_bytes:
            return [whole] if size > FILE_HEADER_BYTES else []
        cuts = cut_points(file, FILE_HEADER_BYTES, size, part_bytes)
        edges = [FILE_HEADER_BYTES, *cuts.offsets, size]
        return [
            replace(whole, start=start, stop=stop, synced=max(cuts.synced, FILE_HEADER_BYTES))
            for start, stop in pairwise(edges)
        ]
    finally:
        file.close()


def _check_ours(header: FileHeader, path: str, log: str, server_id: int) -> None:
    if header.kind != _KINDS[log]:
        raise FormatError(path, f"file kind {header.kind} where {_KINDS[log]} is expected")
    if header.server_id != server_id:
        raise FormatError(path, f"belongs to server {header.server_id:012x}, this data directory to {server_id:012x}")
