"""Every accepted message once, with what became of it: what `pending`, `export` and `redispatch` are made of.

The same pass as a check, without the bytes of the messages, and with findings only about what hides messages or outcomes:
who wants to know all that is wrong asks `check`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from delayserver.recover.capture import Capture, hold
from delayserver.recover.days_rebuild import derive_days
from delayserver.recover.due_range import Range
from delayserver.recover.findings import CORRUPT, MISPLACED, MISSING, UNREADABLE, Finding, Findings
from delayserver.recover.log_check import UNITS_AT_ONCE, LogCheck, by_sequence, first_kept_sequence
from delayserver.recover.outcome_rows import OutcomeRows
from delayserver.recover.table_check import check_known_files
from delayserver.recover.unit_sequences import unit_sequences
from delayserver.recover.units import Units
from delayserver.recover.window_check import Visit, WindowCheck
from store.dispatch_log import DispatchKey
from store.schedule_log import ScheduleKey, Source
from store.windows import DAY_MS

# The oldest windows are those that a running server's retention takes next: their files, a few each, are kept open.
WINDOWS_HELD: Final = 64


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What a survey met besides the messages: `unmatched` outcomes, whose message nobody holds in readable form, and
    `findings`, of which only those about the files that were read are whole."""

    unmatched: OutcomeRows
    findings: Findings

    def unread(self) -> list[Finding]:
        """What hides messages or outcomes."""
        return hiding(self.findings)


def hiding(findings: Findings) -> list[Finding]:
    """Those of them that hide messages or outcomes."""
    return [finding for finding in findings if finding.kind in (CORRUPT, MISSING, UNREADABLE, MISPLACED)]


def survey(
    taken: Capture, span: Range, visit: Visit, progress: Callable[[int], None] = lambda _bytes: None
) -> Surveyed:
    """Call `visit` with all messages in the range, internal records among them, window by window; then with those that
    are in message_log only: not yet replayed, or taken out of their file by damage or by `repair`. Of these, some may lie
    outside the range. Retired windows are gone but for their counts in the ledger.

    Files of the oldest windows are held by `taken` from now on."""
    quiet = Findings()
    if taken.days is None:
        taken.days = derive_days(taken)
    _hold_oldest(taken, span)
    _tell_missing_files(taken, span, quiet)
    units = Units(taken)
    first_kept = first_kept_sequence(taken)
    windows = WindowCheck(taken, units, first_kept, span, quiet, progress, lambda _tier, _start, _balance: None, visit)
    windows.run()
    _tell_lost_meanwhile(taken, windows.gone, quiet)
    loose = by_sequence(windows.loose)
    log = LogCheck(taken, units, loose, span, quiet, progress, visit)
    log.run()
    _visit_left_out(taken, units, log)
    return Surveyed(loose.take(np.flatnonzero(~loose.seen)), quiet)


def _visit_left_out(taken: Capture, units: Units, log: LogCheck) -> None:
    """What message_log has and its file, which goes further, has not: `repair` took it out, or damage hides it."""
    codes = units.codes[log.differing()].tolist()
    first_kept = first_kept_sequence(taken) if codes else 0
    for begin in range(0, len(codes), UNITS_AT_ONCE):
        some = codes[begin : begin + UNITS_AT_ONCE]
        held = {code: unit_sequences(taken, units, code, first_kept, blobs=False) for code in some}
        log.compare_rows({code: sequences for code, sequences in held.items() if sequences is not None})


def touches(span: Range, taken: Capture, key: ScheduleKey | DispatchKey) -> bool:
    """Whether a file of a window or day has a part in the range."""
    coarse = key.coarse if isinstance(key, DispatchKey) else key.source == Source.DAY
    return span.holds(key.start_ms, DAY_MS if coarse else taken.window_ms)


def _hold_oldest(taken: Capture, span: Range) -> None:
    windows: dict[int, list[str]] = {}
    # Outcomes first, since they go last: without them the messages of a window that goes right now would look pending.
    for found in taken.dispatch:
        if touches(span, taken, found):
            windows.setdefault(found.start_ms, []).append(taken.dispatch_path(found))
    for key in taken.schedule:
        if touches(span, taken, key):
            windows.setdefault(key.start_ms, []).append(taken.schedule_path(key))
    for start in sorted(windows)[:WINDOWS_HELD]:
        for path in windows[start]:
            if path not in taken.held:
                hold(taken, path)


def _tell_missing_files(taken: Capture, span: Range, findings: Findings) -> None:
    schedule = {key: mark for key, mark in taken.schedule_known.items() if touches(span, taken, key)}
    dispatch = {key: mark for key, mark in taken.dispatch_known.items() if touches(span, taken, key)}
    check_known_files(replace(taken, schedule_known=schedule, dispatch_known=dispatch), findings)


def _tell_lost_meanwhile(taken: Capture, gone: list[int], findings: Findings) -> None:
    """Windows whose files went while they were read are retired, and the ledger says so."""
    if gone:
        taken.read_ledger_again()
    for start in gone:
        if taken.ledger is None or not taken.ledger.has(start):
            path = taken.schedule_path(ScheduleKey(start, Source.DIRECT))
            findings.add(MISSING, path, 0, "a file of this window went while it was read")
