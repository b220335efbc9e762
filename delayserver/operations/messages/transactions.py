"""The operations `commit` and `rollback`, and the end of a transaction that its policy decides.

A commit is a reschedule of the prepared message: one record holds the visible message and ends the prepared one, which it
replaces. A rollback is a control record, as a cancel is. Both take the way of a cancel, so of two that race the first
durable one wins, and the answer to the other says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from delayserver.operations.access.access import EVERYTHING, Access
from delayserver.operations.messages.cancellation import CANCELLED, Cancellation, Ends
from delayserver.operations.messages.message_states import MessageStates
from delayserver.operations.messages.named_messages import GivenItems, NamedMessages, Naming
from delayserver.operations.messages.rescheduling import MovedColumns, Moves, Rescheduling
from delayserver.operations.sending.admission import Admission
from delayserver.protocol.errors import (
    DelayServerError,
    MessageDamaged,
    TransactionEnded,
    TransactionUnknown,
    kept,
)
from delayserver.protocol.outcomes import Outcome
from delayserver.receive.intake import Intake
from delayserver.runtime.fair_turns import Work
from delayserver.runtime.runtime import Runtime
from store.records.batches import I64, U8

Places = NDArray[np.intp]
ROLLED_BACK = int(Outcome.ROLLED_BACK)


@dataclass(frozen=True, slots=True)
class GivenTransactions:
    """The items of a request, and by place the new due time of a commit (`due_ms`, `delay_ms`), unchecked."""

    messages: GivenItems
    due: dict[int, tuple[object, object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndedColumns:
    """n transactions: `named` are the prepared messages. `committed` (sequence, due_ms) by place are the visible ones,
    `errors` by place those of transactions that did not end as asked for."""

    named: NamedMessages
    committed: dict[int, tuple[int, int]]
    errors: dict[int, DelayServerError]


class Transactions:
    """Ends transactions."""

    def __init__(
        self,
        admission: Admission,
        naming: Naming,
        intake: Intake,
        rescheduling: Rescheduling,
        cancellation: Cancellation,
        states: MessageStates,
        runtime: Runtime,
    ) -> None:
        self._admission = admission
        self._naming = naming
        self._intake = intake
        self._rescheduling = rescheduling
        self._cancellation = cancellation
        self._states = states
        self._clock = runtime.clock

    async def commit(self, given: GivenTransactions, work: Work, access: Access = EVERYTHING) -> EndedColumns:
        """Commits transactions; the answer is the same again for one that is committed. Durable on return.

        Raises NotReady, ShuttingDown, DiskFull."""
        self._admission.require()
        named = await self._naming.find(given.messages, work, access)
        count = len(named.sequence)
        errors = dict(named.errors)
        moves = Moves(named.sequence, named.due_ms, np.maximum(named.due_ms, self._now_ms()))
        for place, (due_ms, delay_ms) in given.due.items():
            await work.items()
            if place not in errors and (due_ms is not None or delay_ms is not None):
                try:
                    moves.new_due_ms[place] = self._intake.due(due_ms, delay_ms)
                except DelayServerError as error:
                    errors[place] = kept(error)
        moved = MovedColumns.nothing(count)
        places = np.flatnonzero([place not in errors for place in range(count)])
        await self._rescheduling.move(moves, places, moved, work, Ends.TRANSACTIONS)
        errors |= moved.errors
        committed: dict[int, tuple[int, int]] = {}
        told: list[int] = []
        for place in [place for place in places.tolist() if place not in errors]:
            if int(moved.outcome[place]) == CANCELLED:
                committed[place] = int(moved.new_sequence[place]), int(moves.new_due_ms[place])
            else:
                told.append(place)
        result = EndedColumns(named, committed, errors)
        await self._tell(result, np.array(told, np.intp), Outcome.COMMITTED, work)
        return result

    async def rollback(self, given: GivenTransactions, work: Work, access: Access = EVERYTHING) -> EndedColumns:
        """Rolls transactions back; the answer is the same again for one that is rolled back. Durable on return.

        Raises the named error of the commit of the control record."""
        named = await self._naming.find(given.messages, work, access)
        result = EndedColumns(named, {}, dict(named.errors))
        places = np.flatnonzero([place not in result.errors for place in range(len(named.sequence))])
        if len(places):
            answer = await self.roll_back(named.sequence[places], named.due_ms[places])
            await self._tell(result, places[answer != CANCELLED], Outcome.ROLLED_BACK, work)
        return result

    async def roll_back(self, sequence: I64, due_ms: I64) -> U8:
        """Rolls n prepared messages back, by their numbers. Outcome codes u8[n]: `cancelled` for those that it ended."""
        located = await self._cancellation.locate(sequence, due_ms)
        return await self._cancellation.end(located, sequence, due_ms, Ends.TRANSACTIONS, ROLLED_BACK)

    def _now_ms(self) -> int:
        return -(-self._clock.now_us() // 1000)

    async def _tell(self, result: EndedColumns, places: Places, wanted: Outcome, work: Work) -> None:
        """Says of transactions at some places, which this request did not end, how they ended: as wanted, or an error."""
        if not len(places):
            return
        named, sequences = result.named, result.named.sequence[places]
        due_ms = named.due_ms[places]
        located = await self._cancellation.locate(sequences, due_ms)
        found = await self._states.find(sequences, due_ms, work)
        found = await self._states.with_rows(found, due_ms.tolist(), work)
        for row, (place, each) in enumerate(zip(places.tolist(), found, strict=True)):
            await work.items()
            if located.found[row] and located.prepared[row] and located.message[row] != sequences[row]:
                # The receipt of a retried `prepare`: what became of the first one counts.
                (each,) = await self._states.find(located.message[row : row + 1], due_ms[row : row + 1], work)  # noqa: PLW2901
                (each,) = await self._states.with_rows([each], [int(due_ms[row])], work)  # noqa: PLW2901
            if each.error is not None:
                result.errors[place] = each.error
            elif each.outcome == wanted:
                if wanted == Outcome.COMMITTED:
                    result.committed[place] = each.replaced_by
            else:
                result.errors[place] = _not_as_wanted(each.outcome, bool(located.prepared[row]))


def _not_as_wanted(outcome: Outcome, prepared: bool) -> DelayServerError:
    if outcome == Outcome.PREPARED:
        return MessageDamaged("what became of the transaction cannot be read")
    if prepared or outcome in (Outcome.RETIRED, Outcome.DEDUPLICATED):
        text = "a message with its id was sent before" if outcome == Outcome.DEDUPLICATED else f"it is {outcome.label}"
        return TransactionEnded(f"the transaction has ended: {text}", details={"outcome": int(outcome)})
    return TransactionUnknown("no transaction with this name was prepared here")
