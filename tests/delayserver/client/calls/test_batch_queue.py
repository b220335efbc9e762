"""The queue of a batcher, against a list of everything that was added."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from delayserver.client import Message
from delayserver.client.calls.batch_queue import BatchQueue
from delayserver.client.calls.lane_places import LanePlaces
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
        if step == "add" and not queue.full(0):
            added.append(Entry(queue.message(None, b"", len(added), None, None, None)))
            told = len(added) - taken in (1, BATCH_MAX) or len(added) - answered == PENDING_MAX
            assert queue.add(added[-1], 0) == told
        elif step == "take" and queue.waits(0):
            assert queue.lingers(0) == (len(added) - taken < BATCH_MAX and not queue.full(0))
            with queue.flush() as left:
                assert not queue.lingers(0)
                assert left() == len(added) - answered
            batches.append(queue.take(0, DEFAULT_LIMITS))
            assert batches[-1] == added[taken : taken + BATCH_MAX]
            taken += len(batches[-1])
        elif step in ("answer", "fail") and batches:
            count = len(batches.popleft())
            outcomes = [ConnectionLost(step) for _ in range(count) if step == "fail"]
            errors += outcomes
            queue.free(0, count)
            queue.check_invariants()
            queue.count_answers(0, count, outcomes)
            answered += count
        queue.check_invariants()
        assert queue.unanswered == len(added) - answered
        assert queue.full(0) == (queue.unanswered >= PENDING_MAX)
    assert queue.take_error() is (errors[0] if errors else None)
    assert queue.take_error() is None


LANES = st.integers(0, 3)


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "answer"]), LANES), max_size=80))
def test_lanes_share_the_places_and_none_is_flushed_for_another(steps: list[tuple[str, int]]) -> None:
    queue = BatchQueue[Entry](
        "a", batch_messages_max=BATCH_MAX, pending_messages_max=2 * PENDING_MAX, several=lambda: True
    )
    added: dict[int, list[Entry]] = {lane: [] for lane in range(4)}
    flying: dict[int, int] = dict.fromkeys(range(4), 0)
    with queue.flush() as nothing:
        assert not nothing()
        for step, lane in steps:
            if step == "add" and not queue.full(lane):
                added[lane].append(Entry(queue.message(None, b"", 1, None, None, None)))
                queue.add(added[lane][-1], lane)
            elif step == "take" and queue.waits(lane) and not flying[lane]:
                batch = queue.take(lane, DEFAULT_LIMITS)
                flying[lane] = len(batch)
                assert batch == added[lane][: len(batch)]
            elif step == "answer" and flying[lane]:
                with queue.flush() as left:
                    before = left()
                    queue.free(lane, flying[lane])
                    queue.count_answers(lane, flying[lane], [])
                    assert before - left() == flying[lane]
                    del added[lane][: flying[lane]]
                    # A later message of this lane or another one stands for none of those before.
                    if not queue.full(lane):
                        added[lane].append(Entry(queue.message(None, b"", 1, None, None, None)))
                        queue.add(added[lane][-1], lane)
                    assert before - left() == flying[lane]
                flying[lane] = 0
            queue.check_invariants()
            assert queue.unanswered == sum(map(len, added.values())) <= 2 * PENDING_MAX
    assert queue.clear() == {
        lane: entries[flying[lane] :] for lane, entries in added.items() if entries[flying[lane] :]
    }


def test_a_lane_that_takes_all_it_gets_leaves_room_for_each_other_one() -> None:
    places = LanePlaces(60, lambda: True)
    shares = []
    for lane in range(4):
        count = 0
        while not places.full(lane):
            places.take(lane)
            count += 1
        shares.append(count)
    assert shares == [30, 15, 8, 4] and not places.full(4)
    alone = LanePlaces(60, lambda: False)
    for _ in range(60):
        assert not alone.full(0)
        alone.take(0)
    assert alone.full(0)
