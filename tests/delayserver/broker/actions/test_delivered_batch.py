"""The cached keys of windows with uncertain hand-offs."""

from __future__ import annotations

import time

import numpy as np

from delayserver.broker.actions.delivered_batch import KnownKeys, delivery_keys
from tests.delayserver.broker.brokers import SERVER, messages

MINUTE_MS = 60_000


def cached(known: KnownKeys, window_ms: int) -> None:
    known.begin((SERVER, window_ms))
    known.finish((SERVER, window_ms), [])


def is_known(known: KnownKeys, window_ms: int, sequence: int) -> bool | None:
    found = known.present((SERVER, window_ms), delivery_keys(np.array([sequence]), np.zeros(1, np.uint32)))
    return None if found is None else bool(found[0])


def test_to_note_a_delivery_costs_the_same_however_many_came_before() -> None:
    known = KnownKeys(1 << 20)
    cached(known, MINUTE_MS)
    batch = messages(1, 1)
    began = time.process_time()
    for _ in range(20_000):
        known.add(batch)
    assert time.process_time() - began < 3.0
    assert is_known(known, MINUTE_MS, 1) and not is_known(known, MINUTE_MS, 2)


def test_beyond_the_bound_the_oldest_windows_are_forgotten() -> None:
    known = KnownKeys(10)
    for number in range(1, 4):
        cached(known, number * MINUTE_MS)
        known.add(messages(number, 4, number * MINUTE_MS))
    assert [is_known(known, number * MINUTE_MS, number) for number in range(1, 4)] == [None, True, True]
    known.forget((SERVER, 2 * MINUTE_MS))
    known.add(messages(7, 6, 3 * MINUTE_MS))
    assert [is_known(known, number * MINUTE_MS, number) for number in range(1, 4)] == [None, None, True]
    known.add(messages(13, 1, 3 * MINUTE_MS))
    assert is_known(known, 3 * MINUTE_MS, 3) is None
