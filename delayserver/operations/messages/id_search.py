"""Finds messages by subject and id alone, with the key index: of several with one id, the one that waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from delayserver.keys.key_index import KeyIndex
from delayserver.operations.messages.locator import Bearer, Locator
from delayserver.operations.messages.message_states import MessageStates
from delayserver.protocol.errors import DelayServerError, InvalidArgument, MessageDamaged
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.fair_turns import Work
from delayserver.runtime.runtime import Runtime
from store.keys.key_rows import name_keys
from store.records.message_name import MessageId

# Messages with one id that are looked at, the newest ones. The client gives the due time where there are more.
BEARERS_MAX = 256
# Outcomes of messages that a client may still end, move or wait for.
_OPEN = frozenset({Outcome.PENDING, Outcome.RETRYING, Outcome.IN_FLIGHT, Outcome.PREPARED})


@dataclass(frozen=True, slots=True)
class FoundIds:
    """By place in the request: the message of each id that was found, and errors."""

    bearers: dict[int, Bearer] = field(default_factory=dict)
    errors: dict[int, DelayServerError] = field(default_factory=dict)


class IdSearch:
    """Ids → messages."""

    def __init__(self, index: KeyIndex, locator: Locator, states: MessageStates, runtime: Runtime) -> None:
        self._index = index
        self._locator = locator
        self._states = states
        self._workers = runtime.workers

    async def find(self, wanted: Sequence[MessageId], work: Work) -> FoundIds:
        """The messages of n ids, after the replay of everything accepted so far. Of several with one id the newest that has
        no outcome, or else the newest. Raises KeysIncomplete."""
        found = FoundIds()
        hashes = np.array([each.id_hash for each in wanted], np.uint64)
        subjects = np.array([each.subject for each in wanted], np.uint32)
        place, rows = await self._index.find(name_keys(hashes, subjects), BEARERS_MAX)
        search = partial(self._locator.bearers, [wanted[at] for at in place.tolist()], rows["sequence"], rows["due_ms"])
        searched = await self._workers.run(search) if len(rows) else []
        bearers: dict[int, list[Bearer]] = {}
        hidden: set[int] = set()
        for at, bearer in zip(place.tolist(), searched, strict=True):
            await work.items()
            if bearer is not None and bearer.hidden:
                hidden.add(at)
            elif bearer is not None and bearer not in bearers.setdefault(at, []):
                bearers[at].append(bearer)
        full = np.bincount(place, minlength=len(wanted)) >= BEARERS_MAX
        await self._choose(bearers, full, found, work)
        for at in range(len(wanted)):
            if at not in found.bearers and at not in found.errors and (at in hidden or self._index.has_gaps):
                found.errors[at] = MessageDamaged("damage of a file may hide the message with this id")
        return found

    async def _choose(
        self, bearers: dict[int, list[Bearer]], full: NDArray[np.bool_], found: FoundIds, work: Work
    ) -> None:
        several = [(at, bearer) for at, some in bearers.items() if len(some) > 1 for bearer in some]
        outcome: dict[Bearer, Outcome] = {}
        if several:
            sequence = np.array([bearer.sequence for _, bearer in several], np.int64)
            due_ms = np.array([bearer.due_ms for _, bearer in several], np.int64)
            states = await self._states.find(sequence, due_ms, work)
            outcome = {bearer: state.outcome for (_, bearer), state in zip(several, states, strict=True)}
        for at, some in bearers.items():
            still = [bearer for bearer in some if outcome.get(bearer) in _OPEN]
            if still or not full[at]:
                found.bearers[at] = (still or some)[0]
            else:
                found.errors[at] = InvalidArgument(
                    f"the last {BEARERS_MAX} messages with this id have ended, and older ones may wait: give due_ms too"
                )
