"""Reads the brokers' own files: how far back they are kept, and the stored messages that no consumer acked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.audit.capture import PROGRESS_LOG, Captured, Part
from ops.audit.directories import ServerDirectory
from ops.audit.engines import Engine
from ops.audit.grouping import Table, concatenated
from ops.audit.log_frames import PACK_BYTES
from ops.audit.log_rows import pack
from ops.audit.part_reader import PartReader
from store.disk.filesystem import FileSystem, RealFileSystem
from store.errors import FormatError
from store.records.batches import I64, ProgressBatch
from store.records.column_batch import ColumnBatch
from store.records.file_header import FILE_HEADER_BYTES, decode_file_header
from store.records.segment import FILE_PROGRESS
from store.tables.names import Names

# A queue, and what is counted of it.
_QUEUE, _SUMS, _LAST, _FIRST = ("node", "subject", "target_group"), ("count",), ("last",), ("first",)
_COLUMNS = ("subject", "target_group", "position")
_ACKED, _MOVED, _REMOVED = 0, 5, 6
# Hand-offs of several workers may reach the store out of order by this much.
_SLACK_US = 60_000_000
Key = tuple[int, int, bool]
"""Subject code, consumer group code, and True for the group's retry queue."""


@dataclass(frozen=True, slots=True)
class BrokerSide:
    """The brokers' stores. `stored_from_us`: every node still keeps all messages handed over since then. `queues`: a
    row for each queue and consumer group, with counts of kept and unacked messages."""

    stored_from_us: int
    stored: int
    queues: tuple[dict[str, Any], ...]

    def to_map(self) -> dict[str, Any]:
        """The fields of the JSON report."""
        return {
            "checked_from_us": self.stored_from_us,
            "stored": self.stored,
            "unacked": sum([queue["unacked"] for queue in self.queues]),
            "queues": list(self.queues),
        }


def read_broker_side(
    engine: Engine,
    fs: FileSystem,
    directories: Sequence[ServerDirectory],
    captured: Captured,
    names: Mapping[int, Names],
) -> BrokerSide:
    """Reads progress logs here, and counts stored messages by queue where the engine runs."""
    tasks = [partition.parts for partition in pack(captured.parts, PACK_BYTES)]
    stored = engine.folded(tasks, _count_stored, _together)
    acked = {directory.server_id: read_acked(fs, directory) for directory in directories}
    queues = []
    for row in [] if stored is None else _rows_of(stored):
        table, mine = names[row["node"]], acked[row["node"]]
        for group in _groups(mine, row["subject"], row["target_group"]):
            ranges = mine.get((row["subject"], group, bool(row["target_group"])), np.zeros((0, 2), np.int64))
            done = covered(ranges, row["first"], row["last"] + 1)
            queues.append(
                {
                    "node_id": f"{row['node']:012x}",
                    "subject": table.name(row["subject"]),
                    "group": table.name(group) if group else None,
                    "retries": bool(row["target_group"]),
                    "stored": row["count"],
                    "unacked": max(row["count"] - done, 0),
                }
            )
    count = 0 if stored is None else int(stored.sums["count"].sum())
    return BrokerSide(_kept_from_us(fs, captured), count, tuple(queues))


def _count_stored(parts: tuple[Part, ...]) -> Table:
    """Stored messages of some files by node, subject and target group, with their first and last position."""
    tables = [Table(*[dict.fromkeys(names, np.zeros(0, np.int64)) for names in (_QUEUE, _SUMS, _LAST, _FIRST)])]
    for part in parts:
        try:
            for chunk in PartReader(RealFileSystem(), part, lambda _: _COLUMNS, (), []):
                columns = {name: column.astype(np.int64) for name, column in chunk.columns.items()}
                keys = {"node": np.full(len(chunk), part.server_id, np.int64)}
                keys |= {name: columns[name] for name in ("subject", "target_group")}
                ones, position = np.ones(len(chunk), np.int64), columns["position"]
                tables.append(Table(keys, {"count": ones}, {"last": position}, {"first": position}).grouped())
        except FileNotFoundError:
            continue  # the caller of `capture` checks for vanished files afterwards
    return concatenated(tables).grouped()


def _together(left: Table, right: Table) -> Table:
    return concatenated([left, right]).grouped()


def _rows_of(table: Table) -> list[dict[str, int]]:
    columns = {name: column.tolist() for name, column in table.columns().items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _groups(acked: Mapping[Key, I64], subject: int, target_group: int) -> list[int]:
    """The consumer groups of a queue; [0] if no group ever pulled from it."""
    if target_group:
        return [target_group]
    return sorted({group for owner, group, _ in acked if owner == subject}) or [0]


def read_acked(fs: FileSystem, directory: ServerDirectory) -> dict[Key, I64]:
    """Acked ranges i64[n, 2] (start, stop) of every queue of a node. A group that only pulled has empty ones."""
    path = f"{directory.path}/broker/progress.log"
    if not fs.exists(path):
        return {}
    file = fs.open(path, write=False)
    try:
        header, size = decode_file_header(file.pread(0, FILE_HEADER_BYTES), path), file.size()
    finally:
        file.close()
    if header.kind != FILE_PROGRESS:
        raise FormatError(path, f"file kind {header.kind} where {FILE_PROGRESS} is expected")
    part = Part(directory.path, path, header.server_id, FILE_HEADER_BYTES, size, FILE_HEADER_BYTES, 0, 0, PROGRESS_LOG)
    gathered: dict[Key, list[NDArray[np.int64]]] = {}
    for chunk in PartReader(fs, part, _progress_columns, (), []):
        columns = chunk.columns
        keys = np.stack([columns["subject"], columns["consumer_group"], columns["retry"].astype(np.uint32)], axis=1)
        ranges = np.stack([columns["start"], columns["stop"]], axis=1)
        change = columns["change"]
        ranges[~np.isin(change, (_ACKED, _MOVED))] = 0  # handed out, not acked: the group exists, with an empty range
        removals = np.flatnonzero(change == _REMOVED)
        for subject, group in np.unique(keys[removals, :2], axis=0).tolist():
            for retry in (False, True):
                gathered.pop((subject, group, retry), None)
        for key in np.unique(keys, axis=0):
            mine = (keys == key).all(axis=1)
            subject, group, retry = key.tolist()
            removed = removals[(keys[removals, :2] == key[:2]).all(axis=1)]
            if len(removed):
                mine[: removed[-1] + 1] = False
            moved = np.flatnonzero(mine & (change == _MOVED))
            if len(moved):  # a seek makes the rows before it void
                mine[: moved[-1]] = False
                gathered.pop((subject, group, bool(retry)), None)
            if mine.any():
                gathered.setdefault((subject, group, bool(retry)), []).append(ranges[mine])
    return {key: np.concatenate(parts) for key, parts in gathered.items()}


def _progress_columns(batch_type: type[ColumnBatch]) -> list[str]:
    assert batch_type is ProgressBatch, "a progress log holds progress"
    return ["subject", "consumer_group", "retry", "start", "stop", "change"]


def covered(ranges: I64, start: int, stop: int) -> int:
    """The number of positions of [start, stop) within any of the ranges i64[n, 2], which may overlap."""
    ranges = np.clip(ranges, start, stop)
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    if not len(ranges):
        return 0
    reached = np.maximum.accumulate(ranges[:, 1])
    begins = np.maximum(ranges[:, 0], np.concatenate([[start], reached[:-1]]))
    return int(np.maximum(ranges[:, 1] - begins, 0).sum())


def _kept_from_us(fs: FileSystem, captured: Captured) -> int:
    """The latest hand-off time in the first kept record of all nodes that removed segments; 0 if none did."""
    first: dict[int, Part] = {}
    for part in captured.parts:
        known = first.get(part.server_id)
        if known is None or (part.base, part.start) < (known.base, known.start):
            first[part.server_id] = part
    latest = 0
    for part in first.values():
        if part.base == 0:
            continue
        for chunk in PartReader(fs, part, lambda _: ["dispatched_us"], (), []):
            latest = max(latest, int(chunk.columns["dispatched_us"][0]) + _SLACK_US)
            break
    return latest
