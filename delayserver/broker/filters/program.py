"""Compiled expressions: conditions become a list of steps over columns, and steps become masks.

The logic has three values. A step leaves two masks on a stack: where it is true, and where it is false. Elsewhere it is
unknown, since a property is missing or reads as no number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

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
from delayserver.broker.filters.like import Pattern
from delayserver.broker.filters.property_columns import Mask, PropertyColumn, property_columns

Columns = dict[str, PropertyColumn]
Test = Callable[[Any, Any], Any]

_TESTS: Final[dict[str, Test]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# What a step takes for a value of its column and for each of its bytes, measured on a core at 3 GHz and rounded up. A
# pattern takes more.
_STEP_NS: Final = 150
_STEP_BYTE_NS: Final = 0.1
# An empty msgpack map.
_NO_PROPERTIES: Final = b"\x80"
_TURNED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Truth(NamedTuple):
    """Where a condition is true, and where it is false; bool[n] each."""

    true: Mask
    false: Mask


class ProgramStep(Protocol):
    """One step of a program: it takes truths from the stack, and leaves one there."""

    def run(self, columns: Columns, count: int, stack: list[Truth]) -> None:
        """Run over `count` rows."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression. `names` are the properties that it reads."""

    names: tuple[str, ...]
    steps: tuple[ProgramStep, ...]

    @property
    def row_ns(self) -> int:
        """About how long its steps take for a row with short properties, at most."""
        return _STEP_NS * len(self.steps) + sum([each.work_ns for each in self._patterns])

    @property
    def byte_ns(self) -> float:
        """About how long its steps take for each byte of a row's properties, at most."""
        return _STEP_BYTE_NS * len(self.steps) + sum([each.character_ns for each in self._patterns])

    @property
    def _patterns(self) -> list[Pattern]:
        return [step.pattern for step in self.steps if isinstance(step, _Matching)]

    def mask(self, blob: memoryview, lengths: NDArray[np.uint32]) -> Mask:
        """Where the expression is true, bool[n]. The rows are msgpack maps end to end, each of a length in u32[n]."""
        columns = property_columns(blob, lengths, self.names)
        stack: list[Truth] = []
        for step in self.steps:
            step.run(columns, len(lengths), stack)
        return stack.pop().true

    @property
    def never_matches(self) -> bool:
        """True for an expression that reads no property and is not true."""
        return not self.names and not self.mask(memoryview(_NO_PROPERTIES), np.ones(1, np.uint32))[0]


def compile_expression(text: str) -> Program:
    """The program of a property expression. Raises FilterError with the place of the first fault."""
    # The parser's library is loaded with the first expression, since most servers never see one.
    from delayserver.broker.filters.parser import parse

    steps: list[ProgramStep] = []
    names: dict[str, None] = {}
    _compile(parse(text), steps, names)
    return Program(tuple(names), tuple(steps))


def _compile(condition: Condition, steps: list[ProgramStep], names: dict[str, None]) -> None:
    """Append the steps of a condition. The parser bounds its depth."""
    match condition:
        case And(parts) | Or(parts):
            for part in parts:
                _compile(part, steps, names)
            steps.append(_All(len(parts)) if isinstance(condition, And) else _Any(len(parts)))
        case Not(part):
            _compile(part, steps, names)
            steps.append(_Negate())
        case Comparison(left, sign, right):
            names |= {each.name: None for each in (left, right) if isinstance(each, Property)}
            steps.append(_comparison(left, sign, right))
        case IsNull(value):
            names[value.name] = None
            steps.append(_Missing(value.name))
        case Member(value, numbers, texts):
            names[value.name] = None
            steps.append(_Member(value.name, np.array(sorted(numbers)), tuple(sorted(texts))))
        case Like(value, pattern):
            names[value.name] = None
            steps.append(_Matching(value.name, pattern))


def _comparison(left: Operand, sign: str, right: Operand) -> ProgramStep:
    if isinstance(left, Property):
        if isinstance(right, Property):
            return _Columns(left.name, sign, right.name)
        return _Numbers(left.name, sign, right) if isinstance(right, float) else _Texts(left.name, sign, right)
    if isinstance(right, Property):
        return _comparison(right, _TURNED[sign], left)
    return _Constant(bool(_TESTS[sign](left, right)))


@dataclass(frozen=True, slots=True)
class _Constant:
    value: bool

    def run(self, columns: Columns, count: int, stack: list[Truth]) -> None:
        true = np.full(count, self.value)
        stack.append(Truth(true, ~true))


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A property and a number. It is unknown where the property reads as no number."""

    name: str
    sign: str
    number: float

    def run(self, columns: Columns, count: int, stack: list[Truth]) -> None:
        column = columns[self.name]
        known = ~np.isnan(column.numbers)
        stack.append(_spread(column, _TESTS[self.sign](column.numbers, self.number) & known, known))


@dataclass(frozen=True, slots=True)
class _Texts:
    """A property and a text, by code points."""

    name: str
    sign: str
    text: str

    def run(self, columns: Columns, count: int, stack: list[Truth]) -> None:
        column = columns[self.name]
        known = column.present()
        if self.sign in ("=", "<>"):
            equal = np.zeros(len(known), bool)
            code = column.code_of(self.text)
            if code >= 0:
                equal[code] = True
            true = equal if self.sign == "=" else known & ~equal
        else:
            test, text = _TESTS[self.sign], self.text
            true = np.array([value is not None and test(value, text) for value in column.values], bool)
        stack.append(_spread(column, true, known))


@dataclass(frozen=True, slots=True)
class _Columns:
    """Two properties: as numbers where both read as numbers, elsewhere as texts."""

    left: str
    sign: str
    right: str

    def run(self, columns: Columns, count: int, stack: list[Truth]) -> None:
        left, right = columns[self.left], columns[self.right]
        test = _TESTS[self.sign]
        known = left.present()[left.codes] & right.present()[right.codes]
        one, other = left.numbers[left.codes], right.numbers[right.codes]
        numbers = ~(np.isnan(one) | np.isnan(other))
        true = np.asarray(test(one, other)) & numbers
        rows = np.flatnonzero(known & ~numbers)
        if len(rows):
            pairs = zip(left.codes[rows].tolist(), right.codes[rows].tolist(), strict=True)
            true[rows] = [test(left.values[a], right.values[b]) for a, b in pairs]
        stack.append(Truth(true, known & ~true))


@dataclass(frozen=True, slots=True)
class _Member:
    """IN: the same as a comparison with each number and each text of the list, joined by OR."""

    name: str
    numbers: NDArray[np.float64]
    texts: tuple[str, ...]

    def run(self, columns: Columns, count: int, stack: list[Truth]) -> None:
        column = columns[self.name]
        known = column.present()
        true = np.zeros(len(known), bool)
        if len(self.numbers):
            true |= np.isin(column.numbers, self.numbers)
            known = known & ~np.isnan(column.numbers)
        codes = [code for code in map(column.code_of, self.texts) if code >= 0]
        true[codes] = True
        stack.append(_spread(column, true, known))


@dataclass(frozen=True, slots=True)
class _Matching:
    """LIKE."""

    name: str
    pattern: Pattern

    def run(self, columns: Columns, count: int, stack: list[Truth]) -> None:
        column = columns[self.name]
        matches = self.pattern.matches
        true = np.array([value is not None and matches(value) for value in column.values], bool)
        stack.append(_spread(column, true, column.present()))


@dataclass(frozen=True, slots=True)
class _Missing:
    """IS NULL."""

    name: str

    def run(self, columns: Columns, count: int, stack: list[Truth]) -> None:
        column = columns[self.name]
        present = column.present()[column.codes]
        stack.append(Truth(~present, present))


@dataclass(frozen=True, slots=True)
class _All:
    """AND."""

    parts: int

    def run(self, columns: Columns, count: int, stack: list[Truth]) -> None:
        parts = stack[-self.parts :]
        del stack[-self.parts :]
        stack.append(
            Truth(
                reduce(np.logical_and, [part.true for part in parts]),
                reduce(np.logical_or, [part.false for part in parts]),
            )
        )


@dataclass(frozen=True, slots=True)
class _Any:
    """OR."""

    parts: int

    def run(self, columns: Columns, count: int, stack: list[Truth]) -> None:
        parts = stack[-self.parts :]
        del stack[-self.parts :]
        stack.append(
            Truth(
                reduce(np.logical_or, [part.true for part in parts]),
                reduce(np.logical_and, [part.false for part in parts]),
            )
        )


@dataclass(frozen=True, slots=True)
class _Negate:
    """NOT."""

    def run(self, columns: Columns, count: int, stack: list[Truth]) -> None:
        true, false = stack.pop()
        stack.append(Truth(false, true))


def _spread(column: PropertyColumn, true: Mask, known: Mask) -> Truth:
    """From masks over the different values of a column to masks over its rows. Elsewhere than `known` it is not false."""
    return Truth(true[column.codes], (known & ~true)[column.codes])
