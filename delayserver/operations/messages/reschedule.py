"""The operation `reschedule`, by items or in columns: cancels each message and sends a new one in one atomic step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from delayserver.operations.access.access import EVERYTHING, Access
from delayserver.operations.messages.named_messages import GivenItems, NamedMessages, Naming
from delayserver.operations.messages.rescheduling import MovedColumns, Moves, Rescheduling
from delayserver.operations.sending.admission import Admission
from delayserver.protocol.errors import DelayServerError, kept
from delayserver.protocol.message_columns import DueColumn
from delayserver.protocol.outcomes import Outcome
from delayserver.receive.intake import Intake
from delayserver.runtime.fair_turns import Work
from store.records.batches import I64


@dataclass(frozen=True, slots=True)
class Change:
    """The new time of a message (`due_ms` or `delay_ms`) and its new fields; None keeps a field. Unchecked values."""

    due_ms: object
    delay_ms: object
    body: object
    properties: object
    expires_ms: object


@dataclass(frozen=True, slots=True)
class GivenMoves:
    """The items of a request: their messages, and by place the change of each readable item."""

    messages: GivenItems
    changes: dict[int, Change] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """n moves: `moves` are the messages and new times, `moved` the results, `errors` the refused items by place.
    `closed` as for `NamedMessages`."""

    moves: Moves
    moved: MovedColumns
    errors: dict[int, DelayServerError]
    closed: dict[int, int] = field(default_factory=dict)


class Reschedule:
    """Moves messages to other due times."""

    def __init__(self, admission: Admission, naming: Naming, intake: Intake, rescheduling: Rescheduling) -> None:
        self._admission = admission
        self._naming = naming
        self._intake = intake
        self._rescheduling = rescheduling

    async def by_name(self, given: GivenMoves, work: Work, access: Access = EVERYTHING) -> Rescheduled:
        """Moves messages by name. If another reschedule gives a name to another message meanwhile, moves that one.

        A commit that fails is the error of the moves that it had. Raises NotReady, ShuttingDown, DiskFull, and StorageFailed
        if an outcome that is part of the answer can never be written."""
        self._admission.require()
        named = await self._naming.find(given.messages, work, access)
        count = given.messages.count
        moves = Moves(named.sequence, named.due_ms, np.zeros(count, np.int64))
        for place, change in given.changes.items():
            await work.items()
            if place not in named.errors:
                try:
                    self._read(moves, place, change)
                except DelayServerError as error:
                    named.errors[place] = kept(error)
        moved = MovedColumns.nothing(count)
        await self._move(named, moves, moved, work)
        return Rescheduled(moves, moved, moved.errors | named.errors, named.closed)

    async def _move(self, named: NamedMessages, moves: Moves, moved: MovedColumns, work: Work) -> None:
        places = np.flatnonzero([place not in named.errors for place in range(len(named.sequence))])
        while len(places):
            await self._rescheduling.move(moves, places, moved, work)
            again = places[moved.outcome[places] == int(Outcome.ALREADY_CANCELLED)]
            # A message that this request names twice moves once.
            again = again[~np.isin(moved.message[again], moved.message[moved.new_sequence != 0])]
            places = await self._naming.look_up_again(named, again, work)

    def _read(self, moves: Moves, place: int, change: Change) -> None:
        """Checks a change and enters it in `moves`. Raises named errors."""
        moves.new_due_ms[place] = self._intake.due(change.due_ms, change.delay_ms)
        if change.body is not None:
            moves.bodies[place] = self._intake.body(change.body)
        if change.properties is not None:
            moves.properties[place] = self._intake.properties(change.properties)
        if change.expires_ms is not None:
            moves.expires_ms[place] = self._intake.expires(change.expires_ms)

    async def by_number(
        self, sequence: I64, due_ms: I64, due: DueColumn, work: Work, access: Access = EVERYTHING
    ) -> Rescheduled:
        """Moves messages by sequence and due time, i64[n] each, to `due`. Raises the errors of `by_name`."""
        self._admission.require()
        sequence = await self._naming.without_closed(sequence, due_ms, access)
        count = len(sequence)
        errors: dict[int, DelayServerError] = {}
        new_due_ms = self._intake.due_column(due, errors)
        moves, moved = Moves(sequence, due_ms, new_due_ms), MovedColumns.nothing(count)
        await self._rescheduling.move(moves, np.setdiff1d(np.arange(count), list(errors)), moved, work)
        return Rescheduled(moves, moved, errors | moved.errors)
