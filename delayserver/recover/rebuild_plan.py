"""What `rebuild` has to do: which schedule files lack messages that message_log holds, and which tables are lost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from delayserver.recover.cancel_check import cancels_without_outcome
from delayserver.recover.capture import Capture
from delayserver.recover.codes import highest_code
from delayserver.recover.days_rebuild import derive_days
from delayserver.recover.due_range import Range
from delayserver.recover.findings import CORRUPT, MISPLACED, MISSING, UNREADABLE, Finding, Findings
from delayserver.recover.log_check import LogCheck, by_sequence, first_kept_sequence, log_parts
from delayserver.recover.outcome_rows import OutcomeRows
from delayserver.recover.rebuild_losses import lost_messages, perhaps_retired
from delayserver.recover.record_scan import RecordScan
from delayserver.recover.table_check import lost_outcomes
from delayserver.recover.units import Units
from delayserver.recover.window_check import Visited, WindowCheck
from store.batches import I64
from store.errors import CorruptionError, FormatError
from store.file_header import FILE_HEADER_BYTES
from store.identity import IDENTITY, SEQUENCES, read_reservation
from store.ledger import FILE_NAME as LEDGER_FILE
from store.names import FILE_NAME as NAMES_FILE
from store.schedule_log import ScheduleKey, Source

# An offset behind every record: all of message_log counts as replayed, so what is in no schedule file is to be put there.
EVERYTHING = 1 << 62


@dataclass(slots=True)
class RebuildPlan:
    """`codes`: units (`Units.codes`) whose files are to be written anew. `minutes`: files of a day that is being drained, to
    be filled up from the day's own file. `refusals`: what has to be settled before.
    `names_lost`: how many names are used whose codes, up to `code_max`, the table does not know any more.
    `replay_from`: the offset of message_log from which the next start must replay, because outcomes of cancels are lost.
    `lost`: missing schedule files with how many of their messages nobody holds any more. `perhaps_retired`: (messages,
    windows) that are restored and may have been delivered."""

    codes: list[int] = field(default_factory=list)
    minutes: list[ScheduleKey] = field(default_factory=list)
    identity: bool = False
    names: bool = False
    names_lost: int = 0
    days: bool = False
    sequences: bool = False
    checkpoint: bool = False
    replay_from: int = EVERYTHING
    highest_sequence: int = 0
    code_max: int = 0
    lost: list[tuple[str, int]] = field(default_factory=list)
    perhaps_retired: tuple[int, int] = (0, 0)
    refusals: list[Finding] = field(default_factory=list)

    def texts(self, taken: Capture) -> list[str]:
        """What will be done, a line each."""
        lost = ("identity", "names", "days", "sequences")
        names = {"names": NAMES_FILE}
        lines = [f"{taken.path}/{names.get(name, name)}: written anew" for name in lost if getattr(self, name)]
        if self.names_lost and not self.names:
            lines.append(f"{taken.path}/{NAMES_FILE}: stand-ins for {self.names_lost} names that it lost")
        for code in self.codes:
            key = ScheduleKey(code >> 1, Source.DAY if code & 1 else Source.DIRECT)
            lines.append(f"{taken.schedule_path(key)}: restored from message_log")
        lines += [f"{taken.schedule_path(key)}: restored from the file of its day" for key in self.minutes]
        lines += [
            f"{path}: {rows} outcomes are lost for good: their messages are delivered again, cancelled ones not"
            for path, rows in lost_outcomes(taken)
        ]
        lines += [
            f"{path}: {rows} messages are lost for good: message_log does not have them any more"
            for path, rows in self.lost
        ]
        messages, windows = self.perhaps_retired
        if messages:
            lines.append(
                f"{messages} messages of {windows} windows are restored of which message_log alone tells: a range of "
                f"{LEDGER_FILE} was moved aside, and where it counted them as retired, they are delivered again"
            )
        if self.replay_from < taken.checkpoint.replay_offset:
            lines.append(f"outcomes of cancels are lost: the next start replays message_log from {self.replay_from} on")
        return [*lines, f"{taken.path}/checkpoint: written anew"]

    def to_map(self, taken: Capture) -> dict[str, Any]:
        """The JSON form."""
        counts = {"lost_messages": sum([rows for _, rows in self.lost]), "perhaps_retired": self.perhaps_retired[0]}
        return {"changes": self.texts(taken), "files": len(self.codes) + len(self.minutes), **counts}


def plan_rebuild(taken: Capture, found: Findings) -> RebuildPlan:
    """`found`: the findings of the capture. Raises StoreError where the disk fails."""
    plan = RebuildPlan()
    root = taken.path
    lost = {finding.file for finding in found if finding.kind in (CORRUPT, MISSING)}
    plan.identity = f"{root}/{IDENTITY}" in lost
    plan.names = any(f.file == f"{root}/{NAMES_FILE}" and f.kind == MISSING for f in found)
    plan.days = f"{root}/days" in lost
    plan.checkpoint = taken.checkpoint_lost
    if taken.days is None:
        taken.days = derive_days(taken)
    findings = Findings()
    _look_at_files(taken, plan, findings)
    plan.sequences = _sequences_lost(taken, plan.highest_sequence)
    plan.refusals = [finding for finding in [*found, *findings] if finding.kind == UNREADABLE]
    ledger = f"{root}/{LEDGER_FILE}"
    plan.refusals += [f for f in found if f.kind == CORRUPT and f.file in (f"{root}/{NAMES_FILE}", ledger)]
    # What message_log still has of a window that the ledger cannot tell of would be restored, and delivered again.
    damages = taken.ledger.damages if taken.ledger is not None else []
    plan.refusals += [Finding(CORRUPT, ledger, damage.start, damage.detail) for damage in damages]
    logs = (f"{root}/schedule_log/", f"{root}/dispatch_log/")
    plan.refusals += [f for f in findings if f.kind == CORRUPT and f.file.startswith(logs)]
    # A file under another's name may have the only outcomes, or the only messages, of its own window; made anew, that
    # window would have no place for it any more.
    plan.refusals += [
        f
        for f in findings
        if f.kind == MISPLACED and f.offset < FILE_HEADER_BYTES and f.file.startswith((*logs, f"{root}/message_log/"))
    ]
    return plan


def _look_at_files(taken: Capture, plan: RebuildPlan, findings: Findings) -> None:
    kept = taken.checkpoint
    units = Units(taken)
    windows = WindowCheck(
        taken, units, first_kept_sequence(taken), Range(), findings, _ignore, lambda _tier, _start, _balance: None
    )
    windows.run()
    _leave_out_torn_end(taken)
    taken.checkpoint = replace(kept, replay_offset=EVERYTHING)
    try:
        loose = by_sequence(windows.loose)

        def settle(sequence: I64, due_ms: I64, offset: I64) -> None:
            _look_at_cancels(taken, plan, loose, (sequence, due_ms, offset))

        log = LogCheck(taken, units, loose, Range(), findings, _ignore, _see, settle)
        log.run()
    finally:
        taken.checkpoint = kept
    plan.lost = lost_messages(taken, units)
    plan.perhaps_retired = perhaps_retired(taken, log)
    differing = units.codes[log.differing()].tolist()
    damaged = [code for code in windows.damaged if not _is_skipped(units, code)]
    plan.minutes = windows.unlike_day
    plan.codes = sorted({*differing, *damaged, *log.missing_codes})
    ledger = taken.ledger.highest_sequence if taken.ledger is not None else 0
    plan.highest_sequence = max(windows.highest_sequence, log.highest_sequence, ledger)
    plan.code_max = highest_code(taken)
    plan.names_lost = max(0, plan.code_max - (len(taken.names) if taken.names is not None else 0))


def _leave_out_torn_end(taken: Capture) -> None:
    """A whole record in the torn end of message_log was never acknowledged, and the next start cuts it off."""
    for part, expected in list(log_parts(taken))[-1:]:
        file = taken.open(part.path)
        try:
            scan = RecordScan(file, FILE_HEADER_BYTES, part.size, min(expected.synced, part.size))
            for _ in scan:
                pass
        finally:
            taken.release(file)
        if not scan.newer:
            taken.message_log[-1] = replace(taken.message_log[-1], size=scan.report.end)


def _look_at_cancels(taken: Capture, plan: RebuildPlan, loose: OutcomeRows, cancels: tuple[I64, I64, I64]) -> None:
    """A cancel whose outcome is lost would be delivered; replaying its record makes the server record it again."""
    sequence, due_ms, offset = cancels
    lost = cancels_without_outcome(taken, sequence, due_ms, loose)
    if lost.any():
        plan.replay_from = min(plan.replay_from, int(offset[lost].min()))


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


def _ignore(_bytes: int) -> None:
    pass


def _see(_visited: Visited) -> None:
    pass
