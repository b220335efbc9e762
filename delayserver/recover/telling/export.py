"""Accepted messages and their outcomes as Parquet, for other tools. Needs pyarrow.

accepted.parquet    a row a message: its columns, its bytes, its outcome
dispatched.parquet  a row an outcome: the stages, the broker group, the attempts

In both, `internal` tells rows that the server made from messages of clients: a redelivery, a redispatch, a check-back or
the timer of a transaction. A duplicate is a message of a client.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np

from delayserver.protocol.receipts import derived_message_ids, format_receipts
from delayserver.recover.checking.survey import survey
from delayserver.recover.checking.whole_rows import RowsAt, readable_rows
from delayserver.recover.checking.window_check import Visited
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.code_words import outcome_name
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.file_read import Expected, Progress, Reader, no_progress
from delayserver.recover.reading.findings import MISSING, Finding, Findings
from store.disk.filesystem import RealFileSystem
from store.logs.due_windows import DAY_MS, day_of
from store.records.batches import I64, KIND_OUTCOMES, MessageBatch, OutcomeBatch
from store.records.column_batch import ragged_offsets
from store.records.file_header import FILE_DISPATCH
from store.records.outcome_balance import is_internal
from store.records.shared_column import UNANSWERED_ELSEWHERE, plain_columns

ACCEPTED_FILE: Final = "accepted.parquet"
DISPATCHED_FILE: Final = "dispatched.parquet"
# Rows and bytes of a row group. Readers of Parquet hold a whole row group in memory.
GROUP_ROWS, GROUP_BYTES = 1 << 17, 64 << 20
_NUMBERS = (
    "sequence", "due_ms", "accepted_us", "expires_ms", "origin_sequence", "duplicate_of", "replaces_sequence", "redelivery",
    "flags",
)  # fmt: skip
_OUTCOME_NUMBERS = (
    *[name for name, _ in OutcomeBatch.schema.fields if name not in ("subject", "broker_group", "outcome")],
    UNANSWERED_ELSEWHERE,
)


class _RowGroups:
    """Gathers batches, so that a row group is large whatever the records of the logs are."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._batches: list[Any] = []
        self._rows = self._bytes = 0

    def add(self, batch: Any) -> None:
        """One more batch of the file's schema."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is gathered as one row group."""
        import pyarrow as arrow

        if self._batches:
            self._file.write_table(arrow.Table.from_batches(self._batches))
            self._batches, self._rows, self._bytes = [], 0, 0


class Export:
    """Writes both files into a folder. `rows` counts what was written, by file; `unread` is what they lack."""

    def __init__(self, taken: Capture, span: Range, folder: str) -> None:
        self._taken = taken
        self._span = span
        self._folder = folder
        self._server = f"{taken.server_id:012x}"
        self.rows = {ACCEPTED_FILE: 0, DISPATCHED_FILE: 0}
        self.unread: list[Finding] = []

    def run(self, progress: Progress = no_progress) -> None:
        """Raises ImportError where pyarrow is missing, OSError where the folder cannot be written. Files of an earlier
        export are replaced when both are whole."""
        from pyarrow import parquet

        fs = RealFileSystem()
        files = (
            (ACCEPTED_FILE, _accepted_schema(), self._accepted),
            (DISPATCHED_FILE, _dispatched_schema(), self._dispatched),
        )
        unfinished = {name: f"{name}.tmp" for name, _, _ in files}
        try:
            for name, schema, fill in files:
                # Left by an exception too, the writer ends the file with a footer: half of it looks whole.
                with parquet.ParquetWriter(f"{self._folder}/{unfinished[name]}", schema) as file:
                    rows = _RowGroups(file)
                    fill(rows, progress)
                    rows.flush()
            for name, temporary in unfinished.items():
                fs.replace(f"{self._folder}/{temporary}", f"{self._folder}/{name}")
        finally:
            for temporary in set(unfinished.values()).intersection(fs.listdir(self._folder)):
                fs.remove(f"{self._folder}/{temporary}")

    # -- messages

    def _accepted(self, writer: _RowGroups, progress: Progress) -> None:
        def visit(visited: Visited) -> None:
            inside = np.flatnonzero(self._span.mask(visited.rows.due_ms))
            if not len(inside):
                return
            at = RowsAt.of(visited, inside)
            # Not in order where a batch was written twice, which `check` names.
            _, places = np.unique(visited.rows.sequence[inside], return_index=True)
            outcome = visited.outcome[inside][places]
            for batch in readable_rows(self._taken, at, hidden):
                code = outcome[np.searchsorted(at.sequences, batch.sequence)]
                writer.add(self._message_batch(batch, code))
                self.rows[ACCEPTED_FILE] += len(batch)

        hidden = Findings()
        self.unread = survey(self._taken, self._span, visit, progress).unread()
        self.unread += hidden

    def _message_batch(self, batch: MessageBatch, code: np.ndarray[Any, Any]) -> Any:
        import pyarrow as arrow

        columns: dict[str, Any] = {name: _numbers(getattr(batch, name)) for name in _NUMBERS}
        columns["internal"] = (batch.redelivery > 0) | (batch.origin_sequence != 0)
        columns["receipt"] = format_receipts(self._server, batch.due_ms, batch.sequence)
        columns["message_id"] = self._ids(batch)
        columns["subject"] = self._names(batch.subject)
        columns["target_group"] = self._names(batch.target_group)
        columns["tag"] = self._names(batch.tag)
        columns["order_key"] = [
            key.decode("utf-8", "replace") for key in _pieces(batch.order_keys, batch.order_keys_length)
        ]
        columns["outcome"] = [outcome_name(value) if value else "pending" for value in code.tolist()]
        columns["properties"] = _pieces(batch.properties, batch.properties_length)
        columns["body"] = _pieces(batch.bodies, batch.bodies_length)
        return arrow.record_batch(columns, schema=_accepted_schema())

    def _ids(self, batch: MessageBatch) -> list[str]:
        derived = derived_message_ids(self._server, batch.sequence)
        given = _pieces(batch.ids, batch.ids_length)
        return [data.decode("utf-8", "replace") or derived[row] for row, data in enumerate(given)]

    def _names(self, codes: np.ndarray[Any, Any]) -> list[str]:
        values, places = np.unique(codes, return_inverse=True)
        names = [self._taken.tables.subject_name(value) if value else "" for value in values.tolist()]
        return [names[place] for place in places.tolist()]

    # -- outcomes

    def _dispatched(self, writer: _RowGroups, progress: Progress) -> None:
        names = tuple(name for name, _ in OutcomeBatch.schema.fields)
        # When a day is drained its outcomes move to the minutes: for a while they are in both.
        moved: dict[int, list[I64]] = {}
        days = {key.start_ms for key in self._taken.files.dispatch if key.coarse}
        for key, size in sorted(
            self._taken.files.dispatch.items(), key=lambda item: (item[0].coarse, item[0].start_ms)
        ):
            day = day_of(key.start_ms)
            if not self._span.holds(key.start_ms, DAY_MS if key.coarse else self._taken.files.window_ms):
                continue
            path = self._taken.dispatch_path(key)
            read = Reader(self._taken, progress=progress).file(path, size, Expected(FILE_DISPATCH, synced=size))
            for records in read.records():
                mine = records.of_kind(KIND_OUTCOMES)
                if not len(mine):
                    continue
                columns = mine.columns(OutcomeBatch, names)
                wanted = self._span.mask(columns["due_ms"])
                if key.coarse and day in moved:
                    wanted &= ~np.isin(columns["sequence"], np.concatenate(moved[day]))
                elif day in days:
                    moved.setdefault(day, []).append(columns["sequence"])
                rows = np.flatnonzero(wanted)
                writer.add(self._outcome_batch({name: columns[name][rows] for name in names}))
                self.rows[DISPATCHED_FILE] += len(rows)
            if read.gone:
                detail = "the file went while others were read, as where its window is retired: it is left out"
                self.unread.append(Finding(MISSING, path, 0, detail))

    def _outcome_batch(self, columns: dict[str, Any]) -> Any:
        import pyarrow as arrow

        numbers = plain_columns(KIND_OUTCOMES, columns)
        values: dict[str, Any] = {name: _numbers(numbers[name]) for name in _OUTCOME_NUMBERS}
        values["internal"] = is_internal(columns["redelivery"], columns["origin_sequence"], columns["outcome"])
        values["subject"] = self._names(columns["subject"])
        values["broker_group"] = self._names(columns["broker_group"])
        values["outcome"] = [outcome_name(value) for value in columns["outcome"].tolist()]
        return arrow.record_batch(values, schema=_dispatched_schema())


def _numbers(column: np.ndarray[Any, Any]) -> I64:
    return np.ascontiguousarray(column, np.int64)


def _pieces(blob: memoryview, lengths: np.ndarray[Any, Any]) -> list[bytes]:
    data = bytes(blob)
    return [data[start:stop] for start, stop in pairwise(ragged_offsets(lengths).tolist())]


def _accepted_schema() -> Any:
    import pyarrow as arrow

    texts = ("receipt", "message_id", "subject", "target_group", "tag", "order_key", "outcome")
    fields = [(name, arrow.int64()) for name in _NUMBERS] + [(name, arrow.string()) for name in texts]
    return arrow.schema(
        [*fields, ("properties", arrow.binary()), ("body", arrow.binary()), ("internal", arrow.bool_())]
    )


def _dispatched_schema() -> Any:
    import pyarrow as arrow

    fields = [(name, arrow.int64()) for name in _OUTCOME_NUMBERS]
    texts = [(name, arrow.string()) for name in ("subject", "broker_group", "outcome")]
    return arrow.schema([*fields, *texts, ("internal", arrow.bool_())])
