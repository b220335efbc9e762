"""The takeovers that members know: their message_log says how far they have followed the log of their shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ops.audit.boundaries import headers
from ops.audit.capture import MARKS, MESSAGE_LOG, Part, capture
from ops.audit.engines import Engine
from ops.audit.log_frames import PACK_BYTES
from ops.audit.log_rows import pack
from ops.audit.part_reader import PartReader
from ops.audit.takeovers import Epoch, Epochs, Takeover, takeovers_of, together
from store.disk.filesystem import FileSystem, RealFileSystem
from store.records.batches import KIND_FOLLOWED
from store.records.column_batch import ColumnBatch

# A member writes how far it has followed the log behind each write, and no write is longer. So in so many bytes of its
# message_log stands such a record.
_MARKED_BYTES = 40 << 20
# One part per file: its headers need not be walked to cut it.
_WHOLE = 1 << 62
_COLUMNS = ("epoch", "record_index", "records", "wall_us", "horizon_ms")


def read_takeovers(engine: Engine, fs: FileSystem, directories: Sequence[str]) -> tuple[Takeover, ...]:
    """The takeovers that the members among these directories know."""
    parts: list[Part] = []
    for directory in directories:
        found = capture(fs, [directory], MESSAGE_LOG, _WHOLE).parts
        if found and _is_members(fs, found[0]):
            parts += found
    tasks = [partition.parts for partition in pack(parts, PACK_BYTES)]
    return takeovers_of(engine.folded(tasks, _epochs_of, together) or {})


def _is_members(fs: FileSystem, part: Part) -> bool:
    try:
        file = fs.open(part.path, write=False)
    except FileNotFoundError:
        return True  # it is judged by what the others have
    try:
        stop = min(part.stop, part.start + _MARKED_BYTES)
        return any(header.kind == KIND_FOLLOWED for header in headers(file, part.start, stop))
    finally:
        file.close()


def _columns(_kind: type[ColumnBatch]) -> tuple[str, ...]:
    return _COLUMNS


def _epochs_of(parts: Sequence[Part]) -> Epochs:
    epochs: Epochs = {}
    for part in parts:
        marks = replace(part, log=MARKS)
        try:
            for chunk in PartReader(RealFileSystem(), marks, _columns, (), []):
                rows = zip(*[chunk.columns[name].tolist() for name in _COLUMNS], strict=True)
                for number, index, count, wall_us, horizon_ms in rows:
                    if wall_us:  # a program before it wrote no times
                        key = part.server_id, number
                        brings = bool(count and index)
                        # The first record is a beat, which has a horizon. Only a hand-over without open attempts has none.
                        ends = True if index > 1 and not horizon_ms else None
                        epochs[key] = epochs.get(key, Epoch()).with_record(index, wall_us, brings=brings, ends=ends)
        except FileNotFoundError:
            continue
    return epochs
