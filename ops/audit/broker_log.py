"""Reads the brokers' own files: how far back they are kept, and the stored messages that no consumer acked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from ops.audit.capture import Captured, Part
from ops.audit.directories import ServerDirectory
from ops.audit.log_frames import Range, read_log
from ops.audit.part_reader import PartReader
from store.disk.filesystem import FileSystem
from store.errors import FormatError
from store.records.batches import I64, ProgressBatch
from store.records.columns import ColumnBatch
from store.records.file_header import FILE_HEADER_BYTES, decode_file_header
from store.records.segment import FILE_PROGRESS
from store.tables.names import Names

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
    spark: SparkSession,
    fs: FileSystem,
    directories: Sequence[ServerDirectory],
    captured: Captured,
    names: Mapping[int, Names],
) -> BrokerSide:
    """Reads progress logs on the driver and counts stored messages by queue with Spark."""
    columns = ("node", "node_id", "subject_code", "target_group_code", "position")
    stored = (
        read_log(spark, captured, columns, Range())
        .groupBy("node", "node_id", "subject_code", "target_group_code")
        .agg(F.count(F.lit(1)).alias("count"), F.min("position").alias("first"), F.max("position").alias("last"))
        .collect()
    )
    acked = {directory.server_id: read_acked(fs, directory) for directory in directories}
    queues = []
    for row in sorted(stored, key=lambda row: (row["node_id"], row["subject_code"], row["target_group_code"])):
        table, mine = names[row["node"]], acked[row["node"]]
        for group in _groups(mine, row["subject_code"], row["target_group_code"]):
            ranges = mine.get((row["subject_code"], group, bool(row["target_group_code"])), np.zeros((0, 2), np.int64))
            done = covered(ranges, row["first"], row["last"] + 1)
            queues.append(
                {
                    "node_id": row["node_id"],
                    "subject": table.name(row["subject_code"]),
                    "group": table.name(group) if group else None,
                    "retries": bool(row["target_group_code"]),
                    "stored": row["count"],
                    "unacked": max(row["count"] - done, 0),
                }
            )
    count = sum([row["count"] for row in stored])
    return BrokerSide(_kept_from_us(fs, captured), count, tuple(queues))


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
    part = Part(directory.path, path, header.server_id, FILE_HEADER_BYTES, size, FILE_HEADER_BYTES, 0, 0)
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
