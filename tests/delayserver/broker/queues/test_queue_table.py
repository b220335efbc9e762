"""Queues at rest in columns are the queues that they were, and a capture in steps is as of one moment."""

from __future__ import annotations

from random import Random

import pytest

from delayserver.broker.queues.queue import ConsumeQueue, QueueKey, SpilledBlock
from delayserver.broker.queues.queue_columns import QueueColumns
from delayserver.broker.queues.queue_table import STEP_QUEUES, QueueTable


def grown(chance: Random, offset: int, runs: int) -> ConsumeQueue:
    """A queue with some runs behind a store offset, and now and then a block."""
    queue = ConsumeQueue()
    if chance.random() < 0.2:
        queue.append(offset, 0, 3)
        queue.blocks = [SpilledBlock(0, offset, offset, 64)]
        queue.restore_runs(*[column[:0] for column in queue.memory_runs()])
    for number in range(runs):
        queue.append(offset + 8 * number, chance.randrange(5), chance.randrange(1, 4))
    return queue


def told(queue: ConsumeQueue | None) -> object:
    """All that a queue holds."""
    assert queue is not None
    blocks = [(b.position, b.store_offset_first, b.store_offset_last, b.block_offset) for b in queue.blocks]
    return queue.first, queue.end, blocks, [column.tolist() for column in queue.memory_runs()]


def capture(table: QueueTable, below: int = 1 << 62) -> QueueColumns:
    """Capture in one go, and let rest what can."""
    steps = table.capture()
    while steps.step(below):
        pass
    captured = steps.captured()
    for _ in table.rest(captured):
        table.check_invariants()
    return captured.columns


@pytest.mark.parametrize("seed", range(20))
def test_queues_that_rest_and_wake_are_as_before(seed: int) -> None:
    chance = Random(seed)
    table = QueueTable()
    expected: dict[QueueKey, object] = {}
    for step in range(40):
        for _ in range(chance.randrange(8)):
            key = (chance.randrange(1, 30), chance.choice([0, 0, 5]))
            queue = table.get(key) or table.add(key, grown(chance, 1000 * step, chance.randrange(3)))
            queue.append(1000 * step + 500, 0, 1)
            expected[key] = told(queue)
        if chance.random() < 0.4:
            capture(table)
        if chance.random() < 0.2:
            below = chance.randrange(1000 * step + 1)
            table.retire(below)
            for key, queue in table.items():
                expected[key] = told(queue)
                offsets = queue.memory_runs()[1]
                assert queue.blocks or all(offset >= below for offset in offsets)
        table.check_invariants()
        assert len(table) == len(expected)
        some = chance.choice([*expected, (99, 0)])
        assert (some in table) == (some in expected)
        if some in expected:
            assert table.bounds(some) == expected[some][:2]  # type: ignore[index]
            assert told(table.get(some)) == expected[some]
    assert {key: told(queue) for key, queue in table.items()} == expected


def test_a_queue_that_retention_emptied_keeps_its_end() -> None:
    early, late = ConsumeQueue(), ConsumeQueue()
    for queue, offset in ((early, 100), (late, 900)):
        queue.append(offset, 0, 2)
        queue.append(offset + 8, 0, 2)
    table = QueueTable(QueueColumns.of({(1, 0): early, (2, 0): late}))
    end = table.bounds((1, 0))
    assert end is not None
    table.retire(500)
    assert table.bounds((1, 0)) == (end[1], end[1])
    assert table.bounds((2, 0)) == (0, end[1])
    assert table.awake_count == 0, "retention wakes no queue without blocks"


def test_a_capture_in_steps_is_as_of_its_beginning_while_more_is_appended() -> None:
    table = QueueTable()
    keys = [(subject, 0) for subject in range(1, 3 * STEP_QUEUES)]
    for key in keys:
        table.add(key, ConsumeQueue()).append(100, 0, 2)
    before = {key: told(queue) for key, queue in table.items()}
    steps = table.capture()
    more = True
    while more:
        for key in keys[:: STEP_QUEUES // 3]:
            table[key].append(500, 0, 1)
        more = steps.step(500)
    table.add((1, 7), ConsumeQueue()).append(500, 0, 1)
    captured = steps.captured()
    found = QueueTable(captured.columns)
    assert {key: told(queue) for key, queue in found.items()} == before
    for _ in table.rest(captured):
        pass
    assert table.awake_count == 1 + len(keys[:: STEP_QUEUES // 3]), "what was appended to stays awake"
    table.check_invariants()


def test_columns_that_contradict_each_other_are_refused() -> None:
    columns = QueueColumns.of({(1, 0): grown(Random(1), 100, 2), (2, 0): grown(Random(2), 100, 2)})
    with pytest.raises(ValueError, match="not in order"):
        QueueColumns(
            columns.codes[::-1], columns.first, columns.end, columns.runs, columns.blocks,
            columns.positions, columns.offsets, columns.rows, columns.counts, columns.spilled,
        )  # fmt: skip
