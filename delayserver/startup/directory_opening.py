"""Opens a data directory after a clean stop, a crash or damage. Files only; no tasks, no network.

store/FORMAT.md numbers the steps. The bytes read grow with those written since the last checkpoint and with the number
of files, never with the number of pending messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import numpy as np

from delayserver.config.settings import Settings
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.chance import random_server_id
from delayserver.runtime.damage import DamageReport
from delayserver.runtime.runtime import Runtime
from delayserver.startup.diverged import refuse_diverged
from delayserver.state.files import Files
from delayserver.state.memory.attempt_horizon import AHEAD_MS, AttemptHorizon
from delayserver.state.memory.attempted import Attempted
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, DiskFullError, FormatError, UnreadableError
from store.logs.dispatch_log import DispatchLog
from store.logs.due_windows import DAY_MS, day_of
from store.logs.message_log import MessageLog
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.logs.window_files import FileUse
from store.logs.window_span import find_span_ms
from store.logs.window_state import FileMark
from store.records.batches import I64
from store.records.scan import Damage
from store.tables import checkpoint as checkpoint_file
from store.tables.checkpoint import Checkpoint, Uncertain
from store.tables.checkpoint_marks import (
    dispatch_losses,
    dispatch_marks,
    dispatch_table,
    lost_table,
    schedule_losses,
    schedule_marks,
    schedule_table,
)
from store.tables.days import DayTable
from store.tables.identity import CLOCK_AHEAD_US, SEQUENCES, DataDirectory, SequenceReservation, read_reservation
from store.tables.ledger import FILE_NAME as LEDGER
from store.tables.ledger import Ledger
from store.tables.member_file import MemberOf
from store.tables.names import CONSUMER_GROUP, SUBJECT, Names

# Indexes follow from the store. Their remains do not mean that the broker is there.
INDEX_FOLDER = "index"


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """The checkpoint with which a start begins: an empty one if it was `lost`."""

    checkpoint: Checkpoint
    lost: bool


@dataclass(frozen=True, slots=True)
class Attempts:
    """Which messages may have been attempted: before this start, and up to which due time from now on."""

    attempted: Attempted
    horizon: AttemptHorizon


@dataclass(frozen=True, slots=True)
class OpeningMember:
    """Which member of a cluster opens a directory. `server_id` is that of its shard."""

    server_id: int
    owner: MemberOf


@dataclass(frozen=True, slots=True)
class Opened:
    """All open files of a data directory, and the state that was read from them."""

    directory: DataDirectory
    files: Files
    sequences: SequenceReservation
    found: FoundCheckpoint
    attempts: Attempts
    believable: BelievableClock

    def close(self) -> None:
        """Closes all files and releases the lock, without a sync."""
        files = self.files
        for part in (files.log, files.schedule, files.dispatch, files.ledger, files.names, self.directory):
            part.close()


def open_directory(
    fs: FileSystem,
    settings: Settings,
    runtime: Runtime,
    holder: str,
    role: str,
    *,
    member: OpeningMember | None = None,
    patient: bool = False,
) -> Opened:
    """Locks, reads and recovers a data directory. Reports damage that can be read around to `runtime.damage`. With `patient`
    raises UnreadableError where the disk cannot read something; without, rows and counts of there are missing.
    `member`: of a cluster.

    Raises LockedError, FormatError, CorruptionError (of a file that it cannot do without), DiskFullError, StoreError.
    After DiskFullError or UnreadableError everything is closed, and the call can be repeated.
    """
    with ExitStack() as stack:
        opened = _open(stack, fs, settings, runtime, holder, role, member, patient=patient)
        stack.pop_all()
    return opened


def require_openable(fs: FileSystem, data_dir: str, member: OpeningMember, holder: str, role: str) -> None:
    """Raises LockedError, FormatError, CorruptionError or DivergedError where this member may not open the directory, before
    it tells others where it is. What the disk cannot do now is for the start, which waits."""
    path = data_dir.rstrip("/") or "/"
    with suppress(DiskFullError, UnreadableError):
        server_id = DataDirectory.look(fs, path, holder=holder, role=role, member=member.owner)
        if server_id is not None:
            _refuse_other_shard(fs, path, server_id, member)


def _open(
    stack: ExitStack,
    fs: FileSystem,
    settings: Settings,
    runtime: Runtime,
    holder: str,
    role: str,
    member: OpeningMember | None,
    *,
    patient: bool,
) -> Opened:
    """`open_directory`; on failure, `stack` closes the opened files."""
    clock, damage, shared = runtime.clock, runtime.damage, member is not None
    storage = settings.storage
    path = storage.data_dir.rstrip("/") or "/"
    directory = DataDirectory.open(
        fs,
        path,
        random_server_id=lambda: random_server_id(runtime.chance) if member is None else member.server_id,
        holder=holder,
        role=role,
        member=None if member is None else member.owner,
    )
    stack.callback(directory.close)
    server_id = directory.server_id
    _refuse_other_shard(fs, path, server_id, member)
    _refuse_lost_tables(fs, path)
    names = _open_names(fs, path, server_id, settings, shared=shared)
    stack.callback(names.close)
    checkpoint, lost = _read_checkpoint(fs, path, server_id, damage, patient=patient)
    _refuse_other_windows(path, find_span_ms(fs, path) or checkpoint.window_ms, storage.window_ms)
    log = MessageLog.open(
        fs,
        f"{path}/message_log",
        server_id,
        segment_bytes=storage.message_log_segment_bytes,
        valid_to=checkpoint.replay_offset,
    )
    stack.callback(log.close)
    ledger = Ledger.open(fs, path, server_id)
    stack.callback(ledger.close)
    days = DayTable.open(fs, f"{path}/days", day_of(clock.now_ms() + storage.fine_horizon_ms) + DAY_MS, shared=shared)
    dispatch_files_max = max(storage.open_files_max // 8, 8)
    schedule_files_max = storage.open_files_max - dispatch_files_max
    use = FileUse(schedule_files_max, on_damage=damage.report)
    schedule = ScheduleLog(fs, f"{path}/schedule_log", server_id, storage.window_ms, use)
    stack.callback(schedule.close)
    placed = schedule_marks(checkpoint.schedule)
    # A file that was properly removed after the checkpoint is not missing.
    schedule.recover_all(
        {
            key: mark
            for key, mark in placed.items()
            if not _has_gone(days, ledger, key.start_ms, placed, of_day=key.source == ScheduleSource.DAY)
        },
        schedule_losses(checkpoint.lost),
    )
    dispatch = DispatchLog(
        fs,
        f"{path}/dispatch_log",
        server_id,
        storage.window_ms,
        FileUse(dispatch_files_max, on_damage=damage.report),
        reserve_bytes=storage.dispatch_reserve_bytes,
    )
    stack.callback(dispatch.close)
    dispatch.recover_all(
        {
            key: mark
            for key, mark in dispatch_marks(checkpoint.dispatch).items()
            if not _has_gone(days, ledger, key.start_ms, placed, of_day=key.coarse)
        },
        dispatch_losses(checkpoint.lost),
    )
    found_damages = [
        *[found.error() for part in (log.damages, schedule.damages, dispatch.damages) for found in part],
        *[found.error(f"{path}/{LEDGER}") for found in ledger.damages],
    ]
    _require_readable(found_damages if patient else ())  # before a loss is written down
    if not lost and not log.damages:  # else the replay may not bring them
        schedule.cut_unreadable_ends()
    _forget_what_is_back(schedule)
    if schedule.newly_lost or dispatch.newly_lost:
        checkpoint = _remember_losses(fs, path, checkpoint, schedule, dispatch)
    dispatch.restore_reserve()
    above = max([schedule.last_sequence(key) for key in schedule.keys()], default=0)
    reservation = read_reservation(fs, f"{path}/{SEQUENCES}", server_id)
    # The latest time in a checkpoint. If the checkpoint is lost, the reservation has a later one. 0: neither has any.
    peak_us = checkpoint.written_us or reservation.clock_us
    if reservation.clean:  # all attempts have known results, so a clock that once ran far ahead is forgotten
        peak_us = min(peak_us, clock.now_us())
    # No message is attempted before the first checkpoint, so there is no time to reserve.
    reserved_us = max(peak_us, clock.now_us() + CLOCK_AHEAD_US) if peak_us else 0
    # The caller reserves when it has opened the broker's files too: a start that is refused writes no reservation.
    sequences = SequenceReservation.open_unwritten(fs, path, server_id, above=above, clock_us=reserved_us)
    for found in (*found_damages, *_lost_before(schedule, dispatch)):
        damage.report(found)
    horizon = AttemptHorizon(checkpoint.written_us if _is_member(directory, member) else peak_us)
    uncertain = checkpoint.uncertain if reservation.orderly and not lost else None
    attempted = Attempted(0, 0)
    if not sequences.clean and not directory.created:
        attempted = _attempted(uncertain, horizon, sequences.next, clock.now_ms())
    # A new directory has no files that a wrong clock could remove.
    known_us = clock.now_us() if directory.created else checkpoint.believable_us
    return Opened(
        directory,
        Files(server_id, log, schedule, dispatch, days, ledger, names),
        sequences,
        FoundCheckpoint(checkpoint, lost),
        Attempts(attempted, horizon),
        BelievableClock(clock, storage.clock_hold_ms, known_us),
    )


def _is_member(directory: DataDirectory, member: OpeningMember | None) -> bool:
    """Whether all attempts of before were those of a shard, whose log says up to when. Else only the directory says it."""
    return member is not None and directory.owner is not None and bool(directory.owner.member)


def _attempted(uncertain: Uncertain | None, horizon: AttemptHorizon, next_sequence: int, now_ms: int) -> Attempted:
    """The attempts of before this start whose results are not known. `uncertain`: the last process ended in order, and knew
    the results of its own."""
    if uncertain is not None:
        return Attempted(uncertain.due_before_ms, uncertain.sequence_before)
    # Without the horizon of the last process, the horizon with which this one would begin is used.
    latest_ms = max(now_ms, horizon.due_ms) if horizon.peak_us else now_ms + AHEAD_MS
    # Messages due in this millisecond may have been attempted in it.
    return Attempted(latest_ms + 1, next_sequence)


def _require_readable(damages: Iterable[CorruptionError]) -> None:
    """Raises the first UnreadableError."""
    for found in damages:
        if isinstance(found, UnreadableError):
            raise found


def _lost_before(schedule: ScheduleLog, dispatch: DispatchLog) -> list[CorruptionError]:
    """What hides the rows that files had lost before this start."""
    hiding = [schedule.hiding(key) for key in schedule.lost if key not in schedule.newly_lost]
    hiding += [dispatch.hiding(key) for key in dispatch.lost if key not in dispatch.newly_lost]
    return [error for error in hiding if error is not None]


def _has_gone(
    days: DayTable, ledger: Ledger, start_ms: int, placed: Mapping[ScheduleKey, FileMark], *, of_day: bool
) -> bool:
    """True if a file of this window or day was removed properly. `placed`: the schedule files of the checkpoint."""
    if not of_day:
        return ledger.has(start_ms)
    if not days.is_whole(start_ms):
        return days.is_drained(start_ms)
    if not ledger.has_between(start_ms, start_ms + DAY_MS):
        return False
    # The day was retired with all its minutes. After a step of the clock it may have got messages again.
    mark = placed.get(ScheduleKey(start_ms, ScheduleSource.DAY))
    return mark is None or mark.last_sequence <= ledger.last_sequence_between(start_ms, start_ms + DAY_MS)


def _open_names(fs: FileSystem, path: str, server_id: int, settings: Settings, *, shared: bool) -> Names:
    message = settings.message
    bounds = message.subjects_max, settings.broker.groups_max, message.tags_max
    return Names.open(fs, path, server_id, *bounds, shared=shared)


def _refuse_other_shard(fs: FileSystem, path: str, server_id: int, member: OpeningMember | None) -> None:
    """Raises FormatError for the directory of a server that is no member of the shard, DivergedError for that of a member
    which must never lead."""
    if member is None:
        return
    refuse_diverged(fs, path)
    if member.server_id != server_id:
        raise FormatError(path, f"belongs to server {server_id:012x}, and the shard is {member.server_id:012x}")


def _refuse_lost_tables(fs: FileSystem, path: str) -> None:
    """Raises CorruptionError if a table is missing that must exist before the first record. New, empty tables would
    give other names to the codes in the logs, and rows of a sealed day to its minutes again."""
    for table, folder in (("names.log", "message_log"), ("days", "schedule_log")):
        if not fs.exists(f"{path}/{table}") and fs.listdir(f"{path}/{folder}"):
            detail = f"the table is missing, but {folder} has files; `delayserver recover rebuild` makes it anew"
            raise CorruptionError(f"{path}/{table}", 0, detail)


def _refuse_other_windows(path: str, found_ms: int, window_ms: int) -> None:
    """Raises FormatError if the windows have another length, because their files and messages would not be found."""
    if found_ms and found_ms != window_ms:
        raise FormatError(
            path,
            f"its windows are {found_ms} ms long, and storage.window_ms is {window_ms} ms: messages would not be found; "
            "set it back (only an empty directory takes another length)",
        )


def _read_checkpoint(
    fs: FileSystem, path: str, server_id: int, damage: DamageReport, *, patient: bool
) -> tuple[Checkpoint, bool]:
    """The checkpoint, and False; or an empty one, and True. Without it all files are read, which is slow but safe."""
    try:
        found = checkpoint_file.read(fs, f"{path}/checkpoint")
    except CorruptionError as error:
        if patient and isinstance(error, UnreadableError):
            raise
        detail = f"{error.detail}; the checkpoint is rebuilt"
        # It is made of the other files, and all but losses of before come back: no reason for a member not to lead.
        damage.report(Damage(error.offset, error.offset, detail, error.errno).error(error.path), own=False)
        found = None
    if found is not None and found.server_id == server_id:
        return found, False
    return Checkpoint(server_id=server_id), True


def _forget_what_is_back(schedule: ScheduleLog) -> None:
    """Forgets losses of files that the operator has put back, and of minutes that their day's file will fill again."""
    for key in list(schedule.lost):
        day = ScheduleKey(day_of(key.start_ms), ScheduleSource.DAY)
        from_day = key.source == ScheduleSource.FROM_DAY and day in schedule and day not in schedule.lost
        if from_day or schedule.has_all_again(key):
            schedule.forget_loss(key)


def _remember_losses(
    fs: FileSystem, path: str, checkpoint: Checkpoint, schedule: ScheduleLog, dispatch: DispatchLog
) -> Checkpoint:
    """Writes the checkpoint again with the losses of files in place of their marks, before any append to these files.
    Otherwise a later start could neither see the loss nor count the file by its old mark. Raises DiskFullError."""
    lost = lost_table(schedule.lost, dispatch.lost)
    known = schedule_marks(checkpoint.schedule), dispatch_marks(checkpoint.dispatch)
    remembered = replace(
        checkpoint,
        schedule=schedule_table({key: mark for key, mark in known[0].items() if key not in schedule.lost}),
        dispatch=dispatch_table({key: mark for key, mark in known[1].items() if key not in dispatch.lost}),
        clean=False,
        lost=lost,
    )
    checkpoint_file.write(fs, f"{path}/checkpoint", remembered)
    return remembered


def count_accepted(files: Files) -> tuple[int, int, int]:
    """Counts accepted messages and internal records in all files by reading their columns, after a lost checkpoint."""
    rows, internal, replaced = count_placed(files, 0)
    return rows + int(files.ledger.totals().accepted.sum()), internal, replaced


def count_placed(files: Files, above: int, replayed: I64 | None = None) -> tuple[int, int, int]:
    """Counts messages, internal records, and messages that took the place of another, in schedule files behind the sequence
    `above`, but for those in `replayed`.

    Some are behind the end of message_log only after damage of its tail or a loss of power (durability `os`). The
    latter may keep these pages and not those of the log."""
    schedule, days, ledger = files.schedule, files.days, files.ledger
    rows = internal = replaced = 0
    for key in schedule.keys():
        if schedule.last_sequence(key) <= above or (
            key.source == ScheduleSource.FROM_DAY and days.is_draining(key.start_ms)
        ):
            continue  # the day's file still has all of its rows
        # Damage was reported when the files were opened; messages in it cannot be counted.
        columns = schedule.read_columns(key, ("sequence", "origin_sequence", "replaces_sequence"), damages=[])
        counted = 0
        if key.source != ScheduleSource.DAY:
            counted = ledger.last_sequence(key.start_ms)
        elif days.is_whole(key.start_ms):
            counted = ledger.last_sequence_between(key.start_ms, key.start_ms + DAY_MS)
        uncounted = columns["sequence"] > max(above, counted)
        if replayed is not None:
            uncounted &= ~np.isin(columns["sequence"], replayed)
        origin = columns["origin_sequence"][uncounted]
        rows += len(origin)
        internal += int(np.count_nonzero(origin))
        replaced += int(np.count_nonzero((origin == 0) & (columns["replaces_sequence"][uncounted] != 0)))
    return rows - internal, internal, replaced


def find_lost_broker(fs: FileSystem, path: str, names: Names) -> CorruptionError | None:
    """The damage if the broker's files are missing in a directory that has had messages or consumers, else None. A new
    directory has no such files yet."""
    if not len(names.codes(SUBJECT)) + len(names.codes(CONSUMER_GROUP)) or set(fs.listdir(path)) - {INDEX_FOLDER}:
        return None
    detail = (
        "the broker's files are missing; it begins empty: what was delivered and not consumed is lost to consumers "
        "until `delayserver recover redispatch` delivers it again, and every group starts anew"
    )
    return CorruptionError(path, 0, detail)
