"""The order of lease deadlines against a dictionary, and that the next one is found without looking at every group."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from delayserver.broker.queues.deadlines import Deadlines
from delayserver.broker.queues.group_cursors import GroupKey
from store.records.batches import StoredBatch
from tests.delayserver.broker.brokers import DirectBroker
from tests.fakes.disk import FakeDisk

TrueDeadline = Callable[[GroupKey], int | None]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_is_always_the_earliest_true_deadline(seed: int) -> None:
    chance, deadlines, true = Random(seed), Deadlines(), dict[GroupKey, int]()
    for _ in range(500):
        key = (1, chance.randrange(8))
        match chance.randrange(3):
            case 0:
                at = chance.randrange(1000)
                true[key] = min(at, true.get(key, at))
                deadlines.note(key, at)
            case 1 if key in true:  # acks: later, or nothing left
                true[key] += chance.randrange(100)
            case 2:
                true.pop(key, None)
        first = deadlines.first(true.get)
        assert first == min([(at, key) for key, at in true.items()], default=None)
        assert len(deadlines) <= 8


def test_the_next_deadline_of_a_thousand_groups_looks_at_one(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = DirectBroker.open(FakeDisk(), "/data/broker", 7, 0)
    broker.deliver(StoredBatch.filled(1, sequence=1, server_id=7, window_ms=60_000, subject=1), False, 0)
    for group in range(1000):
        assert broker.pull(1, 1 + group, 1, 1 << 20, 0, 0, 1_000 + group) is not None
    looked: list[GroupKey] = []
    first = Deadlines.first

    def counting(self: Deadlines, true_deadline_us: TrueDeadline) -> tuple[int, GroupKey] | None:
        def look(key: GroupKey) -> int | None:
            looked.append(key)
            return true_deadline_us(key)

        return first(self, look)

    monkeypatch.setattr(Deadlines, "first", counting)
    assert broker.retries.next_deadline_us() == 1_000_000
    assert len(looked) == 1
    expired = broker.expired_leases(1_002_000, 1_002_000, 4096)
    assert [(batch.group, len(batch)) for batch in expired] == [(1, 1), (2, 1), (3, 1)]
    assert broker.retries.next_deadline_us() == 1_003_000
    assert len(looked) < 15
