"""Checks that every cancel and rollback that replay has passed has its outcome: such a message is never delivered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.code_words import outcome_name
from delayserver.recover.reading.file_read import Expected, Reader
from delayserver.recover.reading.findings import CONTRADICTORY, MISSING, Findings
from delayserver.recover.reading.outcomes_of_file import OutcomeRows, read_outcomes
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import DAY_MS, day_of, window_starts
from store.records.batches import I64, U8
from store.records.file_header import FILE_DISPATCH

# Cancels of one lot: 25 bytes each, 52 MB. Each lot reads the files of its windows once, so smaller lots would read them
# more often.
LOT_CANCELS = 1 << 21
_CANCELLED = int(Outcome.CANCELLED)


@dataclass(frozen=True, slots=True)
class Cancels:
    """n cancels of message_log: the messages by `sequence` and `due_ms`, i64[n] each, the `outcome` u8[n] that they get,
    and the logical `offset` i64[n] of the record."""

    sequence: I64
    due_ms: I64
    outcome: U8
    offset: I64

    @classmethod
    def of(cls, sequence: I64, due_ms: I64, outcome: U8, offset: I64) -> Cancels:
        """The same, with `outcome` as files have it: 0 for `cancelled`."""
        return cls(sequence, due_ms, np.where(outcome == 0, np.uint8(_CANCELLED), outcome), offset)

    def __len__(self) -> int:
        return len(self.sequence)

    def take(self, rows: slice | NDArray[np.bool_]) -> Cancels:
        """The cancels at these places."""
        return Cancels(self.sequence[rows], self.due_ms[rows], self.outcome[rows], self.offset[rows])

    @classmethod
    def concatenate(cls, parts: list[Cancels]) -> Cancels:
        """All cancels of at least one part."""
        names = ("sequence", "due_ms", "outcome", "offset")
        return cls(*[np.concatenate([getattr(part, name) for part in parts]) for name in names])


class CancelLots:
    """Gathers cancels that replay has passed and gives them on in lots, so that memory stays bounded.

    `each` takes a lot.
    """

    def __init__(self, each: Callable[[Cancels], None], lot_cancels: int = LOT_CANCELS) -> None:
        self._each = each
        self._lot_cancels = lot_cancels
        self._gathered: list[Cancels] = []
        self._rows = 0

    def add(self, cancels: Cancels) -> None:
        """Gather these; full lots are given on."""
        for begin in range(0, len(cancels), self._lot_cancels):
            some = cancels.take(slice(begin, begin + self._lot_cancels))
            if self._rows + len(some) > self._lot_cancels:
                self.settle()
            self._gathered.append(some)
            self._rows += len(some)

    def settle(self) -> None:
        """Give on what is gathered."""
        if self._gathered:
            self._each(Cancels.concatenate(self._gathered))
        self._gathered, self._rows = [], 0


def check_cancels(taken: Capture, cancels: Cancels, loose: OutcomeRows, findings: Findings) -> None:
    """Compares cancels that replay has passed with the outcomes of their messages."""
    sequence, offset = cancels.sequence, cancels.offset
    outcome, known = _outcomes_of(taken, sequence, cancels.due_ms, loose)
    log = f"{taken.path}/message_log"
    absent, wrong = known & (outcome == 0), (outcome != 0) & (outcome != cancels.outcome)

    def undone(row: int) -> str:
        return (
            f"cancels without an outcome, the first of sequence {sequence[row]}: those messages could be delivered "
            "although they were cancelled; `rebuild` lets the next start record them again"
        )

    def other(row: int) -> str:
        label = outcome_name(int(outcome[row]))
        wanted = outcome_name(int(cancels.outcome[row]))
        return f"{wanted} messages have another outcome, the first sequence {sequence[row]}: {label}"

    findings.add_rows(MISSING, log, offset, np.flatnonzero(absent), undone)
    findings.add_rows(CONTRADICTORY, log, offset, np.flatnonzero(wrong), other)


def cancels_without_outcome(taken: Capture, cancels: Cancels, loose: OutcomeRows) -> NDArray[np.bool_]:
    """Which cancels no readable record confirms, bool[n]."""
    outcome, _ = _outcomes_of(taken, cancels.sequence, cancels.due_ms, loose)
    absent: NDArray[np.bool_] = outcome == 0
    return absent


def _outcomes_of(taken: Capture, sequence: I64, due_ms: I64, loose: OutcomeRows) -> tuple[U8, NDArray[np.bool_]]:
    """Outcome codes u8[n], and bool[n]: False where the files that may hold the outcome are damaged."""
    outcome, known = np.zeros(len(sequence), np.uint8), np.ones(len(sequence), np.bool_)
    starts = window_starts(due_ms, taken.files.window_ms)
    order = np.argsort(starts, kind="stable")
    # The windows of a day come one after the other, and share the day's file: it is read once for all of them.
    read = lru_cache(maxsize=2)(partial(_outcomes, taken))
    for rows in np.split(order, np.flatnonzero(np.diff(starts[order])) + 1):
        if not len(rows):
            continue
        found, whole = np.zeros(len(rows), np.uint8), True
        start = int(starts[rows[0]])
        for key in (DispatchKey(start, False), DispatchKey(day_of(start), True)):
            if key in taken.files.dispatch:
                table, damaged = read(key)
                found = _filled(found, table, sequence[rows])
                whole &= not damaged
        outcome[rows] = _filled(found, loose, sequence[rows])
        known[rows] = whole
    return outcome, known


def _outcomes(taken: Capture, key: DispatchKey) -> tuple[OutcomeRows, bool]:
    size = taken.files.dispatch[key]
    read = Reader(taken).file(taken.dispatch_path(key), size, Expected(FILE_DISPATCH, key.start_ms, size))
    rows = read_outcomes(read, key.start_ms, key.start_ms + (DAY_MS if key.coarse else taken.files.window_ms))
    return rows, bool(read.gaps) or read.gone or not read.usable


def _filled(outcome: U8, rows: OutcomeRows, sequence: I64) -> U8:
    place, there = rows.find(sequence)
    new = there & (outcome == 0)
    outcome[new] = rows.outcome[place[new]]
    return outcome
