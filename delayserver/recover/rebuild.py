"""Makes schedule_log, the checkpoint and lost tables anew from message_log and dispatch_log.

Nothing readable is dropped: a schedule file becomes the union of what it still holds (messages whose message_log is
retired among them) and what message_log has for it, in sequence order. A file that lacks nothing is not touched. Each
file is replaced at once, and the checkpoint forgets it before, so an interrupted rebuild can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np

from delayserver.checkpointing import dispatch_table, schedule_table
from delayserver.recover.capture import Capture, capture
from delayserver.recover.copies import mark_copies
from delayserver.recover.days_rebuild import rebuild_days
from delayserver.recover.findings import Findings
from delayserver.recover.log_check import UNITS_AT_ONCE, log_parts
from delayserver.recover.rebuild_plan import RebuildPlan
from delayserver.recover.repair import forget_marks, lost_name, lost_names, write_file
from delayserver.recover.repairing import count_accepted
from delayserver.recover.units import Units
from store import checkpoint as checkpoint_file
from store.batches import I64, KIND_MESSAGES, MessageBatch
from store.checkpoint import Checkpoint
from store.dispatch_log import DispatchLog
from store.file_header import FILE_HEADER_BYTES, FILE_NAMES, FILE_SCHEDULE, FileHeader
from store.filesystem import FileSystem
from store.identity import SequenceReservation, rebuild_identity
from store.names import FILE_NAME as NAMES_FILE
from store.names import NAMES_MAX, SUBJECT, Names
from store.scan import Scan, ScanReport
from store.schedule_log import ScheduleKey, ScheduleLog, Source
from store.windows import DAY_MS, day_of, window_starts

SIDE_FOLDER = "rebuild"
Tell = Callable[[str], None]


def apply_rebuild(taken: Capture, plan: RebuildPlan, tell: Tell = lambda _text: None) -> None:
    """Carry a plan out. The caller holds the lock. Raises DiskFullError (nothing was lost), StoreError."""
    fs, root = taken.fs, taken.path
    if plan.identity:
        rebuild_identity(fs, root, taken.server_id)
        tell(f"{root}/identity is written anew")
    if plan.names:
        header = FileHeader(FILE_NAMES, taken.server_id, 0)
        write_file(fs, f"{root}/{NAMES_FILE}", header, [lost_names(1, plan.code_max)] if plan.code_max else [])
        tell(f"{root}/{NAMES_FILE} is written anew, with stand-ins for {plan.code_max} names")
    elif plan.names_lost:
        _add_lost_names(taken, plan)
        tell(f"{root}/{NAMES_FILE} has stand-ins for {plan.names_lost} names that it lost")
    if plan.days:
        taken.days = rebuild_days(taken)
        tell(f"{root}/days is written anew")
    restore = Restore(taken, tell)
    for begin in range(0, len(plan.codes), UNITS_AT_ONCE):
        restore.run(plan.codes[begin : begin + UNITS_AT_ONCE])
    for key in plan.minutes:
        restore.fill_up(key)
    if plan.sequences:
        SequenceReservation.rebuild(fs, root, taken.server_id, above=plan.highest_sequence)
        tell(f"{root}/sequences is written anew, above {plan.highest_sequence}")
    write_checkpoint(taken, plan, tell)


def _add_lost_names(taken: Capture, plan: RebuildPlan) -> None:
    """Behind the last name that is left, or the next start would give the codes of the lost ones to others."""
    names = Names.open(taken.fs, taken.path, taken.server_id, max(NAMES_MAX, plan.code_max))
    try:
        names.intern(SUBJECT, [lost_name(code) for code in range(len(names) + 1, plan.code_max + 1)])
    finally:
        names.close()


class Restore:
    """Puts messages back into schedule files."""

    def __init__(self, taken: Capture, tell: Tell) -> None:
        self._taken = taken
        self._units = Units(taken)
        self._tell = tell
        self._side_path = f"{taken.path}/{SIDE_FOLDER}"

    def run(self, codes: list[int]) -> None:
        """Restore the files of some units."""
        _clear(self._taken.fs, self._side_path)
        held = {key: self._sequences(key) for key in self._taken.schedule if self._unit_of(key) in codes}
        side = ScheduleLog(self._taken.fs, self._side_path, self._taken.server_id, self._taken.window_ms)
        try:
            for batch in self._logged(np.array(codes, np.int64)):
                self._set_aside(side, batch, held)
            forget_marks(self._taken, {self._taken.schedule_path(key) for key in [*held, *side.keys()]})
            for key in sorted({*held, *side.keys()}, key=lambda key: (key.start_ms, -key.source)):
                self._merge(side, key)
        finally:
            side.close()
            _clear(self._taken.fs, self._side_path)  # on a full disk, this is what filled it

    def fill_up(self, key: ScheduleKey) -> None:
        """Put back into a minute what its day gave it. What is behind its last sequence the drain brings."""
        sequences = self._sequences(key)
        day = (self._of_window(batch, key.start_ms, sequences) for batch in self._valid(_day_key(key)))
        path = self._taken.schedule_path(key)
        forget_marks(self._taken, {path})
        header = FileHeader(FILE_SCHEDULE, self._taken.server_id, key.start_ms, self._taken.window_ms)
        lacking = (batch for batch in day if len(batch))
        self._taken.schedule[key] = write_file(self._taken.fs, path, header, merge(self._valid(key), lacking))
        self._tell(f"{path} is written anew: {len(self._sequences(key)) - len(sequences)} messages restored")

    def _of_window(self, batch: MessageBatch, start_ms: int, sequences: I64) -> MessageBatch:
        mine = window_starts(batch.due_ms, self._taken.window_ms) == start_ms
        mine &= batch.sequence < max(sequences.tolist()[-1:], default=0)
        return batch.take(np.flatnonzero(mine & ~self._units.is_retired(batch.due_ms, batch.sequence)))

    def _unit_of(self, key: ScheduleKey) -> int:
        if key.source == Source.DIRECT:
            return key.start_ms * 2
        day = day_of(key.start_ms) * 2 + 1
        # While a day is drained its own file is the source, and the drain fills the minutes from it.
        drained = _day_key(key) not in self._taken.schedule
        return day if key.source == Source.DAY or drained else -1

    def _sequences(self, key: ScheduleKey) -> I64:
        parts = [batch.sequence for batch in self._valid(key)]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def _valid(self, key: ScheduleKey) -> Iterator[MessageBatch]:
        """What verifies in a schedule file."""
        size = self._taken.schedule.get(key)
        if size is None:
            return
        file = self._taken.fs.open(self._taken.schedule_path(key), write=False)
        try:
            yield from _messages(Scan(file, FILE_HEADER_BYTES, size), FILE_HEADER_BYTES, size)
        finally:
            file.close()

    def _logged(self, codes: I64) -> Iterator[MessageBatch]:
        """Messages of these units in message_log."""
        for part, _ in log_parts(self._taken):
            file = self._taken.open(part.path)
            try:
                for batch in _messages(Scan(file, FILE_HEADER_BYTES, part.size), FILE_HEADER_BYTES, part.size):
                    of_row = self._units.codes_of(batch.due_ms, batch.sequence)
                    retired = self._units.is_retired(batch.due_ms, batch.sequence)
                    rows = np.flatnonzero(np.isin(of_row, codes) & ~retired)
                    if len(rows):
                        yield batch if len(rows) == len(batch) else batch.take(rows)
            finally:
                self._taken.release(file)

    def _set_aside(self, side: ScheduleLog, batch: MessageBatch, held: dict[ScheduleKey, I64]) -> None:
        """Rows that their file lacks, into a file of the same name in the side folder."""
        for key, rows in self._by_file(batch):
            present = held.get(key)
            if present is not None and len(present):
                lacking = np.flatnonzero(~np.isin(rows.sequence, present))
                if not len(lacking):
                    continue
                rows = rows.take(lacking)  # noqa: PLW2901
            fresh = rows.sequence > side.last_sequence(key)
            if fresh.all():
                side.append(key, rows)
            elif fresh.any():
                side.append(key, rows.take(np.flatnonzero(fresh)))

    def _by_file(self, batch: MessageBatch) -> Iterator[tuple[ScheduleKey, MessageBatch]]:
        codes = self._units.codes_of(batch.due_ms, batch.sequence)
        for code in np.unique(codes).tolist():
            rows = batch.take(np.flatnonzero(codes == code))
            start = code >> 1
            if not code & 1:
                yield ScheduleKey(start, Source.DIRECT), rows
            elif self._taken.days is None or not self._taken.days.is_drained(start):
                yield ScheduleKey(start, Source.DAY), rows
            else:
                windows = window_starts(rows.due_ms, self._taken.window_ms)
                for window in np.unique(windows).tolist():
                    yield ScheduleKey(window, Source.FROM_DAY), rows.take(np.flatnonzero(windows == window))

    def _merge(self, side: ScheduleLog, key: ScheduleKey) -> None:
        """The union of the old file and what was set aside, in the place of the old file."""
        path = self._taken.schedule_path(key)

        def restored() -> Iterator[MessageBatch]:
            return (batch for _, batch in side.batches(key)) if key in side else iter(())

        copies = mark_copies(self._taken, key, restored, self._valid)
        span_ms = DAY_MS if key.source == Source.DAY else self._taken.window_ms
        header = FileHeader(FILE_SCHEDULE, self._taken.server_id, key.start_ms, span_ms)
        self._taken.schedule[key] = write_file(self._taken.fs, path, header, merge(self._valid(key), copies))
        self._tell(f"{path} is written anew: {side.rows(key) if key in side else 0} messages restored")


def _day_key(key: ScheduleKey) -> ScheduleKey:
    return ScheduleKey(day_of(key.start_ms), Source.DAY)


def merge(first: Iterator[MessageBatch], second: Iterator[MessageBatch]) -> Iterator[MessageBatch]:
    """Two streams of batches in sequence order as one; of a sequence that is in both, the row of `first`."""
    left, right = next(first, None), next(second, None)
    last = 0
    while left is not None or right is not None:
        if left is None or right is None:
            part = left if left is not None else right
            left, right = (next(first, None), right) if left is not None else (None, next(second, None))
        else:
            limit = min(int(left.sequence[-1]), int(right.sequence[-1]))
            part, left, right = _up_to(left, right, limit)
            left = left if left is not None else next(first, None)
            right = right if right is not None else next(second, None)
        assert part is not None
        fresh = np.flatnonzero(part.sequence > last)
        if len(fresh):
            part = part if len(fresh) == len(part) else part.take(fresh)
            last = int(part.sequence[-1])
            yield part


def _up_to(
    left: MessageBatch, right: MessageBatch, limit: int
) -> tuple[MessageBatch, MessageBatch | None, MessageBatch | None]:
    """All rows up to a sequence, merged, and what is left of both."""
    parts, rests = [], []
    for batch in (left, right):
        cut = int(np.searchsorted(batch.sequence, limit, side="right"))
        parts.append(batch.slice(0, cut))
        rests.append(batch.slice(cut, len(batch)) if cut < len(batch) else None)
    joined = MessageBatch.concatenate([part for part in parts if len(part)])
    order = np.argsort(joined.sequence, kind="stable")
    ordered = joined.sequence[order]
    keep = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    return joined.take(order[keep]), rests[0], rests[1]


def _messages(scan: Scan, start: int, stop: int) -> Iterator[MessageBatch]:
    for header, batch in scan.records(start, stop, ScanReport(start), forgive=True):
        if header.kind == KIND_MESSAGES:
            yield cast("MessageBatch", batch)


def _clear(fs: FileSystem, folder: str) -> None:
    for day in fs.listdir(folder):
        for name in fs.listdir(f"{folder}/{day}"):
            fs.remove(f"{folder}/{day}/{name}")
        fs.remove_directory(f"{folder}/{day}")
    fs.remove_directory(folder)


def write_checkpoint(taken: Capture, plan: RebuildPlan, tell: Tell) -> None:
    """Read all window files once more, make them durable, and say in a new checkpoint what they hold.

    Replay goes on where the old checkpoint says, or earlier where outcomes of cancels are missing, or reads all of
    message_log again: the server records the outcomes of cancels as it replays.
    """
    fs, root = taken.fs, taken.path
    schedule = ScheduleLog(fs, f"{root}/schedule_log", taken.server_id, taken.window_ms)
    dispatch = DispatchLog(fs, f"{root}/dispatch_log", taken.server_id, taken.window_ms)
    try:
        schedule.recover_all({})
        dispatch.recover_all({})
        tables = schedule_table(schedule.marks()), dispatch_table(dispatch.marks())
    finally:
        schedule.close()
        dispatch.close()
    parts = taken.message_log
    lost = taken.checkpoint_lost or not parts
    offset = (parts[0].base + FILE_HEADER_BYTES if parts else 0) if lost else taken.checkpoint.replay_offset
    offset = min(offset, plan.replay_from)
    replayed = min(_sequence_before(taken, offset), plan.highest_sequence)
    after = capture(fs, root, Findings())
    try:
        after.checkpoint = Checkpoint(taken.server_id, replay_offset=offset, replayed_sequence=replayed)
        accepted = count_accepted(after)
    finally:
        after.close()
    checkpoint = Checkpoint(
        server_id=taken.server_id,
        replay_offset=offset,
        replayed_sequence=replayed,
        schedule=tables[0],
        dispatch=tables[1],
        totals={"accepted": accepted, "internal": taken.checkpoint.totals.get("internal", 0)},
        written_us=taken.checkpoint.written_us,
        window_ms=taken.window_ms,
    )
    checkpoint_file.write(fs, f"{root}/{checkpoint_file.FILE_NAME}", checkpoint)
    tell(f"{root}/checkpoint is written anew: {accepted} messages accepted up to sequence {replayed}")


def _sequence_before(taken: Capture, offset: int) -> int:
    """The highest sequence that stands before an offset of message_log (or in files whose message_log is retired)."""
    for part, _ in log_parts(taken):
        if part.base + part.size <= offset:
            continue
        file = taken.open(part.path)
        try:
            for header, _batch in Scan(file, FILE_HEADER_BYTES, part.size).records(
                FILE_HEADER_BYTES, part.size, ScanReport(FILE_HEADER_BYTES), forgive=True
            ):
                if part.base + header.offset >= offset and header.kind == KIND_MESSAGES:
                    return header.first_sequence - 1
        finally:
            taken.release(file)
    return 1 << 62
