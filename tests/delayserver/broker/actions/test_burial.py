"""Many messages that are given up at once become dead letters in parts. What happens between two parts counts."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.broker.actions import dead_letter_burial
from delayserver.broker.actions.dead_letter_burial import Burial
from delayserver.broker.actions.retries import NACKED, Failure, RetryBatch
from delayserver.broker.policy import ConsumerPolicy
from delayserver.broker.pulled_batch import PulledBatch
from tests.delayserver.broker.actions.test_order_of_keys import Scene, set_policy
from tests.delayserver.broker.brokers import GROUP, SUBJECT


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_burial, "LETTERS_AT_ONCE", 2)


def dying(scene: Scene) -> tuple[PulledBatch, RetryBatch, Burial]:
    """All messages have failed for the last time, and nothing is buried."""
    set_policy(scene.broker, ConsumerPolicy(attempts=1))
    pulled = scene.pull()
    assert pulled is not None
    batch = scene.broker.nack(SUBJECT, GROUP, pulled.delivery, 0, scene.now_us, scene.now_us, Failure(NACKED, "no"))
    return pulled, batch, scene.broker.dead_letters.burial(batch)


def bury(scene: Scene, part: RetryBatch | None, first: int = 1000) -> int:
    assert part is not None and part.given_up is not None
    scene.broker.dead_letters.bury(part, "subject", "group", first, scene.now_us)
    return len(part.given_up)


def letters(scene: Scene) -> int:
    return scene.broker.dead_letters.waiting((77, GROUP))


def test_messages_are_buried_in_parts() -> None:
    scene = Scene([""] * 5)
    _, batch, burial = dying(scene)
    assert [bury(scene, burial.next_part(), 1000 + 10 * number) for number in range(3)] == [2, 2, 1]
    assert burial.next_part() is None and not burial.has_more()
    scene.broker.retries.settle(batch)
    assert letters(scene) == 5 and scene.pulled() == []
    scene.check()


def test_a_kill_between_two_parts_loses_and_doubles_nothing() -> None:
    scene = Scene([""] * 5)
    _, _, burial = dying(scene)
    bury(scene, burial.next_part())
    scene.restart()
    assert letters(scene) == 2
    assert scene.pulled() == [3, 4, 5]


def test_an_ack_between_two_parts_is_too_late() -> None:
    scene = Scene([""] * 5)
    pulled, _, burial = dying(scene)
    bury(scene, burial.next_part())
    assert scene.ack(pulled, 4) == 0
    assert bury(scene, burial.next_part(), 1010) + bury(scene, burial.next_part(), 1020) == 3
    assert letters(scene) == 5


def test_a_group_that_moves_between_two_parts_gets_its_messages_again() -> None:
    scene = Scene([""] * 5)
    _, _, burial = dying(scene)
    bury(scene, burial.next_part())
    scene.broker.positions.seek((SUBJECT, GROUP), 0)
    assert burial.next_part() is None
    assert scene.pulled() == [1, 2, 3, 4, 5] and letters(scene) == 2


def test_a_part_leaves_out_what_has_ended() -> None:
    scene = Scene([""] * 2)
    _, batch, burial = dying(scene)
    assert batch.given_up is not None and np.array_equal(batch.given_up.places, [0, 1])
    group = scene.broker.state.groups[SUBJECT, GROUP]
    group.main.settle(0, 1)
    assert bury(scene, burial.next_part()) == 1
    assert burial.next_part() is None
