"""The losses that a rebuild cannot undo, and the messages that it brings back although they may have been delivered.

The operator must see both before anything is written: afterwards no file shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from delayserver.recover.checking.log_check import LogCheck
from delayserver.recover.checking.table_check import check_known_files
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.file_read import Reader
from delayserver.recover.reading.findings import MISSING, Findings
from delayserver.recover.reading.quarantine_file import FOLDER, SUFFIX, read_description
from delayserver.recover.reading.subject_balances import PENDING
from delayserver.recover.reading.window_units import Units, unit_code
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, FormatError
from store.logs.due_windows import day_of, window_starts
from store.logs.schedule_key import ScheduleKey
from store.logs.schedule_log import ScheduleSource
from store.logs.window_state import FileMark
from store.records.batches import I64
from store.tables.ledger import FILE_NAME as LEDGER_FILE


def lost_messages(taken: Capture, units: Units) -> list[tuple[str, int]]:
    """Schedule files that lost messages for good, with the number of these messages.

    A file counts if the checkpoint knows it and it is missing without a reason, or if a start noted a loss of it. Its
    messages are lost for good if message_log does not have them any more.
    """
    known = {taken.schedule_path(key): key for key in taken.marks.schedule_known}
    findings = Findings()
    check_known_files(taken, findings)
    missing = {
        known[finding.file]: taken.marks.schedule_known[known[finding.file]]
        for finding in findings
        if finding.kind == MISSING and finding.file in known
    }
    # A file loses its end, and message_log its beginning: a message that both have counts once less.
    missing |= {
        key: FileMark(loss.end, loss.last_sequence, loss.lost_rows) for key, loss in taken.marks.schedule_lost.items()
    }
    # As long as a day has its own file, it gives a minute the same messages again.
    gone = [
        key
        for key in missing
        if key.source != ScheduleSource.FROM_DAY
        or ScheduleKey(day_of(key.start_ms), ScheduleSource.DAY) not in taken.files.schedule
    ]
    whole = _Places({key: missing[key] for key in gone if key.source != ScheduleSource.FROM_DAY}, unit_code)
    drained = _Places(
        {key: missing[key] for key in gone if key.source == ScheduleSource.FROM_DAY}, lambda key: key.start_ms
    )
    for _, _, columns in Reader(taken).read_log(("sequence", "due_ms")) if gone else ():
        sequence, due_ms = columns["sequence"], columns["due_ms"]
        codes = units.codes_of(due_ms, sequence)
        whole.add(codes, sequence)
        coarse = (codes & 1).astype(np.bool_)
        drained.add(window_starts(due_ms[coarse], taken.files.window_ms), sequence[coarse])
    lost = {**whole.missing(), **drained.missing()}
    return [(taken.schedule_path(key), lost[key]) for key in gone if lost[key] > 0]


class _Places:
    """Missing files by the number of their unit or window, and how many of their rows were not met in message_log."""

    def __init__(self, files: Mapping[ScheduleKey, FileMark], number: Callable[[ScheduleKey], int]) -> None:
        self._keys = sorted(files, key=number)
        marks = [files[key] for key in self._keys]
        self._numbers: I64 = np.array([number(key) for key in self._keys], np.int64)
        self._last: I64 = np.array([mark.last_sequence for mark in marks], np.int64)
        self._rows: I64 = np.array([mark.rows for mark in marks], np.int64)

    def add(self, numbers: I64, sequence: I64) -> None:
        """Rows of message_log: the number of each and its sequence."""
        if len(self._keys) and len(numbers):
            places = np.minimum(np.searchsorted(self._numbers, numbers), len(self._keys) - 1)
            there = (self._numbers[places] == numbers) & (sequence <= self._last[places])
            self._rows -= np.bincount(places[there], minlength=len(self._keys))

    def missing(self) -> dict[ScheduleKey, int]:
        """Returns how many rows of each file were not met."""
        return dict(zip(self._keys, self._rows.tolist(), strict=True))


def perhaps_retired(taken: Capture, log: LogCheck) -> tuple[int, int]:
    """(messages, windows) without an outcome that message_log alone knows, where a range of the ledger was moved aside.

    They may be of retired windows whose record in the ledger is lost: no file distinguishes these from other windows.
    """
    if not _ledger_was_repaired(taken):
        return 0, 0
    known = {
        key.start_ms for key in (*taken.files.schedule, *taken.marks.schedule_known) if key.source != ScheduleSource.DAY
    }
    known |= {key.start_ms for key in (*taken.files.dispatch, *taken.marks.dispatch_known) if not key.coarse}
    found = [code for code in log.missing_codes if not code & 1 and code >> 1 not in known]
    pending = [int(log.waiting[code].totals()[PENDING]) for code in found]
    return sum(pending), len([count for count in pending if count])


def _ledger_was_repaired(taken: Capture) -> bool:
    folder = f"{taken.path}/{FOLDER}"
    for name in taken.fs.listdir(folder):
        if name.endswith(SUFFIX):
            with suppress(FormatError, CorruptionError):  # its first line is no description
                head = _description(taken.fs, f"{folder}/{name}")
                if str(head.get("file", "")).rpartition("/")[2] == LEDGER_FILE:
                    return True
    return False


def _description(fs: FileSystem, path: str) -> dict[str, Any]:
    file = fs.open(path, write=False)
    try:
        return read_description(file)
    finally:
        file.close()
