"""The queue of a group against a list, step by step."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from delayserver.state.memory.group_queue import JOINED_ROWS_MAX, LONG_QUEUE_ROWS, GroupQueue
from delayserver.state.memory.group_wheels import BACKLOG_MS
from delayserver.state.memory.rows import ROW
from store.records.membership import is_member
from wheel.due_rows import DueRows
from wheel.keys import KEY_LOWEST, Key


def rows(sequences: list[int], *, body: int = 10, uncertain: int = 0) -> DueRows:
    payload = np.zeros(len(sequences), dtype=ROW)
    payload["bodies_length"] = body
    payload["uncertain"] = uncertain
    payload["window_ms"] = 60_000
    sequence = np.array(sequences, dtype=np.int64)
    return DueRows(sequence * 10, sequence, payload)


def remove(queue: GroupQueue, sequences: list[int]) -> NDArray[np.bool_]:
    sequence = np.array(sequences, dtype=np.int64)
    return queue.remove(sequence * 10, sequence)


def found(asks: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]], asked: list[int]) -> list[int]:
    sequence = np.array(asked, dtype=np.int64)
    return [value for value, held in zip(asked, asks(sequence * 10, sequence).tolist(), strict=True) if held]


def test_a_batch_is_bounded_by_rows_and_by_bytes_and_is_never_empty() -> None:
    queue = GroupQueue()
    queue.push(rows(list(range(1, 11)), body=100))
    assert queue.take(3, 1 << 30).sequence.tolist() == [1, 2, 3]  # type: ignore[union-attr]
    assert queue.take(100, 250).sequence.tolist() == [4, 5]  # type: ignore[union-attr]
    assert queue.take(100, 1).sequence.tolist() == [6]  # type: ignore[union-attr]
    assert queue.take(100, 1 << 30).sequence.tolist() == [7, 8, 9, 10]  # type: ignore[union-attr]
    assert queue.take(100, 1 << 30) is None


def test_rows_put_back_are_taken_first_and_the_last_rows_past_the_bound_are_dropped() -> None:
    queue = GroupQueue()
    queue.push(rows([3, 4]))
    queue.push(rows([5, 6, 7]))
    queue.push_front(rows([1, 2]))
    dropped = queue.drop_behind(4)
    assert sorted(value for part in dropped for value in part.sequence.tolist()) == [5, 6, 7]
    assert len(queue) == 4
    assert queue.sequences().tolist() == [1, 2, 3, 4]


def test_rows_with_an_unknown_result_are_not_removed() -> None:
    queue = GroupQueue()
    queue.push(rows([1, 2]))
    queue.push(rows([3, 4], uncertain=1))
    assert found(queue.retries, [1, 2, 3, 4]) == [3, 4]
    assert remove(queue, [1, 3, 9]).tolist() == [True, False, False]
    assert queue.sequences().tolist() == [2, 3, 4]


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_steps_agrees_with_a_list(seed: int) -> None:
    chance = Random(seed)
    queue, model, following = GroupQueue(), list[int](), 1
    for _ in range(300):
        match chance.randrange(5):
            case 0 | 1:
                count = chance.randrange(1, 9)
                queue.push(rows(list(range(following, following + count))))
                model += range(following, following + count)
                following += count
            case 2:
                bound = chance.randrange(1, 12)
                taken = queue.take(bound, 1 << 30)
                assert (taken.sequence.tolist() if taken is not None else []) == model[:bound]
                if taken is not None and chance.random() < 0.4:
                    queue.push_front(taken)
                else:
                    model = model[bound:]
            case 3:
                bound = chance.randrange(30)
                dropped = [value for part in queue.drop_behind(bound) for value in part.sequence.tolist()]
                assert sorted(dropped) == model[bound:]
                model = model[:bound]
            case 4 if model:
                some = sorted(chance.sample(model, min(3, len(model))))
                assert remove(queue, some).all()
                model = [value for value in model if value not in some]
        assert queue.sequences().tolist() == model
        assert len(queue) == len(model)
        queue.check_invariants()
        asked = sorted(chance.sample(range(1, following + 5), min(following, 5)))
        assert found(queue.holds, asked) == [value for value in asked if value in model]


def test_rows_that_are_left_alone_are_found_and_come_back_behind_the_others() -> None:
    queue = GroupQueue()
    refused = rows([1, 2, 3])
    refused.payload["attempts"] = 1
    queue.put_aside(refused, 50)
    queue.push(rows([4]))
    assert (len(queue), queue.rows_aside, queue.next_back_us) == (1, 3, 50)
    assert queue.sequences().tolist() == [4, 1, 2, 3] and found(queue.retries, [1, 2, 3, 4]) == [1, 2, 3]
    assert remove(queue, [2, 9]).tolist() == [True, False]
    queue.take_back(49)
    assert (len(queue), queue.rows_aside) == (1, 2)
    queue.take_back(50)
    assert (len(queue), queue.rows_aside, queue.next_back_us) == (3, 0, None)
    assert queue.sequences().tolist() == [4, 1, 3]


def chunks(queue: GroupQueue) -> int:
    """How many chunks a question to the queue visits. Its answer does not show it."""
    return len(queue._chunks)


def test_small_chunks_of_a_long_queue_are_joined_so_that_a_question_visits_few() -> None:
    queue = GroupQueue()
    for first in range(1, 40_001, 4):
        queue.push(rows(list(range(first, first + 4))))
    queue.check_invariants()
    assert chunks(queue) < LONG_QUEUE_ROWS // 4 + 2 * 40_000 // JOINED_ROWS_MAX + 2
    assert queue.sequences().tolist() == list(range(1, 40_001))
    assert found(queue.holds, [0, 1, 4_097, 39_999, 40_000, 40_001]) == [1, 4_097, 39_999, 40_000]


def test_the_last_key_of_a_queue_is_found_in_chunks_of_any_order() -> None:
    queue = GroupQueue()
    assert queue.last_key() == KEY_LOWEST
    queue.push(rows([5, 7, 6]))
    queue.push_front(rows([9]))
    queue.put_aside(rows([8]), 50)
    assert queue.last_key() == Key(90, 9)


@pytest.mark.parametrize("seed", range(20))
def test_membership_agrees_with_sets_also_for_sequences_that_are_asked_twice(seed: int) -> None:
    chance = np.random.default_rng(seed)
    spread = 1 << int(chance.integers(3, 40))
    asked = chance.integers(0, spread, chance.integers(0, 40))
    others = chance.integers(0, spread, chance.integers(0, 40))
    others = np.concatenate([others, asked[:3]])
    assert is_member(asked, others).tolist() == [value in set(others.tolist()) for value in asked.tolist()]


def test_rows_released_long_after_their_time_and_fresh_rows_are_taken_in_turns() -> None:
    queue = GroupQueue()
    old, fresh = rows(list(range(1, 9))), rows(list(range(101, 105)))
    old.payload["released_us"] = old.due_ms * 1000 + (BACKLOG_MS + 1) * 1000
    fresh.payload["released_us"] = fresh.due_ms * 1000
    queue.push(old)
    queue.push(fresh)
    assert (len(queue), queue.backlog_rows) == (12, 8)
    taken = [queue.take(2, 1 << 30).sequence.tolist() for _ in range(4)]  # type: ignore[union-attr]
    assert taken == [[101, 102], [1, 2], [103, 104], [3, 4]]
    assert queue.take(2, 1 << 30, backlog=False) is None and len(queue) == queue.backlog_rows == 4
    queue.check_invariants()


def test_past_the_bound_the_backlog_leaves_memory_first() -> None:
    queue = GroupQueue()
    fresh = rows([101, 102])
    fresh.payload["released_us"] = fresh.due_ms * 1000
    queue.push(fresh)
    queue.push(rows([1, 2, 3]))
    assert [part.sequence.tolist() for part in queue.drop_behind(3)] == [[2, 3]]
    assert [part.sequence.tolist() for part in queue.drop_behind(1)] == [[1], [102]]
    queue.check_invariants()
