"""The unfinished messages with an order key that a consumer group has looked at in one of its queues. Pure: positions and
hashes of keys, no messages.

A message goes out while no earlier one of its key is out, or if the same pull takes that one as well. Otherwise it is
blocked: it waits in the table, without a lease. Messages without a key are not here.

A failed message waits for the end of its pause. If it is the first unfinished one of its key, it holds the key (WAITING).
Otherwise it keeps its pause without the key (PAUSED), so that earlier ones go out. Later ones wait for it in both states.

The table has a row for each message, in ascending positions. Finished rows stay until there are many, so an ack costs what
it names and not what waits.

The first message of a key that is handed out goes with later ones of the key in the same pull. So a lone consumer
gets long runs of a key, and many consumers get different keys. `candidates` gives the blocked messages of free keys
in ascending positions, and new messages are looked at behind all of these. So no message overtakes an earlier one of
its key.

Of each key only the first message of a nack or of an ended lease fails; it then goes out alone, so it does not use up
the attempts of later ones. It waits in its place and never in the delay pipeline, where its record would come behind
later messages of the key.

No step has a loop over messages. A loop and a sort of the table took 60 ms of the event loop for a pull of 1,000,
with eight consumers and 10,000 random keys.

The progress log does not know keys. A start takes waiting messages as ready, and gives a key out from its first one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.queues.delivery_id import LEASES
from delayserver.broker.queues.order_keys import OrderKeys
from delayserver.broker.queues.places import READY, Place
from delayserver.broker.queues.ranges import Range, ranges_of
from delayserver.broker.queues.seen import Count
from store.records.batches import I64, U64

Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]

# From LEASED on a message is out: it makes its key busy.
DONE, BLOCKED, PAUSED, LEASED, WAITING, RETRYING = 0, 1, 2, 3, 4, 5

# Finished rows leave the table when there are so many, and more of them than of the others.
_DONE_MAX = 1024
_NO_ROWS: Rows = np.empty(0, np.intp)
_NO_POSITIONS: I64 = np.empty(0, np.int64)


class Columns(NamedTuple):
    """The columns of the table, one value a row.

    `times`: how often the message was handed out, a present lease included. `until_us`: when its lease or its pause ends.
    `owner`: to whom its lease belongs. `lease`: the number of its last lease. `since_us`: when it first failed, by the wall
    clock. `alone`: it has failed, so no later one of its key goes out with it.
    """

    position: I64
    slot: I64
    state: NDArray[np.int8]
    times: I64
    until_us: I64
    lease: I64
    owner: I64
    since_us: I64
    alone: Mask

    @classmethod
    def empty(cls, count: int) -> Columns:
        """Columns of zeros."""
        numbers = [np.zeros(count, np.int64) for _ in range(7)]
        position, slot, times, until_us, lease, owner, since_us = numbers
        return cls(
            position,
            slot,
            np.zeros(count, np.int8),
            times,
            until_us,
            lease,
            owner,
            since_us,
            np.zeros(count, bool),
        )


class WaitingHeads(NamedTuple):
    """The messages that keep their keys waiting, one value each, in ascending positions. `since_us`: when the message first
    failed, by the wall clock. `until_us`: when its pause or its lease ends, by the clock of leases. `behind`: how many later
    messages of its key the group has looked at."""

    position: I64
    state: NDArray[np.int8]
    times: I64
    since_us: I64
    until_us: I64
    behind: I64


class KeyOrder:
    """Says which messages may go out, and remembers what became of those that did."""

    __slots__ = (
        "_candidates",
        "_changes",
        "_columns",
        "_count",
        "_cut",
        "_failed",
        "_finished",
        "_keys",
        "_live",
        "_paused",
        "_waiting",
        "blocked",
    )

    def __init__(self, keys: OrderKeys) -> None:
        self._keys = keys
        self._columns = Columns.empty(0)
        # Rows in use, and those of them that are not finished.
        self._count = 0
        self._live = 0
        self.blocked = 0
        self._waiting = 0
        self._paused = 0
        # Unfinished rows that are `alone`.
        self._failed = 0
        # Finished positions whose rows do not say so yet.
        self._finished: list[Range] = []
        # Blocked rows that may go out; None if that has to be found out.
        self._candidates: Rows | None = _NO_ROWS
        self._changes = 0
        # Keys with candidates, and with blocked messages that may not go out together with these.
        self._cut = _NO_POSITIONS

    @property
    def is_empty(self) -> bool:
        """Whether no message is unfinished."""
        return not self._live

    # -- pulls

    def begin_pull(self) -> None:
        """Begins a pull: messages that earlier pulls took count for it."""
        self.settle()
        self._keys.join()

    def slots_of(self, hashes: U64) -> I64:
        """The slots of order keys, i64[n], for `admits` and `add`."""
        return self._keys.slots_of(hashes)

    def admits(self, slots: I64) -> Mask:
        """Which messages behind all blocked ones may go out, bool[n], by their keys. No message of hash 0 is ever added, so
        those without a key may."""
        return self._keys.are_free(slots)

    def holds(self, slots: I64) -> Mask:
        """Of which of these keys a message is unfinished, bool[n]."""
        self.settle()
        held: Mask = np.isin(slots, self._columns.slot[: self._count][self._columns.state[: self._count] != DONE])
        return held

    def add(self, positions: I64, slots: I64, before: I64, out: Mask, until_us: int, owner: int = 0) -> None:
        """Adds messages that are not in the table. They go out, where `out` says so, or wait for their keys. Positions
        ascend. `before` i64[n]: how often they were handed out. `owner`: of the leases."""
        self._keys.enter(slots)
        self._keys.note(slots[out])
        count, added = self._count, len(positions)
        in_order = not count or int(positions[0]) > int(self._columns.position[count - 1])
        if count + added > len(self._columns.position):
            self._make_room(added)
            count = self._count
        new = slice(count, count + added)
        columns = self._columns
        columns.position[new], columns.slot[new] = positions, slots
        columns.state[new] = np.where(out, LEASED, BLOCKED)
        columns.times[new] = before + out
        columns.until_us[new], columns.owner[new] = until_us, owner
        columns.lease[new] = 0
        columns.alone[new] = False
        self._count += added
        self._live += added
        self.blocked += added - int(np.count_nonzero(out))
        if not in_order:  # after a restart, or after an operator gave messages back
            self._keep(np.argsort(columns.position[: self._count], kind="stable"))
            self._free_the_first(slots)

    def _free_the_first(self, slots: I64) -> None:
        """Earlier messages of these keys came. A later one that waits for its pause no longer holds its key."""
        if not self._waiting:
            return
        columns = self._columns
        rows = np.flatnonzero(columns.state[: self._count] == WAITING)
        rows = rows[np.isin(columns.slot[rows], slots)]
        self._let_go(rows[~self._are_first(rows)])

    def _let_go(self, rows: Rows) -> None:
        """Failed messages keep their pause without their key."""
        if not len(rows):
            return
        columns = self._columns
        waiting = int(np.count_nonzero(columns.state[rows] == WAITING))
        columns.state[rows] = PAUSED
        self._waiting -= waiting
        self._paused += len(rows)
        self._keys.release(columns.slot[rows])
        self._candidates = None

    def _are_first(self, rows: Rows) -> Mask:
        """Which of these unfinished rows are the first unfinished ones of their keys, bool[n]."""
        columns = self._columns
        unfinished = np.flatnonzero(columns.state[: self._count] != DONE)
        unfinished = unfinished[np.isin(columns.slot[unfinished], columns.slot[rows])]
        _, firsts = np.unique(columns.slot[unfinished], return_index=True)
        return np.isin(rows, unfinished[firsts])

    def _make_room(self, added: int) -> None:
        if self._count - self._live > max(_DONE_MAX, self._live):
            self._compact()
        room = self._count + added
        if room > len(self._columns.position):
            columns = Columns.empty(max(room, 2 * len(self._columns.position), 64))
            pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]] = zip(columns, self._columns, strict=True)
            for new, old in pairs:
                new[: self._count] = old[: self._count]
            self._columns = columns

    def _compact(self) -> None:
        self._keep(np.arange(self._count))

    def _keep(self, rows: Rows) -> None:
        """Keep unfinished rows, in this order."""
        rows = rows[self._columns.state[rows] != DONE]
        columns: tuple[NDArray[Any], ...] = self._columns
        for column in columns:
            column[: len(rows)] = column[rows]
        self._count = len(rows)
        self._candidates = None

    def candidates(self, count_max: int) -> I64:
        """The positions of the first blocked messages that may go out now, ascending. A pull takes the first of them."""
        return self._columns.position[self._candidate_rows()[:count_max]]

    def candidate_slots(self) -> I64:
        """The slots of the order keys of all blocked messages that may go out now."""
        slots: I64 = self._columns.slot[self._candidate_rows()]
        return slots

    def candidate_count(self) -> int:
        """How many blocked messages may go out now."""
        return len(self._candidate_rows())

    def _candidate_rows(self) -> Rows:
        if self._candidates is None or self._changes != self._keys.changes:
            self._candidates, self._changes = self._find_candidates(), self._keys.changes
        return self._candidates

    def _find_candidates(self) -> Rows:
        self._cut = _NO_POSITIONS
        if not self.blocked:
            return _NO_ROWS
        columns = self._columns
        state = columns.state[: self._count]
        rows = np.flatnonzero((state == BLOCKED) | (state == PAUSED) if self._paused else state == BLOCKED)
        rows = rows[self._keys.are_free(columns.slot[rows])]
        alone = columns.alone | (columns.state == PAUSED) if self._paused else columns.alone
        if not alone[rows].any():
            return rows
        # Of each key the messages before its first one that has failed; or that one alone, if it is the first. The first
        # one is not PAUSED.
        by_key = rows[np.argsort(columns.slot[rows], kind="stable")]
        slots, alone = columns.slot[by_key], alone[by_key].astype(np.int64)
        first = np.append(True, slots[1:] != slots[:-1])
        starts = np.flatnonzero(first)
        failed = np.cumsum(alone)
        failed_before = np.repeat((failed - alone)[starts], np.diff(np.append(starts, len(by_key))))
        chosen = (failed == failed_before) | first
        self._cut = np.unique(slots[~chosen])
        return np.sort(by_key[chosen])

    def take_blocked(self, positions: I64, until_us: int, owner: int = 0) -> I64:
        """Hands the first candidates out, with leases of this owner. Returns the number of each one's lease, i64[n]."""
        rows, self._candidates = self._candidate_rows()[: len(positions)], self._candidate_rows()[len(positions) :]
        columns = self._columns
        assert bool((columns.position[rows] == positions).all()), "not the first candidates"
        columns.state[rows], columns.until_us[rows], columns.owner[rows] = LEASED, until_us, owner
        columns.times[rows] += 1
        leases: I64 = columns.lease[rows] + 1
        columns.lease[rows] = leases
        self.blocked -= len(rows)
        slots = columns.slot[rows]
        if len(self._cut):
            cut = np.isin(slots, self._cut)
            self._keys.hold(slots[cut])  # at once, so that the same pull takes no later ones
            slots = slots[~cut]
        self._keys.note(slots)
        return leases

    def times_of(self, positions: I64) -> I64:
        """How often unfinished messages were handed out, i64[n]."""
        return self._columns.times[self._find(positions)]

    def counts(self) -> list[Count]:
        """How often messages were handed out, without those that never were. A failed message whose failure is not
        durable counts as leased."""
        self.settle()
        columns = self._columns
        found: list[Count] = []
        state, times = columns.state[: self._count], columns.times[: self._count]
        for leased, mask in ((True, (state == LEASED) | (state == RETRYING)), (False, (state != DONE) & (times > 0))):
            rows = np.flatnonzero(mask if leased else mask & (state != LEASED) & (state != RETRYING))
            found += [(place.start, place.stop, place.times, leased) for place in self._places(rows)]
        return found

    def _places(self, rows: Rows) -> list[Place]:
        positions, times = self._columns.position[rows], self._columns.times[rows]
        return [
            Place(start, stop, number, READY)
            for number in np.unique(times).tolist()
            for start, stop in ranges_of(positions[times == number])
        ]

    # -- outcomes

    def finish(self, start: int, stop: int) -> None:
        """Finishes the messages at [start, stop). `settle` notes it in the table."""
        self._finished.append((start, stop))

    def finish_all(self, ranges: list[Range]) -> None:
        """`finish` for ranges that ascend."""
        self._finished += ranges

    def settle(self) -> bool:
        """Note finished messages. True if there were any in the table."""
        if not self._finished:
            return False
        ranges, self._finished = self._finished, []
        rows = self._rows_of(ranges)
        if len(rows):
            self._end(rows)
        return bool(len(rows))

    def _end(self, rows: Rows) -> None:
        columns = self._columns
        state, slots = columns.state[rows], columns.slot[rows]
        out = state >= LEASED
        self._keys.release(slots[out])
        self._keys.leave(slots)
        self.blocked -= int(np.count_nonzero(state == BLOCKED))
        self._waiting -= int(np.count_nonzero(state == WAITING))
        self._paused -= int(np.count_nonzero(state == PAUSED))
        if self._failed:
            self._failed -= int(np.count_nonzero(columns.alone[rows]))
        columns.state[rows] = DONE
        self._live -= len(rows)
        self._candidates = None
        if self._paused:
            self._hold_the_first(slots)
        if self._count - self._live > max(_DONE_MAX, self._live):
            self._compact()

    def _hold_the_first(self, slots: I64) -> None:
        """Messages of these keys are done. Where the first of the others keeps its pause, it holds its key from now on."""
        columns = self._columns
        rows = np.flatnonzero(columns.state[: self._count] == PAUSED)
        rows = rows[np.isin(columns.slot[rows], slots)]
        rows = rows[self._are_first(rows)]
        columns.state[rows] = WAITING
        self._waiting += len(rows)
        self._paused -= len(rows)
        self._keys.hold(columns.slot[rows])

    def clear(self) -> None:
        """Forgets all unfinished messages, because the group moves."""
        self._finished.clear()
        self._end(np.flatnonzero(self._columns.state[: self._count] != DONE))

    def _rows_of(self, ranges: list[Range]) -> Rows:
        """The unfinished rows of ranges, which may overlap."""
        edges = np.searchsorted(self._columns.position[: self._count], np.array(ranges, np.int64).reshape(-1, 2))
        lengths = edges[:, 1] - edges[:, 0]
        total = int(lengths.sum())
        if not total:
            return _NO_ROWS
        rows = np.arange(total) + np.repeat(edges[:, 0] - (np.cumsum(lengths) - lengths), lengths)
        if len(rows) > 1 and not bool((rows[1:] > rows[:-1]).all()):
            rows = np.unique(rows)
        unfinished: Rows = rows[self._columns.state[rows] != DONE]
        return unfinished

    def _find(self, positions: I64) -> Rows:
        """The unfinished rows of positions, of those that have one."""
        if not len(positions) or not self._count:
            return _NO_ROWS
        rows = np.minimum(np.searchsorted(self._columns.position[: self._count], positions), self._count - 1)
        found: Rows = rows[(self._columns.position[rows] == positions) & (self._columns.state[rows] != DONE)]
        return found

    # -- leases

    def outside_lease(self, ranges: list[Range], lease: int | None) -> I64:
        """The positions in these ranges of messages that wait for their key, or whose last lease is not `lease`. A
        delivery id holds the lowest bits of a lease's number, and these are compared. None for `lease`: all messages
        count."""
        self.settle()
        rows = self._rows_of(ranges)
        columns = self._columns
        if lease is not None:
            rows = rows[(columns.state[rows] == BLOCKED) | (columns.lease[rows] % LEASES != lease)]
        positions: I64 = columns.position[rows]
        return positions

    def of_lease(self, ranges: list[Range], lease: int) -> list[Range]:
        """The ranges of the messages in these ranges whose present lease has this number."""
        self.settle()
        rows = self._rows_of(ranges)
        columns = self._columns
        rows = rows[(columns.state[rows] != BLOCKED) & (columns.lease[rows] % LEASES == lease)]
        return ranges_of(columns.position[rows])

    def not_leased(self, start: int, stop: int) -> I64:
        """The positions in [start, stop) of unfinished messages without a lease."""
        rows = self._within(start, stop)
        positions: I64 = self._columns.position[rows[self._columns.state[rows] != LEASED]]
        return positions

    def within(self, start: int, stop: int) -> I64:
        """The positions in [start, stop) of all unfinished messages."""
        positions: I64 = self._columns.position[self._within(start, stop)]
        return positions

    def _within(self, start: int, stop: int) -> Rows:
        self.settle()
        low, high = np.searchsorted(self._columns.position[: self._count], (start, stop)).tolist()
        rows: Rows = low + np.flatnonzero(self._columns.state[low:high] != DONE)
        return rows

    def failed(self, positions: I64) -> Mask:
        """Which of these unfinished messages have failed, and wait neither for a pause nor for their key, bool[n]."""
        failed: Mask = self._columns.state[self._find(positions)] == RETRYING
        return failed

    def blocked_within(self, start: int, stop: int) -> I64:
        """The positions in [start, stop) of messages that wait for their key."""
        rows = self._within(start, stop)
        positions: I64 = self._columns.position[rows[self._columns.state[rows] == BLOCKED]]
        return positions

    def waiting(self) -> int:
        """How many messages wait for their key or for the end of their pause."""
        self.settle()
        return self.blocked + self._waiting + self._paused

    def unclaimed(self, start: int, stop: int) -> list[Place]:
        """The places in [start, stop) of messages that are blocked or wait for their pause."""
        rows = self._within(start, stop)
        state = self._columns.state[rows]
        return self._places(rows[(state == BLOCKED) | (state == WAITING) | (state == PAUSED)])

    def overlay(self, start: int, times: I64) -> None:
        """Set `times` i64[n], for positions from `start` on with a row: how often each was handed out before a present
        lease."""
        rows = self._within(start, start + len(times))
        columns = self._columns
        state = columns.state[rows]
        times[columns.position[rows] - start] = columns.times[rows] - ((state == LEASED) | (state == RETRYING))

    def fail(self, ranges: list[Range]) -> None:
        """Leased messages in these ranges have failed."""
        rows = self._rows_of(ranges)
        self._columns.state[rows[self._columns.state[rows] == LEASED]] = RETRYING

    def fail_expired(self, now_us: int, count_max: int) -> list[Range]:
        """Fails the first messages whose lease has ended, at most `count_max`. Returns their ranges."""
        self.settle()
        columns = self._columns
        over = (columns.state[: self._count] == LEASED) & (columns.until_us[: self._count] <= now_us)
        rows = np.flatnonzero(over)[:count_max]
        columns.state[rows] = RETRYING
        return ranges_of(columns.position[rows])

    def recall(self, failed: list[Range]) -> I64:
        """Take back what went out behind the first failed message of each key, failed or not. It is blocked again, so its
        lease counts no more. Returns the positions, ascending."""
        self.settle()
        self._keys.join()
        columns = self._columns
        rows = self._rows_of(failed)
        rows = rows[columns.state[rows] == RETRYING]
        if not len(rows):
            return _NO_POSITIONS
        slots, firsts = np.unique(columns.slot[rows], return_index=True)
        first = np.full(int(columns.slot[: self._count].max()) + 1, np.iinfo(np.int64).max)
        first[slots] = columns.position[rows[firsts]]
        state = columns.state[: self._count]
        later = columns.position[: self._count] > first[columns.slot[: self._count]]
        back = np.flatnonzero(later & (state == LEASED))
        back = np.union1d(back, rows[later[rows]])
        columns.times[back] -= 1
        columns.state[back] = BLOCKED
        self.blocked += len(back)
        self._keys.release(columns.slot[back])
        self._candidates = None
        return columns.position[back]

    def places_of(self, positions: I64) -> list[Place]:
        """The places of those of these messages that are unfinished."""
        return self._places(self._find(positions))

    def pause(self, positions: I64, until_us: I64, now_us: int, *, alone: bool) -> list[Place]:
        """Failed messages wait in their place until these times, i64[n]. Returns their places. `now_us`: by the wall clock.

        `alone`: the attempt has failed, and no later ones of their keys go out with them from now on. Otherwise it was none,
        and a message that failed before has failed still."""
        rows = self._find(positions)
        columns = self._columns
        assert len(rows) == len(positions) and bool((columns.state[rows] == RETRYING).all()), "not failed"
        columns.state[rows], columns.until_us[rows] = WAITING, until_us
        if alone:
            first = rows[~columns.alone[rows]]
            columns.since_us[first], columns.alone[first] = now_us, True
            self._failed += len(first)
        else:
            columns.times[rows] -= 1
        self._waiting += len(rows)
        self._let_go(rows[~self._are_first(rows)])
        return self._places(rows)

    # -- keys that wait for a failed message

    def waiting_keys(self) -> int:
        """How many keys have a first unfinished message that has failed."""
        return len(self._heads())

    def heads(self) -> WaitingHeads:
        """The first unfinished messages of these keys."""
        rows, columns = self._heads(), self._columns
        behind = self._keys.rows_of(columns.slot[rows]) - 1
        return WaitingHeads(
            columns.position[rows],
            columns.state[rows],
            columns.times[rows],
            columns.since_us[rows],
            columns.until_us[rows],
            behind,
        )

    def _heads(self) -> Rows:
        self.settle()
        if not self._failed:
            return _NO_ROWS
        rows = np.flatnonzero(self._columns.alone[: self._count] & (self._columns.state[: self._count] != DONE))
        return rows[self._are_first(rows)]

    def fail_heads(self, positions: I64) -> list[Range]:
        """Those of `heads` at these positions fail, from whatever state, but not while a failure of theirs is handled. A
        lease that one has counts no more. Returns their ranges."""
        self._keys.join()
        rows, columns = self._heads(), self._columns
        rows = rows[np.isin(columns.position[rows], positions) & (columns.state[rows] != RETRYING)]
        blocked = rows[columns.state[rows] == BLOCKED]
        self._keys.hold(columns.slot[blocked])
        self.blocked -= len(blocked)
        self._waiting -= int(np.count_nonzero(columns.state[rows] == WAITING))
        columns.state[rows] = RETRYING
        self._candidates = None
        return ranges_of(columns.position[rows])

    def end_pauses(self, positions: I64, now_us: int) -> int:
        """The pauses of those of `heads` at these positions end. Returns how many did. `now_us`: by the clock of leases."""
        rows, columns = self._heads(), self._columns
        rows = rows[np.isin(columns.position[rows], positions) & (columns.state[rows] == WAITING)]
        columns.until_us[rows] = now_us
        self.release(now_us)
        return len(rows)

    def lease_again(self, start: int, stop: int, until_us: int) -> None:
        """Failed messages in [start, stop) are leased again."""
        rows = self._within(start, stop)
        rows = rows[self._columns.state[rows] == RETRYING]
        self._columns.state[rows], self._columns.until_us[rows], self._columns.owner[rows] = LEASED, until_us, 0

    def extend(self, positions: I64, until_us: int, owner: int) -> int:
        """Those of these messages that are leased stay so until this time, for this owner. Returns how many."""
        rows = self._find(positions)
        rows = rows[self._columns.state[rows] == LEASED]
        self._columns.until_us[rows], self._columns.owner[rows] = until_us, owner
        return len(rows)

    def end_leases_of(self, owners: set[int]) -> list[Range]:
        """Messages whose leases belong to these owners fail. Returns their ranges."""
        self.settle()
        columns = self._columns
        rows = np.flatnonzero(columns.state[: self._count] == LEASED)
        rows = rows[np.isin(columns.owner[rows], list(owners))]
        columns.state[rows] = RETRYING
        return ranges_of(columns.position[rows])

    def release(self, now_us: int) -> bool:
        """Messages whose pause has ended wait for their keys only. True if there were any."""
        if not self._waiting and not self._paused:
            return False
        columns = self._columns
        state = columns.state[: self._count]
        rows = np.flatnonzero(((state == WAITING) | (state == PAUSED)) & (columns.until_us[: self._count] <= now_us))
        held = rows[state[rows] == WAITING]
        columns.state[rows] = BLOCKED
        self._waiting -= len(held)
        self._paused -= len(rows) - len(held)
        self.blocked += len(rows)
        self._keys.release(columns.slot[held])
        self._candidates = None
        return bool(len(rows))

    def next_until_us(self) -> int | None:
        """When the first lease or pause ends; None if there is none."""
        self.settle()
        state = self._columns.state[: self._count]
        until_us = self._columns.until_us[: self._count][(state == LEASED) | (state == WAITING) | (state == PAUSED)]
        return int(until_us.min()) if len(until_us) else None

    def check_invariants(self) -> tuple[I64, I64]:
        """Positions ascend, and the counts are right. Returns the slots of all messages, and of those that are out."""
        self.settle()
        columns = self._columns
        position, state = columns.position[: self._count], columns.state[: self._count]
        assert bool((position[1:] > position[:-1]).all()), "positions out of order"
        assert self._live == np.count_nonzero(state)
        assert self.blocked == np.count_nonzero(state == BLOCKED)
        assert self._waiting == np.count_nonzero(state == WAITING)
        assert self._paused == np.count_nonzero(state == PAUSED)
        assert self._failed == np.count_nonzero(columns.alone[: self._count] & (state != DONE))
        assert self._are_first(np.flatnonzero(state == WAITING)).all(), (
            "an earlier one waits for the pause of a later one"
        )
        assert not self._are_first(np.flatnonzero(state == PAUSED)).any(), "a pause that holds no key"
        slots = columns.slot[: self._count]
        return slots[state != DONE], slots[state >= LEASED]
