"""Reads the messages of a redispatch. Damage is reported and counted, and the readable messages are served."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import numpy as np

from delayserver.recover.reading.redispatch_records import BYTES_MAX, MESSAGES_MAX, RedispatchSelection, Unread
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from store.errors import CorruptionError, FormatError
from store.indexes.outcome_index import OutcomeIndex
from store.logs.dispatch_log import DispatchKey, DispatchLog
from store.logs.open_rows import without_row
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import I64, U8, MessageBatch, OutcomeBatch
from store.records.column_blocks import Columns
from store.records.scan import Damage

_LENGTHS = ("ids_length", "properties_length", "bodies_length", "order_keys_length")
_COLUMNS = ("sequence", "due_ms", "subject", "origin_sequence", *_LENGTHS)
_FINE = (ScheduleSource.DIRECT, ScheduleSource.FROM_DAY)
_UNREADABLE = (CorruptionError, FormatError, FileNotFoundError)
Read = TypeVar("Read")


class RedispatchReader:
    """Selects and reads messages of schedule files, each with its outcome."""

    def __init__(self, schedule: ScheduleLog, dispatch: DispatchLog, decided: Decided, runtime: Runtime) -> None:
        self._schedule = schedule
        self._dispatch = dispatch
        self._decided = decided
        self._damage = runtime.damage
        self._workers = runtime.workers
        self._clock = runtime.clock

    async def select(
        self, key: ScheduleKey, wanted: RedispatchSelection, floor: int, unread: Unread
    ) -> tuple[I64, bool]:
        """The next sequences behind `floor`, i64[n] ascending, at most one slice; and whether the file has more.

        `unread` gets all damage. Hidden messages are counted with the first slice of the file (`floor` 0).
        """
        met: list[CorruptionError] = []
        columns = await self._run(partial(self._columns, key, met))
        self._tell(met, unread)
        if met and not floor:
            unread.count(await self._run(partial(self._lost, key, wanted)))
        mask = wanted.mask(columns["due_ms"], columns["subject"], columns["origin_sequence"])
        rows = np.flatnonzero(mask & (columns["sequence"] > floor))
        outcome, known = await self._outcomes(_outcome_file(key), columns["sequence"][rows], unread)
        if not known and not floor:
            due = columns["due_ms"][rows] <= self._clock.now_us() // 1000
            unread.count(int(np.count_nonzero((outcome == 0) & due)))
        rows = rows[wanted.decided(outcome)]
        sizes = sum([columns[name][rows].astype(np.int64) for name in _LENGTHS], np.zeros(len(rows), np.int64))
        fitting = int(np.searchsorted(np.cumsum(sizes), BYTES_MAX, side="right"))
        count = min(len(rows), MESSAGES_MAX, max(fitting, 1))
        return columns["sequence"][rows[:count]], count < len(rows)

    async def read(self, key: ScheduleKey, sequences: I64, unread: Unread) -> MessageBatch:
        """The whole messages with these sequences. Unreadable ones are left out and counted in `unread`; those that are
        retired meanwhile are left out."""
        met: list[CorruptionError] = []
        batch = await self._run(partial(self._rows, key, sequences, met))
        self._tell(met, unread)
        if met or key in self._schedule:
            unread.count(len(sequences) - len(batch))
        return batch

    async def _outcomes(self, file: DispatchKey, sequences: I64, unread: Unread) -> tuple[U8, bool]:
        """Outcome codes u8[n] of messages of a window, 0 for none; and whether all outcomes could be read."""
        try:
            async with self._decided.pinned(file) as index:
                return self._decided.outcome_of(file, index, sequences), True
        except _UNREADABLE as error:
            self._tell([_named(error)], unread)
        met: list[CorruptionError] = []
        # Before the file is read, because rows move from memory to the file.
        codes = await self._run(partial(self._known, file, sequences, self._decided.unwritten_near(file), met))
        self._tell(met, unread)
        return codes, False

    # In a thread, because the disk may be slow.

    def _columns(self, key: ScheduleKey, met: list[CorruptionError]) -> Columns:
        nothing = MessageBatch.filled(0)
        hiding = self._schedule.hiding(key)
        if hiding is not None:
            met.append(hiding)
        return _around_damage(
            lambda damages: self._schedule.read_columns(key, _COLUMNS, None, self._schedule.end(key), damages=damages),
            {name: getattr(nothing, name) for name in _COLUMNS},
            partial(self._schedule.path, key),
            met,
        )

    def _rows(self, key: ScheduleKey, sequences: I64, met: list[CorruptionError]) -> MessageBatch:
        return _around_damage(
            lambda damages: self._schedule.read_rows(key, sequences, damages=damages),
            MessageBatch.filled(0),
            partial(self._schedule.path, key),
            met,
        )

    def _written(self, file: DispatchKey, met: list[CorruptionError]) -> OutcomeBatch:
        return _around_damage(
            lambda damages: self._dispatch.outcomes_left(file, damages=damages),
            OutcomeBatch.filled(0),
            partial(self._dispatch.path, file),
            met,
        )

    def _known(
        self, file: DispatchKey, sequences: I64, unwritten: list[OutcomeBatch], met: list[CorruptionError]
    ) -> U8:
        """Only known outcomes: a message without a readable outcome may have been cancelled."""
        return OutcomeIndex.of([*unwritten, self._written(file, met)]).lookup(sequences)

    def _lost(self, key: ScheduleKey, wanted: RedispatchSelection) -> int:
        """Counts messages of the window with a wanted outcome that no file of it has. 0 unless `key` is the first
        damaged file, so that they are counted once."""
        damaged, placed = [], []
        for file in (
            [key] if key.source == ScheduleSource.DAY else [ScheduleKey(key.start_ms, source) for source in _FINE]
        ):
            met: list[CorruptionError] = []
            placed.append(self._columns(file, met)["sequence"])
            if met:
                damaged.append(file)
        if damaged[:1] != [key]:
            return 0
        written = self._written(_outcome_file(key), [])
        mask = wanted.mask(written.due_ms, written.subject, written.origin_sequence) & (written.redelivery == 0)
        decided = written.sequence[mask & wanted.decided(written.outcome)]
        return int(np.count_nonzero(without_row(np.unique(decided), placed)))

    # Reporting

    def _tell(self, met: list[CorruptionError], unread: Unread) -> None:
        for error in met:
            self._damage.report(error)
            unread.add(error.path, error.offset, error.detail)

    async def _run(self, read: Callable[[], Read]) -> Read:
        return await self._workers.run(read)


def _outcome_file(key: ScheduleKey) -> DispatchKey:
    return DispatchKey(key.start_ms, key.source == ScheduleSource.DAY)


def _around_damage(
    read: Callable[[list[Damage]], Read], nothing: Read, path: Callable[[], str], met: list[CorruptionError]
) -> Read:
    """The result of `read`, or `nothing` if the file cannot be read at all. All damage goes to `met`. A file that retention
    removes meanwhile has nothing, and is not damaged."""
    damages: list[Damage] = []
    try:
        result = read(damages)
    except _UNREADABLE as error:
        met.append(_named(error))
        result = nothing
    except KeyError:
        return nothing
    with suppress(KeyError):
        met += [damage.error(path()) for damage in damages]
    return result


def _named(error: CorruptionError | FormatError | FileNotFoundError) -> CorruptionError:
    if isinstance(error, CorruptionError):
        return error
    if isinstance(error, FormatError):
        return error.as_damage()
    return CorruptionError(str(error.filename), 0, "the file is missing")
