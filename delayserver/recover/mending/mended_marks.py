"""The checkpoint while files are mended: its marks of changed files go, and its counts are counted again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from delayserver.recover.checking.log_check import first_kept_sequence
from delayserver.recover.checking.window_check import WindowCheck
from delayserver.recover.mending.plan import Plan
from delayserver.recover.reading.capture import Capture, capture
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.file_read import Reader, log_parts
from delayserver.recover.reading.findings import Findings
from delayserver.recover.reading.window_units import Units
from store.logs.dispatch_log import DispatchLog
from store.logs.due_windows import day_of
from store.logs.schedule_log import ScheduleLog, ScheduleSource
from store.records.batches import KIND_MESSAGES, MessageBatch
from store.records.file_header import FILE_HEADER_BYTES
from store.tables import checkpoint as checkpoint_file
from store.tables.checkpoint import Checkpoint, CoarseDays
from store.tables.checkpoint_marks import dispatch_table, schedule_table


class Marks:
    """The checkpoint of a captured directory, whose files are being changed."""

    def __init__(self, taken: Capture) -> None:
        self._taken = taken
        self._path = f"{taken.path}/{checkpoint_file.FILE_NAME}"
        self._forgotten: set[str] = set()

    def _write(self, checkpoint: Checkpoint) -> None:
        checkpoint_file.write(self._taken.fs, self._path, checkpoint)

    def forget(self, paths: set[str]) -> None:
        """Take files out of the checkpoint, so that the next start reads them whole: their offsets change.

        While a file is damaged its mark may be all that says how far it was durable. Without it, what stands behind the
        damage looks like the rest of a torn end.
        """
        taken, checkpoint = self._taken, self._taken.marks.checkpoint
        if paths <= self._forgotten or taken.marks.checkpoint_lost:
            return
        self._forgotten |= paths
        paths = self._forgotten
        schedule, dispatch = checkpoint.schedule, checkpoint.dispatch
        known_schedule = np.array([taken.schedule_path(key) not in paths for key in taken.marks.schedule_known], bool)
        known_dispatch = np.array([taken.dispatch_path(key) not in paths for key in taken.marks.dispatch_known], bool)
        if known_schedule.all() and known_dispatch.all():
            return
        # A day is drained from its beginning once more, where its own file has changed or what it gave to a minute.
        drained = [
            key
            for key in taken.files.schedule
            if key.source != ScheduleSource.DIRECT and taken.schedule_path(key) in paths
        ]
        days = {day_of(key.start_ms) for key in drained}
        kept_days = ~np.isin(checkpoint.coarse_days.start_ms, np.array(sorted(days), np.int64))
        changed = replace(
            checkpoint,
            schedule=type(schedule)(**_take(schedule, known_schedule)),
            dispatch=type(dispatch)(**_take(dispatch, known_dispatch)),
            coarse_days=CoarseDays(**_take(checkpoint.coarse_days, kept_days)),
            clean=False,
        )
        self._write(changed)

    def recount(self) -> None:
        """Write the count of accepted messages that the files hold by now, unless the checkpoint is lost."""
        after = capture(self._taken.fs, self._taken.path, Findings())
        try:
            found, accepted = after.marks.checkpoint, 0 if after.marks.checkpoint_lost else count_accepted(after)
            if not after.marks.checkpoint_lost and found.totals.get("accepted", accepted) != accepted:
                self._write(replace(found, totals={**found.totals, "accepted": accepted}, clean=False, pending=None))
        finally:
            after.close()

    def write_anew(self, plan: Plan) -> str:
        """Read all window files once more, make them durable, and say in a new checkpoint what they hold. Returns a line
        about it.

        Replay goes on where the old checkpoint says, or earlier where outcomes of cancels are missing, or reads all of
        message_log again: the server records the outcomes of cancels as it replays.
        """
        taken, fs, root = self._taken, self._taken.fs, self._taken.path
        schedule = ScheduleLog(fs, f"{root}/schedule_log", taken.server_id, taken.files.window_ms)
        dispatch = DispatchLog(fs, f"{root}/dispatch_log", taken.server_id, taken.files.window_ms)
        try:
            schedule.recover_all({})
            dispatch.recover_all({})
            tables = schedule_table(schedule.marks()), dispatch_table(dispatch.marks())
        finally:
            schedule.close()
            dispatch.close()
        parts = taken.files.message_log
        lost = taken.marks.checkpoint_lost or not parts
        offset = (parts[0].base + FILE_HEADER_BYTES if parts else 0) if lost else taken.marks.checkpoint.replay_offset
        offset = min(offset, plan.replay_from)
        replayed = min(_sequence_before(taken, offset), plan.highest_sequence)
        after = capture(fs, root, Findings())
        try:
            position = Checkpoint(taken.server_id, replay_offset=offset, replayed_sequence=replayed)
            accepted = count_accepted(after.with_checkpoint(position))
        finally:
            after.close()
        checkpoint = Checkpoint(
            server_id=taken.server_id,
            replay_offset=offset,
            replayed_sequence=replayed,
            schedule=tables[0],
            dispatch=tables[1],
            totals={"accepted": accepted, "internal": taken.marks.checkpoint.totals.get("internal", 0)},
            written_us=taken.marks.checkpoint.written_us,
            window_ms=taken.files.window_ms,
            believable_us=taken.marks.checkpoint.believable_us,
        )
        self._write(checkpoint)
        return f"{self._path} is written anew: {accepted} messages accepted up to sequence {replayed}"


def _take(table: checkpoint_file.ColumnTable, mask: np.ndarray) -> dict[str, np.ndarray]:
    return {name: getattr(table, name)[mask] for name, _, _ in table.columns}


def count_accepted(taken: Capture) -> int:
    """Messages of the balance up to the replayed sequence: in the files, and in the ledger of retired windows."""
    units = Units(taken)
    windows = WindowCheck(Reader(taken), units, first_kept_sequence(taken), Range(), visit=lambda _visited: None)
    windows.run()
    ledger = int(taken.tables.ledger.totals().accepted.sum()) if taken.tables.ledger is not None else 0
    return windows.accepted_before + ledger - _retired_waiting(taken, units)


def _retired_waiting(taken: Capture, units: Units) -> int:
    """Messages that the ledger counts and that the next start replays, which counts them again."""
    waiting = 0
    for part, read in Reader(taken).segments():
        if part.base + part.size > taken.marks.checkpoint.replay_offset:
            for mine, columns in read.rows(MessageBatch, ("sequence", "due_ms", "origin_sequence")):
                again = units.is_retired(columns["due_ms"], columns["sequence"]) & (columns["origin_sequence"] == 0)
                again &= part.base + mine.row_offsets() >= taken.marks.checkpoint.replay_offset
                waiting += int(np.count_nonzero(again))
    return waiting


def _sequence_before(taken: Capture, offset: int) -> int:
    """The highest sequence that stands before an offset of message_log (or in files whose message_log is retired)."""
    reader = Reader(taken)
    for part, _ in log_parts(taken):
        if part.base + part.size > offset:
            for header, _batch in reader.batches(part.path, part.size):
                if part.base + header.offset >= offset and header.kind == KIND_MESSAGES:
                    return header.first_sequence - 1
    return 1 << 62
