"""Failed reads are counted by place, up to a bound."""

from __future__ import annotations

from store.failed_reads import FailedReads


def test_each_place_has_a_count_of_its_own_until_it_was_read() -> None:
    failed = FailedReads[str](8)
    assert [failed.count("a"), failed.count("b"), failed.count("a")] == [1, 1, 2]
    assert (failed.of("a"), failed.of("b"), failed.of("never")) == (2, 1, 0)
    failed.forget("a")
    failed.forget("never")
    assert failed.of("a") == 0 and failed.count("a") == 1


def test_beyond_the_bound_the_place_that_failed_longest_ago_is_forgotten() -> None:
    failed = FailedReads[int](2)
    for place in (1, 2, 1, 3):
        failed.count(place)
    assert [failed.of(place) for place in (1, 2, 3)] == [2, 0, 1]
