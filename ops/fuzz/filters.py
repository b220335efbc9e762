"""Targets for filters: texts of consumers, and the properties that a compiled expression reads."""

from __future__ import annotations

import msgpack
import numpy as np

from delayserver.broker.filters.fault import FilterError
from delayserver.broker.filters.program import compile_expression
from delayserver.broker.filters.tags import parse_tags
from ops.fuzz.target import Target, ensure

_TAG_BYTES_MAX = 127
_ROWS = [
    {},
    {"price": "12.5", "a": "1"},
    {"price": "cheap", "a": "x%_", "b c": "1"},
    {"a": "", "b": "0"},
]
_PACKED = [msgpack.packb(row) for row in _ROWS]
_SEEDS = (
    "price > 3 and (a = 'x' or not b is null)",
    "a not between 1 and 5.5e1 or \"b c\" in (1, 'x')",
    "a like 'x!%_%' escape '!' and a <> b",
    "'it''s' <= 'x' and -1 < +.5",
)


def _expression_seeds() -> list[bytes]:
    """An expression, a zero byte, and the properties of one more message."""
    return [text.encode() + b"\0" + msgpack.packb({"price": "5", "b": "z"}) for text in _SEEDS]


def check_expression(data: bytes) -> bool:
    """Compiles an expression and runs it. A message has one answer, whatever messages lie beside it."""
    text, _, properties = data.partition(b"\0")
    expression = text.decode("utf-8", "replace")
    try:
        program = compile_expression(expression)
    except FilterError as error:
        ensure(0 <= error.place.offset <= len(expression), "the place of a fault lies outside of the expression")
        return False
    rows = [*_PACKED, properties, _PACKED[1]]
    together = _mask(expression, rows)
    ensure(together == [_mask(expression, [row])[0] for row in rows], "a message has another answer beside others")
    ensure(program.names == compile_expression(expression).names, "two programs of one expression")
    return True


def _mask(expression: str, rows: list[bytes]) -> list[bool]:
    lengths = np.array([len(row) for row in rows], np.uint32)
    mask = compile_expression(expression).mask(memoryview(b"".join(rows)), lengths)
    return [bool(each) for each in mask]


def _tag_seeds() -> list[bytes]:
    return [b"a || b", b"*", "größe||x y".encode()]


def check_tags(data: bytes) -> bool:
    """Parses a subscription. Its tags, joined again, give the same ones."""
    text = data.decode("utf-8", "replace")
    try:
        tags = parse_tags(text, _TAG_BYTES_MAX)
    except FilterError as error:
        ensure(0 <= error.place.offset <= len(text), "the place of a fault lies outside of the subscription")
        return False
    ensure(parse_tags(" || ".join(tags) or "*", _TAG_BYTES_MAX) == tags, "other tags when written again")
    return True


TARGETS = (
    Target("expression", _expression_seeds, check_expression),
    Target("tags", _tag_seeds, check_tags),
)
