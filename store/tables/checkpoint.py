"""The checkpoint: how far replay came and what the files held then, so that a start reads only later records.

Every count stands beside the file offset it was counted to (rule 6), so a start counts on from there. The file is only
an aid: missing or damaged it is rebuilt from the logs. One msgpack map of raw little-endian columns behind a 64-byte
header, replaced atomically. FORMAT.md draws the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import google_crc32c
import msgpack
import numpy as np

from store.disk.filesystem import FileSystem, read_whole, write_atomically
from store.errors import CorruptionError, FormatError
from store.logs.due_windows import TIME_MS_MAX
from store.records.batches import I64, U8, U32

FILE_NAME = "checkpoint"
FORMAT_VERSION = 2  # only where files lost rows; without them version 1, which programs of before read
_VERSION_WITHOUT_LOST = 1
OUTCOMES = 16  # columns of the outcome counts: one a code of the protocol, with room for later ones
_HEADER = struct.Struct("<8sHHIQQII")
_HEADER_BYTES = 64
_MAGIC = b"DELAYCHK"


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """Base of the tables below: columns of one length. `columns` gives name, dtype and width (1: one-dimensional)."""

    columns: ClassVar[tuple[tuple[str, str, int], ...]]

    def __len__(self) -> int:
        return len(getattr(self, self.columns[0][0]))

    @classmethod
    def filled(cls, count: int, **columns: Any) -> Self:
        """A table of `count` rows; a column not given is zero, a scalar stands on every row."""
        values = {}
        for name, dtype, width in cls.columns:
            shape = (count,) if width == 1 else (count, width)
            value = columns.pop(name, 0)
            if isinstance(value, np.ndarray) and value.shape == shape:
                values[name] = np.ascontiguousarray(value, dtype)
            else:
                values[name] = np.full(shape, value, dtype)
        assert not columns, f"unknown columns {sorted(columns)}"
        return cls(**values)

    @classmethod
    def empty(cls) -> Self:
        """No rows."""
        return cls.filled(0)

    def _pack(self) -> dict[str, Any]:
        packed: dict[str, Any] = {"count": len(self)}
        for name, dtype, width in self.columns:
            column = getattr(self, name).astype(dtype, copy=False)
            # Most outcomes never happen in most files: a part of a wide column that is all zero is left out.
            packed[name] = (
                [part.tobytes() if part.any() else b"" for part in column.T] if width > 1 else column.tobytes()
            )
        return packed

    @classmethod
    def _unpack(cls, packed: Mapping[str, Any]) -> Self:
        count, values = int(packed["count"]), {}
        for name, dtype, width in cls.columns:
            parts = [packed[name]] if width == 1 else packed[name]
            column = np.zeros((count, width), dtype)
            for index, part in enumerate(parts):
                if part or width == 1:
                    column[:, index] = np.frombuffer(part, dtype, count)
            values[name] = column[:, 0].copy() if width == 1 else column
        return cls(**values)


@dataclass(frozen=True, slots=True)
class ScheduleFiles(ColumnTable):
    """Files of schedule_log, a row each: start of the window, `source` (which file of the window: the codes of
    schedule_log), `end` offset counted to, highest sequence in it, and rows."""

    start_ms: I64
    source: U8
    end: I64
    last_sequence: I64
    rows: I64

    columns: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("start_ms", "<i8", 1),
        ("source", "|u1", 1),
        ("end", "<i8", 1),
        ("last_sequence", "<i8", 1),
        ("rows", "<i8", 1),
    )


@dataclass(frozen=True, slots=True)
class DispatchFiles(ColumnTable):
    """Files of dispatch_log: start of the window, whether it is a coarse day's, `end` offset counted to, rows by
    outcome code (i64[n, 16], internal records left out) and rows of internal records."""

    start_ms: I64
    coarse: U8
    end: I64
    outcomes: I64
    internal_rows: I64

    columns: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("start_ms", "<i8", 1),
        ("coarse", "|u1", 1),
        ("end", "<i8", 1),
        ("outcomes", "<i8", OUTCOMES),
        ("internal_rows", "<i8", 1),
    )


@dataclass(frozen=True, slots=True)
class CoarseDays(ColumnTable):
    """Sealed days on their way to minutes: `drain_offset` is how far the day's file is in synced minute files. The file
    `days` has the state of each day, and is never behind."""

    start_ms: I64
    drain_offset: I64

    columns: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("start_ms", "<i8", 1),
        ("drain_offset", "<i8", 1),
    )


@dataclass(frozen=True, slots=True)
class OrphanedOutcomes(ColumnTable):
    """Windows with outcomes of messages that no schedule file holds: start of the window, and how many."""

    start_ms: I64
    rows: I64

    columns: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("start_ms", "<i8", 1),
        ("rows", "<i8", 1),
    )


@dataclass(frozen=True, slots=True)
class LostFiles(ColumnTable):
    """Files of windows that lost rows which were durable (`window_state.Loss`): `log` 0 for schedule_log, 1 for
    dispatch_log; `kind` is the source of the one, `coarse` of the other. `outcomes` and `internal_rows` count the outcomes
    that a dispatch file lost."""

    log: U8
    start_ms: I64
    kind: U8
    end: I64
    last_sequence: I64
    rows: I64
    left_rows: I64
    outcomes: I64
    internal_rows: I64
    searched: U8

    columns: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("log", "|u1", 1),
        ("start_ms", "<i8", 1),
        ("kind", "|u1", 1),
        ("end", "<i8", 1),
        ("last_sequence", "<i8", 1),
        ("rows", "<i8", 1),
        ("left_rows", "<i8", 1),
        ("outcomes", "<i8", OUTCOMES),
        ("internal_rows", "<i8", 1),
        ("searched", "|u1", 1),
    )


@dataclass(frozen=True, slots=True)
class PendingSubjects(ColumnTable):
    """Subjects by their codes, and how many of their messages were placed below `replay_offset` and have no outcome below
    the marks of `dispatch`. Negative where outcomes of later messages are below the marks. Subjects with 0 are left out."""

    subject: U32
    rows: I64

    columns: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("subject", "<u4", 1),
        ("rows", "<i8", 1),
    )

    @classmethod
    def of(cls, counts: I64) -> Self:
        """From a number for each code, i64[n]."""
        codes = np.flatnonzero(counts)
        return cls.filled(len(codes), subject=codes, rows=counts[codes])

    def by_subject(self) -> I64:
        """A number for each code up to the highest one, i64[n]."""
        counts = np.zeros(int(self.subject.max(initial=0)) + 1, np.int64)
        counts[self.subject] = self.rows
        return counts


@dataclass(frozen=True, slots=True)
class PendingRedeliveries(ColumnTable):
    """Redeliveries that were placed below `replay_offset` and have no outcome below the marks of `dispatch`, by subject,
    consumer group, and since when their messages wait: `rows` of them since the step of `step_ms` from `since_ms` on.
    Negative as in `PendingSubjects`."""

    subject: U32
    consumer_group: U32
    step_ms: I64
    since_ms: I64
    rows: I64

    columns: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("subject", "<u4", 1),
        ("consumer_group", "<u4", 1),
        ("step_ms", "<i8", 1),
        ("since_ms", "<i8", 1),
        ("rows", "<i8", 1),
    )


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Messages that a process before the last one may have delivered without a known result: due before `due_before_ms`,
    with a sequence below `sequence_before`, and without an outcome."""

    due_before_ms: int
    sequence_before: int


@dataclass(frozen=True, slots=True)
class PendingSchedules(ColumnTable):
    """The timers of schedules that were placed below `replay_offset` and not replaced there, by the names of the schedules:
    these lie end to end in UTF-8, with lengths in `name_length`."""

    due_ms: I64
    sequence: I64
    name_length: U32
    names: bytes = b""

    columns: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("due_ms", "<i8", 1),
        ("sequence", "<i8", 1),
        ("name_length", "<u4", 1),
    )

    @classmethod
    def of(cls, places: Mapping[str, tuple[int, int]]) -> Self:
        """From due time and sequence by name."""
        names = [name.encode() for name in places]
        due_ms, sequence = np.array(list(places.values()), np.int64).reshape(-1, 2).T
        table = cls.filled(
            len(names), due_ms=due_ms, sequence=sequence, name_length=np.array([len(name) for name in names], np.uint32)
        )
        return replace(table, names=b"".join(names))

    def by_name(self) -> dict[str, tuple[int, int]]:
        """The inverse of `of`. Raises ValueError where the columns do not fit together."""
        offsets = np.concatenate([[0], np.cumsum(self.name_length, dtype=np.int64)]).tolist()
        names = [self.names[begin:end].decode() for begin, end in pairwise(offsets)]
        places = dict(zip(names, zip(self.due_ms.tolist(), self.sequence.tolist(), strict=True), strict=True))
        if offsets[-1] != len(self.names) or len(places) != len(names):
            raise ValueError("names of schedules that are none")
        return places

    def _pack(self) -> dict[str, Any]:
        return ColumnTable._pack(self) | {"names": self.names}

    @classmethod
    def _unpack(cls, packed: Mapping[str, Any]) -> Self:
        table = super(PendingSchedules, cls)._unpack(packed)
        table = replace(table, names=bytes(packed["names"]))
        table.by_name()
        return table


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`replay_offset`: logical offset of message_log below which everything is in synced schedule files;
    `replayed_sequence`: the highest sequence below it. `totals`: global counters by name. `clean`: written by an
    orderly shutdown, after which nothing was written. `written_us`: by the server's clock. `orphans`: None if they
    were not counted since the files were written anew. `window_ms`: the length of the windows, 0 if it is not known. `lost`:
    files that lost rows, carried from checkpoint to checkpoint until `recover rebuild` writes one without them.
    `believable_us`: the time that removals may go by, 0 if it is not known; never later than the clock showed.
    `pending` and `redeliveries`: None if they were not counted; the next start then counts the files.
    `uncertain`: only where `clean`, and valid only if `sequences` says that the end was orderly."""

    server_id: int
    replay_offset: int = 0
    replayed_sequence: int = 0
    schedule: ScheduleFiles = field(default_factory=ScheduleFiles.empty)
    dispatch: DispatchFiles = field(default_factory=DispatchFiles.empty)
    coarse_days: CoarseDays = field(default_factory=CoarseDays.empty)
    totals: Mapping[str, int] = field(default_factory=dict)
    clean: bool = False
    written_us: int = 0
    orphans: OrphanedOutcomes | None = None
    window_ms: int = 0
    lost: LostFiles = field(default_factory=LostFiles.empty)
    believable_us: int = 0
    pending: PendingSubjects | None = None
    redeliveries: PendingRedeliveries | None = None
    uncertain: Uncertain | None = None
    schedules: PendingSchedules | None = None


# The keys of the counts by subject, of redeliveries, of `uncertain`, and of schedules.
_PENDING = "pending"
_REDELIVERIES = "redeliveries"
_UNCERTAIN = "uncertain"
_SCHEDULES = "schedules"
# A step is a power of two of milliseconds.
_STEP_MS_MAX = 1 << 40
# Codes of names are below it, and so are arrays that are made of them.
_SUBJECT_MAX = (1 << 24) - 1
# Direct, from a day, day: schedule_key.Source.
_SOURCE_MAX = 2

_TABLES: dict[str, type[ColumnTable]] = {
    "schedule": ScheduleFiles,
    "dispatch": DispatchFiles,
    "coarse_days": CoarseDays,
    "orphans": OrphanedOutcomes,
    "lost": LostFiles,
}


def encode(checkpoint: Checkpoint) -> bytes:
    """The whole file."""
    values: dict[str, Any] = {}
    for entry in fields(checkpoint):
        value = getattr(checkpoint, entry.name)
        values[entry.name] = value._pack() if isinstance(value, ColumnTable) else value
    # In `totals`, where programs of before pass over what they do not know. As a key of its own it would be damage to them.
    del values["pending"], values["redeliveries"], values["uncertain"], values["schedules"]
    values["totals"] = dict(checkpoint.totals)
    if checkpoint.pending is not None:
        values["totals"][_PENDING] = checkpoint.pending._pack()
    if checkpoint.redeliveries is not None:
        values["totals"][_REDELIVERIES] = checkpoint.redeliveries._pack()
    if checkpoint.uncertain is not None:
        values["totals"][_UNCERTAIN] = [checkpoint.uncertain.due_before_ms, checkpoint.uncertain.sequence_before]
    if checkpoint.schedules is not None:
        values["totals"][_SCHEDULES] = checkpoint.schedules._pack()
    version = FORMAT_VERSION if len(checkpoint.lost) else _VERSION_WITHOUT_LOST
    if version == _VERSION_WITHOUT_LOST:
        del values["lost"]
    body: bytes = msgpack.packb(values)
    head = _HEADER.pack(_MAGIC, version, 0, 0, checkpoint.server_id, len(body), google_crc32c.value(body), 0)[:-4]
    crc: int = google_crc32c.value(head)
    head += crc.to_bytes(4, "little")
    return head + bytes(_HEADER_BYTES - len(head)) + body


def decode(data: bytes, path: str) -> Checkpoint:
    """The checkpoint in a file's bytes. Raises CorruptionError (rebuild it), FormatError (not ours, newer)."""
    if len(data) < _HEADER_BYTES:
        raise CorruptionError(path, 0, f"only {len(data)} bytes: the header is cut off")
    magic, version, _, _, server_id, length, body_crc, head_crc = _HEADER.unpack_from(data)
    if google_crc32c.value(data[: _HEADER.size - 4]) != head_crc or any(data[_HEADER.size : _HEADER_BYTES]):
        raise CorruptionError(path, 0, "header checksum")
    if magic != _MAGIC:
        raise FormatError(path, "not a checkpoint of this program (wrong magic)")
    if version > FORMAT_VERSION:
        raise FormatError(path, f"format version {version} is newer than this program's {FORMAT_VERSION}; upgrade it")
    body = data[_HEADER_BYTES:]
    if len(body) != length or google_crc32c.value(body) != body_crc:
        raise CorruptionError(path, _HEADER_BYTES, "body checksum or length")
    try:
        return _build(msgpack.unpackb(body), server_id)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError(path, _HEADER_BYTES, f"fields: {error}") from error


def _build(values: dict[str, Any], server_id: int) -> Checkpoint:
    for name, table in _TABLES.items():
        absent = (name == "orphans" and values.get(name) is None) or (name == "lost" and name not in values)
        if not absent:
            values[name] = table._unpack(values[name])
    values["totals"] = dict(values["totals"])
    pending = values["totals"].pop(_PENDING, None)
    values["pending"] = None if pending is None else PendingSubjects._unpack(pending)
    if pending is not None and int(values["pending"].subject.max(initial=0)) > _SUBJECT_MAX:
        raise ValueError("a subject that is none")
    redeliveries = values["totals"].pop(_REDELIVERIES, None)
    values["redeliveries"] = None if redeliveries is None else _checked(PendingRedeliveries._unpack(redeliveries))
    uncertain = values["totals"].pop(_UNCERTAIN, None)
    values["uncertain"] = None if uncertain is None else Uncertain(*map(int, uncertain))
    schedules = values["totals"].pop(_SCHEDULES, None)
    values["schedules"] = None if schedules is None else PendingSchedules._unpack(schedules)
    if any(type(count) is not int for count in values["totals"].values()):
        raise ValueError("a counter that is no number")
    if values["server_id"] != server_id:
        raise ValueError("two server ids")
    checkpoint = Checkpoint(**values)
    _check_windows(checkpoint.schedule.start_ms, checkpoint.window_ms)
    _check_windows(checkpoint.dispatch.start_ms, checkpoint.window_ms)
    _check_windows(checkpoint.lost.start_ms, checkpoint.window_ms)
    kinds_max = np.where(checkpoint.lost.log == 0, _SOURCE_MAX, 1)
    kinds = (checkpoint.schedule.source > _SOURCE_MAX, checkpoint.dispatch.coarse > 1, checkpoint.lost.kind > kinds_max)
    if any(wrong.any() for wrong in kinds) or (checkpoint.lost.log > 1).any():
        raise ValueError("a kind of window that is none")
    return checkpoint


def _checked(table: PendingRedeliveries) -> PendingRedeliveries:
    steps, codes = table.step_ms, np.maximum(table.subject, table.consumer_group)
    if (steps < 1).any() or (steps > _STEP_MS_MAX).any() or (steps & steps - 1).any() or (codes > _SUBJECT_MAX).any():
        raise ValueError("redeliveries of no group or step")
    return table


def _check_windows(start_ms: I64, window_ms: int) -> None:
    if ((start_ms < 0) | (start_ms > TIME_MS_MAX) | (start_ms % (window_ms or 1) != 0)).any():
        raise ValueError("the start of a window that is none")


def write(fs: FileSystem, path: str, checkpoint: Checkpoint) -> None:
    """Replace the file at `path` atomically; durable on return. Everything it points to must be synced before.

    Raises DiskFullError (the old one stands), SyncFailedError.
    """
    write_atomically(fs, path, encode(checkpoint))


def read(fs: FileSystem, path: str) -> Checkpoint | None:
    """The checkpoint, or None if there is no file. Raises CorruptionError (rebuild it), FormatError (newer)."""
    try:
        data = read_whole(fs, path)
    except FileNotFoundError:
        return None
    return decode(data, path)
