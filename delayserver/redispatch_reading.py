"""Reads what a redispatch selects, around damage: what cannot be read is named and counted, the rest is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.clock import Clock
from delayserver.outcome_recorder import OutcomeRecorder
from store.batches import I64, U8, U32, MessageBatch, OutcomeBatch
from store.column_blocks import Columns
from store.dispatch_log import DispatchKey, DispatchLog
from store.errors import CorruptionError, FormatError
from store.filesystem import FileSystem
from store.outcome_index import OutcomeIndex
from store.scan import Damage
from store.schedule_log import ScheduleKey, ScheduleLog, Source

# One request: some ten milliseconds of reading, and one group commit of bounded memory.
MESSAGES_MAX = 8192
BYTES_MAX = 4 << 20
# Places named in one reply; who wants all of them asks `recover check`.
DAMAGES_MAX = 16
_LENGTHS = ("ids_length", "properties_length", "bodies_length")
_COLUMNS = ("sequence", "due_ms", "subject", "origin_sequence", *_LENGTHS)
_FINE = (Source.DIRECT, Source.FROM_DAY)
_UNREADABLE = (CorruptionError, FormatError, FileNotFoundError)
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages: due in [from_ms, to_ms), of a subject code (0: all), with one of these outcome codes."""

    from_ms: int
    to_ms: int
    subject: int
    outcomes: tuple[int, ...]

    def mask(self, due_ms: I64, subject: U32, origin_sequence: I64) -> NDArray[np.bool_]:
        """Messages of the balance in the range, bool[n], whatever became of them."""
        mask: NDArray[np.bool_] = (due_ms >= self.from_ms) & (due_ms < self.to_ms) & (origin_sequence == 0)
        return mask & (subject == self.subject) if self.subject else mask

    def decided(self, outcome: U8) -> NDArray[np.bool_]:
        """Where the outcome is one of those asked for, bool[n]."""
        return np.isin(outcome, np.array(self.outcomes, np.uint8))


@dataclass(slots=True)
class Unread:
    """What a redispatch passed over: how many messages it would have delivered, and the places of the damage."""

    messages: int = 0
    damages: dict[tuple[str, int], str] = field(default_factory=dict)

    def add(self, path: str, offset: int, detail: str) -> None:
        """Name a place, once."""
        if len(self.damages) < DAMAGES_MAX:
            self.damages.setdefault((path, offset), detail)

    def to_map(self) -> dict[str, Any]:
        """The fields of the reply."""
        damages = [
            {"file": path, "offset": offset, "detail": detail} for (path, offset), detail in self.damages.items()
        ]
        return {"unreadable": self.messages, "damages": damages}


class RedispatchReader:
    """Selects and reads messages of schedule files, each with its outcome."""

    def __init__(
        self, schedule: ScheduleLog, dispatch: DispatchLog, recorder: OutcomeRecorder, fs: FileSystem, clock: Clock
    ) -> None:
        self._schedule = schedule
        self._dispatch = dispatch
        self._recorder = recorder
        self._inline = fs.inline
        self._clock = clock

    async def select(self, key: ScheduleKey, wanted: Wanted, floor: int, unread: Unread) -> tuple[I64, bool]:
        """Sequences i64[n], ascending, behind `floor`, as many as one slice may hold; whether the file has more.

        What cannot be read is told to `unread`, and counted with the first slice of the file (`floor` 0).
        """
        met: list[CorruptionError] = []
        columns = await self._run(partial(self._columns, key, met))
        self._tell(met, unread)
        if met and not floor:
            unread.messages += await self._run(partial(self._lost, key, wanted))
        mask = wanted.mask(columns["due_ms"], columns["subject"], columns["origin_sequence"])
        rows = np.flatnonzero(mask & (columns["sequence"] > floor))
        outcome, known = await self._outcomes(key.start_ms, columns["sequence"][rows], unread)
        if not known and not floor:
            due = columns["due_ms"][rows] <= self._clock.now_us() // 1000
            unread.messages += int(np.count_nonzero((outcome == 0) & due))
        rows = rows[wanted.decided(outcome)]
        sizes = sum([columns[name][rows].astype(np.int64) for name in _LENGTHS], np.zeros(len(rows), np.int64))
        fitting = int(np.searchsorted(np.cumsum(sizes), BYTES_MAX, side="right"))
        count = min(len(rows), MESSAGES_MAX, max(fitting, 1))
        return columns["sequence"][rows[:count]], count < len(rows)

    async def read(self, key: ScheduleKey, sequences: I64, unread: Unread) -> MessageBatch:
        """The whole messages with these sequences; those whose bytes cannot be read are left out, and told."""
        met: list[CorruptionError] = []
        batch = await self._run(partial(self._rows, key, sequences, met))
        self._tell(met, unread)
        unread.messages += len(sequences) - len(batch)
        return batch

    async def _outcomes(self, start_ms: int, sequences: I64, unread: Unread) -> tuple[U8, bool]:
        """Outcome codes u8[n] of messages of a window, 0 for none; and whether all of its outcomes could be read."""
        file = DispatchKey(start_ms, False)
        try:
            async with self._recorder.pinned(file) as index:
                return self._recorder.outcome_of(file, index, sequences), True
        except _UNREADABLE as error:
            self._tell([_named(error)], unread)
        met: list[CorruptionError] = []
        # Only what is certain: a message without a readable outcome may have been cancelled.
        index = OutcomeIndex()
        for batch in self._recorder.unwritten():
            index.add(batch.sequence, batch.outcome)
        written = await self._run(partial(self._written, file, met))
        index.add(written.sequence, written.outcome)
        self._tell(met, unread)
        return index.lookup(sequences), False

    # In a thread, where the disk may make one wait.

    def _columns(self, key: ScheduleKey, met: list[CorruptionError]) -> Columns:
        nothing = MessageBatch.filled(0)
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
            lambda damages: self._dispatch.outcomes(file, damages=damages),
            OutcomeBatch.filled(0),
            partial(self._dispatch.path, file),
            met,
        )

    def _lost(self, key: ScheduleKey, wanted: Wanted) -> int:
        """Messages of the window with a wanted outcome that no file of it gives out, counted with the first damaged one."""
        damaged, placed = [], []
        for file in [ScheduleKey(key.start_ms, source) for source in _FINE]:
            met: list[CorruptionError] = []
            placed.append(self._columns(file, met)["sequence"])
            if met:
                damaged.append(file)
        if damaged[:1] != [key]:
            return 0
        written = self._written(DispatchKey(key.start_ms, False), [])
        mask = wanted.mask(written.due_ms, written.subject, written.origin_sequence) & (written.redelivery == 0)
        decided = written.sequence[mask & wanted.decided(written.outcome)]
        return int(np.count_nonzero(~np.isin(np.unique(decided), np.concatenate(placed))))

    # Telling

    def _tell(self, met: list[CorruptionError], unread: Unread) -> None:
        for error in met:
            self._recorder.on_corruption(error)
            unread.add(error.path, error.offset, error.detail)

    async def _run(self, read: Callable[[], Read]) -> Read:
        return read() if self._inline else await trio.to_thread.run_sync(read)


def _around_damage(
    read: Callable[[list[Damage]], Read], nothing: Read, path: Callable[[], str], met: list[CorruptionError]
) -> Read:
    """What `read` gives, or `nothing` of a file that cannot be read at all; what it passed over goes to `met`."""
    damages: list[Damage] = []
    try:
        return read(damages)
    except _UNREADABLE as error:
        met.append(_named(error))
        return nothing
    finally:
        met += [CorruptionError(path(), damage.start, damage.detail) for damage in damages]


def _named(error: CorruptionError | FormatError | FileNotFoundError) -> CorruptionError:
    if isinstance(error, CorruptionError):
        return error
    if isinstance(error, FormatError):
        return CorruptionError(error.path, 0, error.detail)
    return CorruptionError(str(error.filename), 0, "the file is missing")
