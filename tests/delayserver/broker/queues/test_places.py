"""Ranges that are redelivered in their place, and the bytes that redeliveries keep, against models of single numbers."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from delayserver.broker.queues.places import LEASED, READY, WAITING, Place, Places
from delayserver.broker.redelivery_policy import KeptBytes, RedeliveryPolicy


@pytest.mark.parametrize("seed", range(30))
def test_places_agree_with_a_table_of_positions(seed: int) -> None:
    chance = Random(seed)
    places = Places()
    table: dict[int, tuple[int, int, int]] = {}
    for _ in range(120):
        start = chance.randrange(40)
        stop = start + chance.randrange(12)
        state, times, until_us = chance.choice((WAITING, READY, LEASED)), chance.randrange(1, 3), chance.randrange(3)
        kind = chance.random()
        if kind < 0.6:
            places.put(Place(start, stop, times, state, until_us))
            table |= dict.fromkeys(range(start, stop), (times, state, until_us))
        elif kind < 0.7:
            spans = [(low, min(low + 2, stop)) for low in range(start, stop, 3)]
            starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
            places.lease_all(starts, stops, np.full(len(spans), times), until_us, owner=times)
            table |= {position: (times, LEASED, until_us) for low, high in spans for position in range(low, high)}
        elif kind < 0.9:
            places.remove(start, stop)
            table = {position: value for position, value in table.items() if not start <= position < stop}
        else:
            now_us = chance.randrange(3)
            due = {p for p, (_, known, until) in table.items() if known == WAITING and until <= now_us}
            assert places.release(now_us) == bool(due)
            table |= {position: (table[position][0], READY, 0) for position in due}
        places.check_invariants()
        found = {p: (one.times, one.state, one.until_us) for one in places for p in range(one.start, one.stop)}
        assert found == table
        for left, right in pairwise(places):
            assert left.stop < right.start or left[2:] != right[2:], "alike neighbours are two ranges"
        positions = np.arange(60)
        free = [position not in table or table[position][1] == LEASED for position in range(60)]
        assert places.are_leased(positions).tolist() == free
        missing = {p for low, high in places.missing(start, stop) for p in range(low, high)}
        assert missing == set(range(start, stop)) - set(table)
        ready = [position for position, value in sorted(table.items()) if value[1] == READY]
        first = places.first_ready()
        assert (first.start if first else None) == (ready[0] if ready else None)
        assert places.count(READY) == len(ready)
        waiting = [value[2] for value in table.values() if value[1] == WAITING]
        assert places.next_until_us() == min(waiting, default=None)
        assert places.stop == max(table, default=-1) + 1
        times_before = np.full(stop - start, 9, np.int64)
        places.overlay(start, times_before)
        for position, before in enumerate(times_before.tolist(), start):
            known = table.get(position)
            assert before == (9 if known is None else known[0] - (known[1] == LEASED))


def test_pauses_double_up_to_their_cap_and_do_not_overflow() -> None:
    numbers = np.array([1, 2, 3, 8, 9, 10, 1 << 40], np.int64)
    assert (
        RedeliveryPolicy(1_000, 300_000).pauses_ms(numbers).tolist()
        == [1_000, 2_000, 4_000, 128_000, 256_000] + [300_000] * 2
    )
    assert RedeliveryPolicy(0, 300_000).pauses_ms(numbers).tolist() == [0] * 7
    month_ms = 30 * 86_400_000
    assert RedeliveryPolicy(month_ms, month_ms).pauses_ms(numbers).tolist() == [month_ms] * 7


@pytest.mark.parametrize("seed", range(10))
def test_kept_bytes_are_forgotten_when_they_are_old_and_not_before(seed: int) -> None:
    chance = Random(seed)
    kept, written = KeptBytes(2_400), []
    now_ms = peak_ms = 1_000_000
    for _ in range(300):
        now_ms += chance.choice((0, 1, 50, 300, -20))
        if chance.random() < 0.6:
            count = chance.randrange(1, 50)
            kept.begin(count)
            if chance.random() < 0.8:
                written.append((now_ms, count))
                kept.add(now_ms, count)
            kept.end(count)
        kept.forget(now_ms)
        peak_ms = max(peak_ms, now_ms)
        kept.check_invariants()
        least = sum(count for at_ms, count in written if at_ms > peak_ms - 2_400)
        most = sum(count for at_ms, count in written if at_ms > now_ms - 2_400 - 400)
        assert least <= kept.total <= most
        assert len(kept.steps()) <= 28
