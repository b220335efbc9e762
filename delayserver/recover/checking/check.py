"""Checks a data directory: every file, every checksum, the whole structure, and the balance of rule 3, exactly.

1. Capture the ends (`capture`). 2. Windows and days: outcomes against messages (`window_check`). 3. The message_log:
messages that are in no schedule file yet, or no longer (`log_check`). 4. Where the two differ, row by row. 5. Cancels,
tables, the broker.

Memory holds one window at a time, 40 bytes a file, two million cancels (50 MB), and the findings. An outcome whose message
no schedule file holds takes 39 bytes, twice that while they are sorted. After a crash these are few. Where all of
schedule_log is lost, a hundred million outcomes take 7.8 GB (`--from` and `--to` read a part).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from delayserver.recover.checking.broker_check import BrokerCheck, broker_bytes
from delayserver.recover.checking.cancel_check import CancelLots, Cancels, check_cancels
from delayserver.recover.checking.days_derived import derive_days
from delayserver.recover.checking.key_check import check_keys
from delayserver.recover.checking.log_check import LogCheck, first_kept_sequence
from delayserver.recover.checking.table_check import check_tables, ledger_balance
from delayserver.recover.checking.window_check import Publish, WindowCheck
from delayserver.recover.reading.capture import Capture, capture
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.file_read import Reader
from delayserver.recover.reading.findings import (
    CONTRADICTORY,
    CORRUPT,
    MISPLACED,
    MISSING,
    ORPHANED,
    UNREADABLE,
    Findings,
)
from delayserver.recover.reading.outcomes_of_file import OutcomeRows, by_sequence
from delayserver.recover.reading.subject_balances import ACCEPTED, SubjectBalances
from delayserver.recover.reading.window_units import Units
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, FormatError
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import DAY_MS, day_of, window_of
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.tables.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check. `balance` is the sum over all places; `bytes_read` counts what was verified."""

    findings: Findings
    balance: SubjectBalances
    bytes_total: int
    bytes_read: int
    files: int


class Check:
    """One check of a captured directory."""

    def __init__(
        self,
        taken: Capture,
        span: Range,
        findings: Findings,
        publish: Publish,
        progress: Callable[[int, int], None],
    ) -> None:
        self._taken = taken
        self._span = span
        self._findings = findings
        self._publish = publish
        self._show_progress = progress
        self._balance = SubjectBalances()
        self._bytes_read = 0
        self._bytes_total = self._bytes_to_read()

    def _bytes_to_read(self) -> int:
        taken, span = self._taken, self._span
        total = sum([part.size for part in taken.files.message_log]) + broker_bytes(taken)
        for key, size in taken.files.schedule.items():
            if span.holds(key.start_ms, DAY_MS if key.source == ScheduleSource.DAY else taken.files.window_ms):
                total += size
        for found, size in taken.files.dispatch.items():
            if span.holds(found.start_ms, DAY_MS if found.coarse else taken.files.window_ms):
                total += size
        return total

    def _progress(self, count: int) -> None:
        self._bytes_read += count
        self._show_progress(self._bytes_read, self._bytes_total)

    def _add(self, tier: str, start_ms: int, balance: SubjectBalances) -> None:
        self._balance.merge(balance)
        self._publish(tier, start_ms, balance)

    def run(self) -> Checked:
        """Everything. Raises StoreError where the disk fails."""
        taken, findings = self._taken, self._findings
        self._retired()
        units, reader = Units(taken), Reader(taken, findings, self._progress)
        windows = WindowCheck(reader, units, first_kept_sequence(taken), self._span, self._add)
        windows.run()
        retired = self._retired_meanwhile(windows)
        loose = by_sequence(windows.loose)

        def settle(cancels: Cancels) -> None:
            check_cancels(taken, cancels, loose, findings)

        log = LogCheck(reader, units, loose, self._span, cancels=CancelLots(settle))
        log.run()
        log.compare(blobs=True)
        self._orphans(units, windows, log)
        for code, balance in sorted(log.waiting.items()):
            self._add("message_log", code >> 1, balance)
        highest = max(log.highest_sequence, windows.highest_sequence)
        check_tables(reader, highest, max(log.subject_max, windows.subject_max))
        check_keys(taken, findings)
        BrokerCheck(reader).run()
        self._compare_totals(windows.accepted_before + retired - log.retired_waiting)
        files = len(taken.files.schedule) + len(taken.files.dispatch) + len(taken.files.message_log)
        return Checked(findings, self._balance, self._bytes_total, self._bytes_read, files)

    def _retired(self) -> None:
        if self._span.everything:
            self._add("retired", 0, ledger_balance(self._taken, None, self._findings))
        elif self._taken.tables.ledger is not None:
            for start, _ in self._taken.tables.ledger.windows().tolist():
                if self._span.holds(start, self._taken.files.window_ms):
                    self._add("retired", start, ledger_balance(self._taken, start, self._findings))

    # -- outcomes without a message

    def _orphans(self, units: Units, windows: WindowCheck, log: LogCheck) -> None:
        loose = log.loose
        rest = loose.take(np.flatnonzero(~loose.seen))
        if not len(rest):
            return
        window_ms = self._taken.files.window_ms
        starts = np.array([window_of(due, window_ms) for due in rest.due_ms.tolist()], np.int64)
        for start in np.unique(starts).tolist():
            self._orphans_of(rest.take(np.flatnonzero(starts == start)), start, units, windows)

    def _orphans_of(self, rows: OutcomeRows, start: int, units: Units, windows: WindowCheck) -> None:
        """Outcomes of messages in a damaged range prove that those were accepted; the others belong to nothing."""
        explained = np.zeros(len(rows), np.bool_)
        for code in (start * 2, day_of(start) * 2 + 1):
            place = units.place(code)
            if place < len(units.codes) and units.codes[place] == code and units.skipped[place]:
                explained[:] = True
            for after, before in windows.damaged.get(code, ()):
                explained |= (rows.sequence > after) & (rows.sequence < before)
        known = rows.take(np.flatnonzero(explained & ~rows.internal))
        if len(known):
            balance = SubjectBalances()
            balance.add(ACCEPTED, known.subject)
            balance.add_outcomes(known.outcome, known.subject)
            self._add("minute", start, balance)
        orphans = rows.take(np.flatnonzero(~explained))
        if len(orphans):
            key = DispatchKey(start, False)
            path = self._taken.dispatch_path(
                key if key in self._taken.files.dispatch else DispatchKey(day_of(start), True)
            )
            detail = (
                f"{len(orphans)} outcomes of messages that no log holds, the first of sequence {orphans.sequence[0]}"
            )
            self._findings.add(ORPHANED, path, int(orphans.offset[0]), detail, len(orphans))

    def _retired_meanwhile(self, windows: WindowCheck) -> int:
        """Windows that retention took since the capture are in the ledger by now: the messages accepted in them that the
        captured ledger does not count. It was read after the ends were taken and may have a window of theirs already."""
        taken = self._taken
        if not windows.gone:
            return 0
        accepted = 0
        try:
            ledger = Ledger.open(taken.fs, taken.path, taken.server_id, write=False)
        except (CorruptionError, FormatError):  # the capture has noted it
            return 0
        try:
            for start in windows.gone:
                if not ledger.has(start):
                    path = taken.schedule_path(ScheduleKey(start, ScheduleSource.DIRECT))
                    self._findings.add(MISSING, path, 0, "a file of this window went while it was read")
                    continue
                balance = ledger_balance(taken, start, self._findings, ledger)
                subjects, counted = ledger_balance(taken, start, Findings()).rows()
                balance.add_counts(subjects.astype(np.uint32), -counted)
                accepted += int(balance.totals()[ACCEPTED])
                self._add("retired", start, balance)
        finally:
            ledger.close()
        return accepted

    def _compare_totals(self, found: int) -> None:
        """The server counts what it accepts; its count and the files must agree as of the checkpoint."""
        taken, totals = self._taken, self._taken.marks.checkpoint.totals
        damaged = any(self._findings.counts[kind] for kind in (CORRUPT, MISSING, MISPLACED, UNREADABLE))
        if not self._span.everything or taken.marks.checkpoint_lost or "accepted" not in totals or damaged:
            return
        ledger = int(taken.tables.ledger.totals().accepted.sum()) if taken.tables.ledger is not None else 0
        found += ledger
        if found != totals["accepted"]:
            detail = (
                f"the server counted {totals['accepted']} accepted messages up to sequence "
                f"{taken.marks.checkpoint.replayed_sequence}, the files and the ledger hold {found}"
            )
            self._findings.add(CONTRADICTORY, f"{taken.path}/checkpoint", 0, detail, abs(found - totals["accepted"]))


def whole_windows(from_ms: int | None, to_ms: int | None, window_ms: int) -> Range:
    """The windows that a person's times touch."""
    span = Range()
    return Range(
        span.from_ms if from_ms is None else window_of(from_ms, window_ms),
        span.to_ms if to_ms is None else window_of(to_ms - 1, window_ms) + window_ms,
    )


def check_directory(
    fs: FileSystem,
    path: str,
    *,
    from_ms: int | None = None,
    to_ms: int | None = None,
    publish: Callable[[Capture, str, int, SubjectBalances], None] = lambda _taken, _tier, _start, _balance: None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Capture, Checked]:
    """Check a directory, beside a running server too; nothing is written. The capture is to be closed by the caller.

    Raises FormatError (no data directory of ours), CorruptionError (identity), StoreError.
    """
    findings = Findings()
    taken = capture(fs, path, findings)
    try:
        if taken.tables.days is None:
            taken.tables.use_days(derive_days(taken))
        span = whole_windows(from_ms, to_ms, taken.files.window_ms)
        check = Check(
            taken, span, findings, lambda tier, start, balance: publish(taken, tier, start, balance), progress
        )
        return taken, check.run()
    except BaseException:
        taken.close()
        raise
