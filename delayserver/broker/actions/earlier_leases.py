"""Leases that ended because their process did: they count as attempts, as leases do that end by time.

The progress log has them. They are looked at when their messages would be handed out again: then the messages are read, and
so their order keys and the attempts of earlier redeliveries are known. A message that had its last attempt is given up
instead. Of the messages with one order key that a consumer had, the first unfinished one has failed. The later ones have
not, so their lease is no attempt.

So no start has to read what a million leases hold.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.policy import WAIT
from delayserver.broker.queues.group_cursors import Cursor, GroupKey
from delayserver.broker.queues.ranges import ranges_alike, ranges_of
from store.records.batches import I64, StoredBatch
from store.records.shared_column import attempts_before

Mask = NDArray[np.bool_]


class EarlierLeases:
    """Looks at messages before they are handed out."""

    def __init__(self, state: BrokerState, ended: Callable[[], object]) -> None:
        """`ended` is called when leases were ended. They are at the head of the line of ended leases."""
        self._state = state
        self._ended = ended

    def last_attempts(
        self, key: GroupKey, retry: bool, cursor: Cursor, batch: StoredBatch, positions: I64, before: I64
    ) -> Mask | None:
        """Which of the messages `batch` at these positions, i64[n] ascending, had their last attempt, bool[n]; None: none.

        `before` i64[n], how often each was handed out, is corrected for messages that were behind a failed one of their
        key."""
        if not len(positions) or not cursor.seen:
            return None
        first = int(positions[0])
        spanned = cursor.seen.were_leased(first, int(positions[-1]) + 1 - first)
        leased = None if spanned is None else spanned[positions - first]
        if leased is None or not leased.any():
            return None
        keyed = batch.order_hash != 0
        if keyed.any():
            later = leased & keyed & ~_firsts(cursor, batch)
            before[later] -= 1
            leased &= ~later
            for start, stop, times in ranges_alike(positions[later], before[later]) if later.any() else ():
                cursor.restore_count(start, stop, times, leased=False)
                self._state.notes.add_counted(key, retry, start, stop, times)
        attempts_max = self._state.policies.attempts_max(key)
        if not attempts_max:
            return None
        if self._state.policies.of(key).failed_key == WAIT:
            leased &= ~keyed
        last = leased & (attempts_before(batch.redelivery) + before >= attempts_max)
        return last if last.any() else None

    def end(self, key: GroupKey, cursor: Cursor, batch: StoredBatch, positions: I64, before: I64) -> None:
        """Ends the leases of messages that have no further attempt. Their positions were handed out or are in their
        place."""
        for start, stop in ranges_of(positions):
            cursor.end_earlier(start, stop)
        keyed = np.flatnonzero(batch.order_hash)
        if len(keyed):
            slots = cursor.key_slots(batch.order_hash[keyed])
            cursor.add_keys(positions[keyed], slots, before[keyed] - 1, np.ones(len(keyed), bool), 0)
            cursor.join_keys()  # at once: the same pull takes no later ones of these keys
        self._state.groups.deadlines.note(key, 0)
        self._ended()


def _firsts(cursor: Cursor, batch: StoredBatch) -> Mask:
    """Which messages are the first unfinished ones of their order keys, bool[n]."""
    slots = cursor.key_slots(batch.order_hash)
    firsts = np.zeros(len(slots), bool)
    firsts[np.unique(slots, return_index=True)[1]] = True
    return firsts & ~cursor.holds_keys(slots)
