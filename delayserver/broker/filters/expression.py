"""The parts of a property expression, as the parser makes them and the compiler reads them. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from delayserver.broker.filters.like import Pattern


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property: text, or none where the message does not have it."""

    name: str


Literal: TypeAlias = float | str
Operand: TypeAlias = Property | float | str


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left sign right`; the sign is one of = <> < <= > >=."""

    left: Operand
    sign: str
    right: Operand


@dataclass(frozen=True, slots=True)
class Member:
    """`value IN (…)`: the numbers and the texts of the list."""

    value: Property
    numbers: frozenset[float]
    texts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Like:
    """`value LIKE pattern`"""

    value: Property
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class IsNull:
    """`value IS NULL`: the message does not have the property."""

    value: Property


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT part`"""

    part: Condition


@dataclass(frozen=True, slots=True)
class And:
    """`part AND part …`"""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """`part OR part …`"""

    parts: tuple[Condition, ...]


Condition: TypeAlias = Comparison | Member | Like | IsNull | Not | And | Or
