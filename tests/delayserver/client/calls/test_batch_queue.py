"""The queue of a batcher, against a list of everything that was added."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from delayserver.client import Message
from delayserver.client.calls.batch_queue import BatchQueue
from delayserver.protocol.errors import ConnectionLost
from delayserver.protocol.limits import DEFAULT_LIMITS

BATCH_MAX = 3
PENDING_MAX = 7


@dataclass
class Entry:
    message: Message


@given(st.lists(st.sampled_from(["add", "take", "answer", "fail"]), max_size=60))
def test_batches_leave_and_are_answered_in_the_order_in_which_messages_were_added(steps: list[str]) -> None:
    queue = BatchQueue[Entry]("a", batch_messages_max=BATCH_MAX, pending_messages_max=PENDING_MAX)
    added: list[Entry] = []
    batches: deque[list[Entry]] = deque()
    answered = taken = 0
    errors: list[ConnectionLost] = []
    for step in steps:
        if step == "add" and not queue.full:
            added.append(Entry(queue.message(None, b"", len(added), None, None, None)))
            assert queue.add(added[-1]) == (len(added) - taken in (1, BATCH_MAX))
        elif step == "take" and queue.waiting:
            assert queue.lingers == (len(queue.waiting) < BATCH_MAX)
            with queue.flush() as until:
                assert not queue.lingers
                assert until == len(added)
            batches.append(queue.take(DEFAULT_LIMITS))
            assert batches[-1] == added[taken : taken + BATCH_MAX]
            taken += len(batches[-1])
        elif step in ("answer", "fail") and batches:
            count = len(batches.popleft())
            outcomes = [ConnectionLost(step) for _ in range(count) if step == "fail"]
            errors += outcomes
            queue.free(count)
            queue.check_invariants()
            queue.count_answers(count, outcomes)
            answered += count
        queue.check_invariants()
        assert (queue.answered_count, queue.unanswered) == (answered, len(added) - answered)
        assert queue.full == (queue.unanswered >= PENDING_MAX)
    assert queue.take_error() is (errors[0] if errors else None)
    assert queue.take_error() is None
