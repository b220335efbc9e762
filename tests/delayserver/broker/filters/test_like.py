"""LIKE patterns."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayserver.broker.filters.like import PatternError, like
from delayserver.broker.filters.limits import PATTERN_CHARACTERS_MAX
from tests.delayserver.broker.filters.expressions import similar


@given(st.text("ab%_", max_size=10), st.text("ab", max_size=12))
def test_like_matches_as_a_model_of_patterns_does(pattern: str, text: str) -> None:
    assert like(pattern)(text) == similar(text, tuple(pattern))


@given(st.text("ab.^$*\\[](){}+?|\n-", max_size=8))
def test_characters_of_regular_expressions_stand_for_themselves(text: str) -> None:
    assert like(text)(text) and not like(text)(text + "x") and like(f"%{text}%")(f"x\n{text}\ny")


@pytest.mark.parametrize("pattern", ["!", "a!", "!a", "%!x%"])
def test_an_escape_before_anything_else_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match="stands before"):
        like(pattern, "!")


def test_an_escape_may_be_a_wildcard() -> None:
    assert like("%%a", "%")("%a") and not like("%%a", "%")("xa")
    assert like("a__", "_")("a_") and not like("a__", "_")("axy")


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
    matches = like(pattern)
    began = time.process_time()
    matches(text)
    assert time.process_time() - began < 1.0
