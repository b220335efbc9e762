"""Linearised cancel: `cancelled` is answered only if no attempt can have delivered the message.

The decision is one step on the event loop. A message with an outcome, a running attempt, or a possible attempt before
a crash is answered with its outcome or `too_late`. The others leave the wheel and the queues and are held. Then the
control record is committed like a message. A held row cannot be loaded or delivered until the replayer has recorded the
outcome. If the commit fails, the rows go back.

A message may be cancelled if all its attempts are known to have failed, because no node has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from enum import Enum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from delayserver.operations.messages.locator import Located, LocatedNames, Locator
from delayserver.protocol.errors import DelayServerError, StorageFailed
from delayserver.protocol.outcomes import Outcome
from delayserver.receive.group_commit import GroupCommit
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.residency import Residency
from delayserver.state.positions.gathering import Committed
from delayserver.state.positions.positions import Positions
from delayserver.state.windows.windows import Windows
from store.errors import CorruptionError
from store.indexes.outcome_index import OutcomeIndex
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import window_starts
from store.records.batches import I64, U8, CancelBatch, MessageBatch
from store.records.message_name import MessageName
from wheel.keys import groups

Places = NDArray[np.intp]

# At most this many messages are looked up on the event loop; more in a thread.
INLINE_MESSAGES_MAX = 32
# At most this many rows are searched for ids on the event loop.
INLINE_ROWS_MAX = 4096
CANCELLED, ALREADY_CANCELLED = int(Outcome.CANCELLED), int(Outcome.ALREADY_CANCELLED)
# Each promises that the message never arrives. The outcome row is the only proof, so it is durable before the answer.
EXPIRED, DEAD_LETTERED = int(Outcome.EXPIRED), int(Outcome.DEAD_LETTERED)
PENDING, PREPARED = int(Outcome.PENDING), int(Outcome.PREPARED)


class Ends(Enum):
    """Which messages without an outcome a decision ends. It answers the others `prepared` or `pending`."""

    ALL = 0
    MESSAGES = 1
    """All but transactions."""
    TRANSACTIONS = 2
    NONE = 3


class Cancellation:
    """Decides and commits cancels."""

    def __init__(
        self,
        commit: GroupCommit,
        positions: Positions,
        locator: Locator,
        decided: Decided,
        residency: Residency,
        windows: Windows,
        runtime: Runtime,
    ) -> None:
        self._commit = commit
        self._positions = positions
        self._locator = locator
        self._open_messages = decided.open_messages
        self._decided = decided
        self._residency = residency
        self._retired = windows.retired
        self._workers = runtime.workers
        self._window_ms = windows.book.window_ms
        self._clock = runtime.clock

    async def locate(self, sequence: I64, due_ms: I64) -> Located:
        """Finds messages after their replay, so that an accepted message is never `unknown` (rule 4)."""
        accepted = (sequence > 0) & (sequence <= self._positions.accepted_sequence.value)
        if accepted.any():
            await self._positions.replayed_sequence.reached(int(sequence[accepted].max()))
        found, subject = self._open_messages.find(sequence, due_ms)
        none = np.zeros(len(sequence), dtype=bool)
        located = Located(found, np.where(found, sequence, 0), subject, none, none.copy())
        rest = np.flatnonzero(~found)
        if len(rest):
            find = partial(self._locator.locate, sequence[rest], due_ms[rest])
            in_files = find() if len(rest) <= INLINE_MESSAGES_MAX else await self._workers.run(find)
            located.put(rest, in_files)
            located.hidden[~accepted] = False
        return located

    async def locate_names(self, names: Sequence[MessageName]) -> LocatedNames:
        """Finds messages by ids after the replay of everything accepted so far; see `Locator.by_ids`."""
        await self._positions.replayed_sequence.reached(self._positions.accepted_sequence.value)
        find = partial(self._locator.by_ids, names)
        few = len(names) <= INLINE_MESSAGES_MAX
        if few and self._locator.rows_near([name.due_ms for name in names]) <= INLINE_ROWS_MAX:
            return find()
        return await self._workers.run(find)

    async def durable(self, message: I64, answer: U8) -> None:
        """Returns when the outcomes of all `expired` and `dead_lettered` answers are on disk.

        After a crash before that the message would be due again, and the server would ask the node for it instead of
        expiring it. Raises StorageFailed if the outcomes can never be written."""
        promised = message[(answer == EXPIRED) | (answer == DEAD_LETTERED)]
        if not await self._decided.promises_written(promised):
            raise StorageFailed("what became of it could not be written; ask again when the server is back")

    async def cancel(self, sequence: I64, due_ms: I64) -> U8:
        """Cancels n messages. Outcome codes u8[n], durable when this returns. Raises named errors of the commit."""
        return await self.end(await self.locate(sequence, due_ms), sequence, due_ms)

    async def end(
        self, located: Located, sequence: I64, due_ms: I64, ends: Ends = Ends.ALL, outcome: int = CANCELLED
    ) -> U8:
        """Ends n located messages with an outcome, `cancelled` or `rolled_back`, by a control record. Outcome codes u8[n]:
        `cancelled` for those that it ended. Raises named errors of the commit."""
        message = located.message
        answer = await self.decide(located, sequence, due_ms, ends)
        mine = np.flatnonzero(answer == CANCELLED)
        if len(mine):
            held, place = distinct_messages(message, mine)
            due = due_ms[place]
            batch = CancelBatch.filled(
                len(held),
                sequence=held,
                due_ms=due,
                requested_us=self._clock.now_us(),
                subject=located.subject[place],
                outcome=0 if outcome == CANCELLED else outcome,
            )
            await self.commit_held(batch, held, due, ends)
            if len(place) < len(mine):  # named twice in one request
                answer[mine] = ALREADY_CANCELLED
                answer[place] = CANCELLED
        await self.durable(message, answer)
        return answer

    async def decide(self, located: Located, sequence: I64, due_ms: I64, ends: Ends = Ends.ALL) -> U8:
        """Decides n messages, u8[n]: answers those that cannot be ended, holds the others and answers `cancelled`.
        The caller must call `commit_held` or `give_back` in the same step."""
        answer = await self._decide(located, due_ms, ends)
        self._name_missing(answer, located, sequence, due_ms)
        return answer

    async def _decide(self, located: Located, due_ms: I64, ends: Ends) -> U8:
        """`decide` without the answers of messages that were not found."""
        message = located.message
        while True:
            known = self._undecided(located, due_ms)
            files = self._by_file(np.flatnonzero(located.found & ~known), due_ms)
            async with AsyncExitStack() as stack:
                indexes: dict[DispatchKey, OutcomeIndex] = {}
                told: dict[DispatchKey, U8] = {}
                for key, rows in files.items():
                    try:
                        indexes[key] = await stack.enter_async_context(self._decided.pinned(key))
                    except CorruptionError:
                        told[key] = await self._decided.readable_codes(key, message[rows])
                if self._decided.holds.any_held(message):
                    # Another cancel of one of these messages is in progress and decides first.
                    await self._decided.holds.wait_released()
                elif self._by_file(np.flatnonzero(located.found & ~known), due_ms).keys() != files.keys():
                    continue  # a day was sealed meanwhile: newer outcomes are in the files of its minutes
                elif not files or not (known & ~self._undecided(located, due_ms)).any():
                    return self._answered(located, due_ms, files, indexes, told, ends)

    def _undecided(self, located: Located, due_ms: I64) -> NDArray[np.bool_]:
        """True for found messages that memory knows to be without an outcome, bool[n]. Valid in this step only."""
        return located.found & self._open_messages.find(located.message, due_ms)[0]

    def _by_file(self, rows: Places, due_ms: I64) -> dict[DispatchKey, Places]:
        """Groups rows by the file that holds their outcomes."""
        starts = window_starts(due_ms[rows], self._window_ms)
        order = np.argsort(starts, kind="stable")
        files: dict[DispatchKey, list[Places]] = {}
        for start, begin, end in groups(starts[order]):
            files.setdefault(self._decided.key_of(start), []).append(rows[order[begin:end]])
        return {key: np.concatenate(parts) for key, parts in files.items()}

    def _answered(
        self,
        located: Located,
        due_ms: I64,
        files: dict[DispatchKey, Places],
        indexes: dict[DispatchKey, OutcomeIndex],
        told: dict[DispatchKey, U8],
        ends: Ends,
    ) -> U8:
        """The answers u8[n], decided in one step. A message in none of the files has no outcome.

        `told` has the answers for the rows of damaged files, where a missing outcome is `too_late`. They may be older
        than this step, because outcomes never change."""
        message = located.message
        answer = np.zeros(len(message), dtype=np.uint8)
        for key, rows in files.items():
            if key in told:
                answer[rows] = told[key]
            else:
                answer[rows] = self._decided.outcome_of(key, indexes[key], message[rows])
            # Retention removed the window and its outcomes after the message was located.
            answer[rows[self._retired.are(key.start_ms, message[rows])]] = int(Outcome.RETIRED)
        answer[answer == CANCELLED] = ALREADY_CANCELLED
        open_rows = np.flatnonzero(located.found & (answer == 0))
        if len(open_rows) and ends != Ends.ALL:
            prepared = located.prepared[open_rows]
            answer[open_rows] = np.where(prepared, np.uint8(PREPARED), np.uint8(PENDING))
            mine = prepared if ends == Ends.TRANSACTIONS else ~prepared
            open_rows = open_rows[mine] if ends != Ends.NONE else open_rows[:0]
        if len(open_rows):
            answer[open_rows] = self._take_out(message[open_rows], due_ms[open_rows], located.prepared[open_rows])
        return answer

    def _name_missing(self, answer: U8, located: Located, sequence: I64, due_ms: I64) -> None:
        """Answers messages not found: `too_late` if damage may hide them, `retired` if retention removed them. Both may
        have been accepted, so neither is `unknown`."""
        answer[located.hidden] = int(Outcome.TOO_LATE)
        missing = np.flatnonzero(~located.found)
        starts = window_starts(due_ms[missing], self._window_ms)
        order = np.argsort(starts, kind="stable")
        for start, begin, end in groups(starts[order]):
            rows = missing[order[begin:end]]
            answer[rows[self._retired.are(start, sequence[rows])]] = int(Outcome.RETIRED)

    def _take_out(self, message: I64, due_ms: I64, prepared: NDArray[np.bool_]) -> U8:
        """Answers u8[n], decided in one step. Messages with a running or possible attempt are too late. The others
        leave the wheel and the queues and are held. No attempt is ever made with a prepared transaction."""
        answer = np.full(len(message), CANCELLED, dtype=np.uint8)
        answer[self._residency.may_be_delivered(message, due_ms) & ~prepared] = int(Outcome.TOO_LATE)
        mine = np.flatnonzero(answer == CANCELLED)
        if len(mine):
            held, place = distinct_messages(message, mine)
            self._decided.holds.hold(held)
            self._residency.withdraw(due_ms[place], held)
        return answer

    async def commit_held(
        self, batch: CancelBatch | MessageBatch, held: I64, due_ms: I64, ends: Ends = Ends.ALL
    ) -> Committed:
        """Commits the batch that ends held messages i64[n]. If that fails, gives them back and raises its error."""
        try:
            return await self._commit.commit(batch)
        except DelayServerError:
            self.give_back(held, due_ms, ends)
            raise

    def give_back(self, message: I64, due_ms: I64, ends: Ends = Ends.ALL) -> None:
        """The decision did not happen: the messages are to be delivered. Transactions alone were never in memory."""
        self._decided.holds.release(message)
        if ends != Ends.TRANSACTIONS:
            self._residency.give_back(due_ms, message)


def distinct_messages(message: I64, rows: Places) -> tuple[I64, Places]:
    """The distinct messages of some rows, ascending, and the first row of each."""
    named = message[rows]
    if (named[1:] > named[:-1]).all():
        return named, rows
    distinct, first = np.unique(named, return_index=True)
    return distinct, rows[first]
