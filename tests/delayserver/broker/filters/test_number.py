"""Which texts read as numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayserver.broker.filters.number import number_of
from tests.delayserver.broker.filters.expressions import reads_as, values


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0.0),
        ("-0", 0.0),
        ("+7", 7.0),
        ("007", 7.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1.5E-3", -0.0015),
        ("1e308", 1e308),
    ],
)
def test_a_text_that_is_a_number_has_its_value(text: str, number: float) -> None:
    assert number_of(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 ",
        "\n1",
        "1\n",
        "1_0",
        "0x1",
        "1e",
        "e1",
        ".",
        "+",
        "--1",
        "1.2.3",
        "1e999",
        "NaN",
        "inf",
        "-Infinity",
        "\u0663",
    ],
)
def test_a_text_that_is_no_number_is_nan(text: str) -> None:
    assert math.isnan(number_of(text))


def test_a_text_of_more_than_64_characters_is_no_number() -> None:
    assert number_of("1" * 64) == float("1" * 64)
    assert math.isnan(number_of("1" * 65))


@given(values | st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.text("0123456789+-.eE", max_size=8))
def test_number_of_agrees_with_the_grammar_of_the_reference(text: str) -> None:
    expected, found = reads_as(text), number_of(text)
    assert math.isnan(found) if expected is None else found == expected
