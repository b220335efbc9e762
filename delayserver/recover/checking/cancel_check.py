"""Checks that every cancel that replay has passed has its outcome: a cancelled message is never delivered."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.file_read import Expected, Reader
from delayserver.recover.reading.findings import CONTRADICTORY, MISSING, Findings
from delayserver.recover.reading.kinds import outcome_name
from delayserver.recover.reading.outcome_rows import OutcomeRows, read_outcomes
from store.logs.dispatch_log import DispatchKey
from store.logs.windows import DAY_MS, day_of, window_starts
from store.records.batches import I64, U8
from store.records.file_header import FILE_DISPATCH

# Cancels of one lot: 24 bytes each, 50 MB. Each lot reads the files of its windows once, so smaller lots would read them
# more often.
LOT_CANCELS = 1 << 21


class CancelLots:
    """Gathers cancels that replay has passed and gives them on in lots, so that memory stays bounded.

    `each` takes sequence, due_ms and the logical offset of the record in message_log, i64[n] each.
    """

    def __init__(self, each: Callable[[I64, I64, I64], None], lot_cancels: int = LOT_CANCELS) -> None:
        self._each = each
        self._lot_cancels = lot_cancels
        self._gathered: list[tuple[I64, I64, I64]] = []
        self._rows = 0

    def add(self, sequence: I64, due_ms: I64, offset: I64) -> None:
        """Gather these, i64[n] each; full lots are given on."""
        for begin in range(0, len(sequence), self._lot_cancels):
            some = slice(begin, begin + self._lot_cancels)
            if self._rows + len(sequence[some]) > self._lot_cancels:
                self.settle()
            self._gathered.append((sequence[some], due_ms[some], offset[some]))
            self._rows += len(sequence[some])

    def settle(self) -> None:
        """Give on what is gathered."""
        if self._gathered:
            self._each(*[np.concatenate(parts) for parts in zip(*self._gathered, strict=True)])
        self._gathered, self._rows = [], 0


def check_cancels(
    taken: Capture, sequence: I64, due_ms: I64, offset: I64, loose: OutcomeRows, findings: Findings
) -> None:
    """`sequence`, `due_ms`, `offset` (logical, of the record in message_log), i64[n], of cancels that replay has passed."""
    outcome, known = _outcomes_of(taken, sequence, due_ms, loose)
    log = f"{taken.path}/message_log"
    absent, wrong = known & (outcome == 0), (outcome != 0) & (outcome != int(Outcome.CANCELLED))

    def undone(row: int) -> str:
        return (
            f"cancels without an outcome, the first of sequence {sequence[row]}: those messages could be delivered "
            "although they were cancelled; `rebuild` lets the next start record them again"
        )

    def other(row: int) -> str:
        label = outcome_name(int(outcome[row]))
        return f"cancelled messages have another outcome, the first sequence {sequence[row]}: {label}"

    findings.add_rows(MISSING, log, offset, np.flatnonzero(absent), undone)
    findings.add_rows(CONTRADICTORY, log, offset, np.flatnonzero(wrong), other)


def cancels_without_outcome(taken: Capture, sequence: I64, due_ms: I64, loose: OutcomeRows) -> NDArray[np.bool_]:
    """Which cancels no readable record confirms, bool[n]."""
    outcome, _ = _outcomes_of(taken, sequence, due_ms, loose)
    absent: NDArray[np.bool_] = outcome == 0
    return absent


def _outcomes_of(taken: Capture, sequence: I64, due_ms: I64, loose: OutcomeRows) -> tuple[U8, NDArray[np.bool_]]:
    """Outcome codes u8[n], and bool[n]: False where the files that would tell are damaged."""
    outcome, known = np.zeros(len(sequence), np.uint8), np.ones(len(sequence), np.bool_)
    starts = window_starts(due_ms, taken.window_ms)
    order = np.argsort(starts, kind="stable")
    # The windows of a day come one after the other, and share the day's file: it is read once for all of them.
    read = lru_cache(maxsize=2)(partial(_outcomes, taken))
    for rows in np.split(order, np.flatnonzero(np.diff(starts[order])) + 1):
        if not len(rows):
            continue
        found, whole = np.zeros(len(rows), np.uint8), True
        start = int(starts[rows[0]])
        for key in (DispatchKey(start, False), DispatchKey(day_of(start), True)):
            if key in taken.dispatch:
                table, damaged = read(key)
                found = _filled(found, table, sequence[rows])
                whole &= not damaged
        outcome[rows] = _filled(found, loose, sequence[rows])
        known[rows] = whole
    return outcome, known


def _outcomes(taken: Capture, key: DispatchKey) -> tuple[OutcomeRows, bool]:
    size = taken.dispatch[key]
    read = Reader(taken).file(taken.dispatch_path(key), size, Expected(FILE_DISPATCH, key.start_ms, size))
    rows = read_outcomes(read, key.start_ms, key.start_ms + (DAY_MS if key.coarse else taken.window_ms))
    return rows, bool(read.gaps) or read.gone or not read.usable


def _filled(outcome: U8, rows: OutcomeRows, sequence: I64) -> U8:
    place, there = rows.find(sequence)
    new = there & (outcome == 0)
    outcome[new] = rows.outcome[place[new]]
    return outcome
