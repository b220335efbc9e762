"""The ring of undecided messages: it never answers for a row that it does not hold, whatever overwrites what."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.state.decisions.open_messages import OpenMessages
from store.records.batches import MessageBatch


def batch(
    sequence: list[int], *, due_ms: int = 5_000, subject: int = 7, origin: list[int] | None = None
) -> MessageBatch:
    """Messages whose due time and subject follow from their sequence."""
    numbers = np.array(sequence, dtype=np.int64)
    return MessageBatch.filled(
        len(numbers),
        sequence=numbers,
        due_ms=due_ms + numbers,
        subject=(subject + numbers).astype(np.uint32),
        origin_sequence=np.array(origin or [0] * len(numbers), dtype=np.int64),
    )


def found(messages: OpenMessages, sequence: list[int], *, due_ms: int = 5_000) -> list[int]:
    """The subjects of what is there, less what `batch` adds; -1 for what is not there."""
    numbers = np.array(sequence, dtype=np.int64)
    mask, subject = messages.find(numbers, due_ms + numbers)
    assert (subject[~mask] == 0).all()
    rest: list[int] = np.where(mask, subject.astype(np.int64) - numbers, -1).tolist()
    return rest


def test_a_message_is_found_by_its_sequence_and_its_due_time() -> None:
    messages = OpenMessages(8)
    messages.add(batch([1, 2, 3]))
    assert found(messages, [3, 1, 4, 2]) == [7, 7, -1, 7]
    assert found(messages, [1, 2], due_ms=5_001) == [-1, -1]


def test_a_sequence_that_no_message_has_is_not_found_in_an_empty_place() -> None:
    mask, _ = OpenMessages(8).find(np.array([0, -8, -1, 1 << 62]), np.zeros(4, dtype=np.int64))
    assert not mask.any()


def test_a_removed_message_is_gone_and_its_neighbours_in_the_ring_stay() -> None:
    messages = OpenMessages(8)
    messages.add(batch([9, 10, 11]))
    messages.remove(np.array([2, 10, 17, 300]))  # 2 and 17 would stand where 10 and 9 stand
    assert found(messages, [9, 10, 11]) == [7, -1, 7]


def test_internal_records_are_not_taken() -> None:
    messages = OpenMessages(8)
    messages.add(batch([1, 2, 3], origin=[0, 1, 0]))
    assert found(messages, [1, 2, 3]) == [7, -1, 7]


@pytest.mark.parametrize("count", [8, 9, 30])
def test_open_messages_keep_the_last_ones_beyond_their_bound(count: int) -> None:
    messages = OpenMessages(8)
    messages.add(batch(list(range(1, count + 1))))
    assert found(messages, list(range(1, count + 1))) == [-1] * (count - 8) + [7] * 8


@pytest.mark.parametrize("seed", range(20))
def test_open_messages_agree_with_a_dictionary_of_their_places(seed: int) -> None:
    chance = np.random.default_rng(seed)
    messages, model = OpenMessages(64), dict[int, int]()
    last = 0
    for _ in range(100):
        count = int(chance.integers(1, 90))
        gaps = np.where(chance.random(count) < chance.choice([0.0, 0.1]), chance.integers(1, 70, count), 1)
        sequence = (last + np.cumsum(gaps)).tolist()
        origin = (chance.random(count) < chance.choice([0.0, 0.2])).astype(np.int64).tolist()
        last = sequence[-1]
        messages.add(batch(sequence, origin=origin))
        for number, internal in list(zip(sequence, origin, strict=True))[-64:]:
            model[number % 64] = 0 if internal else number
        removed = chance.integers(max(last - 100, 1), last + 10, 20)
        messages.remove(removed)
        for number in removed.tolist():
            if model.get(number % 64) == number:
                model[number % 64] = 0
        asked = list(range(max(last - 150, 1), last + 20))
        assert found(messages, asked) == [7 if model.get(number % 64) == number else -1 for number in asked]
