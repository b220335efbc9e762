"""The queue of a group against a list, step by step."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from delayserver.group_queue import GroupQueue
from delayserver.rows import ROW
from wheel.due_rows import DueRows


def rows(sequences: list[int], *, body: int = 10, uncertain: int = 0) -> DueRows:
    payload = np.zeros(len(sequences), dtype=ROW)
    payload["bodies_length"] = body
    payload["uncertain"] = uncertain
    payload["window_ms"] = 60_000
    sequence = np.array(sequences, dtype=np.int64)
    return DueRows(sequence * 10, sequence, payload)


def test_a_batch_is_bounded_by_rows_and_by_bytes_and_is_never_empty() -> None:
    queue = GroupQueue()
    queue.push(rows(list(range(1, 11)), body=100))
    assert queue.take(3, 1 << 30).sequence.tolist() == [1, 2, 3]  # type: ignore[union-attr]
    assert queue.take(100, 250).sequence.tolist() == [4, 5]  # type: ignore[union-attr]
    assert queue.take(100, 1).sequence.tolist() == [6]  # type: ignore[union-attr]
    assert queue.take(100, 1 << 30).sequence.tolist() == [7, 8, 9, 10]  # type: ignore[union-attr]
    assert queue.take(100, 1 << 30) is None


def test_what_is_put_back_is_taken_first_and_what_is_past_the_bound_is_dropped_last_first() -> None:
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
    assert queue.uncertain().tolist() == [3, 4]
    assert queue.remove(np.array([1, 3, 9])).tolist() == [True, False, False]
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
                some = np.array(sorted(chance.sample(model, min(3, len(model)))))
                assert queue.remove(some).all()
                model = [value for value in model if value not in some.tolist()]
        assert queue.sequences().tolist() == model
        assert len(queue) == len(model)


def test_rows_that_are_left_alone_are_found_and_come_back_behind_the_others() -> None:
    queue = GroupQueue()
    refused = rows([1, 2, 3])
    refused.payload["attempts"] = 1
    queue.put_aside(refused, 50)
    queue.push(rows([4]))
    assert (len(queue), queue.rows_aside, queue.next_back_us) == (1, 3, 50)
    assert queue.sequences().tolist() == [4, 1, 2, 3] and queue.retrying().tolist() == [1, 2, 3]
    assert queue.remove(np.array([2, 9])).tolist() == [True, False]
    queue.take_back(49)
    assert (len(queue), queue.rows_aside) == (1, 2)
    queue.take_back(50)
    assert (len(queue), queue.rows_aside, queue.next_back_us) == (3, 0, None)
    assert queue.sequences().tolist() == [4, 1, 3]
