"""The marks and losses of files of windows as tables of a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from store.logs.dispatch_log import DispatchKey, DispatchMark
from store.logs.schedule_key import ScheduleKey, ScheduleSource
from store.logs.window_state import FileMark, Loss
from store.tables.checkpoint import OUTCOMES, DispatchFiles, LostFiles, ScheduleFiles


def schedule_table(marks: dict[ScheduleKey, FileMark]) -> ScheduleFiles:
    """Marks of schedule files as the checkpoint's columns."""
    keys, values = list(marks), list(marks.values())
    return ScheduleFiles.filled(
        len(keys),
        start_ms=np.array([key.start_ms for key in keys], dtype=np.int64),
        source=np.array([int(key.source) for key in keys], dtype=np.uint8),
        end=np.array([mark.end for mark in values], dtype=np.int64),
        last_sequence=np.array([mark.last_sequence for mark in values], dtype=np.int64),
        rows=np.array([mark.rows for mark in values], dtype=np.int64),
    )


def dispatch_table(marks: dict[DispatchKey, DispatchMark]) -> DispatchFiles:
    """Marks of dispatch files as the checkpoint's columns."""
    keys, values = list(marks), list(marks.values())
    return DispatchFiles.filled(
        len(keys),
        start_ms=np.array([key.start_ms for key in keys], dtype=np.int64),
        coarse=np.array([key.coarse for key in keys], dtype=np.uint8),
        end=np.array([mark.end for mark in values], dtype=np.int64),
        outcomes=np.array([mark.counts for mark in values], dtype=np.int64).reshape(len(keys), OUTCOMES),
        internal_rows=np.array([sum(mark.internal_counts) for mark in values], dtype=np.int64),
    )


def schedule_marks(table: ScheduleFiles) -> dict[ScheduleKey, FileMark]:
    """The inverse of `schedule_table`."""
    columns = (table.start_ms, table.source, table.end, table.last_sequence, table.rows)
    return {
        ScheduleKey(start, ScheduleSource(source)): FileMark(end, last, rows)
        for start, source, end, last, rows in zip(*[column.tolist() for column in columns], strict=True)
    }


def dispatch_marks(table: DispatchFiles) -> dict[DispatchKey, DispatchMark]:
    """The inverse of `dispatch_table`; internal rows are kept as one sum."""
    columns = (table.start_ms, table.coarse, table.end, table.outcomes, table.internal_rows)
    rest = (0,) * (OUTCOMES - 1)
    return {
        DispatchKey(start, bool(coarse)): DispatchMark(end, tuple(counts), (internal, *rest))
        for start, coarse, end, counts, internal in zip(*[column.tolist() for column in columns], strict=True)
    }


def lost_table(schedule: Mapping[ScheduleKey, Loss], dispatch: Mapping[DispatchKey, Loss]) -> LostFiles:
    """Files that lost rows as the checkpoint's columns."""
    rows = [(0, key.start_ms, int(key.source), loss) for key, loss in schedule.items()]
    rows += [(1, key.start_ms, int(key.coarse), loss) for key, loss in dispatch.items()]
    none = (0,) * (2 * OUTCOMES)
    counts = np.array([loss.counts or none for *_, loss in rows], dtype=np.int64).reshape(len(rows), 2 * OUTCOMES)
    return LostFiles.filled(
        len(rows),
        log=np.array([log for log, *_ in rows], dtype=np.uint8),
        start_ms=np.array([start for _, start, _, _ in rows], dtype=np.int64),
        kind=np.array([kind for _, _, kind, _ in rows], dtype=np.uint8),
        end=np.array([loss.end for *_, loss in rows], dtype=np.int64),
        last_sequence=np.array([loss.last_sequence for *_, loss in rows], dtype=np.int64),
        rows=np.array([loss.rows for *_, loss in rows], dtype=np.int64),
        left_rows=np.array([loss.left_rows for *_, loss in rows], dtype=np.int64),
        outcomes=counts[:, :OUTCOMES],
        internal_rows=counts[:, OUTCOMES:].sum(axis=1),
        searched=np.array([loss.searched for *_, loss in rows], dtype=np.uint8),
    )


def schedule_losses(table: LostFiles) -> dict[ScheduleKey, Loss]:
    """The losses of schedule_log in a table made by `lost_table`."""
    return {
        ScheduleKey(start, ScheduleSource(kind)): loss._replace(counts=()) for start, kind, loss in _losses(table, 0)
    }


def dispatch_losses(table: LostFiles) -> dict[DispatchKey, Loss]:
    """The losses of dispatch_log in a table made by `lost_table`."""
    return {DispatchKey(start, bool(kind)): loss for start, kind, loss in _losses(table, 1)}


def _losses(table: LostFiles, log: int) -> list[tuple[int, int, Loss]]:
    rest = (0,) * (OUTCOMES - 1)
    names = [name for name, _, _ in LostFiles.columns]
    columns = [getattr(table, name).tolist() for name in names]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return [
        (
            row["start_ms"],
            row["kind"],
            Loss(
                row["end"],
                row["last_sequence"],
                row["rows"],
                row["left_rows"],
                (*row["outcomes"], row["internal_rows"], *rest),
                bool(row["searched"]),
            ),
        )
        for row in rows
        if row["log"] == log
    ]
