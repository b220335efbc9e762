"""What a rebuild cannot bring back, and what it brings back that may have been delivered: said before anything is written,
because afterwards nothing tells of it any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from delayserver.recover.balance import PENDING
from delayserver.recover.capture import Capture
from delayserver.recover.dump import dump_file
from delayserver.recover.file_read import FileRead
from delayserver.recover.findings import MISSING, Findings
from delayserver.recover.log_check import LogCheck, log_parts
from delayserver.recover.quarantine import FOLDER, SUFFIX
from delayserver.recover.table_check import check_known_files
from delayserver.recover.units import Units, unit_code
from store.batches import I64, KIND_MESSAGES, MessageBatch
from store.columns import MalformedColumnsError
from store.errors import CorruptionError, FormatError
from store.ledger import FILE_NAME as LEDGER_FILE
from store.schedule_key import ScheduleKey
from store.schedule_log import Source
from store.windows import day_of, window_starts


def lost_messages(taken: Capture, units: Units) -> list[tuple[str, int]]:
    """Schedule files that the checkpoint speaks of and that nothing accounts for, with how many of their messages
    message_log does not have any more. Files that lose none are left out."""
    known = {taken.schedule_path(key): key for key in taken.schedule_known}
    findings = Findings()
    check_known_files(taken, findings)
    missing = [known[finding.file] for finding in findings if finding.kind == MISSING and finding.file in known]
    # What a day gave to a minute it gives again as long as it has its own file.
    gone = [
        key
        for key in missing
        if key.source != Source.FROM_DAY or ScheduleKey(day_of(key.start_ms), Source.DAY) not in taken.schedule
    ]
    whole = _Places(taken, [key for key in gone if key.source != Source.FROM_DAY], unit_code)
    drained = _Places(taken, [key for key in gone if key.source == Source.FROM_DAY], lambda key: key.start_ms)
    for sequence, due_ms in _logged(taken) if gone else ():
        codes = units.codes_of(due_ms, sequence)
        whole.add(codes, sequence)
        coarse = (codes & 1).astype(np.bool_)
        drained.add(window_starts(due_ms[coarse], taken.window_ms), sequence[coarse])
    lost = {**whole.lost(), **drained.lost()}
    return [(taken.schedule_path(key), lost[key]) for key in gone if lost[key] > 0]


class _Places:
    """Missing files by the number of their unit or window, and how many of their rows were not met in message_log."""

    def __init__(self, taken: Capture, keys: list[ScheduleKey], number: Callable[[ScheduleKey], int]) -> None:
        self._keys = sorted(keys, key=number)
        marks = [taken.schedule_known[key] for key in self._keys]
        self._numbers: I64 = np.array([number(key) for key in self._keys], np.int64)
        self._last: I64 = np.array([mark.last_sequence for mark in marks], np.int64)
        self._rows: I64 = np.array([mark.rows for mark in marks], np.int64)

    def add(self, numbers: I64, sequence: I64) -> None:
        """Rows of message_log: the number of each and its sequence."""
        if len(self._keys) and len(numbers):
            places = np.minimum(np.searchsorted(self._numbers, numbers), len(self._keys) - 1)
            there = (self._numbers[places] == numbers) & (sequence <= self._last[places])
            self._rows -= np.bincount(places[there], minlength=len(self._keys))

    def lost(self) -> dict[ScheduleKey, int]:
        """How many rows of each were not met."""
        return dict(zip(self._keys, self._rows.tolist(), strict=True))


def _logged(taken: Capture) -> Iterator[tuple[I64, I64]]:
    """Sequence and due time of all messages in message_log, record by record."""
    for part, expected in log_parts(taken):
        read = FileRead(taken, part.path, part.size, expected, Findings(), _ignore)
        for records in read.records(blobs=False):
            mine = records.of_kind(KIND_MESSAGES)
            if len(mine):
                with suppress(MalformedColumnsError):
                    columns = mine.columns(MessageBatch, ("sequence", "due_ms"))
                    yield columns["sequence"], columns["due_ms"]


def perhaps_retired(taken: Capture, log: LogCheck) -> tuple[int, int]:
    """(messages, windows) without an outcome of which message_log alone knows, where a range of the ledger was moved aside:
    retired windows look like that when their record is lost, and nothing else tells them from others."""
    if not _ledger_was_repaired(taken):
        return 0, 0
    known = {key.start_ms for key in (*taken.schedule, *taken.schedule_known) if key.source != Source.DAY}
    known |= {key.start_ms for key in (*taken.dispatch, *taken.dispatch_known) if not key.coarse}
    found = [code for code in log.missing_codes if not code & 1 and code >> 1 not in known]
    pending = [int(log.waiting[code].totals()[PENDING]) for code in found]
    return sum(pending), len([count for count in pending if count])


def _ledger_was_repaired(taken: Capture) -> bool:
    folder = f"{taken.path}/{FOLDER}"
    for name in taken.fs.listdir(folder):
        if name.endswith(SUFFIX):
            with suppress(FormatError, CorruptionError):  # what its head does not tell
                [head] = dump_file(taken.fs, f"{folder}/{name}")
                if str(head.get("file", "")).rpartition("/")[2] == LEDGER_FILE:
                    return True
    return False


def _ignore(_bytes: int) -> None:
    pass
