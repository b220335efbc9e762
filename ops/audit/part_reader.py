"""Reads the rows of one part of a file, as numpy columns of many records at once. No Spark and no Arrow here.

A torn tail is the end. Damage below what was durable is corruption: raised, or put into a list and passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.audit.capture import Part
from store.column_blocks import decode_blocks
from store.columns import ColumnBatch, MalformedColumnsError, blob_sizes
from store.errors import CorruptionError, FormatError
from store.filesystem import File, FileSystem
from store.record import BATCHES, RecordHeader, build_batch, verify_columns
from store.record_reader import RecordReader
from store.scan import Scan, ScanReport
from store.segment import Damage

# Rows decoded together: enough that tiny records cost nanoseconds a row, few enough to stay in the processor's cache.
CHUNK_ROWS = 1 << 17
# Blobs decoded together: a chunk of large bodies is bounded by its bytes.
CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """`columns`: arrays of one length, by the names of the batch. `blobs`: the ragged bytes asked for, by name (their
    lengths are columns `<name>_length`). `offsets` i64: where each row's record begins in the file; `end`: where the last
    record ends."""

    batch_type: type[ColumnBatch]
    columns: dict[str, NDArray[Any]]
    blobs: dict[str, bytes]
    offsets: NDArray[np.int64]
    end: int

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(slots=True)
class _Gathered:
    """Records of one kind that wait to be decoded together."""

    headers: list[RecordHeader] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    blobs: list[bytes] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0

    def add(self, header: RecordHeader, block: bytes, blob: bytes) -> None:
        self.headers.append(header)
        self.blocks.append(block)
        self.blobs.append(blob)
        self.rows += header.count
        self.size_bytes += len(blob)

    def full(self) -> bool:
        return self.rows >= CHUNK_ROWS or self.size_bytes >= CHUNK_BYTES


class PartReader:
    """Iterates over the chunks of a part. `names` and `blobs` say what is wanted of each kind of record.

    `damages` None: corruption is raised as CorruptionError. FormatError for a record of an unknown kind or version.
    """

    def __init__(
        self,
        fs: FileSystem,
        part: Part,
        names: Callable[[type[ColumnBatch]], Sequence[str]],
        blobs: Sequence[str] = (),
        damages: list[Damage] | None = None,
    ) -> None:
        self._fs = fs
        self._part = part
        self._names = names
        self._blobs = tuple(blobs)
        self._damages = damages
        self._synced = part.synced

    def __iter__(self) -> Iterator[Chunk]:
        """Raises FileNotFoundError where the file is gone."""
        file = self._fs.open(self._part.path, write=False)
        try:
            gathered = _Gathered()
            for header, block, blob in self._records(file):
                if gathered.headers and (header.kind != gathered.headers[0].kind or gathered.full()):
                    yield self._chunk(gathered)
                    gathered = _Gathered()
                gathered.add(header, block, blob)
            if gathered.headers:
                yield self._chunk(gathered)
        finally:
            file.close()

    def _records(self, file: File) -> Iterator[tuple[RecordHeader, bytes, bytes]]:
        part = self._part
        position = part.start
        stop = min(part.stop, file.size())
        reader = RecordReader(file, part.start, stop, blobs=bool(self._blobs), damages=None)
        try:
            for header, block, blob in reader:
                self._synced = max(self._synced, header.synced_before)
                _check_known(header, part.path)
                yield header, block, blob
                position = header.end
        except CorruptionError:
            # What it is - a clean end, a torn tail or damage - is for the scanner to judge.
            yield from self._judged(file, position, stop)

    def _judged(self, file: File, position: int, stop: int) -> Iterator[tuple[RecordHeader, bytes, bytes]]:
        report = ScanReport(position)
        scan = Scan(file, position, stop)
        known = min(self._synced, stop)
        for header, _ in scan.records(position, known, report, forgive=self._damages is not None):
            data = file.pread(header.offset, header.end - header.offset)
            first = header.blob_offset - header.offset
            block = data[first - header.columns_bytes : first]
            yield header, block, data[first : first + header.blob_bytes] if self._blobs else b""
        if self._damages is not None:
            self._damages += report.damages

    def _chunk(self, gathered: _Gathered) -> Chunk:
        batch_type = BATCHES[gathered.headers[0].kind]
        counts = [header.count for header in gathered.headers]
        has_blobs = [name for name in batch_type.schema.blobs if name in self._blobs]
        wanted = [*dict.fromkeys([*self._names(batch_type), *[f"{name}_length" for name in has_blobs]])]
        try:
            columns = decode_blocks(batch_type.schema, gathered.blocks, counts, wanted)
        except MalformedColumnsError as error:
            raise CorruptionError(self._part.path, gathered.headers[0].offset, str(error)) from error
        offsets = np.repeat(np.array([header.offset for header in gathered.headers], np.int64), counts)
        end = gathered.headers[-1].end
        return Chunk(batch_type, columns, _ragged(gathered, batch_type, has_blobs), offsets, end)


def _check_known(header: RecordHeader, path: str) -> None:
    batch_type = BATCHES.get(header.kind)
    if batch_type is None or header.version != batch_type.schema.version:
        detail = f"unknown record kind {header.kind} version {header.version} at offset {header.offset}"
        raise FormatError(path, f"{detail}; upgrade this program")


def _ragged(gathered: _Gathered, batch_type: type[ColumnBatch], names: Sequence[str]) -> dict[str, bytes]:
    """The blobs asked for, of all records end to end."""
    if not names:
        return {}
    parts: dict[str, list[memoryview]] = {name: [] for name in names}
    for header, block, blob in zip(gathered.headers, gathered.blocks, gathered.blobs, strict=True):
        columns = verify_columns(header, block)
        batch = build_batch(header, columns, blob, verify=False)
        assert sum(blob_sizes(batch_type.schema, columns)) == header.blob_bytes
        for name in names:
            parts[name].append(getattr(batch, name))
    return {name: b"".join(views) for name, views in parts.items()}
