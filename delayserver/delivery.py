"""Turns index rows into the batch that a broker node gets: reads the bytes from schedule_log and groups by subject.

Also turns the node's answer into outcome rows. No waiting and no policy here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.batches import OutcomeBatch, StoredBatch
from store.columns import constant_column
from store.errors import CorruptionError
from store.schedule_index import batch_sums
from store.schedule_log import ScheduleKey, ScheduleLog, Source
from wheel.due_rows import DueRows


@dataclass(frozen=True, slots=True)
class Shipment:
    """Rows of one schedule file, all certain or all uncertain: what one `deliver` carries."""

    rows: DueRows
    window_ms: int
    source: Source
    uncertain: bool


def shipments(rows: DueRows) -> list[Shipment]:
    """Split rows by file and certainty; nearly always that is one shipment. Within one, subjects lie together."""
    payload = rows.payload
    code = payload["window_ms"] * 8 + payload["source"] * 2 + payload["uncertain"]
    first = int(code[0])
    if bool((code == first).all()):
        return [_shipment(_by_subject(rows))]
    return [
        _shipment(_by_subject(take_rows(rows, np.flatnonzero(code == value)))) for value in np.unique(code).tolist()
    ]


def _shipment(rows: DueRows) -> Shipment:
    head = rows.payload[0]
    return Shipment(rows, int(head["window_ms"]), Source(int(head["source"])), bool(head["uncertain"]))


def _by_subject(rows: DueRows) -> DueRows:
    subject, group = rows.payload["subject"], rows.payload["target_group"]
    if bool((subject == subject[0]).all()) and bool((group == group[0]).all()):
        return rows
    return take_rows(rows, np.lexsort((group, subject)))


def take_rows(rows: DueRows, indices: NDArray[np.intp]) -> DueRows:
    """The rows at `indices`."""
    return DueRows(rows.due_ms[indices], rows.sequence[indices], rows.payload[indices])


class ChangedRowsError(CorruptionError):
    """Bytes of messages are not what they were when they were verified or written: `sound` bool[n] are the others."""

    def __init__(self, path: str, offset: int, sequences: list[int], sound: NDArray[np.bool_]) -> None:
        some = ", ".join(map(str, sequences[:4])) + (", …" if len(sequences) > 4 else "")
        super().__init__(path, offset, f"the bytes of sequence {some} have changed since they were loaded")
        self.sound = sound


def read_batch(schedule: ScheduleLog, shipment: Shipment, server_id: int) -> StoredBatch:
    """Read the messages' bytes. Raises CorruptionError (ChangedRowsError where some can be served), KeyError (the file is
    gone)."""
    payload = shipment.rows.payload
    key = ScheduleKey(shipment.window_ms, shipment.source)
    blobs = {}
    for name in ("ids", "properties", "bodies"):
        lengths = payload[f"{name}_length"]
        blobs[name] = (
            schedule.gather(key, np.ascontiguousarray(payload[f"{name}_offset"]), np.ascontiguousarray(lengths))
            if lengths.any()
            else memoryview(b"")
        )
    batch = StoredBatch.filled(
        len(shipment.rows),
        sequence=shipment.rows.sequence,
        due_ms=compact_column(shipment.rows.due_ms),
        server_id=server_id,
        window_ms=shipment.window_ms,
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
            )
        },
        **blobs,
    )
    sound = batch_sums(batch) == payload["row_sum"]
    if not sound.all():
        changed = np.flatnonzero(~sound)
        offset = int(payload["bodies_offset"][changed[0]])
        raise ChangedRowsError(schedule.path(key), offset, shipment.rows.sequence[changed].tolist(), sound)
    return batch


def compact_column(column: NDArray[Any]) -> NDArray[Any]:
    """The same values: as a view of stride 0 where all are equal (there must be one), otherwise contiguous.

    Looked for here, while the batch waits to be due, what is constant need not be looked for again by the broker's
    store, by the pull and by its reply, for each of which a consumer waits.
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
