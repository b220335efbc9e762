"""Every accepted message once, with its outcome: the source of `pending`, `export` and `redispatch`.

A survey is the same pass as a check, without the bytes of the messages. It finds only damage that hides messages or
outcomes; `check` finds everything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from delayserver.recover.checking.days_derived import derive_days
from delayserver.recover.checking.log_check import LogCheck, first_kept_sequence
from delayserver.recover.checking.table_check import check_known_files
from delayserver.recover.checking.window_check import Visit, WindowCheck
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.file_read import Progress, Reader, no_progress
from delayserver.recover.reading.findings import CORRUPT, MISPLACED, MISSING, UNREADABLE, Finding, Findings
from delayserver.recover.reading.outcomes_of_file import OutcomeRows, by_sequence
from delayserver.recover.reading.window_units import Units
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import DAY_MS
from store.logs.schedule_log import ScheduleKey, ScheduleSource

# The oldest windows are those that a running server's retention takes next: their files, a few each, are kept open.
WINDOWS_HELD: Final = 64


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The results of a survey besides the messages. `unmatched`: outcomes whose message is nowhere in readable form.
    `findings`: complete for the files that were read, and for no others."""

    unmatched: OutcomeRows
    findings: Findings

    def unread(self) -> list[Finding]:
        """The findings that hide messages or outcomes."""
        return hiding(self.findings)


def hiding(findings: Findings) -> list[Finding]:
    """The findings that hide messages or outcomes."""
    return [finding for finding in findings if finding.kind in (CORRUPT, MISSING, UNREADABLE, MISPLACED)]


def survey(taken: Capture, span: Range, visit: Visit, progress: Progress = no_progress) -> Surveyed:
    """Call `visit` with all messages in the range, internal records among them, window by window.

    Then come the messages that are in message_log only: not yet replayed, or taken out of their file by damage or by
    `repair`. Some of these may lie outside the range. Messages of retired windows are gone; the ledger has their counts.

    `taken` holds the files of the oldest windows open from now on.
    """
    quiet = Findings()
    if taken.tables.days is None:
        taken.tables.use_days(derive_days(taken))
    _hold_oldest(taken, span)
    _tell_missing_files(taken, span, quiet)
    units, reader = Units(taken), Reader(taken, quiet, progress)
    first_kept = first_kept_sequence(taken)
    windows = WindowCheck(reader, units, first_kept, span, visit=visit)
    windows.run()
    _tell_lost_meanwhile(taken, windows.gone, quiet)
    loose = by_sequence(windows.loose)
    log = LogCheck(reader, units, loose, span, visit)
    log.run()
    # Messages of message_log that are missing in a file that goes further: `repair` took them out, or damage hides them.
    log.compare(blobs=False)
    return Surveyed(loose.take(np.flatnonzero(~loose.seen)), quiet)


def touches(span: Range, taken: Capture, key: ScheduleKey | DispatchKey) -> bool:
    """Whether a file of a window or day has a part in the range."""
    coarse = key.coarse if isinstance(key, DispatchKey) else key.source == ScheduleSource.DAY
    return span.holds(key.start_ms, DAY_MS if coarse else taken.files.window_ms)


def _hold_oldest(taken: Capture, span: Range) -> None:
    windows: dict[int, list[str]] = {}
    # Outcomes first, since they go last: without them the messages of a window that goes right now would look pending.
    for found in taken.files.dispatch:
        if touches(span, taken, found):
            windows.setdefault(found.start_ms, []).append(taken.dispatch_path(found))
    for key in taken.files.schedule:
        if touches(span, taken, key):
            windows.setdefault(key.start_ms, []).append(taken.schedule_path(key))
    for start in sorted(windows)[:WINDOWS_HELD]:
        for path in windows[start]:
            taken.hold(path)


def _tell_missing_files(taken: Capture, span: Range, findings: Findings) -> None:
    schedule = {key: mark for key, mark in taken.marks.schedule_known.items() if touches(span, taken, key)}
    dispatch = {key: mark for key, mark in taken.marks.dispatch_known.items() if touches(span, taken, key)}
    marks = replace(
        taken.marks,
        schedule_known=schedule,
        dispatch_known=dispatch,
        schedule_lost={key: loss for key, loss in taken.marks.schedule_lost.items() if touches(span, taken, key)},
        dispatch_lost={key: loss for key, loss in taken.marks.dispatch_lost.items() if touches(span, taken, key)},
    )
    check_known_files(replace(taken, marks=marks), findings)


def _tell_lost_meanwhile(taken: Capture, gone: list[int], findings: Findings) -> None:
    """Windows whose files went while they were read are retired, and the ledger says so."""
    if gone:
        taken.tables.read_ledger_again()
    for start in gone:
        if taken.tables.ledger is None or not taken.tables.ledger.has(start):
            path = taken.schedule_path(ScheduleKey(start, ScheduleSource.DIRECT))
            findings.add(MISSING, path, 0, "a file of this window went while it was read")
