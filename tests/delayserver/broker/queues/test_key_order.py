"""The order of keys in one group, against a model of single messages: what may go out, and what is busy."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

from delayserver.broker.queues.key_order import KeyOrder
from delayserver.broker.queues.order_keys import OrderKeys
from delayserver.broker.queues.ranges import ranges_of
from store.records.batches import I64, U64

BLOCKED, LEASED, WAITING, FAILED = "blocked", "leased", "waiting", "failed"


def hashes_of(*keys: int) -> U64:
    """Hashes that do not ascend with their keys."""
    hashes: U64 = np.array(keys, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return hashes


def numbers(*positions: int) -> I64:
    return np.array(positions, np.int64)


def add(order: KeyOrder, positions: list[int], keys: list[int], until_us: int = 100) -> list[int]:
    """Look at messages as a pull does. The positions that go out."""
    slots = order.slots_of(hashes_of(*keys))
    out = order.admits(slots)
    order.add(numbers(*positions), slots, np.zeros(len(keys), np.int64), out, until_us)
    return [position for position, goes in zip(positions, out.tolist(), strict=True) if goes]


def test_a_pull_may_take_several_messages_of_a_key_and_the_next_one_none() -> None:
    order = KeyOrder(OrderKeys())
    order.begin_pull()
    assert add(order, [0, 1, 2], [1, 1, 2]) == [0, 1, 2]
    assert add(order, [3], [1]) == [3], "the same pull"
    order.begin_pull()
    assert add(order, [4, 5, 6], [1, 3, 2]) == [5]
    assert order.blocked == 2 and not len(order.candidates(1 << 20))


def test_a_key_is_free_when_all_that_is_out_is_done() -> None:
    order = KeyOrder(OrderKeys())
    order.begin_pull()
    add(order, [0, 1], [1, 1])
    order.begin_pull()
    add(order, [2, 3, 4], [1, 1, 1])
    order.finish(1, 2)
    order.begin_pull()
    assert order.candidates(1 << 20).tolist() == [], "0 is out"
    order.finish(0, 1)
    order.begin_pull()
    assert order.candidates(1 << 20).tolist() == [2, 3, 4]
    assert order.take_blocked(numbers(2, 3), 100).tolist() == [1, 1]
    assert order.candidates(1 << 20).tolist() == [4], "the same pull may take it"
    order.begin_pull()
    assert order.candidates(1 << 20).tolist() == []


def test_a_failed_message_holds_its_key_until_it_is_done() -> None:
    order = KeyOrder(OrderKeys())
    order.begin_pull()
    add(order, [0, 1, 2], [1, 1, 1])
    order.fail([(1, 3)])
    assert order.recall([(1, 3)]).tolist() == [2], "1 failed, and 2 came behind it"
    order.pause(numbers(1), numbers(50), 7, alone=True)
    order.finish(0, 1)
    assert not order.release(49)
    order.begin_pull()
    assert order.candidates(1 << 20).tolist() == []
    assert order.release(50)
    order.begin_pull()
    assert order.candidates(1 << 20).tolist() == [1], "alone"
    order.take_blocked(numbers(1), 100)
    assert add(order, [3], [1]) == [], "not in the same pull either, since 2 stands before it"
    assert order.outside_lease([(1, 2)], 0).tolist() == [1] and order.outside_lease([(1, 2)], 1).tolist() == []


def test_a_long_pause_of_a_later_message_does_not_keep_an_earlier_one() -> None:
    order = KeyOrder(OrderKeys())
    order.begin_pull()
    add(order, [0, 1, 2], [1, 1, 1])
    for position, until_us in ((1, 1_000), (0, 50)):
        order.fail([(position, position + 1)])
        order.recall([(position, position + 1)])
        order.pause(numbers(position), numbers(until_us), 7, alone=True)
    order.begin_pull()
    assert order.candidates(10).tolist() == [], "0 pauses"
    assert order.next_until_us() == 50 and order.release(50)
    order.begin_pull()
    assert order.candidates(10).tolist() == [0], "1 pauses behind it"
    order.take_blocked(numbers(0), 2_000)
    assert add(order, [3], [1]) == [], "not beside 1"
    order.finish(0, 1)
    order.begin_pull()
    assert order.candidates(10).tolist() == [] and add(order, [4], [1]) == [], "1 holds the key, and pauses still"
    assert order.waiting() == 4 and order.next_until_us() == 1_000
    assert not order.release(999) and order.release(1_000)
    order.begin_pull()
    assert order.candidates(10).tolist() == [1]
    order.take_blocked(numbers(1), 2_000)
    order.finish(1, 2)
    order.begin_pull()
    assert order.candidates(10).tolist() == [2, 3, 4]


def test_an_earlier_message_that_comes_back_does_not_wait_for_the_pause_of_a_later_one() -> None:
    order = KeyOrder(OrderKeys())
    order.begin_pull()
    add(order, [1], [1])
    order.fail([(1, 2)])
    order.recall([(1, 2)])
    order.pause(numbers(1), numbers(1_000), 7, alone=True)
    order.begin_pull()
    assert add(order, [0], [1]) == []
    order.begin_pull()
    assert order.candidates(10).tolist() == [0]
    order.take_blocked(numbers(0), 100)
    order.finish(0, 1)
    order.begin_pull()
    assert order.candidates(10).tolist() == [] and order.release(1_000)


def test_two_queues_share_their_keys() -> None:
    keys = OrderKeys()
    main, retry = KeyOrder(keys), KeyOrder(keys)
    main.begin_pull()
    retry.begin_pull()
    assert add(main, [0], [1]) == [0]
    main.begin_pull()
    retry.begin_pull()
    assert add(retry, [7], [1]) == []
    main.finish(0, 1)
    main.begin_pull()
    retry.begin_pull()
    assert retry.candidates(1 << 20).tolist() == [7]


def test_keys_without_messages_leave_the_table() -> None:
    keys = OrderKeys()
    order = KeyOrder(keys)
    for number in range(40):
        order.begin_pull()
        positions = list(range(number * 1000, number * 1000 + 1000))
        assert len(add(order, positions, [key + 1 for key in positions])) == 1000
        order.finish(positions[0], positions[-1])
    order.begin_pull()
    assert len(keys) <= 16_384 + 2_000 and order.within(0, 40_000).tolist() == list(range(999, 40_000, 1000))
    keys.check_invariants(*order.check_invariants())


@dataclass
class Known:
    key: int
    state: str
    until_us: int = 0
    alone: bool = False


@pytest.mark.parametrize("seed", range(25))
def test_a_queue_agrees_with_a_model_of_keys_through_any_course_of_events(seed: int) -> None:
    Course(Random(seed)).run()


class Course:
    """One queue, and what the model knows of each unfinished message. Positions ascend with time."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.keys = OrderKeys()
        self.order = KeyOrder(self.keys)
        self.known: dict[int, Known] = {}
        self.count, self.now_us = 0, 0
        self.key_count = chance.choice([2, 10, 500])
        self.batch = chance.choice([5, 300])

    def run(self) -> None:
        for _ in range(120):
            self.chance.choice([self.pull, self.pull, self.pull, self.ack, self.ack, self.ack, self.fail, self.wait])()
            self.keys.check_invariants(*self.order.check_invariants())
            assert self.order.within(0, self.count).tolist() == sorted(self.known)
            assert self.order.blocked_within(0, self.count).tolist() == self.of(BLOCKED)
        self.end()

    def end(self) -> None:
        """Everything goes out in the end, and the table is empty then."""
        while self.known:
            self.wait(10_000)
            self.pull(0)
            for position in self.of(LEASED):
                self.order.finish(position, position + 1)
                del self.known[position]
        self.order.begin_pull()
        assert self.order.is_empty and not self.keys.rows

    def of(self, *states: str) -> list[int]:
        return [position for position, each in sorted(self.known.items()) if each.state in states]

    def held(self) -> set[int]:
        """The keys whose first message waits for its pause."""
        firsts: dict[int, Known] = {}
        for _, each in sorted(self.known.items()):
            firsts.setdefault(each.key, each)
        return {key for key, each in firsts.items() if each.state == WAITING}

    def pull(self, new_max: int | None = None) -> None:
        busy = {each.key for each in self.known.values() if each.state == LEASED} | self.held()
        stopped: set[int] = set()
        wanted: list[int] = []
        for position in self.of(BLOCKED, WAITING):
            each = self.known[position]
            if each.state == WAITING:
                stopped.add(each.key)
            elif each.key not in busy | stopped and not (
                each.alone and any(self.known[p].key == each.key for p in wanted)
            ):
                wanted.append(position)
                if each.alone:
                    stopped.add(each.key)
            else:
                stopped.add(each.key)
        self.order.begin_pull()
        assert self.order.candidates(1 << 20).tolist() == wanted
        taken = wanted[: self.chance.choice([1, 3, 1000])]
        self.order.take_blocked(numbers(*taken), self.now_us + 100)
        for position in taken:
            self.known[position].state, self.known[position].until_us = LEASED, self.now_us + 100
        if len(taken) < len(wanted):
            return
        new = self.chance.randrange(1, self.batch) if new_max is None else new_max
        positions = list(range(self.count, self.count + new))
        keys = [self.chance.randrange(1, self.key_count + 1) for _ in positions]
        if not positions:
            return
        out = set(add(self.order, positions, keys, self.now_us + 100))
        self.count += new
        for position, key in zip(positions, keys, strict=True):
            blocked = any(each.key == key and each.state != LEASED for each in self.known.values())
            assert (position in out) == (key not in busy and not blocked), (
                "a message overtakes one of its key, or waits for nothing"
            )
        for position, key in zip(positions, keys, strict=True):
            self.known[position] = Known(key, LEASED if position in out else BLOCKED, self.now_us + 100)

    def ack(self) -> None:
        leased = self.of(LEASED)
        done = [position for position in leased if self.chance.random() < 0.6]
        self.order.finish_all(ranges_of(numbers(*done)))
        for position in done:
            del self.known[position]

    def fail(self) -> None:
        failed = [position for position in self.of(LEASED) if self.chance.random() < 0.2]
        self.order.fail(ranges_of(numbers(*failed)))
        self._failed(failed)

    def wait(self, duration_us: int | None = None) -> None:
        self.now_us += self.chance.choice([10, 60]) if duration_us is None else duration_us
        released = [position for position in self.of(WAITING) if self.known[position].until_us <= self.now_us]
        assert self.order.release(self.now_us) == bool(released)
        for position in released:
            self.known[position].state = BLOCKED
        ended = [position for position in self.of(LEASED) if self.known[position].until_us <= self.now_us]
        assert self.order.fail_expired(self.now_us, 1 << 30) == ranges_of(numbers(*ended))
        self._failed(ended)
        ends = [self.known[position].until_us for position in self.of(LEASED, WAITING)]
        assert self.order.next_until_us() == min(ends, default=None)

    def _failed(self, failed: list[int]) -> None:
        first: dict[int, int] = defaultdict(lambda: 1 << 60)
        for position in failed:
            first[self.known[position].key] = min(position, first[self.known[position].key])
        back = [position for position in self.of(LEASED) if position > first[self.known[position].key]]
        assert self.order.recall(ranges_of(numbers(*failed))).tolist() == back
        alone = self.chance.random() < 0.7
        heads = [position for position in failed if position not in back]
        until_us = self.now_us + self.chance.choice([50, 50, 1_000])
        if heads:
            self.order.pause(numbers(*heads), np.full(len(heads), until_us), 7, alone=alone)
        for position in heads:
            self.known[position].state = WAITING
            self.known[position].until_us = until_us
            self.known[position].alone |= alone
        for position in back:
            self.known[position].state = BLOCKED
