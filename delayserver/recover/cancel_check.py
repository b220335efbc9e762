"""Every cancel that replay has passed has its outcome: what was answered `cancelled` is never delivered."""

from __future__ import annotations

import numpy as np

from delayserver.protocol.outcomes import Outcome
from delayserver.recover.capture import Capture
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
    starts = window_starts(due_ms, taken.window_ms)
    order = np.argsort(starts, kind="stable")
    cuts = np.flatnonzero(np.diff(starts[order])) + 1
    for rows in np.split(order, cuts):
        if len(rows):
            _check_window(taken, int(starts[rows[0]]), sequence[rows], offset[rows], loose, findings)


def _check_window(
    taken: Capture, start_ms: int, sequence: I64, offset: I64, loose: OutcomeRows, findings: Findings
) -> None:
    outcome = np.zeros(len(sequence), np.uint8)
    for key in (DispatchKey(start_ms, False), DispatchKey(day_of(start_ms), True)):
        if key not in taken.dispatch:
            continue
        rows, damaged = _outcomes(taken, key)
        if damaged:
            return  # reported already, and what stood in the damaged range cannot be told
        outcome = _filled(outcome, rows, sequence)
    outcome = _filled(outcome, loose, sequence)
    log = f"{taken.path}/message_log"
    absent = np.flatnonzero(outcome == 0)
    if len(absent):
        place = int(absent[0])
        detail = (
            f"{len(absent)} cancels without an outcome, the first of sequence {sequence[place]}: those messages could "
            "be delivered although they were cancelled"
        )
        findings.add(MISSING, log, int(offset[place]), detail, len(absent))
    wrong = np.flatnonzero((outcome != 0) & (outcome != int(Outcome.CANCELLED)))
    if len(wrong):
        place = int(wrong[0])
        label = Outcome(int(outcome[place])).label
        detail = f"{len(wrong)} cancelled messages have another outcome, the first sequence {sequence[place]}: {label}"
        findings.add(CONTRADICTORY, log, int(offset[place]), detail, len(wrong))


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
