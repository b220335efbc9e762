"""Reads property expressions: a tree of tokens becomes conditions, within the bounds of `filter_limits.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from lark import Token, Transformer_NonRecursive, v_args
from lark.exceptions import VisitError

from delayserver.broker.filters.expression import (
    And,
    Comparison,
    Condition,
    IsNull,
    Like,
    Member,
    Not,
    Operand,
    Or,
    Property,
)
from delayserver.broker.filters.fault import FilterError, TextPosition
from delayserver.broker.filters.filter_limits import (
    DEPTH_MAX,
    EXPRESSION_CHARACTERS_MAX,
    LITERALS_MAX,
    PATTERN_CHARACTERS_MAX,
    PREDICATES_MAX,
    PROPERTIES_MAX,
)
from delayserver.broker.filters.grammar import parse_tree
from delayserver.broker.filters.like import PatternError, like
from delayserver.broker.filters.number import number_of


@dataclass(frozen=True, slots=True)
class _Made:
    """A condition, and how deep it is."""

    condition: Condition
    depth: int


_SAME: Final = {"!=": "<>"}
# SQL-92 has these values. They are kept free for a later version.
_RESERVED: Final = {"TRUE", "FALSE", "UNKNOWN"}


def parse(text: str) -> Condition:
    """The condition that an expression stands for. Raises FilterError with the first fault and its place."""
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        what = f"an expression has at most {EXPRESSION_CHARACTERS_MAX} characters, not {len(text)}"
        raise FilterError(what, TextPosition.at(text, EXPRESSION_CHARACTERS_MAX))
    tree = parse_tree(text)
    try:
        made: _Made = _Builder(text).transform(tree)
    except VisitError as error:
        raise error.orig_exc from None
    return made.condition


@v_args(inline=True)
class _Builder(Transformer_NonRecursive[Token, _Made]):
    """Makes the conditions of one expression, from its leaves up. Each method is named after a rule of the grammar."""

    def __init__(self, text: str) -> None:
        super().__init__(visit_tokens=False)
        self._text = text
        self._literals = 0
        self._predicates = 0
        self._properties: set[str] = set()

    def start(self, made: _Made) -> _Made:
        return made

    def any_of(self, *parts: _Made) -> _Made:
        if len(parts) == 1:
            return parts[0]
        return _Made(Or(tuple([part.condition for part in parts])), max([part.depth for part in parts]))

    def all_of(self, *parts: _Made) -> _Made:
        if len(parts) == 1:
            return parts[0]
        return _Made(And(tuple([part.condition for part in parts])), max([part.depth for part in parts]))

    def group(self, opening: Token, made: _Made, _closing: Token) -> _Made:
        return _Made(made.condition, self._deeper(made, opening))

    def negation(self, word: Token, made: _Made) -> _Made:
        return _Made(Not(made.condition), self._deeper(made, word))

    def comparison(self, left: Token, sign: Token, right: Token) -> _Made:
        self._count(left)
        return self._made(None, self._compared(left, _SAME.get(sign, str(sign)), right))

    def between(self, value: Token, negated: Token | None, low: Token, high: Token) -> _Made:
        self._count(value)
        self._count(value)
        parts = (self._compared(value, ">=", low), self._compared(value, "<=", high))
        return self._made(negated, And(parts))

    def member(self, value: Token, negated: Token | None, *items: Token) -> _Made:
        self._count(value)
        name = self._property(value, "IN")
        literals = [self._operand(item) for item in items]
        numbers = frozenset([literal for literal in literals if isinstance(literal, float)])
        texts = frozenset([literal for literal in literals if isinstance(literal, str)])
        return self._made(negated, Member(name, numbers, texts))

    def like(self, value: Token, negated: Token | None, pattern: Token, escape: Token | None) -> _Made:
        self._count(value)
        name = self._property(value, "LIKE")
        text, character = str(self._literal(pattern)), None if escape is None else str(self._literal(escape))
        if len(text) > PATTERN_CHARACTERS_MAX:
            raise self._fault(f"a pattern has at most {PATTERN_CHARACTERS_MAX} characters", pattern)
        if escape is not None and character is not None and len(character) != 1:
            raise self._fault("an escape is one character", escape)
        try:
            return self._made(negated, Like(name, like(text, character)))
        except PatternError as error:
            raise self._fault(str(error), pattern) from None

    def is_null(self, value: Token, negated: Token | None) -> _Made:
        self._count(value)
        return self._made(negated, IsNull(self._property(value, "IS NULL")))

    def _made(self, negated: Token | None, condition: Condition) -> _Made:
        return _Made(condition if negated is None else Not(condition), 0)

    def _deeper(self, made: _Made, token: Token) -> int:
        if made.depth >= DEPTH_MAX:
            raise self._fault(f"parentheses and NOTs nest deeper than {DEPTH_MAX}", token)
        return made.depth + 1

    def _count(self, token: Token) -> None:
        self._predicates += 1
        if self._predicates > PREDICATES_MAX:
            raise self._fault(f"an expression has at most {PREDICATES_MAX} comparisons; BETWEEN counts as two", token)

    def _compared(self, left: Token, sign: str, right: Token) -> Comparison:
        one, other = self._operand(left), self._operand(right)
        kinds = {type(operand) for operand in (one, other)}
        if kinds == {float, str}:
            raise self._fault("a number and a text are never compared", right)
        return Comparison(one, sign, other)

    def _property(self, token: Token, what: str) -> Property:
        operand = self._operand(token)
        if not isinstance(operand, Property):
            raise self._fault(f"{what} asks about a property, not about {token}", token)
        return operand

    def _operand(self, token: Token) -> Operand:
        if token.type in ("NUMBER", "TEXT"):
            return self._literal(token)
        name = str(token) if token.type == "NAME" else token[1:-1].replace('""', '"')
        if token.type == "NAME" and name.upper() in _RESERVED:
            raise self._fault(f"{token} is a reserved word; a property of this name stands in double quotes", token)
        self._properties.add(name)
        if len(self._properties) > PROPERTIES_MAX:
            raise self._fault(f"an expression has at most {PROPERTIES_MAX} different properties", token)
        return Property(name)

    def _literal(self, token: Token) -> float | str:
        self._literals += 1
        if self._literals > LITERALS_MAX:
            raise self._fault(f"an expression has at most {LITERALS_MAX} numbers and texts", token)
        if token.type == "TEXT":
            return token[1:-1].replace("''", "'")
        value = number_of(token)
        if math.isnan(value):
            raise self._fault("this number is too large, or has more than 64 characters", token)
        return value

    def _fault(self, what: str, token: Token) -> FilterError:
        return FilterError(what, TextPosition.at(self._text, token.start_pos or 0))
