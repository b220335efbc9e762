"""Opens a data directory as the last stop left it: clean, killed or damaged. Files only; no tasks, no network.

The steps are numbered in store/FORMAT.md. What is read grows with what was written since the last checkpoint and with the
number of files, never with the number of pending messages.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field

import numpy as np

from delayserver.attempt_horizon import AHEAD_MS, AttemptHorizon
from delayserver.attempted import Attempted
from delayserver.chance import random_server_id
from delayserver.checkpointing import dispatch_marks, schedule_marks
from delayserver.clock import Clock
from delayserver.settings import Settings
from store import checkpoint as checkpoint_file
from store.checkpoint import Checkpoint
from store.days import DayTable
from store.dispatch_log import DispatchLog
from store.errors import CorruptionError, FormatError
from store.filesystem import FileSystem
from store.identity import DataDirectory, SequenceReservation
from store.ledger import Ledger
from store.message_log import MessageLog
from store.names import CONSUMER_GROUP, SUBJECT, Names
from store.schedule_log import ScheduleLog, Source
from store.window_span import find_span_ms
from store.windows import DAY_MS, day_of

logger = logging.getLogger("delayserver")


@dataclass(slots=True)
class Opened:
    """Everything durable, open."""

    directory: DataDirectory
    names: Names
    log: MessageLog
    schedule: ScheduleLog
    dispatch: DispatchLog
    ledger: Ledger
    days: DayTable
    sequences: SequenceReservation
    checkpoint: Checkpoint
    checkpoint_lost: bool
    attempted: Attempted
    horizon: AttemptHorizon
    damages: list[str] = field(default_factory=list)

    def close(self) -> None:
        """Close all files and give the lock back; nothing is synced."""
        for part in (self.log, self.schedule, self.dispatch, self.ledger, self.names, self.directory):
            part.close()


def open_directory(
    fs: FileSystem, settings: Settings, clock: Clock, chance: random.Random, holder: str, role: str
) -> Opened:
    """Lock, read, recover. Raises LockedError, FormatError, CorruptionError (of what cannot be done without), StoreError."""
    storage = settings.storage
    path = storage.data_dir.rstrip("/") or "/"
    directory = DataDirectory.open(
        fs, path, random_server_id=lambda: random_server_id(chance), holder=holder, role=role
    )
    server_id = directory.server_id
    damages: list[str] = []
    _refuse_lost_tables(fs, path)
    names = Names.open(fs, path, server_id, settings.message.subjects_max)
    checkpoint, lost = _read_checkpoint(fs, path, server_id, damages)
    _refuse_other_windows(path, find_span_ms(fs, path) or checkpoint.window_ms, storage.window_ms)
    log = MessageLog.open(
        fs,
        f"{path}/message_log",
        server_id,
        segment_bytes=storage.message_log_segment_bytes,
        valid_to=checkpoint.replay_offset,
    )
    ledger = Ledger.open(fs, path, server_id)
    days = DayTable.open(fs, f"{path}/days", day_of(clock.now_ms() + storage.fine_horizon_ms) + DAY_MS)
    dispatch_files_max = max(storage.open_files_max // 8, 8)
    schedule_files_max = storage.open_files_max - dispatch_files_max
    schedule = ScheduleLog(fs, f"{path}/schedule_log", server_id, storage.window_ms, schedule_files_max)
    # A file may have been removed, as it should be, after the checkpoint that knows it: then it is not missing.
    schedule.recover_all(
        {
            key: mark
            for key, mark in schedule_marks(checkpoint.schedule).items()
            if not (days.is_drained(key.start_ms) if key.source == Source.DAY else ledger.has(key.start_ms))
        }
    )
    dispatch = DispatchLog(
        fs,
        f"{path}/dispatch_log",
        server_id,
        storage.window_ms,
        dispatch_files_max,
        reserve_bytes=storage.dispatch_reserve_bytes,
    )
    dispatch.recover_all(
        {
            key: mark
            for key, mark in dispatch_marks(checkpoint.dispatch).items()
            if not (days.is_drained(key.start_ms) if key.coarse else ledger.has(key.start_ms))
        }
    )
    dispatch.restore_reserve()
    above = max([schedule.last_sequence(key) for key in schedule.keys()], default=0)
    sequences = SequenceReservation.open(fs, path, server_id, above=above)
    damages += [str(damage) for damage in [*log.damages, *schedule.damages, *dispatch.damages]]
    damages += [str(CorruptionError(f"{path}/ledger.log", damage.start, damage.detail)) for damage in ledger.damages]
    for damage in damages:
        logger.error("corruption: %s (run `delayserver recover check` on a copy)", damage)
    attempted, horizon = Attempted(0, 0), AttemptHorizon(checkpoint.written_us)
    if sequences.clean:  # no attempt is unknown: a clock that once ran far ahead need not be remembered
        horizon = AttemptHorizon(min(checkpoint.written_us, clock.now_us()))
    elif not directory.created:
        # Without a checkpoint the horizon of the last life is not known: what this one would begin with has to do.
        unknown = lost or not checkpoint.written_us  # `rebuild` makes one that does not tell either
        latest_ms = clock.now_ms() + AHEAD_MS if unknown else max(clock.now_ms(), horizon.due_ms)
        # What was due in this very millisecond may have been attempted in it.
        attempted = Attempted(latest_ms + 1, sequences.next)
    return Opened(
        directory,
        names,
        log,
        schedule,
        dispatch,
        ledger,
        days,
        sequences,
        checkpoint,
        lost,
        attempted,
        horizon,
        damages,
    )


def _refuse_lost_tables(fs: FileSystem, path: str) -> None:
    """Tables that are there before the first record that needs them. Made anew and empty they would give other names to
    the codes in the logs, and sequences of a sealed day to its minutes once more. Raises CorruptionError."""
    for table, folder in (("names.log", "message_log"), ("days", "schedule_log")):
        if not fs.exists(f"{path}/{table}") and fs.listdir(f"{path}/{folder}"):
            detail = f"the table is missing, but {folder} has files; `delayserver recover rebuild` makes it anew"
            raise CorruptionError(f"{path}/{table}", 0, detail)


def _refuse_other_windows(path: str, found_ms: int, window_ms: int) -> None:
    """Files of windows of another length would not be found, and their messages not delivered. Raises FormatError."""
    if found_ms and found_ms != window_ms:
        raise FormatError(
            path,
            f"its windows are {found_ms} ms long, and storage.window_ms is {window_ms} ms: messages would not be found; "
            "set it back (only an empty directory takes another length)",
        )


def _read_checkpoint(fs: FileSystem, path: str, server_id: int, damages: list[str]) -> tuple[Checkpoint, bool]:
    """The checkpoint, or an empty one: then everything is read again, which takes long and loses nothing."""
    try:
        found = checkpoint_file.read(fs, f"{path}/checkpoint")
    except CorruptionError as error:
        damages.append(f"{error}; it is rebuilt")
        found = None
    if found is not None and found.server_id == server_id:
        return found, False
    return Checkpoint(server_id=server_id), True


def count_accepted(opened: Opened) -> tuple[int, int]:
    """Accepted messages and internal records in all files, by reading their columns: for a lost checkpoint only."""
    rows, internal = count_placed(opened, 0)
    return rows + int(opened.ledger.totals().accepted.sum()), internal


def count_placed(opened: Opened, above: int) -> tuple[int, int]:
    """Messages and internal records in schedule files behind this sequence. Behind the end of message_log there are some
    only where a loss of power kept these pages and not those (durability `os`), or where its tail is damaged."""
    schedule, days, ledger = opened.schedule, opened.days, opened.ledger
    rows = internal = 0
    for key in schedule.keys():
        if schedule.last_sequence(key) <= above or (key.source == Source.FROM_DAY and days.is_draining(key.start_ms)):
            continue  # the day's file still has all of its rows
        # Damage was reported when the files were taken over; what is in it cannot be counted.
        columns = schedule.read_columns(key, ("sequence", "origin_sequence"), damages=[])
        counted = 0 if key.source == Source.DAY else ledger.last_sequence(key.start_ms)
        origin = columns["origin_sequence"][columns["sequence"] > max(above, counted)]
        rows += len(origin)
        internal += int(np.count_nonzero(origin))
    return rows - internal, internal


def find_lost_broker(fs: FileSystem, opened: Opened) -> CorruptionError | None:
    """What to report where the broker's files are gone: a directory that has had a message or a consumer has had a broker
    too; that of a new one is made now."""
    path = f"{opened.directory.path}/broker"
    if not len(opened.names.codes(SUBJECT)) + len(opened.names.codes(CONSUMER_GROUP)) or fs.listdir(path):
        return None
    detail = (
        "the broker's files are missing; it begins empty: what was delivered and not consumed is lost to consumers "
        "until `delayserver recover redispatch` delivers it again, and every group starts anew"
    )
    return CorruptionError(path, 0, detail)
