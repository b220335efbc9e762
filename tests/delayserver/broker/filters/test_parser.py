"""Expressions that are refused, with the place of their fault, and the bounds."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayserver.broker.filters import filter_limits
from delayserver.broker.filters.fault import FilterError
from delayserver.broker.filters.parser import parse


@pytest.mark.parametrize(
    ("expression", "line", "column", "what"),
    [
        ("", 1, 1, "expected a property, a number, a text, '(' or NOT, found the end"),
        ("price >", 1, 8, "expected a property, a number, a text or '(', found the end"),
        ("price > > 3", 1, 9, "found >"),
        ("price", 1, 6, "expected a comparison, BETWEEN, IN, IS, LIKE or NOT, found the end"),
        ("a = 1 OR", 1, 9, "found the end"),
        ("a=1 b=2", 1, 5, "expected the end, AND or OR, found b"),
        ("(a=1", 1, 5, "expected ')', found the end"),
        ("a=1)", 1, 4, "expected the end, found )"),
        ("a = 1\n AND\n b = ", 3, 6, "found the end"),
        ("a in ()", 1, 7, "expected a number or a text, found )"),
        ("a in (b)", 1, 7, "expected a number or a text, found b"),
        ("a in (1,)", 1, 9, "expected a number or a text"),
        ("a like 3", 1, 8, "expected a text, found 3"),
        ("a like b", 1, 8, "expected a text, found b"),
        ("a is null is null", 1, 11, "found is"),
        ("a = 'abc", 1, 5, "this text has no closing '"),
        ('"abc = 1', 1, 1, 'this property name has no closing "'),
        ('"" = 1', 1, 1, "a property name is empty"),
        ("3abc = 1", 1, 1, "neither a number nor a name"),
        ("a = 0x10", 1, 5, "neither a number nor a name"),
        ("a - b = 1", 1, 3, "neither a number nor a name"),
        ("a # 3", 1, 3, "no part of an expression begins with '#'"),
        ("größe = 1", 1, 3, "double quotes"),
        ("a = TRUE", 1, 5, "TRUE is a reserved word"),
        ("unknown = 1", 1, 1, "unknown is a reserved word"),
        ("a = 1e999", 1, 5, "too large"),
        ("a = " + "1" * 65, 1, 5, "more than 64 characters"),
        ("1 = 'x'", 1, 5, "a number and a text are never compared"),
        ("5 in (1)", 1, 1, "IN asks about a property"),
        ("'a' like 'a'", 1, 1, "LIKE asks about a property"),
        ("1 is null", 1, 1, "IS NULL asks about a property"),
        ("a LIKE 'x!' ESCAPE '!'", 1, 8, "the escape character '!' stands before %, _ or itself"),
        ("a LIKE 'x' ESCAPE '!!'", 1, 19, "an escape is one character"),
        ("a LIKE 'x' ESCAPE ''", 1, 19, "an escape is one character"),
        ("a AND b", 1, 3, "expected a comparison"),
        ("NOT", 1, 4, "found the end"),
        ("a = 1; drop", 1, 6, "no part of an expression begins with ';'"),
        ("a = '" + "x" * 60 + "' 5", 1, 68, "found 5"),
    ],
)
def test_a_syntax_error_states_its_place(expression: str, line: int, column: int, what: str) -> None:
    with pytest.raises(FilterError) as raised:
        parse(expression)
    place = raised.value.place
    assert (place.line, place.column) == (line, column), raised.value
    assert what in raised.value.what
    before = expression.split("\n")[: line - 1]
    assert place.offset == sum([len(each) + 1 for each in before]) + column - 1


def test_a_long_token_is_shown_short() -> None:
    with pytest.raises(FilterError) as raised:
        parse("'" + "x" * 3000 + "'" * 2 + "y' z")
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("a = '" + "x" * filter_limits.EXPRESSION_CHARACTERS_MAX + "'", "at most 4096 characters"),
        ("(" * (filter_limits.DEPTH_MAX + 1) + "a=1" + ")" * (filter_limits.DEPTH_MAX + 1), "nest deeper than 32"),
        ("NOT " * (filter_limits.DEPTH_MAX + 1) + "a=1", "nest deeper than 32"),
        (" OR ".join(["a=b"] * (filter_limits.PREDICATES_MAX + 1)), "at most 64 comparisons"),
        ("a between b and c and " * 32 + "a=1", "at most 64 comparisons"),
        (f"a IN ({','.join(['1'] * (filter_limits.LITERALS_MAX + 1))})", "at most 256 numbers and texts"),
        (" OR ".join([f"a{i}=1" for i in range(filter_limits.PROPERTIES_MAX + 1)]), "at most 32 different properties"),
        (f"a LIKE '{'x' * (filter_limits.PATTERN_CHARACTERS_MAX + 1)}'", "at most 256 characters"),
    ],
)
def test_each_bound_is_refused_just_beyond_it(expression: str, what: str) -> None:
    with pytest.raises(FilterError, match=what):
        parse(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * filter_limits.DEPTH_MAX + "a=1" + ")" * filter_limits.DEPTH_MAX,
        "NOT " * filter_limits.DEPTH_MAX + "a=1",
        " OR ".join(["a=1"] * filter_limits.PREDICATES_MAX),
        "a between b and c and " * 31 + "a=1 and a=2",
        f"a IN ({','.join(['1'] * filter_limits.LITERALS_MAX)})",
        " OR ".join([f"a{i}=1" for i in range(filter_limits.PROPERTIES_MAX)]),
        f"a LIKE '{'x' * filter_limits.PATTERN_CHARACTERS_MAX}'",
        ("a" * (filter_limits.EXPRESSION_CHARACTERS_MAX - 2)) + "=1",
        "((((a)))) = (1)",
    ],
)
def test_an_expression_at_its_bound_is_taken(expression: str) -> None:
    parse(expression)


@pytest.mark.parametrize("text", ["(" * 4096, "NOT " * 1024, "'" * 4095, "a" * 4096, "a=1 OR " * 585, "\n" * 4096])
def test_no_text_takes_long_to_refuse(text: str) -> None:
    began = time.process_time()
    with pytest.raises(FilterError):
        parse(text)
    assert time.process_time() - began < 2.0


@given(st.text("ab1.'\"()<>=, \nANDORTLIKE", max_size=60) | st.text(max_size=30))
def test_a_text_parses_or_is_refused_with_a_place_inside_of_it(text: str) -> None:
    try:
        parse(text)
    except FilterError as error:
        assert 0 <= error.place.offset <= len(text)
        assert error.place.line == text[: error.place.offset].count("\n") + 1
