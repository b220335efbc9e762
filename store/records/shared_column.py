"""Columns that hold two numbers: `redelivery` of a stored message and `attempts` of an outcome. No files here.

The low bits hold the number that the column is named after. The high bits count the hand-overs of the message to other
nodes that had no answer: each of those nodes may have the message as well. FORMAT.md draws the bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64, KIND_OUTCOMES, KIND_STORED

U32 = NDArray[np.uint32]

UNANSWERED_ELSEWHERE: Final = "unanswered_elsewhere"
"""The name under which tools show hand-overs to other nodes without an answer."""


@dataclass(frozen=True, slots=True)
class SharedColumn:
    """A column u32[n] named `name`, whose number takes the low `number_bits` bits."""

    name: str
    number_bits: int

    @property
    def number_max(self) -> int:
        """Larger numbers are written as this one."""
        return (1 << self.number_bits) - 1

    @property
    def unanswered_max(self) -> int:
        """More hand-overs without an answer are written as so many."""
        return (1 << 32 - self.number_bits) - 1

    def pack(self, number: NDArray[Any], unanswered: NDArray[Any]) -> U32:
        """The column u32[n] of two numbers, each [n]."""
        high = np.minimum(unanswered, self.unanswered_max).astype(np.uint32) << np.uint32(self.number_bits)
        packed: U32 = np.minimum(number, self.number_max).astype(np.uint32) | high
        return packed

    def number(self, packed: NDArray[Any]) -> NDArray[Any]:
        """The number that the column is named after, u32[n]."""
        number: NDArray[Any] = packed & self.number_max
        return number

    def unanswered(self, packed: NDArray[Any]) -> NDArray[Any]:
        """Hand-overs to other nodes without an answer, u32[n]."""
        unanswered: NDArray[Any] = packed >> self.number_bits
        return unanswered


REDELIVERY: Final = SharedColumn("redelivery", 16)
"""The column of stored messages. The redelivery number is part of the key by which a node recognises a message."""
ATTEMPTS: Final = SharedColumn("attempts", 24)
"""The column of outcomes: hand-overs to a node since the start. Hand-overs without an answer of other nodes may have
delivered the message twice."""
_SHARED: Final = {KIND_OUTCOMES: ATTEMPTS, KIND_STORED: REDELIVERY}


def attempts_before(packed: NDArray[Any]) -> I64:
    """How often a stored message may have come to its consumers before, i64[n] (i64[1] for a broadcast column),
    from its column `redelivery`."""
    if packed.strides == (0,):  # nearly always, and then it costs nothing
        packed = packed[:1]
        if len(packed) and not packed[0]:
            return packed.astype(np.int64)
    before: I64 = REDELIVERY.number(packed).astype(np.int64) + REDELIVERY.unanswered(packed)
    return before


def plain_columns(kind: int, columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Columns of records of a kind with one number each, for tools that show them.

    `attempts` of outcomes and `redelivery` of stored messages are the plain number. `unanswered_elsewhere` follows them.
    """
    shared = _SHARED.get(kind)
    plain: dict[str, NDArray[Any]] = {}
    for name, column in columns.items():
        if shared is None or name != shared.name:
            plain[name] = column
        else:
            plain[name] = shared.number(column)
            plain[UNANSWERED_ELSEWHERE] = shared.unanswered(column)
    return plain
