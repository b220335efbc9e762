"""The takeovers of shards: how long each had no primary, by the records of its log or by what a member keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ops.audit.boundaries import headers
from ops.audit.capture import MARKS, MESSAGE_LOG, Part, capture
from ops.audit.engines import Engine
from ops.audit.log_frames import PACK_BYTES
from ops.audit.log_rows import pack
from ops.audit.part_reader import PartReader
from store.disk.filesystem import FileSystem, RealFileSystem
from store.records.batches import KIND_FOLLOWED
from store.records.column_batch import ColumnBatch

# A member writes how far it has followed the log behind each write, and no write is longer. So in so many bytes of its
# message_log stands such a record.
_MARKED_BYTES = 40 << 20
# One part per file: its headers need not be walked to cut it.
_WHOLE = 1 << 62
_COLUMNS = ("epoch", "record_index", "records", "wall_us")


@dataclass(frozen=True, slots=True)
class Takeover:
    """The beginning of an epoch, by the clocks of the two primaries, in microseconds since 1970. `last_us`: the last record
    of the former one. `claimed_us`: the claim of the next one. `first_us`: its first record that is more than a beat; 0 if
    there is none."""

    server_id: int
    epoch: int
    last_us: int
    claimed_us: int
    first_us: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """What some records tell of one epoch. `first` and `last` are (index, time): of the first record that is more than a
    beat, and of the last one. Index 0 is that of the claim."""

    claimed_us: int = 0
    first: tuple[int, int] | None = None
    last: tuple[int, int] = (0, 0)

    def with_record(self, index: int, wall_us: int, *, brings: bool) -> Epoch:
        """This and one record more. `brings`: it is more than a beat."""
        at = (index, wall_us)
        first = at if brings and (self.first is None or at < self.first) else self.first
        return Epoch(wall_us if index == 0 else self.claimed_us, first, max(self.last, at))


Epochs: TypeAlias = dict[tuple[int, int], Epoch]
"""By server id and epoch."""


def together(left: Epochs, right: Epochs) -> Epochs:
    """What both tell."""
    found = dict(left)
    for key, other in right.items():
        mine = found.get(key, Epoch())
        firsts = [each for each in (mine.first, other.first) if each is not None]
        found[key] = Epoch(
            max(mine.claimed_us, other.claimed_us), min(firsts, default=None), max(mine.last, other.last)
        )
    return found


def takeovers_of(epochs: Epochs) -> tuple[Takeover, ...]:
    """The takeovers, by server and epoch. The first primary of a shard took nothing over."""
    found = []
    for (server_id, number), epoch in sorted(epochs.items()):
        former = epochs.get((server_id, number - 1))
        if former is not None and former.last[1] and epoch.claimed_us:
            first_us = 0 if epoch.first is None else epoch.first[1]
            found.append(Takeover(server_id, number, former.last[1], epoch.claimed_us, first_us))
    return tuple(found)


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
                for number, index, count, wall_us in rows:
                    if wall_us:  # a program before it wrote no times
                        key = part.server_id, number
                        brings = bool(count and index)
                        epochs[key] = epochs.get(key, Epoch()).with_record(index, wall_us, brings=brings)
        except FileNotFoundError:
            continue
    return epochs
