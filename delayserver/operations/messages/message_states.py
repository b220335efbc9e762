"""The states of messages, by their numbers: from outcomes, and for messages without one from memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from delayserver.operations.messages.cancellation import Cancellation
from delayserver.operations.messages.locator import Located
from delayserver.protocol.errors import MessageDamaged
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.fair_turns import Work
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.files import Files
from delayserver.state.memory.residency import Residency
from delayserver.state.windows.windows import Windows
from store.errors import CorruptionError, FormatError
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import window_starts
from store.records.batches import I64, U8, OutcomeBatch
from store.records.membership import is_member
from store.records.scan import Damage
from store.records.shared_column import ATTEMPTS
from wheel.keys import groups

Mask = NDArray[np.bool_]

# Messages that are looked up in one step. One pass over the rows in memory serves all of them.
MESSAGES_AT_ONCE = 1024
# The cost of a window besides its messages, in items.
WINDOW_ITEMS = 16
TOO_LATE, PREPARED = int(Outcome.TOO_LATE), int(Outcome.PREPARED)
# A larger file of outcomes is read in a thread.
INLINE_READ_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Times:
    """When a message passed each stage, in microseconds; 0 where it is not known. `released_us`: due by the wheel.
    `settled_us`: its outcome was known; of a delivered message, when its node had it."""

    accepted_us: int = 0
    loaded_us: int = 0
    released_us: int = 0
    queued_us: int = 0
    dispatched_us: int = 0
    settled_us: int = 0


@dataclass(frozen=True, slots=True)
class FoundState:
    """One answer. `message` is the sequence of the original; 0 if nothing was found. `error`: damage may hide it."""

    outcome: Outcome
    message: int = 0
    subject: str = ""
    dispatched_us: int = 0
    attempts: int = 0
    unanswered_elsewhere: int = 0
    broker_group: str = ""
    replaced_by: tuple[int, int] = (0, 0)
    """Sequence and due time of the message that replaced it by a reschedule, or zeros."""
    times: Times = Times()
    has_row: bool = False
    prepared: bool = False
    """Whether `message` is a transaction."""
    error: MessageDamaged | None = None


class MessageStates:
    """Message → state."""

    def __init__(
        self,
        cancellation: Cancellation,
        decided: Decided,
        files: Files,
        residency: Residency,
        windows: Windows,
        runtime: Runtime,
    ) -> None:
        self._cancellation = cancellation
        self._decided = decided
        self._dispatch = files.dispatch
        self._residency = residency
        self._book = windows.book
        self._retired = windows.retired
        self._names = files.names
        self._damage = runtime.damage
        self._window_ms = windows.book.window_ms
        self._workers = runtime.workers
        self._clock = runtime.clock

    async def find(self, sequence: I64, due_ms: I64, work: Work) -> list[FoundState]:
        """The states of n messages by the numbers of their receipts. Other tasks run between parts of the work."""
        found: list[FoundState] = []
        for start in range(0, len(sequence), MESSAGES_AT_ONCE):
            some = slice(start, start + MESSAGES_AT_ONCE)
            found += await self._find(sequence[some], due_ms[some], work)
        return found

    async def _find(self, sequence: I64, due_ms: I64, work: Work) -> list[FoundState]:
        located = await self._cancellation.locate(sequence, due_ms)
        message, own = located.message, located.found & (located.message == sequence)
        # Read first, in one step over all waiting rows. A message without an outcome later has none now either.
        waiting = self._in_memory(message, due_ms)
        code, retired = np.zeros(len(sequence), dtype=np.uint8), np.zeros(len(sequence), dtype=bool)
        starts = window_starts(due_ms, self._window_ms)
        order = np.argsort(starts, kind="stable")
        for start, begin, end in groups(starts[order]):
            rows = order[begin:end]
            mine = rows[own[rows]]
            if len(mine):
                code[mine] = await self.outcomes(start, message[mine])
            retired[rows] = self._retired.are(start, sequence[rows])
            await work.items(WINDOW_ITEMS)
        has_row = own & (code != 0) & (code != TOO_LATE)
        await self._cancellation.durable(message[has_row], code[has_row])
        outcome = np.full(len(sequence), int(Outcome.UNKNOWN), dtype=np.uint8)
        outcome[located.found] = int(Outcome.DEDUPLICATED)
        outcome[own] = np.where(located.prepared, PREPARED, waiting)[own]
        outcome[has_row] = code[has_row]
        # Also messages that were found and whose window was retired since.
        gone = retired & (code == 0) & (own | ~located.found)
        outcome[gone] = int(Outcome.RETIRED)
        message[gone] = 0
        located = replace(located, message=message, hidden=located.hidden & ~retired)
        return await self._found(outcome, located, has_row, work)

    async def _found(self, outcome: U8, located: Located, has_row: Mask, work: Work) -> list[FoundState]:
        found = []
        of_located = (located.message, located.subject, located.hidden, located.prepared)
        columns = [column.tolist() for column in (outcome, has_row, *of_located)]
        for code, decided, sequence, subject_code, damaged, prepared in zip(*columns, strict=True):
            await work.items()
            error = MessageDamaged("the part of the schedule file that may hold it is damaged") if damaged else None
            name = self._names.name(subject_code) if sequence else ""
            found.append(FoundState(Outcome(code), sequence, name, has_row=decided, prepared=prepared, error=error))
        return found

    async def outcomes(self, start_ms: int, message: I64) -> U8:
        """Outcome codes u8[n] of messages of one window: 0 without an outcome, TOO_LATE where the file is damaged. Waits for
        cancels in progress."""
        code = np.zeros(len(message), dtype=np.uint8)
        rest = np.arange(len(message))
        while True:
            key = self._decided.key_of(start_ms)
            try:
                async with self._decided.pinned(key) as index:
                    if self._decided.key_of(start_ms) != key:
                        continue  # its day was sealed meanwhile: the file of the day may be gone
                    free = self._decided.holds.not_held(message[rest])
                    code[rest[free]] = self._decided.outcome_of(key, index, message[rest[free]])
            except CorruptionError:  # reported; the outcomes of most messages are unknown
                code[rest] = await self._decided.readable_codes(key, message[rest])
                return code
            rest = rest[~free]
            if not len(rest):
                return code
            await self._decided.holds.wait_released()

    def _in_memory(self, message: I64, due_ms: I64) -> U8:
        """Codes u8[n] of n messages without an outcome, in one step: pending, retrying or in flight."""
        state = np.full(len(message), int(Outcome.PENDING), dtype=np.uint8)
        state[self._residency.retrying(due_ms, message)] = int(Outcome.RETRYING)
        # Before it is due, the batch of a message in flight only waits for the moment.
        state[self._residency.in_flight(message) & (due_ms <= self._clock.now_ms())] = int(Outcome.IN_FLIGHT)
        return state

    async def with_rows(self, found: Sequence[FoundState], due_ms: Sequence[int], work: Work) -> list[FoundState]:
        """The same answers with the fields of their outcome rows, such as time and group of the dispatch. `error` is set
        where only the row can tell a commit from a cancel, and damage hides it.

        Reads each file once."""
        wanted: dict[DispatchKey, list[int]] = {}
        for each, due in zip(found, due_ms, strict=True):
            if each.has_row:
                for key in self._files_of(due):
                    wanted.setdefault(key, []).append(each.message)
        if not wanted:
            return [*found]
        # Unwritten rows are collected before the files are read, because rows move from memory to the files. So are the
        # files of days, because rows move from these to the files of minutes.
        asked = np.unique(np.array([each.message for each in found if each.has_row], dtype=np.int64))
        starts = window_starts(np.array(due_ms, dtype=np.int64), self._window_ms)
        batches = self._decided.unwritten_between(int(starts.min()), int(starts.max()) + self._window_ms)
        hidden: set[int] = set()
        for key in sorted(wanted, key=lambda key: not key.coarse):
            await work.items(WINDOW_ITEMS)
            batches.append(await self._written(key, np.array(wanted[key], dtype=np.int64)))
            if key in self._dispatch:  # a file that was retired, or moved with its day, hides nothing
                hidden.update(wanted[key])
        rows: dict[int, tuple[OutcomeBatch, int]] = {}
        for batch in batches:
            await work.items(WINDOW_ITEMS)
            for row in np.flatnonzero(is_member(batch.sequence, asked)).tolist():
                rows.setdefault(int(batch.sequence[row]), (batch, row))
        answers = []
        for each in found:
            await work.items()
            if each.has_row and each.message in rows:
                answers.append(self._with_row(each, *rows[each.message]))
            elif each.prepared and each.outcome == Outcome.CANCELLED and each.message in hidden:
                answers.append(replace(each, error=MessageDamaged("the row that tells how it ended is damaged")))
            else:
                answers.append(each)
        return answers

    def _files_of(self, due_ms: int) -> list[DispatchKey]:
        """The files that may have the outcome row of a message: until its day is drained, that of the day is one."""
        files = self._book.outcome_files(self._book.start_of(due_ms))
        return [key for key in files if not key.coarse or key in self._dispatch]

    def _with_row(self, found: FoundState, batch: OutcomeBatch, row: int) -> FoundState:
        group, attempts = int(batch.broker_group[row]), batch.attempts[row : row + 1]
        replaced = int(batch.replaced_by_sequence[row])
        return replace(
            found,
            outcome=Outcome.COMMITTED if found.prepared and replaced else found.outcome,
            dispatched_us=int(batch.dispatched_us[row]),
            attempts=int(ATTEMPTS.number(attempts)[0]),
            unanswered_elsewhere=int(ATTEMPTS.unanswered(attempts)[0]),
            broker_group=self._names.name(group) if group else "",
            replaced_by=(replaced, int(batch.replaced_by_due_ms[row])),
            times=Times(**{field.name: int(getattr(batch, field.name)[row]) for field in fields(Times)}),
        )

    async def _written(self, key: DispatchKey, messages: I64) -> OutcomeBatch:
        """The readable rows of a file. Reports damage; the answer is valid without them, as the codes are known."""
        damages: list[Damage] = []
        read = partial(self._dispatch.rows_of, key, messages, damages)
        try:
            large = key in self._dispatch and self._dispatch.end(key) > INLINE_READ_BYTES_MAX
            written = await self._workers.run(read) if large else read()
        except KeyError:  # retired, or moved with its day
            return OutcomeBatch.filled(0)
        except (CorruptionError, FormatError) as error:
            self._damage.report(CorruptionError(error.path, 0, error.detail))
            return OutcomeBatch.filled(0)
        for damage in damages:
            self._damage.report(damage.error(self._dispatch.path(key)))
        return written
