"""Turns index rows into the batch that a broker node gets: reads the bytes from schedule_log and groups by subject.

Also turns the node's answer into outcome rows. No waiting and no policy here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.errors import CorruptionError, DiskError, UnreadableError
from store.indexes.schedule_index import batch_sums
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import OutcomeBatch, StoredBatch
from store.records.column_batch import constant_column
from store.records.id_hash import hash_ids
from wheel.due_rows import DueRows

_BLOBS = StoredBatch.schema.blobs


@dataclass(frozen=True, slots=True)
class Shipment:
    """Rows that one hand-over carries, all certain or all uncertain: of one schedule file, or, `mixed`, of many. `window_ms`
    and `source` are those of the first row."""

    rows: DueRows
    window_ms: int
    source: ScheduleSource
    uncertain: bool
    mixed: bool = False


def shipments(rows: DueRows) -> list[Shipment]:
    """Split rows into hand-overs; nearly always that is one. Within one file, subjects lie together.

    Rows of many files go together, those of a file side by side: after a downtime a batch has a row or two of each minute.
    So do uncertain rows, since a crash during the backlog makes all the rest of it uncertain.
    """
    payload = rows.payload
    code = payload["window_ms"] * 8 + payload["source"] * 2 + payload["uncertain"]
    first = int(code[0])
    if bool((code == first).all()):
        return [_shipment(_by_subject(rows))]
    uncertain = payload["uncertain"] != 0
    parts = []
    for mine in (np.flatnonzero(~uncertain), np.flatnonzero(uncertain)):
        if len(mine):
            order = mine[np.argsort(code[mine], kind="stable")]
            mixed = bool(code[order[0]] != code[order[-1]])
            part = rows.take(order)
            parts.append(_shipment(part if mixed else _by_subject(part), mixed=mixed))
    return parts


def keyed_shipments(rows: DueRows) -> list[Shipment]:
    """Split rows with order keys, which are in order, into hand-overs that are made one after the other. Each has the next
    rows in their order; within one file, subjects lie together, since a key is one of a subject."""
    payload = rows.payload
    uncertain = payload["uncertain"] != 0
    file = payload["window_ms"] * 4 + payload["source"]
    cuts = [0, *(np.flatnonzero(uncertain[1:] != uncertain[:-1]) + 1).tolist(), len(rows)]
    parts = []
    for start, stop in pairwise(cuts):
        mixed = bool((file[start:stop] != file[start]).any())
        part = rows.slice(start, stop)
        parts.append(_shipment(part if mixed else _by_subject(part), mixed=mixed))
    return parts


def by_file(shipment: Shipment) -> list[Shipment]:
    """The same rows as one shipment for each file."""
    return [
        _shipment(_by_subject(shipment.rows.slice(start, stop))) for start, stop in _file_cuts(shipment.rows.payload)
    ]


def _file_cuts(payload: NDArray[Any]) -> list[tuple[int, int]]:
    """Where the rows of each file begin and end; those of one stand side by side."""
    code = payload["window_ms"] * 4 + payload["source"]
    cuts = [0, *(np.flatnonzero(code[1:] != code[:-1]) + 1).tolist(), len(code)]
    return list(pairwise(cuts))


def _shipment(rows: DueRows, *, mixed: bool = False) -> Shipment:
    head = rows.payload[0]
    return Shipment(rows, int(head["window_ms"]), ScheduleSource(int(head["source"])), bool(head["uncertain"]), mixed)


def _by_subject(rows: DueRows) -> DueRows:
    subject, group = rows.payload["subject"], rows.payload["target_group"]
    if bool((subject == subject[0]).all()) and bool((group == group[0]).all()):
        return rows
    return rows.take(np.lexsort((group, subject)))


class ChangedRowsError(CorruptionError):
    """Bytes of messages are not what they were when they were verified or written: `sound` bool[n] are the others.

    `unreadable` is the reason where the disk cannot read them; then nothing says that they changed.
    """

    def __init__(
        self,
        path: str,
        offset: int,
        sequences: list[int],
        sound: NDArray[np.bool_],
        unreadable: UnreadableError | None,
    ) -> None:
        some = ", ".join(map(str, sequences[:4])) + (", …" if len(sequences) > 4 else "")
        super().__init__(path, offset, f"the bytes of sequence {some} have changed since they were loaded")
        self.sound = sound
        self.unreadable = unreadable


def read_batch(schedule: ScheduleLog, shipment: Shipment, server_id: int) -> StoredBatch:
    """Read the messages' bytes. Raises CorruptionError (ChangedRowsError where some can be served), DiskError, KeyError (the
    file is gone)."""
    batch, sound = _read(schedule, shipment, server_id)
    if not sound.all():  # once more: a disk that failed at one moment may read them now
        batch, sound = _read(schedule, shipment, server_id)
    if sound.all():
        return batch
    payload, changed = shipment.rows.payload, np.flatnonzero(~sound)
    key = ScheduleKey(shipment.window_ms, shipment.source)
    raise ChangedRowsError(
        schedule.path(key),
        int(payload["bodies_offset"][changed[0]]),
        shipment.rows.sequence[changed].tolist(),
        sound,
        _unreadable(schedule, key, payload[changed]),
    )


def _read(schedule: ScheduleLog, shipment: Shipment, server_id: int) -> tuple[StoredBatch, NDArray[np.bool_]]:
    """The messages, and which of them are as they were written, bool[n]."""
    payload = shipment.rows.payload
    key = ScheduleKey(shipment.window_ms, shipment.source)
    blobs = _gather_mixed(schedule, payload) if shipment.mixed else _gather(schedule, key, payload)
    order_keys = blobs["order_keys"]
    order_hash = hash_ids(order_keys, np.ascontiguousarray(payload["order_keys_length"])) if order_keys else 0
    batch = StoredBatch.filled(
        len(shipment.rows),
        sequence=shipment.rows.sequence,
        due_ms=compact_column(shipment.rows.due_ms),
        server_id=server_id,
        window_ms=compact_column(payload["window_ms"]),
        **{
            name: compact_column(payload[name])
            for name in (
                "accepted_us",
                "expires_ms",
                "origin_sequence",
                "subject",
                "target_group",
                "redelivery",
                "ids_length",
                "properties_length",
                "bodies_length",
                "tag",
                "order_keys_length",
            )
        },
        **blobs,
        order_hash=order_hash,
    )
    sound: NDArray[np.bool_] = batch_sums(batch) == payload["row_sum"]
    return batch, sound


def _unreadable(schedule: ScheduleLog, key: ScheduleKey, payload: NDArray[Any]) -> UnreadableError | None:
    """The error of the disk if it cannot read these rows; None if it gives other bytes than were written."""
    try:
        for name in _BLOBS:
            offsets, lengths = payload[f"{name}_offset"], payload[f"{name}_length"]
            schedule.require_readable(key, np.ascontiguousarray(offsets), np.ascontiguousarray(lengths))
    except UnreadableError as error:
        return error
    except (CorruptionError, DiskError, KeyError):
        pass  # it is cut off, or retired meanwhile
    return None


def _gather(schedule: ScheduleLog, key: ScheduleKey, payload: NDArray[Any]) -> dict[str, memoryview]:
    """The ids, properties, bodies and order keys of rows of one file."""
    blobs = {}
    for name in _BLOBS:
        lengths = payload[f"{name}_length"]
        blobs[name] = (
            schedule.gather(key, np.ascontiguousarray(payload[f"{name}_offset"]), np.ascontiguousarray(lengths))
            if lengths.any()
            else memoryview(b"")
        )
    return blobs


def _gather_mixed(schedule: ScheduleLog, payload: NDArray[Any]) -> dict[str, memoryview]:
    """The same for rows of many files."""
    parts: dict[str, list[memoryview]] = {name: [] for name in _BLOBS}
    for start, stop in _file_cuts(payload):
        head = payload[start]
        key = ScheduleKey(int(head["window_ms"]), ScheduleSource(int(head["source"])))
        for name, blob in _gather(schedule, key, payload[start:stop]).items():
            parts[name].append(blob)
    return {name: memoryview(b"".join(blobs)) for name, blobs in parts.items()}


def compact_column(column: NDArray[Any]) -> NDArray[Any]:
    """The same values: as a view of stride 0 where all are equal (there must be one), otherwise contiguous.

    The check runs here, while the batch waits until it is due. So the store, the pull and its reply need no check of
    their own, and no consumer waits for one.
    """
    first, last = column[0], column[-1]
    if first == last and bool((column == first).all()):
        return constant_column(first, len(column), column.dtype)
    return np.ascontiguousarray(column)


def outcomes(
    rows: DueRows,
    outcome: int,
    broker_group: int,
    *,
    queued_us: int,
    dispatched_us: int,
    settled_us: int,
) -> OutcomeBatch:
    """Outcome rows for rows that were handed over (or expired, or dead-lettered) together."""
    payload = rows.payload
    return OutcomeBatch.filled(
        len(rows),
        sequence=rows.sequence,
        due_ms=compact_column(rows.due_ms),
        accepted_us=compact_column(payload["accepted_us"]),
        loaded_us=compact_column(payload["loaded_us"]),
        released_us=compact_column(payload["released_us"]),
        queued_us=queued_us,
        dispatched_us=dispatched_us,
        settled_us=settled_us,
        origin_sequence=compact_column(payload["origin_sequence"]),
        subject=compact_column(payload["subject"]),
        broker_group=broker_group,
        attempts=compact_column(payload["attempts"]),
        redelivery=compact_column(payload["redelivery"]),
        outcome=outcome,
    )
