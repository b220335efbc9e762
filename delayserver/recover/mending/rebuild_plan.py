"""Plans a `rebuild`: finds the schedule files that lack messages of message_log, and the tables that are lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from delayserver.recover.checking.cancel_check import CancelLots, Cancels, cancels_without_outcome
from delayserver.recover.checking.days_derived import derive_days
from delayserver.recover.checking.log_check import LogCheck, first_kept_sequence
from delayserver.recover.checking.table_check import lost_outcomes
from delayserver.recover.checking.window_check import WindowCheck
from delayserver.recover.mending.plan import EVERYTHING, KEYS, Deed, MendingStep, Plan
from delayserver.recover.mending.rebuild_losses import lost_messages, perhaps_retired
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.codes import highest_code, highest_published
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.file_read import Reader, log_parts
from delayserver.recover.reading.findings import CORRUPT, MISPLACED, MISSING, UNREADABLE, Finding, Findings
from delayserver.recover.reading.outcomes_of_file import by_sequence
from delayserver.recover.reading.window_units import Units
from store.errors import CorruptionError, FormatError
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.fast_reader import FastReader
from store.records.file_header import FILE_HEADER_BYTES
from store.tables.checkpoint import FILE_NAME as CHECKPOINT
from store.tables.identity import IDENTITY, SEQUENCES, read_reservation
from store.tables.ledger import FILE_NAME as LEDGER_FILE
from store.tables.names import FILE_NAME as NAMES_FILE


def plan_rebuild(taken: Capture, found: Findings) -> Plan:
    """`found`: the findings of the capture. Raises StoreError where the disk fails."""
    if taken.tables.days is None:
        taken.tables.use_days(derive_days(taken))
    logs, findings = _Logs(taken), Findings()
    units, log = logs.look(findings)
    lost, retired = lost_messages(taken, units), perhaps_retired(taken, log)
    code_max = highest_code(taken)
    taken.tables.read_names_to(code_max)
    names = len(taken.tables.names) if taken.tables.names is not None else 0
    steps = [
        *_tables(taken, found, logs.highest_sequence),
        *_lost_names(taken, found, code_max - names),
        *[MendingStep(Deed.RESTORE, _path_of(taken, code), unit=code) for code in logs.codes],
        *[MendingStep(Deed.FILL_UP, taken.schedule_path(key), key=key) for key in logs.minutes],
        *_losses(taken, lost, retired),
    ]
    if taken.fs.exists(f"{taken.path}/{KEYS}"):
        detail = "removed: the next start makes the index of ids again, beside its work"
        steps.append(MendingStep(Deed.MAKE, f"{taken.path}/{KEYS}", detail=detail))
    if logs.replay_from < taken.marks.checkpoint.replay_offset:
        detail = f"outcomes of cancels are lost: the next start replays message_log from {logs.replay_from} on"
        steps.append(MendingStep(Deed.TELL, "", detail=detail))
    return Plan(
        (*steps, MendingStep(Deed.MAKE, f"{taken.path}/{CHECKPOINT}")),
        tuple(_refusals(taken, found, findings)),
        highest_sequence=logs.highest_sequence,
        code_max=code_max,
        replay_from=logs.replay_from,
        lost_messages=sum([rows for _, rows in lost]),
        perhaps_retired=retired[0],
    )


def _path_of(taken: Capture, code: int) -> str:
    return taken.schedule_path(ScheduleKey(code >> 1, ScheduleSource.DAY if code & 1 else ScheduleSource.DIRECT))


def _tables(taken: Capture, found: Findings, highest_sequence: int) -> Iterator[MendingStep]:
    """The tables that are lost, each to be made anew."""
    root = taken.path
    lost = {finding.file for finding in found if finding.kind in (CORRUPT, MISSING)}
    names = f"{root}/{NAMES_FILE}"
    for path, is_lost in (
        (f"{root}/{IDENTITY}", f"{root}/{IDENTITY}" in lost),
        (names, any(finding.file == names and finding.kind == MISSING for finding in found)),
        (f"{root}/days", f"{root}/days" in lost),
        (f"{root}/{SEQUENCES}", _sequences_lost(taken, highest_sequence)),
    ):
        if is_lost:
            yield MendingStep(Deed.MAKE, path)


def _lost_names(taken: Capture, found: Findings, lost: int) -> Iterator[MendingStep]:
    """Codes that are used and that the table, which is there, does not know any more."""
    path = f"{taken.path}/{NAMES_FILE}"
    if lost > 0 and not any(finding.file == path and finding.kind == MISSING for finding in found):
        yield MendingStep(Deed.ADD_NAMES, path, detail=f"stand-ins for {lost} names that it lost")


def _losses(taken: Capture, lost: list[tuple[str, int]], retired: tuple[int, int]) -> Iterator[MendingStep]:
    """The losses, and the messages that may be delivered twice. `retired`: messages, windows."""
    for path, rows in lost_outcomes(taken):
        detail = (
            f"{rows} outcomes are lost for good: their messages are delivered again, cancelled ones not where "
            "message_log still has the cancel"
        )
        yield MendingStep(Deed.TELL, path, detail=detail)
    for path, rows in lost:
        detail = f"{rows} messages are lost for good: message_log does not have them any more"
        yield MendingStep(Deed.TELL, path, detail=detail)
    messages, windows = retired
    if messages:
        detail = (
            f"{messages} messages of {windows} windows are restored from message_log alone: a range of "
            f"{LEDGER_FILE} was moved aside, and where it counted them as retired, they are delivered again"
        )
        yield MendingStep(Deed.TELL, "", detail=detail)


def _refusals(taken: Capture, found: Findings, findings: Findings) -> Iterator[Finding]:
    """The findings that the operator must settle first, of the capture (`found`) and of the files (`findings`)."""
    root = taken.path
    yield from [finding for finding in (*found, *findings) if finding.kind == UNREADABLE]
    ledger = f"{root}/{LEDGER_FILE}"
    yield from [f for f in found if f.kind == CORRUPT and f.file in (f"{root}/{NAMES_FILE}", ledger)]
    # Where the ledger is damaged, rebuild would restore messages of retired windows, and they would be delivered again.
    for damage in taken.tables.ledger.damages if taken.tables.ledger is not None else []:
        yield Finding(CORRUPT, ledger, damage.start, damage.detail)
    logs = (f"{root}/schedule_log/", f"{root}/dispatch_log/")
    yield from [f for f in findings if f.kind == CORRUPT and f.file.startswith(logs)]
    # A file under another's name may have the only outcomes, or the only messages, of its own window; made anew, that
    # window would have no place for it any more.
    places = (*logs, f"{root}/message_log/")
    for f in findings:
        if f.kind == MISPLACED and f.offset < FILE_HEADER_BYTES and f.file.startswith(places):
            yield f


class _Logs:
    """Reads the logs; `look` sets the attributes. `codes`: units (`Units.codes`) whose files are to be written anew.
    `minutes`: files of a day that is being drained, to be filled up from the day's own file. The rest is as in `Plan`."""

    def __init__(self, taken: Capture) -> None:
        self._taken = taken
        self.codes: list[int] = []
        self.minutes: list[ScheduleKey] = []
        self.highest_sequence = 0
        self.replay_from = EVERYTHING

    def look(self, findings: Findings) -> tuple[Units, LogCheck]:
        """Read windows and message_log. Damage in them goes to `findings`."""
        taken = self._taken
        units, reader = Units(taken), Reader(taken, findings)
        windows = WindowCheck(reader, units, first_kept_sequence(taken), Range())
        windows.run()
        _leave_out_torn_end(taken)
        loose = by_sequence(windows.loose)

        def settle(cancels: Cancels) -> None:
            # A cancel whose outcome is lost would be delivered; replaying its record makes the server record it again.
            lost = cancels_without_outcome(taken, cancels, loose)
            self.replay_from = min([self.replay_from, *cancels.offset[lost].tolist()])

        # All of message_log counts as replayed, so what is in no schedule file is to be put there.
        replayed = taken.with_checkpoint(replace(taken.marks.checkpoint, replay_offset=EVERYTHING))
        log = LogCheck(Reader(replayed, findings), units, loose, Range(), lambda _visited: None, CancelLots(settle))
        log.run()
        differing = units.codes[log.differing()].tolist()
        damaged = [code for code in windows.damaged if not _is_skipped(units, code)]
        self.minutes = windows.unlike_day
        self.codes = sorted({*differing, *damaged, *log.missing_codes})
        ledger = taken.tables.ledger.highest_sequence if taken.tables.ledger is not None else 0
        logged = max(windows.highest_sequence, log.highest_sequence, ledger)
        self.highest_sequence = max(logged, highest_published(taken))
        return units, log


def _leave_out_torn_end(taken: Capture) -> None:
    """A whole record in the torn end of message_log was never acknowledged, and the next start cuts it off."""
    for part, expected in list(log_parts(taken))[-1:]:
        file = taken.open(part.path)
        try:
            scan = FastReader(file, FILE_HEADER_BYTES, part.size, min(expected.synced, part.size))
            for _ in scan:
                pass
        finally:
            taken.release(file)
        if not scan.newer:
            taken.leave_out_tail(scan.report.end)


def _is_skipped(units: Units, code: int) -> bool:
    places, known = units.places_of(np.array([code], np.int64))
    return bool(known[0] and units.skipped[places[0]])


def _sequences_lost(taken: Capture, highest: int) -> bool:
    try:
        found = read_reservation(taken.fs, f"{taken.path}/{SEQUENCES}", taken.server_id)
    except CorruptionError:
        return True
    except FormatError:
        return False
    return (found.next if found.clean else found.reserved) <= highest
