"""Follows dispatch_log as it grows: `spark.readStream.format("delay_dispatch_log").load(directories)`.

The offset of a stream is the read position in each file, {path: bytes}, always the end of a whole, verified record. So
every row comes exactly once, also after a restart. A file that retention removes is dropped from the offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ops.audit.capture import DISPATCH_LOG, Part, capture
from ops.audit.fields import Field
from ops.audit.log_rows import LogPartition, pack, read_rows
from ops.audit.part_reader import PartReader
from ops.audit.selection import Selection
from store.disk.filesystem import FileSystem, RealFileSystem
from store.errors import StoreError
from store.records.file_header import FILE_HEADER_BYTES

# Small files of one micro-batch share a task.
_PACK_BYTES = 16 << 20
# One part per file, because the rows of one micro-batch are few.
_WHOLE = 1 << 62


class StreamBrokenError(StoreError):
    """A file is shorter than the stream's offset, because a loss of power took unsynced records. Their messages are
    delivered and recorded again. Start the stream with a new checkpoint to count them anew."""


class DispatchStreamReader(DataSourceStreamReader):  # type: ignore[misc,unused-ignore]  # Any where pyspark is not installed
    """Micro-batches of the added rows."""

    def __init__(self, directories: Sequence[str], fields: Sequence[Field], options: Mapping[str, str]) -> None:
        self._directories = list(directories)
        self._fields = tuple(fields)
        self._selection = Selection.from_options(options)
        self._skip = options.get("corrupt", "fail").lower() == "skip"
        self._from_latest = options.get("starting", "earliest").lower() == "latest"
        self._known: dict[str, int] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The start of every file, or with the option `starting=latest` its end now."""
        return {"files": json.dumps(self._ends({}) if self._from_latest else {})}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The ends of the whole records now. Newer versions of Spark give `start`, which only saves reading."""
        known = _ends_of(start) if start else self._known
        self._known = self._ends(known)
        return {"files": json.dumps(self._known)}

    def _ends(self, known: Mapping[str, int]) -> dict[str, int]:
        fs = RealFileSystem()
        captured = capture(fs, self._directories, DISPATCH_LOG, _WHOLE)
        return {part.path: whole_end(fs, part, known.get(part.path, 0)) for part in captured.parts}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts between two offsets. Raises StreamBrokenError."""
        before, after = _ends_of(start), _ends_of(end)
        captured = capture(RealFileSystem(), self._directories, DISPATCH_LOG, _WHOLE)
        parts = []
        for part in captured.parts:
            begin, stop = before.get(part.path, FILE_HEADER_BYTES), after.get(part.path, 0)
            if part.stop < stop:
                raise StreamBrokenError(
                    f"{part.path}: {stop} bytes were read, {part.stop} are there; use a new checkpoint"
                )
            if begin < stop and self._selection.touches(part):
                parts.append(replace(part, start=begin, stop=stop, synced=stop))
        return pack(parts, _PACK_BYTES) or [LogPartition(())]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a partition. A file that was retired meanwhile has none; its counts are in the ledger."""
        yield from read_rows(partition, self._fields, self._selection, skip=self._skip, vanished_too=True)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark's checkpoint is the only one."""


def whole_end(fs: FileSystem, part: Part, known: int) -> int:
    """The end of the whole records of a file now. Reads only behind the `known` end of whole records."""
    start = max(known, FILE_HEADER_BYTES)
    if start >= part.stop:
        return start
    end = start
    try:
        for chunk in PartReader(fs, replace(part, start=start), lambda kind: [kind.schema.fields[0][0]], (), []):
            end = chunk.end
    except FileNotFoundError:
        return start
    return end


def _ends_of(offset: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = json.loads(offset["files"])
    return found
