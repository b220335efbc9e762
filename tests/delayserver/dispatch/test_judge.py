"""What an answer means for each row: one table, without a server."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.dispatch.judge import JudgePolicy, RowFate, judge, unanswered_elsewhere
from delayserver.state.memory.rows import ROW, SEVERAL_NODES
from delayserver.targets.answer import Answer, RowAnswer

STORED, DUPLICATE, REFUSED, UNKNOWN = RowAnswer.STORED, RowAnswer.DUPLICATE, RowAnswer.REFUSED, RowAnswer.UNKNOWN
REJECTED, FAILED, RECORDED = RowAnswer.REJECTED, RowAnswer.FAILED, RowAnswer.RECORDED
DELIVERED, DEAD, AGAIN, ASIDE = RowFate.DELIVERED, RowFate.DEAD, RowFate.AGAIN, RowFate.ASIDE
NODE, OTHER = 7, 8
FOR_EVER = JudgePolicy(NODE, alone=False, idempotent=True, dead_letter_attempts=0)
THREE_TIMES = JudgePolicy(NODE, alone=False, idempotent=True, dead_letter_attempts=3)
ALONE = JudgePolicy(NODE, alone=True, idempotent=True, dead_letter_attempts=3)
FULL = JudgePolicy(NODE, alone=False, idempotent=True, dead_letter_attempts=0, unknown_full=True)
NO_KEYS = JudgePolicy(NODE, alone=True, idempotent=False, dead_letter_attempts=0)

# The answers, the fates, and whether the node failed.
ANSWERS = {
    "all stored": ([STORED, DUPLICATE], [DELIVERED, DELIVERED], False),
    "the target wrote the outcomes": ([RECORDED, STORED], [DELIVERED, DELIVERED], False),
    "one has no room": ([STORED, REFUSED], [DELIVERED, ASIDE], False),
    "none has room, and the node answers": ([REFUSED, REFUSED], [ASIDE, ASIDE], False),
    "the node is down": ([FAILED, FAILED], [AGAIN, AGAIN], True),
    "no answer came": ([UNKNOWN, UNKNOWN], [AGAIN, AGAIN], True),
    "partly down, partly unknown": ([FAILED, UNKNOWN], [AGAIN, AGAIN], True),
    "a part came through": ([STORED, FAILED, UNKNOWN, REFUSED], [DELIVERED, ASIDE, ASIDE, ASIDE], False),
    "one is refused for ever": ([STORED, REJECTED], [DELIVERED, DEAD], False),
    "all are refused for ever": ([REJECTED], [DEAD], False),
    "a code that is none": ([0, 99], [AGAIN, AGAIN], True),
    "a forgotten row": ([STORED, 0], [DELIVERED, ASIDE], False),
}


@pytest.mark.parametrize(("codes", "fates", "failed"), ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_gives_each_row_its_fate(codes: list[int], fates: list[RowFate], failed: bool) -> None:
    rows = np.zeros(len(codes), ROW)
    rows["attempts"] = 9
    judged = judge(rows, Answer(np.array(codes, np.uint8)), FOR_EVER)
    assert judged.fate.tolist() == fates and judged.failed == failed
    assert judged.complete == (set(fates) == {DELIVERED})
    assert judged.unanswered.tolist() == [code in (UNKNOWN, 0, 99) for code in codes]


# The same where too many messages are unknown already.
ANSWERS_WHEN_FULL = {
    "unknown rows go first, and the node gets a pause": (
        [STORED, UNKNOWN, 0, REFUSED, FAILED],
        [DELIVERED, AGAIN, AGAIN, ASIDE, ASIDE],
        True,
    ),
    "an answer to every row is no failure": ([STORED, REFUSED, REJECTED], [DELIVERED, ASIDE, DEAD], False),
    "all stored": ([STORED, DUPLICATE], [DELIVERED, DELIVERED], False),
}


@pytest.mark.parametrize(("codes", "fates", "failed"), ANSWERS_WHEN_FULL.values(), ids=ANSWERS_WHEN_FULL.keys())
def test_a_node_that_leaves_too_many_messages_unknown_gets_a_pause(
    codes: list[int], fates: list[RowFate], failed: bool
) -> None:
    judged = judge(np.zeros(len(codes), ROW), Answer(np.array(codes, np.uint8)), FULL)
    assert judged.fate.tolist() == fates and judged.failed == failed


# An answer to one row: attempts, whether it is uncertain, and the node of its hand-over without an answer.
LIMITS = {
    "the third attempt is the last": (FAILED, 3, 0, 0, THREE_TIMES, DEAD),
    "the second is not": (FAILED, 2, 0, 0, THREE_TIMES, AGAIN),
    "refusals count": (REFUSED, 3, 0, 0, THREE_TIMES, DEAD),
    "no answer is no known failure": (UNKNOWN, 3, 0, 0, THREE_TIMES, AGAIN),
    "what may be delivered is no dead letter": (FAILED, 9, 1, NODE, THREE_TIMES, AGAIN),
    "without a limit retries never end": (FAILED, 1 << 20, 0, 0, FOR_EVER, AGAIN),
    "refused for ever needs no limit": (REJECTED, 1, 0, 0, FOR_EVER, DEAD),
    "the node that may have it never took it": (REJECTED, 1, 1, NODE, FOR_EVER, DEAD),
    "another node may have it": (REJECTED, 1, 1, OTHER, FOR_EVER, ASIDE),
    "a node of before the start may have it": (REJECTED, 1, 1, 0, FOR_EVER, ASIDE),
    "there is no other node": (REJECTED, 1, 1, 0, ALONE, DEAD),
}


@pytest.mark.parametrize(
    ("code", "attempts", "uncertain", "where", "policy", "fate"), LIMITS.values(), ids=LIMITS.keys()
)
def test_a_row_is_given_up_only_if_no_node_can_have_it(
    code: int, attempts: int, uncertain: int, where: int, policy: JudgePolicy, fate: RowFate
) -> None:
    rows = np.zeros(1, ROW)
    rows["attempts"], rows["uncertain"], rows["unanswered_node"] = attempts, uncertain, where
    assert judge(rows, Answer(np.array([code], np.uint8)), policy).fate.tolist() == [fate]


# The node and the number of a row's hand-overs without an answer, and how many of them may be copies.
COPIES = {
    "this node knows its own": (FOR_EVER, NODE, 2, 0),
    "another node": (FOR_EVER, OTHER, 2, 2),
    "several nodes": (FOR_EVER, SEVERAL_NODES, 3, 3),
    "before this start": (FOR_EVER, 0, 0, 1),
    "before this start, at the only node": (ALONE, 0, 0, 0),
    "a target that recognises nothing": (NO_KEYS, NODE, 2, 2),
}


@pytest.mark.parametrize(("policy", "where", "unanswered", "copies"), COPIES.values(), ids=COPIES.keys())
def test_hand_overs_without_an_answer_may_be_copies_where_the_node_cannot_tell(
    policy: JudgePolicy, where: int, unanswered: int, copies: int
) -> None:
    rows = np.zeros(2, ROW)
    rows["uncertain"][0], rows["unanswered_node"][0], rows["unanswered"][0] = 1, where, unanswered
    found = unanswered_elsewhere(rows, policy)
    assert (found is None) == (copies == 0)
    assert found is None or found.tolist() == [copies, 0]
