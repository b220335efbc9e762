"""Compiled expressions against a reading of the rules row by row, and against SQLite."""

from __future__ import annotations

import sqlite3
from random import Random

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings

from delayserver.broker.filters.program import compile_expression
from delayserver.broker.filters.property_columns import distinct_rows
from store.records.column_batch import constant_column
from tests.delayserver.broker.filters.expressions import (
    NAMES,
    Compared,
    Node,
    Row,
    nodes,
    quoted,
    reads_as,
    rows,
)


def masked(expression: str, messages: list[Row]) -> list[bool]:
    """For which messages an expression is true."""
    packed = [msgpack.packb(message) if message else b"" for message in messages]
    lengths = np.array([len(each) for each in packed], np.uint32)
    mask = compile_expression(expression).mask(memoryview(b"".join(packed)), lengths)
    return [bool(each) for each in mask]


@settings(max_examples=600, deadline=None)
@given(nodes, rows)
@example(Compared("price", ">", None, "colour"), [{"price": "10", "colour": "9"}, {"price": "10", "colour": "9x"}])
def test_a_program_selects_the_messages_that_the_rules_select(node: Node, messages: list[Row]) -> None:
    assert masked(node.ours(), messages) == [node.of(message) is True for message in messages]


@settings(max_examples=400, deadline=None)
@given(nodes, rows)
def test_a_program_selects_the_messages_that_sqlite_selects(node: Node, messages: list[Row]) -> None:
    """SQLite gets each property as a column of text and as one of numbers, since its own rules for types differ."""
    with sqlite3.connect(":memory:") as connection:
        connection.execute("PRAGMA case_sensitive_like = ON")
        columns = [f"{quoted(f't {name}')} TEXT, {quoted(f'n {name}')} REAL" for name in NAMES]
        connection.execute(f"CREATE TABLE message ({', '.join(columns)})")
        for message in messages:
            cells = [cell for name in NAMES for cell in (message.get(name), reads_as(message.get(name, "")))]
            connection.execute(f"INSERT INTO message VALUES ({', '.join('?' * len(cells))})", cells)
        found = connection.execute(f"SELECT ({node.sqlite()}) IS TRUE FROM message ORDER BY rowid").fetchall()
    connection.close()
    assert masked(node.ours(), messages) == [bool(truth) for (truth,) in found]


PRICES: list[Row] = [{"price": "2"}, {"price": "10"}, {"price": "cheap"}, {}, {"price": "2.0"}, {"price": ""}]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("price > 3", [False, True, False, False, False, False]),
        ("price = 2", [True, False, False, False, True, False]),
        ("price = '2'", [True, False, False, False, False, False]),
        ("price <> 2", [False, True, False, False, False, False]),
        ("not price = 2", [False, True, False, False, False, False]),
        ("price < '3'", [True, True, False, False, True, True]),
        ("price between 2 and 9", [True, False, False, False, True, False]),
        ("price not in (2, 'cheap')", [False, True, False, False, False, False]),
        ("price in ('cheap', 10)", [False, True, True, False, False, False]),
        ("price is null", [False, False, False, True, False, False]),
        ("price is not null", [True, True, True, False, True, True]),
        ("price like '_'", [True, False, False, False, False, False]),
        ("price like '%'", [True, True, True, False, True, True]),
        ("price = '' or price > 5", [False, True, False, False, False, True]),
        ("price > 5 or price is null", [False, True, False, True, False, False]),
        ("not (price > 5 and other = 1)", [True, False, False, False, True, False]),
        ("3 < price", [False, True, False, False, False, False]),
        ("1 = 1", [True] * 6),
        ("'b' < 'a'", [False] * 6),
        ("price != 2 AND 1 <> 2", [False, True, False, False, False, False]),
        ("not price > 3 and not price = 2", [False] * 6),
        ("(price) > (3)", [False, True, False, False, False, False]),
    ],
)
def test_an_expression_selects_the_rows_of_its_example(expression: str, expected: list[bool]) -> None:
    assert masked(expression, PRICES) == expected


def test_and_binds_before_or_and_not_before_and() -> None:
    messages: list[Row] = [{"a": "1"}, {"b": "1"}, {"a": "1", "b": "1", "c": "1"}, {"b": "1", "c": "1"}]
    assert masked("a = 1 or b = 1 and c = 1", messages) == [True, False, True, True]
    assert masked("not a is null and b = 1 or c = 1 and a is null", messages) == [False, False, True, True]


def test_names_of_properties_keep_their_case_and_words_do_not() -> None:
    messages: list[Row] = [{"Price": "1"}, {"price": "1"}, {"$a.b_1": "x"}, {"android": "x"}]
    assert masked("Price iS nOt nUlL", messages) == [True, False, False, False]
    assert masked("$a.b_1 lIkE 'x' Or android In ('x')", messages) == [False, False, True, True]


def test_numbers_beyond_a_float_are_distinguished_only_as_texts() -> None:
    messages: list[Row] = [{"id": "9007199254740993"}, {"id": "9007199254740992"}]
    assert masked("id = 9007199254740993", messages) == [True, True]
    assert masked("id = '9007199254740993'", messages) == [True, False]


def test_properties_that_are_no_map_of_texts_count_as_missing() -> None:
    packed = [b"\xc1", b"\x81", msgpack.packb({"price": 5}), msgpack.packb([1]), b"", msgpack.packb({"price": "5"})]
    lengths = np.array([len(each) for each in packed], np.uint32)
    program = compile_expression("price = 5")
    assert program.mask(memoryview(b"".join(packed)), lengths).tolist() == [False] * 5 + [True]
    program = compile_expression("price is null")
    assert program.mask(memoryview(b"".join(packed)), lengths).tolist() == [True] * 5 + [False]


def test_no_rows_give_an_empty_mask() -> None:
    for expression in ("a > 1", "a in ('x', 1)", "a like 'x'", "a = b", "a is null", "a = 'x'", "1 = 1"):
        assert masked(expression, []) == []


def test_rows_of_a_blob_are_distinguished_however_many_repeat() -> None:
    random = Random(4)
    for _ in range(60):
        kinds = [random.randbytes(random.choice([0, 1, 7, 8, 9, 30, 300])) for _ in range(random.choice([1, 3, 40]))]
        kinds += [kind[:-1] + b"\0" for kind in kinds if kind]  # zeros at the end are bytes as well
        rows = [random.choice(kinds) for _ in range(random.choice([1, 63, 64, 500]))]
        if random.random() < 0.3:
            rows = [row for row in rows if len(row) == len(rows[0])]
        lengths = np.array([len(row) for row in rows], np.uint32)
        if random.random() < 0.5 and int(lengths.min()) == int(lengths.max()):
            lengths = constant_column(lengths[0], len(rows), np.uint32)
        found, codes = distinct_rows(b"".join(rows), lengths)
        assert [found[code] for code in codes.tolist()] == rows
        assert len(found) <= 2 * len(set(rows))
