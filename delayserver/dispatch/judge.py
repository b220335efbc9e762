"""What an answer of a target means for each row of an attempt. Pure: no row moves here, and nothing is counted.

A node works if it gave an answer of its own to at least one message. Rows that such a node did not take wait behind the
others, so one message holds up no other. A node that took nothing gets a pause, and its rows go back to the front.

A node may leave single messages of an answer unknown. They wait aside too, while only few messages of the server are
unknown. When these are too many, the node gets a pause, and its unknown rows go to the front: no others come to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.targets.answer import Answer, RowAnswer
from store.records.batches import U8, U32


class RowFate(IntEnum):
    """What becomes of a row."""

    DELIVERED = 1
    """The target has it, or has written its outcome."""
    DEAD = 2
    """It is never tried again."""
    AGAIN = 3
    """It goes back to the front."""
    ASIDE = 4
    """It is tried again after a pause, behind the others."""


@dataclass(frozen=True, slots=True)
class JudgePolicy:
    """What the judge must know beside the rows. `node`: the number of the node that answered. `alone`: no other node can
    have a message of this group. `idempotent`: see `Capabilities`. `dead_letter_attempts`: see the settings.
    `unknown_full`: see `Attempted`."""

    node: int
    alone: bool
    idempotent: bool
    dead_letter_attempts: int
    unknown_full: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """`fate`: RowFate codes u8[n]. `unanswered`: True for rows that the node may have, bool[n]. `failed`: the node gets
    a pause. `complete`: the target has all rows."""

    fate: U8
    unanswered: NDArray[np.bool_]
    failed: bool
    complete: bool

    def places(self, fate: RowFate) -> NDArray[np.intp]:
        """The places of the rows with this fate."""
        return np.flatnonzero(self.fate == fate)


def _fates(*, works: bool) -> U8:
    """The fate of each code of an answer, u8[256]. A code that is none counts as UNKNOWN."""
    fates = np.full(256, RowFate.ASIDE if works else RowFate.AGAIN, np.uint8)
    fates[[RowAnswer.STORED, RowAnswer.DUPLICATE, RowAnswer.RECORDED]] = RowFate.DELIVERED
    fates[RowAnswer.REJECTED] = RowFate.DEAD
    return fates


# Plain numbers: numpy takes longer for members of an enumeration.
_STORED, _DELIVERED = int(RowAnswer.STORED), int(RowFate.DELIVERED)
_OF_NODE_THAT_WORKS, _OF_NODE_THAT_FAILS = _fates(works=True), _fates(works=False)
_ANSWERED = np.zeros(256, bool)
_ANSWERED[[RowAnswer.STORED, RowAnswer.DUPLICATE, RowAnswer.REFUSED, RowAnswer.REJECTED, RowAnswer.RECORDED]] = True
# Codes after which the node may have the message.
_UNANSWERED = ~_ANSWERED
_UNANSWERED[RowAnswer.FAILED] = False


def judge(rows: NDArray[Any], answer: Answer, policy: JudgePolicy) -> Judgement:
    """`rows`: the index rows of an attempt, of which there is at least one; `attempts` counts this attempt too."""
    codes = answer.rows
    assert len(codes) == len(rows), "an answer for each message"
    if (codes == _STORED).all():  # nearly always
        return Judgement(
            np.full(len(rows), _DELIVERED, np.uint8), np.zeros(len(rows), bool), failed=False, complete=True
        )
    works = bool(_ANSWERED[codes].any())
    fate, unanswered = (_OF_NODE_THAT_WORKS if works else _OF_NODE_THAT_FAILS)[codes], _UNANSWERED[codes]
    too_many = policy.unknown_full and bool(unanswered.any())
    if too_many:
        fate[unanswered] = RowFate.AGAIN
    uncertain = rows["uncertain"] != 0
    if policy.dead_letter_attempts:
        # A message that may be delivered is never called a dead letter.
        tired = (rows["attempts"] >= policy.dead_letter_attempts) & ~uncertain
        fate[tired & ((codes == RowAnswer.REFUSED) | (codes == RowAnswer.FAILED))] = RowFate.DEAD
    elsewhere = uncertain & (rows["unanswered_node"] != policy.node)
    if not policy.alone:
        fate[(codes == RowAnswer.REJECTED) & elsewhere] = RowFate.ASIDE
    complete = bool((fate == RowFate.DELIVERED).all())
    return Judgement(fate, unanswered, failed=not works or too_many, complete=complete)


def unanswered_elsewhere(rows: NDArray[Any], policy: JudgePolicy) -> U32 | None:
    """How many hand-overs of each row may have made a copy that the node does not recognise, u32[n]; None where none did.

    Those are hand-overs without an answer to another node, and to this one if it is not idempotent. Hand-overs before this
    start are not known, and count as one."""
    if policy.alone and policy.idempotent:
        return None
    other = rows["uncertain"] != 0
    if policy.idempotent:
        other = other & (rows["unanswered_node"] != policy.node)
    counts: U32 = np.where(other, np.maximum(rows["unanswered"], 1), 0).astype(np.uint32)
    return counts if counts.any() else None
