"""Which accepted messages are copies, for senders that ask: the originals, and what became of them.

Copies are found when their rows are replayed, behind the acknowledgement. So only a sender that asks waits for it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import trio

from delayserver.operations.messages.cancellation import Cancellation
from delayserver.operations.messages.message_states import MessageStates
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.fair_turns import Work
from store.records.batches import I64

WAIT_S: Final = 1.0
"""A replay is milliseconds behind. Where it is further behind, the sender gets its acknowledgement without this."""


class Repeat(NamedTuple):
    """A copy by its place among the messages asked for, the sequence of its original, and what became of that."""

    place: int
    original: int
    outcome: Outcome


class Repeats:
    """Finds copies."""

    def __init__(self, cancellation: Cancellation, states: MessageStates) -> None:
        self._cancellation = cancellation
        self._states = states

    async def among(self, sequence: I64, due_ms: I64, work: Work) -> list[Repeat] | None:
        """The copies among n durable messages, by sequence and due time, i64[n] each. None if it is not known yet, or cannot
        be known: the messages are durable all the same."""
        with trio.move_on_after(WAIT_S):
            try:
                located = await self._cancellation.locate(sequence, due_ms)
                places = np.flatnonzero(located.found & (located.message != sequence))
                if not len(places):
                    return []
                originals = located.message[places]
                found = await self._states.find(originals, due_ms[places], work)
                return [
                    Repeat(place, original, each.outcome)
                    for place, original, each in zip(places.tolist(), originals.tolist(), found, strict=True)
                ]
            except DelayServerError:
                return None
        return None
