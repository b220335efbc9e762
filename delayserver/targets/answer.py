"""The answer of a target to one batch: what became of each of its messages. No policy here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray


class RowAnswer(IntEnum):
    """What a target did with one message. The first three codes are those of `DeliverOutcome` on the wire."""

    STORED = 1
    """The target has the message, and keeps it through a crash."""
    DUPLICATE = 2
    """The target had the message already."""
    REFUSED = 3
    """Not stored: the target takes other messages, and may take this one later."""
    UNKNOWN = 4
    """The target may have the message: its result did not come."""
    REJECTED = 5
    """Never: the target takes this message at no time, and took it at no earlier time. It depends on the message alone."""
    FAILED = 6
    """Not stored: the target could not take messages now."""
    RECORDED = 7
    """The target has written the outcome of the message itself."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`rows`: RowAnswer codes u8[n] in the order of the batch; another code counts as UNKNOWN. `reason`: for an operator,
    why a message is not stored."""

    rows: NDArray[np.uint8]
    reason: str = ""

    @classmethod
    def stored(cls, count: int) -> Self:
        """The target has all messages."""
        return cls(np.full(count, RowAnswer.STORED, np.uint8))

    @classmethod
    def failed(cls, count: int, reason: str, *, known: bool) -> Self:
        """The target has none of the messages (`known`), or may have any of them."""
        return cls(np.full(count, RowAnswer.FAILED if known else RowAnswer.UNKNOWN, np.uint8), reason)
