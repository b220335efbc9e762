"""Every cancel that replay has passed has its outcome: what was answered `cancelled` is never delivered."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from delayserver.recover.capture import Capture
from delayserver.recover.dump import outcome_name
from delayserver.recover.file_read import Expected, FileRead
from delayserver.recover.findings import CONTRADICTORY, MISSING, Findings
from delayserver.recover.outcome_rows import OutcomeRows, read_outcomes
from store.batches import I64, U8
from store.dispatch_log import DispatchKey
from store.file_header import FILE_DISPATCH
from store.windows import DAY_MS, day_of, window_starts


def check_cancels(
    taken: Capture, sequence: I64, due_ms: I64, offset: I64, loose: OutcomeRows, findings: Findings
) -> None:
    """`sequence`, `due_ms`, `offset` (logical, of the record in message_log), i64[n], of cancels that replay has passed."""
    outcome, known = _outcomes_of(taken, sequence, due_ms, loose)
    log = f"{taken.path}/message_log"
    absent = np.flatnonzero(known & (outcome == 0))
    if len(absent):
        place = int(absent[0])
        detail = (
            f"{len(absent)} cancels without an outcome, the first of sequence {sequence[place]}: those messages could "
            "be delivered although they were cancelled; `rebuild` lets the next start record them again"
        )
        findings.add(MISSING, log, int(offset[place]), detail, len(absent))
    wrong = np.flatnonzero((outcome != 0) & (outcome != int(Outcome.CANCELLED)))
    if len(wrong):
        place = int(wrong[0])
        label = outcome_name(int(outcome[place]))
        detail = f"{len(wrong)} cancelled messages have another outcome, the first sequence {sequence[place]}: {label}"
        findings.add(CONTRADICTORY, log, int(offset[place]), detail, len(wrong))


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
    quiet = Findings()
    size = taken.dispatch[key]
    expected = Expected(FILE_DISPATCH, key.start_ms, size)
    read = FileRead(taken, taken.dispatch_path(key), size, expected, quiet, lambda _bytes: None)
    rows = read_outcomes(read, key.start_ms, key.start_ms + (DAY_MS if key.coarse else taken.window_ms), quiet)
    return rows, bool(read.gaps) or read.gone or not read.usable


def _filled(outcome: U8, rows: OutcomeRows, sequence: I64) -> U8:
    place, there = rows.find(sequence)
    new = there & (outcome == 0)
    outcome[new] = rows.outcome[place[new]]
    return outcome
