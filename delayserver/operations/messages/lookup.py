"""The operation `lookup`, by the numbers of messages or by the names that clients give them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.service.recently_consumed import RecentlyConsumed
from delayserver.operations.access.access import EVERYTHING, Access
from delayserver.operations.messages.contents import Content, Contents, ContentsPart
from delayserver.operations.messages.message_states import FoundState, MessageStates
from delayserver.operations.messages.named_messages import Given, NamedMessages, Naming
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.fair_turns import Work
from store.records.batches import I64
from store.tables.names import SUBJECT, Names


@dataclass(frozen=True, slots=True)
class ConsumedBy:
    """A consumer group that got a message; `acked_us` is 0 if it did not ack it."""

    group: str
    pulled_us: int
    acked_us: int


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The named messages and their states. An item with an error in `named` has no state.

    `contents`: what the messages say; None unless it was asked for."""

    named: NamedMessages
    found: list[FoundState]
    contents: ContentsPart | None = None


class Lookup:
    """Looks up the states of messages."""

    def __init__(
        self,
        server_id: str,
        naming: Naming,
        states: MessageStates,
        contents: Contents,
        recently: RecentlyConsumed,
        names: Names,
    ) -> None:
        self._server = int(server_id, 16)
        self._naming = naming
        self._states = states
        self._contents = contents
        self._recently = recently
        self._names = names

    def consumed(self, found: FoundState) -> list[ConsumedBy]:
        """The recent pulls and acks of a message, as far as the node in this process remembers."""
        subject = self._names.code(SUBJECT, found.subject) if found.subject else 0
        return [
            ConsumedBy(self._names.name(each.group), each.pulled_us, each.acked_us)
            for each in (self._recently.of(self._server, subject, found.message) if subject else ())
        ]

    async def by_number(self, sequence: I64, due_ms: I64, work: Work, access: Access = EVERYTHING) -> list[FoundState]:
        """The states of messages by sequence and due time, i64[n] each."""
        sequence = await self._naming.without_closed(sequence, due_ms, access)
        found = await self._states.find(sequence, due_ms, work)
        return await self._states.with_rows(found, due_ms.tolist(), work)

    async def by_name(
        self,
        given: Given,
        work: Work,
        access: Access = EVERYTHING,
        *,
        with_body: bool = False,
        with_times: bool = False,
    ) -> LookedUp:
        """States by name, and what the messages say if `with_body`. If a reschedule gives the name to another message
        meanwhile, the state of that one. `with_times`: also when messages without an outcome were accepted."""
        named = await self._naming.find(given, work, access)
        found = await self._states.find(named.sequence, named.due_ms, work)
        again = _cancelled(found, np.arange(len(found)))
        while len(again := await self._naming.look_up_again(named, again, work)):
            others = await self._states.find(named.sequence[again], named.due_ms[again], work)
            for place, other in zip(again.tolist(), others, strict=True):
                found[place] = other
            again = _cancelled(found, again)
        due_ms = named.due_ms.tolist()
        contents = await self._contents.read(found, due_ms, work) if with_body or with_times else None
        found = await self._states.with_rows(found, due_ms, work)
        if with_times and contents is not None:
            found = [_with_acceptance(each, contents.contents.get(place)) for place, each in enumerate(found)]
        return LookedUp(named, found, contents if with_body else None)


def _with_acceptance(found: FoundState, content: Content | None) -> FoundState:
    """Outcomes of cancels do not know when their messages were accepted; the messages do."""
    if content is None or found.times.accepted_us:
        return found
    return replace(found, times=replace(found.times, accepted_us=content.accepted_us))


def _cancelled(found: list[FoundState], places: NDArray[np.intp]) -> NDArray[np.intp]:
    """Those of `places` where a cancelled message was found."""
    return places[[found[place].outcome == Outcome.CANCELLED for place in places.tolist()]]
