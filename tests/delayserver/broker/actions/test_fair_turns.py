"""Messages that come again and messages that the group has never looked at take turns: neither keeps the other away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from delayserver.broker.filters.filter import Filter
from delayserver.broker.policy import WAIT, ConsumerPolicy
from tests.delayserver.broker.actions.test_order_of_keys import ORDER_LIMITS, Scene, set_policy
from tests.delayserver.broker.brokers import GROUP, SUBJECT


def fail(scene: Scene, count: int = 1) -> list[int]:
    """Pull and nack; the messages come again at once."""
    pulled = scene.pull(count)
    assert pulled is not None
    scene.nack(pulled, delay_ms=0)
    sequences: list[int] = pulled.batch.sequence.tolist()
    return sequences


@pytest.mark.parametrize("key", ["", "k"], ids=["no key", "a key"])
def test_a_message_that_fails_for_ever_takes_every_second_pull_at_most(key: str) -> None:
    scene = Scene([key, "", "", ""])
    set_policy(scene.broker, ConsumerPolicy(attempts=1, failed_key=WAIT) if key else ConsumerPolicy())
    pulled = []
    for _ in range(6):
        batch = scene.pull(1)
        assert batch is not None
        pulled += batch.batch.sequence.tolist()
        if pulled[-1] == 1:
            scene.nack(batch, delay_ms=0)
        scene.check()
    assert pulled == [1, 1, 2, 1, 3, 1]


def test_messages_of_the_retry_queue_take_turns_with_fresh_ones() -> None:
    scene = Scene(["", ""])
    scene.send(["", "a", ""], GROUP)
    assert [scene.pulled(1) for _ in range(6)] == [[3], [1], [4], [2], [5], []]


def test_fresh_messages_leave_the_next_turn_to_those_that_come_again() -> None:
    scene = Scene([""] * 6)
    assert fail(scene, 2) == [1, 2]
    assert [scene.pulled(1) for _ in range(6)] == [[1], [3], [2], [4], [5], [6]]


def test_a_fresh_message_waits_for_an_earlier_one_of_its_key_that_comes_again() -> None:
    scene = Scene(["a", "", "a", "b"])
    assert fail(scene) == [1]
    assert fail(scene) == [1], "the next pull begins with fresh ones"
    assert scene.pulled(1) == [2]
    assert fail(scene) == [1]
    assert scene.pulled(1) == [4], "3 was looked at, and waits behind 1"
    scene.check()
    last = scene.pull(1)
    assert last is not None and last.batch.sequence.tolist() == [1]
    scene.ack(last)
    assert scene.pulled() == [3]


def test_a_key_of_the_retry_queue_is_not_out_twice_in_a_fresh_turn() -> None:
    scene = Scene(["a", ""])
    scene.send(["a"], GROUP)
    assert fail(scene) == [3]
    assert scene.pulled(1) == [2], "the key of 1 waits for 3"
    scene.check()
    assert scene.pulled() == [3]


def test_what_a_claim_gave_back_comes_before_fresh_messages_of_its_key() -> None:
    scene = Scene(["a", "a", "", "a"])
    first = scene.pull(1)
    assert first is not None
    assert scene.pulled(1) == [3], "2 waits for its key"
    claim = scene.broker.dead_queue.claim((SUBJECT, GROUP), np.array([1]), -1, 1, 1 << 20)
    scene.ack(first)
    scene.send(["c"], GROUP)
    assert scene.pulled(1) == [5]
    scene.broker.dead_queue.give_back(claim)
    again = scene.pulled(1)
    assert again == [2], "before 4, which the group has never looked at"
    assert scene.pulled() == []
    scene.check()


def test_a_restart_does_not_let_fresh_messages_overtake_their_key() -> None:
    limits = replace(ORDER_LIMITS, outstanding_max=100)
    scene = Scene(["a", "", "a", "b", "a"], limits)
    assert fail(scene) == [1]
    assert fail(scene) == [1]
    assert scene.pulled(1) == [2]
    scene.restart()
    scene.send(["a", ""])
    seen = []
    for _ in range(12):
        pulled = scene.pull(1)
        if pulled is None:
            break
        seen += pulled.batch.sequence.tolist()
        scene.ack(pulled)
        scene.check()
    assert [each for each in seen if each in (1, 3, 5, 6)] == [1, 3, 5, 6]
    assert sorted(seen) == list(range(1, 8))


def test_a_filter_that_passes_over_a_long_backlog_gives_the_turn_back() -> None:
    scene = Scene([""] * 3, replace(ORDER_LIMITS, pull_messages_max=2))
    assert fail(scene) == [1]
    assert fail(scene) == [1]
    scene.broker.consuming.use_filter((SUBJECT, GROUP), Filter([5], None))
    assert scene.pulled(1) == [1], "nothing else is for the group"
