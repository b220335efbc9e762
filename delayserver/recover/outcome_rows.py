"""The outcomes of one dispatch file in memory, by sequence, with what is wrong among them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from delayserver.recover.balance import COLUMN_OF_OUTCOME
from delayserver.recover.file_read import FileRead
from delayserver.recover.findings import CONTRADICTORY, CORRUPT, DOUBLY_DELIVERED, EARLY, MISPLACED, Findings
from store.batches import I64, U8, U32, OutcomeBatch
from store.columns import MalformedColumnsError
from store.dispatch_log import OUTCOMES

NAMES = ("sequence", "due_ms", "dispatched_us", "origin_sequence", "subject", "redelivery", "outcome")
_TYPES = dict(OutcomeBatch.schema.fields)
_DELIVERED, _DEDUPLICATED = int(Outcome.DELIVERED), int(Outcome.DEDUPLICATED)


@dataclass(slots=True)
class OutcomeRows:
    """n outcomes with ascending, distinct sequences: the first of each message. `seen` is for whoever matches them.

    `internal`: of a nack retry or a redispatch, by what the row itself says. `offset`: of the record in the file.
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
        return OutcomeRows(
            self.path,
            self.sequence[rows],
            self.due_ms[rows],
            self.subject[rows],
            self.outcome[rows],
            self.origin_sequence[rows],
            self.internal[rows],
            self.offset[rows],
            self.seen[rows],
        )


def read_outcomes(read: FileRead, start_ms: int, stop_ms: int, findings: Findings) -> OutcomeRows:
    """All rows of a dispatch file of the window or day [start_ms, stop_ms), checked one by one.

    Notes: early hand-offs, second outcomes of one message, rows of other windows, codes that are no outcome.
    """
    parts: list[dict[str, NDArray[np.int64]]] = []
    offsets: list[I64] = []
    for records in read.records():
        mine = records.of_kind(OutcomeBatch.schema.kind)
        if len(mine) != len(records):
            findings.add(CORRUPT, read.path, int(records.offsets[0]), "records that are no outcomes in a dispatch file")
        if not len(mine):
            continue
        try:
            parts.append(mine.columns(OutcomeBatch, NAMES))
            offsets.append(mine.row_offsets())
        except MalformedColumnsError as error:
            findings.add(CORRUPT, read.path, int(mine.offsets[0]), f"columns that contradict each other: {error}")
    if not parts:
        return OutcomeRows.empty(read.path)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in NAMES}
    offset = np.concatenate(offsets)
    _look_at_rows(read.path, columns, offset, start_ms, stop_ms, findings)
    return _sorted(read.path, columns, offset, findings)


def _look_at_rows(
    path: str, columns: dict[str, NDArray[np.int64]], offset: I64, start_ms: int, stop_ms: int, findings: Findings
) -> None:
    outcome, due_ms, dispatched_us = columns["outcome"], columns["due_ms"], columns["dispatched_us"]
    early = np.flatnonzero((outcome == _DELIVERED) & (dispatched_us // 1000 < due_ms))
    if len(early):
        first = int(early[0])
        ahead_ms = int(due_ms[first] - dispatched_us[first] // 1000)
        findings.add(
            EARLY,
            path,
            int(offset[first]),
            f"{len(early)} handed off before they were due, the first sequence {columns['sequence'][first]} "
            f"by {ahead_ms} ms",
            len(early),
        )
    foreign = np.flatnonzero((due_ms < start_ms) | (due_ms >= stop_ms))
    if len(foreign):
        first = int(foreign[0])
        findings.add(
            MISPLACED,
            path,
            int(offset[first]),
            f"{len(foreign)} outcomes of another window, the first of sequence {columns['sequence'][first]} "
            f"due at {due_ms[first]}",
            len(foreign),
        )
    nonsense = np.flatnonzero((outcome >= OUTCOMES) | (COLUMN_OF_OUTCOME[outcome] == 0))
    if len(nonsense):
        first = int(nonsense[0])
        detail = f"{len(nonsense)} codes that are no end of a message, the first {outcome[first]}"
        findings.add(CONTRADICTORY, path, int(offset[first]), detail, len(nonsense))


def _sorted(path: str, columns: dict[str, NDArray[np.int64]], offset: I64, findings: Findings) -> OutcomeRows:
    sequence = columns["sequence"]
    if bool((sequence[1:] > sequence[:-1]).all()):
        order = np.arange(len(sequence))
    else:
        order = np.argsort(sequence, kind="stable")
        order = _without_repetitions(path, columns, offset, order, findings)
    outcome = columns["outcome"][order].astype(np.uint8)
    origin = columns["origin_sequence"][order]
    internal = ((columns["redelivery"][order] > 0) | (origin != 0)) & (outcome != _DEDUPLICATED)
    return OutcomeRows(
        path,
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
    path: str, columns: dict[str, NDArray[np.int64]], offset: I64, order: NDArray[np.intp], findings: Findings
) -> NDArray[np.intp]:
    """The first outcome of each message; a second one is a finding."""
    ordered = columns["sequence"][order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    if not len(again):
        return order
    codes = columns["outcome"][order]
    twice = (codes[again] == _DELIVERED) & (codes[again - 1] == _DELIVERED)
    for kind, mask, what in (
        (DOUBLY_DELIVERED, twice, "messages with two deliveries"),
        (CONTRADICTORY, ~twice, "messages with two outcomes"),
    ):
        places = order[again[mask]]
        if len(places):
            first = int(places[0])
            detail = f"{len(places)} {what}, the first sequence {columns['sequence'][first]}"
            findings.add(kind, path, int(offset[first]), detail, len(places))
    keep = np.ones(len(order), np.bool_)
    keep[again] = False
    return order[keep]
