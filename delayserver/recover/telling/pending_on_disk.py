"""Accepted messages without an outcome: counts by minute, and the messages themselves. Beside them the redeliveries that
wait for their consumer groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.receipts import derived_message_id, format_receipt
from delayserver.recover.checking.survey import survey
from delayserver.recover.checking.whole_rows import RowsAt, readable_rows
from delayserver.recover.checking.window_check import ScheduleRows, Visited
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.file_read import Progress, no_progress
from delayserver.recover.reading.findings import Finding, Findings
from delayserver.recover.telling.dump import put_blob
from store.records.batches import FLAG_PREPARED, I64, MessageBatch
from store.records.column_batch import ragged_offsets
from store.tables.names import SUBJECT

MINUTE_MS: Final = 60_000


class PendingOnDisk:
    """Counts per minute of due time (`minutes`: start_ms to messages) and per subject code. `redeliveries` counts those that
    wait in the pipeline, by the codes of subject and consumer group: their messages count as delivered, and a group has
    still to get them."""

    def __init__(self, taken: Capture, span: Range, subject: str | None) -> None:
        self._taken = taken
        self._span = span
        self._subject = (
            -1 if subject is None else (taken.tables.names.code(SUBJECT, subject) if taken.tables.names else 0)
        )
        self.minutes: dict[int, int] = {}
        self.subjects: dict[int, int] = {}
        self.messages = 0
        self.redeliveries: dict[tuple[int, int], int] = {}
        self.unread: list[Finding] = []

    def run(
        self,
        each: Callable[[MessageBatch], None] | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """Count; `each` is given the messages and redeliveries themselves, file by file, in the order in which they stand
        there."""

        def visit(visited: Visited) -> None:
            mine = self._mine(visited)
            own = np.flatnonzero(mine & (visited.rows.origin_sequence == 0))
            again = np.flatnonzero(mine & (visited.rows.origin_sequence != 0))
            if len(own):
                self._count(visited.rows, own)
            if len(own) and each is not None:
                for batch in readable_rows(self._taken, RowsAt.of(visited, own), hidden):
                    each(batch)
            if len(again):
                for batch in readable_rows(self._taken, RowsAt.of(visited, again), hidden):
                    self._redelivery(batch.take(np.flatnonzero(batch.target_group)), each)

        hidden = Findings()
        self.unread = survey(self._taken, self._span, visit, progress).unread()
        self.unread += hidden

    def _mine(self, visited: Visited) -> NDArray[np.bool_]:
        rows = visited.rows
        mask: NDArray[np.bool_] = (visited.outcome == 0) & self._span.mask(rows.due_ms)
        if self._subject >= 0:
            mask &= rows.subject == self._subject
        return mask

    def _count(self, all_rows: ScheduleRows, rows: NDArray[np.intp]) -> None:
        due_ms = all_rows.due_ms[rows]
        self.messages += len(rows)
        _add(self.minutes, due_ms - due_ms % MINUTE_MS)
        _add(self.subjects, all_rows.subject[rows].astype(np.int64))

    def _redelivery(self, batch: MessageBatch, each: Callable[[MessageBatch], None] | None) -> None:
        """Internal records for one consumer group each; timers of transactions are for none."""
        if not len(batch):
            return
        for key in zip(batch.subject.tolist(), batch.target_group.tolist(), strict=True):
            self.redeliveries[key] = self.redeliveries.get(key, 0) + 1
        if each is not None:
            each(batch)


def _add(counts: dict[int, int], values: I64) -> None:
    for value, count in zip(*[part.tolist() for part in np.unique(values, return_counts=True)], strict=True):
        counts[value] = counts.get(value, 0) + count


def message_maps(taken: Capture, batch: MessageBatch, *, bodies: bool = False) -> Iterator[dict[str, Any]]:
    """One map a message, for people and machines."""
    server = f"{taken.server_id:012x}"
    ids = ragged_offsets(batch.ids_length).tolist()
    places = ragged_offsets(batch.bodies_length).tolist()
    keys, tags = ragged_offsets(batch.order_keys_length).tolist(), batch.tag.tolist()
    groups = batch.target_group.tolist()
    prepared = (batch.flags & FLAG_PREPARED != 0).tolist()
    columns = (batch.sequence, batch.due_ms, batch.accepted_us, batch.expires_ms, batch.subject)
    for row, (sequence, due_ms, accepted_us, expires_ms, subject) in enumerate(
        zip(*[column.tolist() for column in columns], strict=True)
    ):
        message_id = bytes(batch.ids[ids[row] : ids[row + 1]]).decode("utf-8", "replace")
        record: dict[str, Any] = {
            "receipt": format_receipt(server, due_ms, sequence),
            "message_id": message_id or derived_message_id(server, sequence),
            "subject": taken.tables.subject_name(subject),
            "due_ms": due_ms,
            "accepted_us": accepted_us,
            "sequence": sequence,
            "body_bytes": places[row + 1] - places[row],
        }
        if groups[row]:
            record["redelivery_for"] = taken.tables.subject_name(groups[row])
        if expires_ms:
            record["expires_ms"] = expires_ms
        if prepared[row]:
            record["prepared"] = True
        if tags[row]:
            record["tag"] = taken.tables.subject_name(tags[row])
        if keys[row] < keys[row + 1]:
            put_blob(record, "order_keys", bytes(batch.order_keys[keys[row] : keys[row + 1]]))
        if bodies:
            put_blob(record, "bodies", bytes(batch.bodies[places[row] : places[row + 1]]))
        yield record
