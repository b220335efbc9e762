from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from store.indexes.index_cache import IndexCache
from store.indexes.outcome_index import OutcomeIndex

ROWS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 15)), max_size=30)


def column(values: list[int], dtype: type[np.generic] = np.int64) -> NDArray[Any]:
    return np.array(values, dtype)


@given(st.lists(ROWS, max_size=12), st.lists(st.integers(0, 70), max_size=30))
def test_lookup_equals_a_dictionary_that_keeps_the_first(
    batches: list[list[tuple[int, int]]], asked: list[int]
) -> None:
    index = OutcomeIndex()
    codes: dict[int, int] = {}
    for rows in batches:
        sequences, outcomes = ([row[place] for row in rows] for place in range(2))
        index.add(column(sequences), column(outcomes, np.uint8))
        for sequence, code in rows:
            codes.setdefault(sequence, code)
        index.check_invariants()
        assert index.lookup(column(asked)).tolist() == [codes.get(sequence, 0) for sequence in asked]
    assert index.missing(column(asked)).tolist() == [sequence not in codes for sequence in asked]
    assert len(index) == sum(map(len, batches))


def test_an_empty_index_misses_everything() -> None:
    assert OutcomeIndex().missing(column([1, 2])).tolist() == [True, True]


def test_an_outcome_takes_nine_bytes() -> None:
    index = OutcomeIndex()
    index.add(np.arange(1, 1001), np.full(1000, 4, np.uint8))
    assert index.nbytes == 9000


def test_code_0_is_refused_as_an_outcome() -> None:
    with pytest.raises(AssertionError):
        OutcomeIndex().add(column([1]), column([0], np.uint8))


def test_added_arrays_may_be_changed_afterwards() -> None:
    index, sequence = OutcomeIndex(), column([5])
    index.add(sequence, column([4], np.uint8))
    sequence[0] = 6
    assert index.lookup(column([5, 6])).tolist() == [4, 0]


def loaded(key: int) -> OutcomeIndex:
    index = OutcomeIndex()
    index.add(np.arange(1, key + 1), np.full(key, 4, np.uint8))
    return index


@given(st.lists(st.integers(0, 12), max_size=60), st.integers(0, 200))
def test_the_cache_stays_within_its_bytes_but_for_the_last_used(keys: list[int], bytes_max: int) -> None:
    cache = IndexCache(bytes_max, loaded)
    for key in keys:
        assert len(cache.get(key)) == key
        cache.check_invariants()
        assert cache.nbytes <= bytes_max or len(cache) == 1
        assert key in cache


def test_the_least_recently_used_index_goes_first() -> None:
    cache = IndexCache(9 * 20, loaded)
    for key in (8, 9, 8, 7):
        cache.get(key)
    assert (8 in cache, 9 in cache, 7 in cache) == (True, False, True)


def test_an_index_that_grew_is_measured_when_it_is_used_again() -> None:
    cache = IndexCache(9 * 20, loaded)
    cache.get(4)
    cache.get(10).add(np.arange(100, 115), np.full(15, 4, np.uint8))
    assert 4 in cache and 3 not in cache
    cache.get(10)
    assert 4 not in cache and 10 in cache
    cache.forget(10)
    assert (len(cache), cache.nbytes) == (0, 0)
