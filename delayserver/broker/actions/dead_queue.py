"""The dead letters of a consumer group, read, sent again or dropped.

A letter is sent again or dropped once: it is claimed first, so that no consumer of the dead-letter subject and no other
request gets it, and acked for the group at the end. A crash in between leaves it where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from delayserver.broker.actions.dead_letter_burial import DeadLetters, packed_properties, property_maps, without_marks
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.pulled_batch import PullBudget
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.queues.places import Place
from delayserver.broker.queues.ranges import Range, RangeSet, ranges_of
from delayserver.broker.reads import ReadNeeded
from store.records.batches import I64, MessageBatch, StoredBatch


@dataclass(frozen=True, slots=True)
class StoredLetters:
    """Stored dead letters and their positions, i64[n]. `unreadable` ones were passed over. `stop`: the position up to
    which they were looked for."""

    batch: StoredBatch
    positions: I64
    unreadable: int
    stop: int

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True)
class Claim:
    """Claimed dead letters of a group. `key`: its dead-letter subject, and the group."""

    key: GroupKey
    letters: StoredLetters
    parts: list[Place]


def resent_messages(letters: StoredLetters, subject: int, group: int, due_ms: I64, now_us: int) -> MessageBatch:
    """The internal records that bring dead letters back to their group, with the properties of before and no attempts.

    `due_ms` i64[n]. They are few at once: the loop over their properties is no hot path."""
    stored = letters.batch
    properties_length, properties = packed_properties([without_marks(each) for each in property_maps(stored)])
    return MessageBatch.filled(
        len(stored),
        due_ms=due_ms,
        accepted_us=now_us,
        origin_sequence=np.where(stored.origin_sequence != 0, stored.origin_sequence, stored.sequence),
        subject=subject,
        target_group=group,
        ids_length=stored.ids_length,
        properties_length=properties_length,
        bodies_length=stored.bodies_length,
        order_hash=stored.order_hash,
        tag=stored.tag,
        order_keys_length=stored.order_keys_length,
        ids=stored.ids,
        properties=properties,
        bodies=stored.bodies,
        order_keys=stored.order_keys,
    )


class DeadQueue:
    """Reads and claims dead letters. `key` names a dead-letter subject and the group whose letters are there."""

    def __init__(self, state: BrokerState, letters: DeadLetters) -> None:
        self._state = state
        self._letters = letters

    def read(self, key: GroupKey, after: int, count_max: int, bytes_max: int) -> StoredLetters:
        """Dead letters behind the position `after` that were neither sent again nor dropped, also claimed ones. Raises
        ReadNeeded."""
        cursor, end = self._letters.cursor(key), self._end(key)
        start = max(cursor.committed, after + 1)
        return self._read(key, cursor.acked.missing(start, end) if start < end else [], count_max, bytes_max)

    def claim(self, key: GroupKey, wanted: I64 | None, after: int, count_max: int, bytes_max: int) -> Claim:
        """Claim the first letters behind the position `after`, or those of the positions `wanted`. `settle` or `give_back`
        follows. Raises ReadNeeded."""
        ranges = [(max(start, after + 1), stop) for start, stop in self._free(key, wanted) if stop > after + 1]
        letters = self._read(key, ranges, count_max, bytes_max)
        if not len(letters):
            return Claim(key, letters, [])
        cursor = self._state.groups.get_or_make(key).main
        return Claim(key, letters, [part for span in ranges_of(letters.positions) for part in cursor.claim(*span)])

    def settle(self, claim: Claim) -> None:
        """Ends the letters here, because they are durable elsewhere."""
        self._done(claim.key, ((part.start, part.stop) for part in claim.parts))

    def give_back(self, claim: Claim) -> None:
        """Ends the claim on letters: they stay here."""
        group = self._state.groups.get(claim.key)
        if group is not None:  # otherwise it was removed meanwhile
            group.main.give_back(claim.parts)

    def drop(self, key: GroupKey, wanted: I64 | None, count_max: int) -> int:
        """Drop the first letters, or those of the positions `wanted`; returns how many. Durable after the next sync."""
        dropped: list[Range] = []
        left = count_max
        for start, stop in self._free(key, wanted):
            if left <= 0:
                break
            count = min(stop - start, left)
            left -= count
            dropped.append((start, start + count))
        if dropped:
            cursor = self._state.groups.get_or_make(key).main
            for span in dropped:
                cursor.claim(*span)
            self._done(key, dropped)
        return count_max - left

    def _done(self, key: GroupKey, ranges: Iterable[Range]) -> None:
        group = self._state.groups.get(key)
        if group is None:
            return
        for span in ranges:
            for start, stop in group.main.settle(*span):
                self._state.notes.add_acked(key, False, start, stop)

    def _free(self, key: GroupKey, wanted: I64 | None) -> list[Range]:
        free = self._letters.cursor(key).unclaimed(self._end(key))
        if wanted is None:
            return free
        chosen = RangeSet()
        for start, stop in ranges_of(wanted):
            chosen.add(start, stop)
        return [part for span in free for part in chosen.common(*span)]

    def _end(self, key: GroupKey) -> int:
        queue = self._state.queues.get((key[0], 0))
        return 0 if queue is None else queue.end

    def _read(self, key: GroupKey, ranges: list[Range], count_max: int, bytes_max: int) -> StoredLetters:
        budget = PullBudget(count_max, bytes_max)
        unreadable, reached = 0, 0
        for start, stop in ranges:
            position = start
            while position < stop and budget.messages > 0:
                try:
                    run = self._state.messages.run_at((key[0], 0), position)
                    batch = self._state.messages.read(run)
                except ReadNeeded:
                    if not reached:
                        raise
                    return self._letters_of(budget, unreadable, reached)
                count = min(stop, run.position + run.row_count) - position
                if batch is None:
                    unreadable += count
                else:
                    row = run.row_start + position - run.position
                    count, size = budget.fitting(batch, row, count)
                    if count == 0:
                        return self._letters_of(budget, unreadable, reached)
                    positions = np.arange(position, position + count)
                    budget.take(batch.slice(row, row + count), positions, np.zeros(count, np.int64), size)
                position += count
                reached = position
        return self._letters_of(budget, unreadable, reached)

    def _letters_of(self, budget: PullBudget, unreadable: int, reached: int) -> StoredLetters:
        pulled = budget.pulled()
        if pulled is None:
            return StoredLetters(StoredBatch.filled(0), np.empty(0, np.int64), unreadable, reached)
        return StoredLetters(pulled.batch, pulled.delivery, unreadable, reached)
