"""The operation `cancel`, by the numbers of messages or by the names that clients give them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from delayserver.operations.access.access import EVERYTHING, Access
from delayserver.operations.messages.cancellation import Cancellation
from delayserver.operations.messages.named_messages import Given, NamedMessages, Naming
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.fair_turns import Work
from store.records.batches import I64, U8


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The named messages and their outcome codes, u8[n]. An item with an error in `named` has no outcome."""

    named: NamedMessages
    outcome: U8


class Cancel:
    """Cancels messages. Every answer is durable when it is given."""

    def __init__(self, naming: Naming, cancellation: Cancellation) -> None:
        self._naming = naming
        self._cancellation = cancellation

    async def by_number(self, sequence: I64, due_ms: I64, access: Access = EVERYTHING) -> U8:
        """Cancels messages by sequence and due time, i64[n] each: outcome codes u8[n]. Raises errors of the commit."""
        return await self._cancellation.cancel(await self._naming.without_closed(sequence, due_ms, access), due_ms)

    async def by_name(self, given: Given, work: Work, access: Access = EVERYTHING) -> Cancelled:
        """Cancels messages by name. If a reschedule gives the name to another message meanwhile, cancels that one.
        Raises the named error of the commit."""
        named = await self._naming.find(given, work, access)
        outcome = await self._cancellation.cancel(named.sequence, named.due_ms)
        again = np.flatnonzero(outcome == int(Outcome.ALREADY_CANCELLED))
        while len(again := await self._naming.look_up_again(named, again, work)):
            outcome[again] = await self._cancellation.cancel(named.sequence[again], named.due_ms[again])
            again = again[outcome[again] == int(Outcome.ALREADY_CANCELLED)]
        return Cancelled(named, outcome)
