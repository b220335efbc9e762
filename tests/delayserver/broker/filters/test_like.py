"""LIKE patterns."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delayserver.broker.filters.filter_limits import PATTERN_CHARACTERS_MAX
from delayserver.broker.filters.like import PatternError, like
from tests.delayserver.broker.filters.expressions import similar


@settings(max_examples=600)
@given(st.text("ab%_", max_size=10), st.text("ab", max_size=12))
def test_like_matches_as_a_model_of_patterns_does(pattern: str, text: str) -> None:
    assert like(pattern).matches(text) == similar(text, tuple(pattern))


@given(
    st.lists(st.sampled_from(["a", "b", "é", "😀", "%", "_", "%_", "ab%"]), max_size=8).map("".join),
    st.sampled_from([0, 254, 255, 256, 257, 1279, 1280, 5375]),
    st.text("abé😀", max_size=6),
    st.sampled_from([0, 1, 255, 256]),
)
@example("%b_b%", 255, "bab", 1)
@example("%ba%", 255, "ba", 256)
def test_a_search_that_goes_on_behind_its_first_places_misses_nothing(
    pattern: str, before: int, text: str, behind: int
) -> None:
    text = "a" * before + text + "b" * behind
    assert like(pattern).matches(text) == similar(text, tuple(pattern))


@given(st.text("ab.^$*\\[](){}+?|\n-", max_size=8))
def test_characters_of_regular_expressions_stand_for_themselves(text: str) -> None:
    assert like(text).matches(text) and not like(text).matches(text + "x")
    assert like(f"%{text}%").matches(f"x\n{text}\ny")


@pytest.mark.parametrize("pattern", ["!", "a!", "!a", "%!x%"])
def test_an_escape_before_anything_else_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match="stands before"):
        like(pattern, "!")


def test_an_escape_may_be_a_wildcard() -> None:
    assert like("%%a", "%").matches("%a") and not like("%%a", "%").matches("xa")
    assert like("a__", "_").matches("a_") and not like("a__", "_").matches("axy")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("%a" * 120 + "%b", "a" * 16_384),
        ("%a_" * 80 + "%b", "a" * 16_384),
        ("%" + "a" * 253 + "b%", "a" * 16_384),
        ("%" + "a_" * 126 + "b%", "a" * 16_384),
        ("%" * 255, "a" * 16_384),
        ("_%" * 128, "a" * 16_384),
    ],
)
def test_no_pattern_takes_more_steps_than_its_length_times_that_of_the_text(pattern: str, text: str) -> None:
    """With backtracking the first two would take longer than the age of the universe."""
    assert len(pattern) <= PATTERN_CHARACTERS_MAX
    wanted = like(pattern)
    began = time.process_time()
    wanted.matches(text)
    assert time.process_time() - began < 1.0


def test_a_search_looks_at_a_bounded_number_of_places_in_one_call() -> None:
    """A thread gives up the GIL between two calls, so the event loop waits for one of them and not for the text."""

    class Watched(str):
        __slots__ = ()

        def find(self, sub: str, start: int | None = 0, stop: int | None = None, /) -> int:  # type: ignore[override]
            assert start is not None and stop is not None
            looked_at.append(stop - start)
            return super().find(sub, start, stop)

    looked_at: list[int] = []
    assert not like("%ab%").matches(Watched("a" * 1_000_000))
    assert len(looked_at) > 60 and max(looked_at) <= 16_384 + 1 and sum(looked_at) <= 1_000_000 + len(looked_at)


def test_the_cost_of_a_pattern_grows_with_what_it_compares_again() -> None:
    short, long, gapped = (like(pattern).character_ns for pattern in ("%ab%", f"%{'a' * 100}b%", f"%{'a_' * 100}%"))
    assert 0 < short < long <= gapped
    assert like("a%b").character_ns == 0, "both ends are looked at once"
    assert like("%a" * 100 + "%").character_ns == like("%a%").character_ns, "each looks where the one before ended"
