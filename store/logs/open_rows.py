"""The rows of a window that have no outcome: schedule files are matched with dispatch files here alone.

A unit is the files of one window, or of one day: no message of it has its outcome in another unit. While a day drains, its
rows and outcomes lie in the files of the day and of its minutes, so the day is one unit. May run in any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from store.errors import CorruptionError, FormatError
from store.indexes.outcome_index import OutcomeIndex
from store.logs.dispatch_log import DispatchKey, DispatchLog
from store.logs.due_windows import day_of
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import I64, MessageBatch
from store.records.column_blocks import Columns
from store.records.membership import is_member


@dataclass(frozen=True, slots=True)
class Unit:
    """The schedule files and the dispatch files of a window or a day, each with the end of what counts."""

    schedule: list[tuple[ScheduleKey, int]] = field(default_factory=list)
    dispatch: list[tuple[DispatchKey, int]] = field(default_factory=list)


def units_of(schedule: ScheduleLog, dispatch: DispatchLog, draining: Collection[int]) -> list[tuple[int, Unit]]:
    """All files as they end now, by units: the start of the window or the day of each, and the unit. `draining`: the starts
    of the days that are on their way to minutes."""
    found: dict[tuple[int, bool], Unit] = {}

    def unit_of(start_ms: int, *, coarse: bool) -> Unit:
        day = day_of(start_ms)
        return found.setdefault((day, True) if coarse or day in draining else (start_ms, False), Unit())

    for file in schedule.keys():
        unit_of(file.start_ms, coarse=file.source == ScheduleSource.DAY).schedule.append((file, schedule.end(file)))
    for key in dispatch.keys():
        unit_of(key.start_ms, coarse=key.coarse).dispatch.append((key, dispatch.end(key)))
    return [(start_ms, unit) for (start_ms, _), unit in found.items()]


def open_rows(sequence: I64, outcomes: Sequence[OutcomeIndex]) -> NDArray[np.intp]:
    """The rows without an outcome in any of these tables, by their sequences i64[n]. A message that stands in two files
    is one row, the first; the rows are in the order of the sequences."""
    distinct, first = np.unique(sequence, return_index=True)
    is_open = np.ones(len(distinct), np.bool_)
    for index in outcomes:
        is_open &= index.missing(distinct)
    rows: NDArray[np.intp] = first[is_open]
    return rows


def unmatched(placed: I64, settled: I64) -> tuple[I64, I64]:
    """The messages without an outcome, and the outcomes without a message: sequences, ascending and distinct."""
    return np.unique(placed[~is_member(placed, settled)]), np.unique(settled[~is_member(settled, placed)])


def without_row(outcomes: I64, placed: Sequence[I64]) -> NDArray[np.bool_]:
    """True for outcomes (sequences i64[n]) of messages that are in none of these files, bool[n]."""
    return ~is_member(outcomes, np.concatenate([np.zeros(0, np.int64), *placed]))


def read_open_rows(schedule: ScheduleLog, dispatch: DispatchLog, unit: Unit, names: Sequence[str]) -> Columns:
    """The named columns of the messages of a unit that have no outcome; `sequence` must be among them. They are in the order
    of their sequences, one row for each message.

    Reads around damage. Where a dispatch file cannot be read at all, its messages count as open. Files are read in
    parts: what is held is 9 bytes an outcome and the open rows. Raises KeyError where a schedule file is gone,
    CorruptionError and FormatError where one cannot be read at all.
    """
    outcomes = []
    for key, end in unit.dispatch:
        with suppress(CorruptionError, FormatError):  # a part that needs the file reports it
            outcomes.append(dispatch.index_left(key, end, damages=[]))
    nothing = MessageBatch.filled(0)
    parts: list[Columns] = [{name: getattr(nothing, name) for name in names}]
    for file, end in unit.schedule:
        for columns in schedule.column_parts(file, names, end, damages=[]):
            rows = open_rows(columns["sequence"], outcomes)
            parts.append({name: columns[name][rows] for name in names})
    found = {name: np.concatenate([part[name] for part in parts]) for name in names}
    rows = open_rows(found["sequence"], [])
    return {name: column[rows] for name, column in found.items()}
