"""Order keys that wait for a message that has failed: shown, skipped or tried again at once.

The message is the first unfinished one of its key, and the later ones wait behind it. A message is named by its place: its
position in the queue of the subject, or in that of the group's redeliveries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.queues.delivery_id import pack_place, unpack_places
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.queues.key_order import BLOCKED, WAITING, WaitingHeads
from delayserver.broker.reads import ReadNeeded
from store.records.batches import I64, StoredBatch
from store.records.shared_column import attempts_before

PAUSED: Final = "paused"
READY: Final = "ready"
OUT: Final = "leased"
_STATES: Final = {WAITING: PAUSED, BLOCKED: READY}
_NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message for which its key waits. `place`: see `pack_place`. `state`: PAUSED, READY (a pull brings it), or OUT (a
    consumer has it, or its failure is being handled). `attempts` that it had, a present one included. `since_us`: when it
    first failed, by the wall clock. `until_us`: when its pause or its lease ends, by the clock of leases. `behind`: how
    many later messages of its key wait, of those that the group has looked at. `stored`: one row."""

    place: int
    state: str
    attempts: int
    since_us: int
    until_us: int
    behind: int
    stored: StoredBatch


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """Some of these messages, in the order of their places. `next`: the last place looked at; None behind the last one.
    `left` counts all of them. `unreadable` ones were passed over."""

    messages: list[WaitingMessage]
    next: int | None
    left: int
    unreadable: int


class WaitingKeys:
    """Works on the waiting keys of one group a call. They are few at once: loops over them are no hot path."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def page(self, key: GroupKey, after: int, count_max: int) -> WaitingPage:
        """The first messages behind the place `after`. Raises ReadNeeded."""
        found, unreadable, reached = list[WaitingMessage](), 0, after
        heads = self._heads(key)
        left = sum([len(each.position) for _, each in heads])
        for retry, each in heads:
            places = pack_place(each.position, retry=retry)
            for row in np.flatnonzero(places > after).tolist():
                if len(found) + unreadable == count_max:
                    return WaitingPage(found, reached, left, unreadable)
                try:
                    stored = self._read(key, retry, int(each.position[row]))
                except ReadNeeded:
                    if reached == after:
                        raise
                    return WaitingPage(found, reached, left, unreadable)
                reached = int(places[row])
                if stored is None:
                    unreadable += 1
                    continue
                state = _STATES.get(int(each.state[row]), OUT)
                attempts = int(attempts_before(stored.redelivery)[0] + each.times[row])
                times = (int(each.since_us[row]), int(each.until_us[row]))
                found.append(WaitingMessage(reached, state, attempts, *times, int(each.behind[row]), stored))
        return WaitingPage(found, None, left, unreadable)

    def chosen(self, key: GroupKey, wanted: I64 | None, count_max: int) -> I64:
        """The places of the first messages, or those of the places `wanted` (i64[n]) for which a key waits."""
        places = np.concatenate([_NONE, *[pack_place(each.position, retry=retry) for retry, each in self._heads(key)]])
        return (places if wanted is None else places[np.isin(places, wanted)])[:count_max]

    def end_pauses(self, key: GroupKey, places: I64, lease_us: int) -> int:
        """End the pauses of those of these messages at places (i64[n]), so that a pull brings them. Returns how many."""
        group = self._state.groups.get(key)
        if group is None:
            return 0
        main, retry = unpack_places(places)
        return group.main.end_pauses(main, lease_us) + group.retry.end_pauses(retry, lease_us)

    def _heads(self, key: GroupKey) -> list[tuple[bool, WaitingHeads]]:
        group = self._state.groups.get(key)
        if group is None:
            return []
        heads = ((False, group.main.waiting_heads()), (True, group.retry.waiting_heads()))
        return [(retry, each) for retry, each in heads if each is not None]

    def _read(self, key: GroupKey, retry: bool, position: int) -> StoredBatch | None:
        run = self._state.messages.run_at(key if retry else (key[0], 0), position)
        batch = self._state.messages.read(run)
        row = run.row_start + position - run.position
        return None if batch is None else batch.slice(row, row + 1)
