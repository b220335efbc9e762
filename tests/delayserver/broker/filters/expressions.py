"""Expressions drawn at random, as text of the filter language and of SQLite, and what they mean row by row.

The meaning is written anew from docs/reference/filters.md and shares no code with the compiler: it looks at one message
after the other, and its truth values are True, False and None.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NAMES = ("price", "colour", "a b", 'in"side', "NOT")
Row = dict[str, str]
Truth = bool | None


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def reads_as(value: str) -> float | None:
    """The number that a text reads as, character by character."""
    rest = value[1:] if value[:1] in ("+", "-") else value
    mantissa, mark, exponent = rest.partition("e" if "e" in rest else "E")
    whole, _, fraction = mantissa.partition(".")
    digits = set("0123456789")
    if not whole + fraction or not set(whole + fraction) <= digits or len(value) > 64:
        return None
    if mark:
        unsigned = exponent[1:] if exponent[:1] in ("+", "-") else exponent
        if not unsigned or not set(unsigned) <= digits:
            return None
    number = float(Decimal(value)) if len(exponent) < 10 else None
    return None if number is None or number in (float("inf"), float("-inf")) else number


def both(left: Truth, right: Truth) -> Truth:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def opposite(truth: Truth) -> Truth:
    return None if truth is None else not truth


@dataclass(frozen=True)
class Compared:
    """A property and a literal, or two properties."""

    name: str
    sign: str
    other: float | str | None
    other_name: str = ""
    turned: bool = False

    def ours(self) -> str:
        left, right = quoted(self.name), self._other(quoted(self.other_name))
        return f"{right} {self.sign} {left}" if self.turned else f"{left} {self.sign} {right}"

    def _other(self, name: str) -> str:
        if self.other is None:
            return name
        return text(self.other) if isinstance(self.other, str) else repr(self.other)

    def sqlite(self) -> str:
        kind = "n" if isinstance(self.other, float) else "t"
        left = quoted(f"{kind} {self.name}")
        right = self._other("")
        if self.other is None:
            one, two = quoted(f"n {self.name}"), quoted(f"n {self.other_name}")
            texts = f"{quoted(f't {self.name}')} {self.sign} {quoted(f't {self.other_name}')}"
            numbers = f"{one} {self.sign} {two}"
            return f"CASE WHEN {one} IS NOT NULL AND {two} IS NOT NULL THEN {numbers} ELSE {texts} END"
        return f"{right} {self.sign} {left}" if self.turned else f"{left} {self.sign} {right}"

    def of(self, row: Row) -> Truth:
        left: float | str | None = row.get(self.name)
        right: float | str | None = self.other if self.other is not None else row.get(self.other_name)
        if left is None or right is None:
            return None
        assert isinstance(left, str)
        if isinstance(right, float):
            left = reads_as(left)
        elif self.other is None:
            numbers = reads_as(left), reads_as(right)
            if None not in numbers:
                left, right = numbers
        if left is None:
            return None
        if self.turned:
            left, right = right, left
        return bool(TESTS[self.sign](left, right))


@dataclass(frozen=True)
class Between:
    name: str
    low: float | str
    high: float | str
    negated: bool

    def parts(self) -> tuple[Compared, Compared]:
        return Compared(self.name, ">=", self.low), Compared(self.name, "<=", self.high)

    def ours(self) -> str:
        low, high = (text(each) if isinstance(each, str) else repr(each) for each in (self.low, self.high))
        return f"{quoted(self.name)} {'NOT ' * self.negated}between {low} and {high}"

    def sqlite(self) -> str:
        low, high = self.parts()
        return f"{'NOT ' * self.negated}({low.sqlite()} AND {high.sqlite()})"

    def of(self, row: Row) -> Truth:
        low, high = self.parts()
        truth = both(low.of(row), high.of(row))
        return opposite(truth) if self.negated else truth


@dataclass(frozen=True)
class Among:
    name: str
    items: tuple[float | str, ...]
    negated: bool

    def ours(self) -> str:
        items = ", ".join([text(each) if isinstance(each, str) else repr(each) for each in self.items])
        return f"{quoted(self.name)} {'NOT ' * self.negated}IN ({items})"

    def sqlite(self) -> str:
        parts = " OR ".join([Compared(self.name, "=", item).sqlite() for item in self.items])
        return f"{'NOT ' * self.negated}({parts})"

    def of(self, row: Row) -> Truth:
        truth: Truth = False
        for item in self.items:
            truth = opposite(both(opposite(truth), opposite(Compared(self.name, "=", item).of(row))))
        return opposite(truth) if self.negated else truth


@dataclass(frozen=True)
class Similar:
    name: str
    pattern: tuple[str, ...]
    negated: bool
    escape: str

    def ours(self) -> str:
        parts = [self._part(part) for part in self.pattern]
        escape = f" ESCAPE {text(self.escape)}" if self.escape else ""
        return f"{quoted(self.name)} {'NOT ' * self.negated}LIKE {text(''.join(parts))}{escape}"

    def _part(self, part: str) -> str:
        """`\\%` and `\\_` stand for the characters themselves."""
        if part.startswith("\\"):
            return self.escape + part[1:]
        return self.escape * 2 if part == self.escape else part

    def sqlite(self) -> str:
        return self.ours().replace(quoted(self.name), quoted(f"t {self.name}"), 1)

    def of(self, row: Row) -> Truth:
        value = row.get(self.name)
        if value is None:
            return None
        truth = similar(value, self.pattern)
        return not truth if self.negated else truth


def similar(value: str, pattern: tuple[str, ...]) -> bool:
    """Whether all of a text matches, by the places that each beginning of the pattern may reach."""
    places = {0}
    for part in pattern:
        if part == "%":
            places = set(range(min(places), len(value) + 1)) if places else set()
        else:
            wanted = part.removeprefix("\\")
            places = {at + 1 for at in places if at < len(value) and (part == "_" or value[at] == wanted)}
    return len(value) in places


@dataclass(frozen=True)
class Missing:
    name: str
    negated: bool

    def ours(self) -> str:
        return f"{quoted(self.name)} IS {'NOT ' * self.negated}NULL"

    def sqlite(self) -> str:
        return f"{quoted(f't {self.name}')} IS {'NOT ' * self.negated}NULL"

    def of(self, row: Row) -> Truth:
        return (self.name not in row) != self.negated


@dataclass(frozen=True)
class Joined:
    word: str
    parts: tuple[Node, ...]

    def ours(self) -> str:
        return f" {self.word} ".join([f"({part.ours()})" for part in self.parts])

    def sqlite(self) -> str:
        return f" {self.word} ".join([f"({part.sqlite()})" for part in self.parts])

    def of(self, row: Row) -> Truth:
        truths = [part.of(row) for part in self.parts]
        if self.word == "OR":
            truths = [opposite(truth) for truth in truths]
        result: Truth = True
        for truth in truths:
            result = both(result, truth)
        return opposite(result) if self.word == "OR" else result


@dataclass(frozen=True)
class Negated:
    part: Node

    def ours(self) -> str:
        return f"not ({self.part.ours()})"

    def sqlite(self) -> str:
        return f"NOT ({self.part.sqlite()})"

    def of(self, row: Row) -> Truth:
        return opposite(self.part.of(row))


Node = Compared | Between | Among | Similar | Missing | Joined | Negated


def names_of(node: Node) -> Iterator[str]:
    if isinstance(node, Joined):
        for part in node.parts:
            yield from names_of(part)
    elif isinstance(node, Negated):
        yield from names_of(node.part)
    else:
        yield node.name


# Few different values, so that equality, ranges and patterns meet them.
CHARACTERS = "aB'%_é😀0"
numbers = st.sampled_from([-1.5, 0.0, 1.0, 2.0, 10.0, 1e300]) | st.floats(-1e6, 1e6).map(lambda value: round(value, 3))
texts = st.sampled_from(["", "a", "B", "red", "1", "1.0", "10", "02", "-1.5", "+2", ".5", "5.", "1e1", "NaN", "inf"])
odd_texts = st.sampled_from([" 1", "1 ", "1_0", "0x10", "\uff11", "1e999", "--1", "1e", "+", ".", "1" * 65, "1" * 64])
values = texts | odd_texts | st.text(CHARACTERS, max_size=6) | numbers.map(repr)
rows = st.lists(st.dictionaries(st.sampled_from(NAMES), values, max_size=4), min_size=1, max_size=12)
names = st.sampled_from(NAMES)
signs = st.sampled_from(list(TESTS))
literals = numbers | texts
patterns = st.lists(st.sampled_from([*CHARACTERS, "%", "_", "\\%", "\\_"]), max_size=8)


def _similar(name: str, parts: list[str], negated: bool) -> Similar:
    escape = "!" if any(part.startswith("\\") for part in parts) else ""
    return Similar(name, tuple(parts), negated, escape)


leaves = (
    st.builds(Compared, names, signs, literals, st.just(""), st.booleans())
    | st.builds(Compared, names, signs, st.none(), names)
    | st.builds(Between, names, numbers, numbers, st.booleans())
    | st.builds(Between, names, texts, texts, st.booleans())
    | st.builds(Among, names, st.lists(literals, min_size=1, max_size=4).map(tuple), st.booleans())
    | st.builds(_similar, names, patterns, st.booleans())
    | st.builds(Missing, names, st.booleans())
)
nodes: st.SearchStrategy[Node] = st.recursive(
    leaves,
    lambda inner: (
        st.builds(Joined, st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=3).map(tuple))
        | st.builds(Negated, inner)
    ),
    max_leaves=8,
)
