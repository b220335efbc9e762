"""Cancel, linearised: `cancelled` is answered only where no attempt can have been made, and never lies.

The decision is one step on the event loop: what has an outcome, runs, or may have run before a crash is told so; the rest
is taken out of the wheel and the queues and held. Then the control record is committed like a message. Nobody can load or
deliver a held row until the replayer has recorded the outcome. If the commit fails, the rows go back.

A message whose attempts are all known to have failed may be cancelled: nobody has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import numpy as np
from numpy.typing import NDArray

from delayserver.operations.locator import Located, LocatedNames, Locator
from delayserver.protocol.errors import DelayServerError, StorageFailed
from delayserver.protocol.outcomes import Outcome
from delayserver.receive.group_commit import GroupCommit
from delayserver.runtime.runtime import Runtime
from delayserver.state.decided import Decided
from delayserver.state.gathering import Committed
from delayserver.state.positions import Positions
from delayserver.state.residency import Residency
from delayserver.state.windows import Windows
from store.errors import CorruptionError
from store.indexes.outcome_index import OutcomeIndex
from store.logs.dispatch_log import DispatchKey
from store.logs.windows import window_starts
from store.records.batches import I64, U8, CancelBatch, MessageBatch
from store.records.message_name import MessageName
from wheel.keys import groups

Places = NDArray[np.intp]

# Up to this many are looked up on the event loop.
INLINE_MESSAGES_MAX = 32
# And so many rows are looked through there for ids.
INLINE_ROWS_MAX = 4096
CANCELLED, ALREADY_CANCELLED = int(Outcome.CANCELLED), int(Outcome.ALREADY_CANCELLED)
# Promises that the message never arrives. Each rests on its outcome row alone, so it is not told before that is durable.
EXPIRED, DEAD_LETTERED = int(Outcome.EXPIRED), int(Outcome.DEAD_LETTERED)


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
        """Find messages, after their replay (rule 4: never `unknown` of an accepted message)."""
        accepted = (sequence > 0) & (sequence <= self._positions.accepted_sequence.value)
        if accepted.any():
            await self._positions.replayed_sequence.reached(int(sequence[accepted].max()))
        found, subject = self._open_messages.find(sequence, due_ms)
        located = Located(found, np.where(found, sequence, 0), subject, np.zeros(len(sequence), dtype=bool))
        rest = np.flatnonzero(~found)
        if len(rest):
            find = partial(self._locator.locate, sequence[rest], due_ms[rest])
            in_files = find() if len(rest) <= INLINE_MESSAGES_MAX else await self._workers.run(find)
            located.put(rest, in_files)
            located.hidden[~accepted] = False
        return located

    async def locate_names(self, names: Sequence[MessageName]) -> LocatedNames:
        """Find messages by their ids, after the replay of all that is accepted so far; see `Locator.by_ids`."""
        await self._positions.replayed_sequence.reached(self._positions.accepted_sequence.value)
        find = partial(self._locator.by_ids, names)
        few = len(names) <= INLINE_MESSAGES_MAX
        if few and self._locator.rows_near([name.due_ms for name in names]) <= INLINE_ROWS_MAX:
            return find()
        return await self._workers.run(find)

    async def durable(self, message: I64, answer: U8) -> None:
        """Return when `expired` and `dead_lettered` among the answers are on disk: after a crash before that the message
        would be due once more, and what was due before a crash is asked for at the node instead of expiring. Raises
        StorageFailed where they never will be."""
        promised = message[(answer == EXPIRED) | (answer == DEAD_LETTERED)]
        while len(promised) and any(np.isin(promised, rows.sequence).any() for rows in self._decided.unwritten()):
            if self._decided.gave_up:
                raise StorageFailed("what became of it could not be written; ask again when the server is back")
            self._decided.hurry.ring()
            await self._clock.sleep_ms(1)

    async def cancel(self, sequence: I64, due_ms: I64) -> U8:
        """Outcome codes u8[n] for n messages. Durable when this returns. Raises named errors of the commit."""
        located = await self.locate(sequence, due_ms)
        message = located.message
        answer = await self.decide(located, sequence, due_ms)
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
            )
            await self.commit_held(batch, held, due)
            if len(place) < len(mine):  # named twice in one request
                answer[mine] = ALREADY_CANCELLED
                answer[place] = CANCELLED
        await self.durable(message, answer)
        return answer

    async def decide(self, located: Located, sequence: I64, due_ms: I64) -> U8:
        """Answer what can be answered, u8[n]. The rest is held and answered `cancelled`: `commit_held` or `give_back` must
        follow in the same step."""
        answer = await self._decide(located, due_ms)
        self._name_missing(answer, located, sequence, due_ms)
        return answer

    async def _decide(self, located: Located, due_ms: I64) -> U8:
        """Answer what can be answered, hold the rest (answer `cancelled`)."""
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
                        told[key] = await self._decided.told(key, message[rows])
                if self._decided.holds.any_held(message):
                    # Another cancel of one of these is on its way: it decides first.
                    await self._decided.holds.wait_released()
                elif self._by_file(np.flatnonzero(located.found & ~known), due_ms).keys() != files.keys():
                    continue  # a day was sealed meanwhile: what was decided since stands in its minutes
                elif not files or not (known & ~self._undecided(located, due_ms)).any():
                    return self._answered(located, due_ms, files, indexes, told)

    def _undecided(self, located: Located, due_ms: I64) -> NDArray[np.bool_]:
        """Of which of the found messages memory knows that they have no outcome, bool[n]; holds for this step."""
        return located.found & self._open_messages.find(located.message, due_ms)[0]

    def _by_file(self, rows: Places, due_ms: I64) -> dict[DispatchKey, Places]:
        """Sort rows by the file that tells their outcomes."""
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
    ) -> U8:
        """One step: the answers u8[n]. What is in none of the files has no outcome. `told`: the answers for the rows of a
        damaged file, where a missing outcome is `too_late`; outcomes never change, so these may be older."""
        message = located.message
        answer = np.zeros(len(message), dtype=np.uint8)
        for key, rows in files.items():
            if key in told:
                answer[rows] = told[key]
            else:
                answer[rows] = self._decided.outcome_of(key, indexes[key], message[rows])
            # The window went with its outcomes since the message was located.
            answer[rows[self._retired.are(key.start_ms, message[rows])]] = int(Outcome.RETIRED)
        answer[answer == CANCELLED] = ALREADY_CANCELLED
        open_rows = np.flatnonzero(located.found & (answer == 0))
        if len(open_rows):
            answer[open_rows] = self._take_out(message[open_rows], due_ms[open_rows])
        return answer

    def _name_missing(self, answer: U8, located: Located, sequence: I64, due_ms: I64) -> None:
        """What retention removed was accepted once, and so may have been what damage hides: it is never `unknown`."""
        answer[located.hidden] = int(Outcome.TOO_LATE)
        missing = np.flatnonzero(~located.found)
        starts = window_starts(due_ms[missing], self._window_ms)
        order = np.argsort(starts, kind="stable")
        for start, begin, end in groups(starts[order]):
            rows = missing[order[begin:end]]
            answer[rows[self._retired.are(start, sequence[rows])]] = int(Outcome.RETIRED)

    def _take_out(self, message: I64, due_ms: I64) -> U8:
        """One step: whatever runs or may have run is too late, the rest leaves wheel and queues and is held."""
        answer = np.full(len(message), CANCELLED, dtype=np.uint8)
        answer[self._residency.may_be_delivered(message, due_ms)] = int(Outcome.TOO_LATE)
        mine = np.flatnonzero(answer == CANCELLED)
        if len(mine):
            held, place = distinct_messages(message, mine)
            self._decided.holds.hold(held)
            self._residency.withdraw(due_ms[place], held)
        return answer

    async def commit_held(self, batch: CancelBatch | MessageBatch, held: I64, due_ms: I64) -> Committed:
        """Commit what cancels held messages i64[n]; where it fails they are given back. Raises its named error."""
        try:
            return await self._commit.commit(batch)
        except DelayServerError:
            self.give_back(held, due_ms)
            raise

    def give_back(self, message: I64, due_ms: I64) -> None:
        """The cancel did not happen: the messages are to be delivered."""
        self._decided.holds.release(message)
        self._residency.give_back(due_ms, message)


def distinct_messages(message: I64, rows: Places) -> tuple[I64, Places]:
    """The distinct messages of some rows, ascending, and the first row of each."""
    named = message[rows]
    if (named[1:] > named[:-1]).all():
        return named, rows
    distinct, first = np.unique(named, return_index=True)
    return distinct, rows[first]
