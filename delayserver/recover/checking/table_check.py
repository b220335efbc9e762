"""The small files: identity, sequences, names, ledger, and the files that the checkpoint knows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.file_read import Expected, Reader
from delayserver.recover.reading.findings import CONTRADICTORY, CORRUPT, MISSING, ORPHANED, UNREADABLE, Findings
from delayserver.recover.reading.subject_balances import COUNTERS, SubjectBalances
from store.errors import CorruptionError, FormatError
from store.logs.due_windows import DAY_MS
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.file_header import FILE_LEDGER, FILE_NAMES
from store.tables.identity import SEQUENCES, read_reservation
from store.tables.ledger import COUNTERS as LEDGER_COUNTERS
from store.tables.ledger import Ledger

_PLAIN_FILES = (("names.log", FILE_NAMES), ("ledger.log", FILE_LEDGER))


def check_tables(reader: Reader, highest_sequence: int, subject_max: int) -> None:
    """Everything that is not message_log, schedule_log or dispatch_log, except the broker's directory."""
    taken, findings = reader.taken, reader.findings
    for name, kind in _PLAIN_FILES:
        path = f"{taken.path}/{name}"
        if taken.fs.exists(path):
            for _ in reader.file(path, taken.fs.size(path), Expected(kind, 0)).records():
                pass
    retired = taken.tables.ledger.highest_sequence if taken.tables.ledger is not None else 0
    _check_sequences(taken, max(highest_sequence, retired), findings)
    taken.tables.read_names_to(subject_max)
    if taken.tables.names is not None and subject_max > len(taken.tables.names):
        detail = f"subject code {subject_max} is used, but only {len(taken.tables.names)} names are known"
        findings.add(MISSING, f"{taken.path}/names.log", 0, detail)
    check_known_files(taken, findings)
    for path in taken.files.strangers:
        if not path.endswith(".tmp"):
            findings.add(ORPHANED, path, 0, "no file of this program has such a name here; nothing reads it")


def _check_sequences(taken: Capture, highest_sequence: int, findings: Findings) -> None:
    path = f"{taken.path}/{SEQUENCES}"
    try:
        reservation = read_reservation(taken.fs, path, taken.server_id)
    except CorruptionError as error:
        kind = CORRUPT if taken.fs.exists(path) else MISSING
        findings.add(kind, path, error.offset, f"{error.detail}; `rebuild` makes a new one above what the logs hold")
        return
    except FormatError as error:
        findings.add(UNREADABLE, path, 0, error.detail)
        return
    following = reservation.next if reservation.clean else reservation.reserved
    if following <= highest_sequence:
        detail = f"sequences from {following} on count as free, but {highest_sequence} is used"
        findings.add(CONTRADICTORY, path, 24, detail)


def check_known_files(taken: Capture, findings: Findings) -> None:
    """Files that the checkpoint speaks of are there, or retention or a drain took them and says so."""
    retired = {int(start) for start, coarse in _ledger_windows(taken) if not coarse}
    for key, mark in taken.marks.schedule_known.items():
        if key in taken.files.schedule or mark.rows == 0:
            continue
        if key.start_ms in retired and key.source != ScheduleSource.DAY:
            continue
        if key.source == ScheduleSource.DAY and _day_has_gone(taken, key.start_ms):
            continue
        findings.add(MISSING, taken.schedule_path(key), 0, f"the file of {mark.rows} messages is missing", mark.rows)
    for path, rows in missing_outcomes(taken):
        detail = f"the file of {rows} outcomes is missing: the next start holds back its messages"
        findings.add(MISSING, path, 0, detail, rows)
    _tell_losses(taken, findings)


def _tell_losses(taken: Capture, findings: Findings) -> None:
    """Losses that a start noted. The files may be there again, with newer rows."""
    for key, loss in taken.marks.schedule_lost.items():
        rows = loss.lost_rows
        detail = f"{rows} messages of it are lost: it was missing or cut; `rebuild` restores what message_log still has"
        findings.add(MISSING, taken.schedule_path(key), loss.end, detail, rows)
    for found, loss in taken.marks.dispatch_lost.items():
        rows = loss.lost_rows
        detail = (
            f"{rows} outcomes of it are lost: it was missing or cut; its messages without an outcome are held back until "
            "`rebuild` gives them up"
        )
        findings.add(MISSING, taken.dispatch_path(found), loss.end, detail, rows)


def lost_outcomes(taken: Capture) -> Iterator[tuple[str, int]]:
    """Dispatch files that are missing, or that had lost rows when a start found them, with the number of these rows."""
    yield from missing_outcomes(taken)
    for key, loss in taken.marks.dispatch_lost.items():
        yield taken.dispatch_path(key), loss.lost_rows


def missing_outcomes(taken: Capture) -> Iterator[tuple[str, int]]:
    """Dispatch files that the checkpoint speaks of and that nothing accounts for, with their rows."""
    retired = {start for start, coarse in _ledger_windows(taken) if not coarse}
    for found, mark in taken.marks.dispatch_known.items():
        rows = sum(mark.counts) + sum(mark.internal_counts)
        if found in taken.files.dispatch or rows == 0 or (found.start_ms in retired and not found.coarse):
            continue
        if not (found.coarse and _day_has_gone(taken, found.start_ms)):
            yield taken.dispatch_path(found), rows


def _day_has_gone(taken: Capture, start_ms: int) -> bool:
    """Whether the files of a day were removed as they should be: drained, or retired as a whole."""
    if taken.tables.days is None or taken.tables.days.is_drained(start_ms):
        return taken.tables.days is not None
    if taken.tables.ledger is None or not taken.tables.days.is_whole(start_ms):
        return False
    if not taken.tables.ledger.has_between(start_ms, start_ms + DAY_MS):
        return False
    # After a step of the clock it may have got messages again.
    mark = taken.marks.schedule_known.get(ScheduleKey(start_ms, ScheduleSource.DAY))
    return mark is None or mark.last_sequence <= taken.tables.ledger.last_sequence_between(start_ms, start_ms + DAY_MS)


def _ledger_windows(taken: Capture) -> list[tuple[int, int]]:
    if taken.tables.ledger is None:
        return []
    return [(start, coarse) for start, coarse in taken.tables.ledger.windows().tolist()]


def ledger_balance(
    taken: Capture, window_ms: int | None, findings: Findings, ledger: Ledger | None = None
) -> SubjectBalances:
    """The balance of one retired window, or of all of them; a window in the ledger has no pending messages. Without
    `ledger` it is by the captured one."""
    balance = SubjectBalances()
    ledger = taken.tables.ledger if ledger is None else ledger
    if ledger is None:
        return balance
    rows = ledger.totals() if window_ms is None else ledger.window(window_ms)
    # The ledger's columns, in the order of the balance's.
    order = ("accepted", "delivered", "cancelled", "dead_lettered", "expired", "deduplicated", "rolled_back")
    assert set(order) == set(LEDGER_COUNTERS)
    counts = np.zeros((len(rows), len(COUNTERS)), np.int64)
    for column, name in enumerate(order):
        counts[:, column] = getattr(rows, name)
    known = np.flatnonzero(counts.any(axis=1))
    balance.add_counts(rows.subject[known], counts[known])
    for subject, accepted, ended in balance.unbalanced():
        detail = (
            f"subject {taken.tables.subject_name(subject)}: {accepted} accepted in the windows that were retired, but "
            f"{ended} with an outcome"
        )
        findings.add(CONTRADICTORY, f"{taken.path}/ledger.log", 0, detail)
    return balance
