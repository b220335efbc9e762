"""The outcomes of one dispatch file in memory, by sequence, with what is wrong among them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from delayserver.recover.reading.file_read import FileRead
from delayserver.recover.reading.findings import CONTRADICTORY, DOUBLY_DELIVERED, EARLY, MISPLACED
from delayserver.recover.reading.subject_balances import COLUMN_OF_OUTCOME
from store.logs.dispatch_log import OUTCOMES
from store.records.batches import I64, U8, U32, OutcomeBatch
from store.records.outcome_balance import is_internal

NAMES = ("sequence", "due_ms", "dispatched_us", "origin_sequence", "subject", "redelivery", "outcome")
_COLUMNS = ("sequence", "due_ms", "subject", "outcome", "origin_sequence", "internal", "offset", "seen")
_DELIVERED = int(Outcome.DELIVERED)


@dataclass(slots=True)
class OutcomeRows:
    """n outcomes with ascending, distinct sequences: the first of each message.

    `seen`: outcomes that were matched with a message; the caller sets it. `internal`: outcomes of a nack retry or a
    redispatch, as the row says. `offset`: where the record stands in the file.
    """

    path: str
    sequence: I64
    due_ms: I64
    subject: U32
    outcome: U8
    origin_sequence: I64
    internal: NDArray[np.bool_]
    offset: I64
    seen: NDArray[np.bool_]

    @classmethod
    def empty(cls, path: str = "") -> OutcomeRows:
        """No rows."""
        i64, u8, none = np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros(0, np.bool_)
        return cls(path, i64, i64, np.zeros(0, np.uint32), u8, i64, none, i64, none)

    def __len__(self) -> int:
        return len(self.sequence)

    def find(self, sequence: I64) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Place of each sequence intp[n] (any where there is none) and whether it is there bool[n]."""
        if not len(self.sequence):
            return np.zeros(len(sequence), np.intp), np.zeros(len(sequence), np.bool_)
        place = np.minimum(np.searchsorted(self.sequence, sequence), len(self.sequence) - 1)
        return place, self.sequence[place] == sequence

    def take(self, rows: NDArray[np.intp]) -> OutcomeRows:
        """The rows at these places."""
        return OutcomeRows(self.path, *[getattr(self, name)[rows] for name in _COLUMNS])


def by_sequence(parts: list[OutcomeRows]) -> OutcomeRows:
    """All rows of several files in one table, ascending. It has no path."""
    if not parts:
        return OutcomeRows.empty()
    joined = OutcomeRows("", *[np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS])
    return joined.take(np.argsort(joined.sequence, kind="stable"))


def read_outcomes(read: FileRead, start_ms: int, stop_ms: int) -> OutcomeRows:
    """All rows of a dispatch file of the window or day [start_ms, stop_ms), checked one by one.

    Notes: early hand-offs, second outcomes of one message, rows of other windows, codes that are no outcome.
    """
    parts: list[dict[str, NDArray[np.int64]]] = []
    offsets: list[I64] = []
    others = "records that are no outcomes in a dispatch file"
    for records, columns in read.rows(OutcomeBatch, NAMES, blobs=True, others=others):
        parts.append(columns)
        offsets.append(records.row_offsets())
    if not parts:
        return OutcomeRows.empty(read.path)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in NAMES}
    offset = np.concatenate(offsets)
    _look_at_rows(read, joined, offset, start_ms, stop_ms)
    return _sorted(read, joined, offset)


def _look_at_rows(
    read: FileRead, columns: dict[str, NDArray[np.int64]], offset: I64, start_ms: int, stop_ms: int
) -> None:
    outcome, due_ms, dispatched_us = columns["outcome"], columns["due_ms"], columns["dispatched_us"]
    sequence, note = columns["sequence"], read.findings.add_rows

    def early(row: int) -> str:
        ahead_ms = int(due_ms[row] - dispatched_us[row] // 1000)
        return f"handed off before they were due, the first sequence {sequence[row]} by {ahead_ms} ms"

    def foreign(row: int) -> str:
        return f"outcomes of another window, the first of sequence {sequence[row]} due at {due_ms[row]}"

    note(EARLY, read.path, offset, np.flatnonzero((outcome == _DELIVERED) & (dispatched_us // 1000 < due_ms)), early)
    note(MISPLACED, read.path, offset, np.flatnonzero((due_ms < start_ms) | (due_ms >= stop_ms)), foreign)
    nonsense = np.flatnonzero((outcome >= OUTCOMES) | (COLUMN_OF_OUTCOME[outcome] == 0))
    text = "codes that are no end of a message, the first"
    note(CONTRADICTORY, read.path, offset, nonsense, lambda row: f"{text} {outcome[row]}")


def _sorted(read: FileRead, columns: dict[str, NDArray[np.int64]], offset: I64) -> OutcomeRows:
    sequence = columns["sequence"]
    if bool((sequence[1:] > sequence[:-1]).all()):
        order = np.arange(len(sequence))
    else:
        order = np.argsort(sequence, kind="stable")
        order = _without_repetitions(read, columns, offset, order)
    outcome = columns["outcome"][order].astype(np.uint8)
    origin = columns["origin_sequence"][order]
    internal = is_internal(columns["redelivery"][order], origin, outcome)
    return OutcomeRows(
        read.path,
        sequence[order],
        columns["due_ms"][order],
        columns["subject"][order].astype(np.uint32),
        outcome,
        origin,
        internal,
        offset[order],
        np.zeros(len(order), np.bool_),
    )


def _without_repetitions(
    read: FileRead, columns: dict[str, NDArray[np.int64]], offset: I64, order: NDArray[np.intp]
) -> NDArray[np.intp]:
    """The first outcome of each message; a second one is a finding."""
    ordered = columns["sequence"][order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    if not len(again):
        return order
    codes = columns["outcome"][order]
    twice = (codes[again] == _DELIVERED) & (codes[again - 1] == _DELIVERED)

    def first(row: int) -> str:
        return f"the first sequence {columns['sequence'][row]}"

    note = read.findings.add_rows
    note(
        DOUBLY_DELIVERED,
        read.path,
        offset,
        order[again[twice]],
        lambda row: f"messages with two deliveries, {first(row)}",
    )
    note(
        CONTRADICTORY, read.path, offset, order[again[~twice]], lambda row: f"messages with two outcomes, {first(row)}"
    )
    keep = np.ones(len(order), np.bool_)
    keep[again] = False
    return order[keep]
