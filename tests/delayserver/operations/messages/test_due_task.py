"""Due records of an internal group go from dispatch through their queue to an operation, and the answers come back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np
import pytest
import trio

from delayserver.dispatch.internal_node import InternalNode
from delayserver.operations.messages.due_task import DueTask
from delayserver.protocol.errors import NotReady
from delayserver.state.memory.due_records import DueRecords
from delayserver.targets.target import DeliveryError
from store.errors import DiskFullError
from store.records.batches import U8, StoredBatch
from tests.delayserver.conftest import run_simulated

pytestmark = pytest.mark.trio(run=run_simulated)
Answer = Callable[[StoredBatch], Awaitable[U8]]
TIMEOUT_MS = 1_000


class Work:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def answer(self, batch: StoredBatch) -> U8:
        return await self._answer(batch)


def records(count: int) -> StoredBatch:
    return StoredBatch.filled(count, due_ms=1)


async def taken_by(answer: Answer, nursery: trio.Nursery) -> InternalNode:
    due = DueRecords(2, TIMEOUT_MS)
    nursery.start_soon(DueTask(due, Work(answer)).run)
    return InternalNode("own", due)


async def test_two_batches_are_answered_in_parallel_each_with_its_own_answer(nursery: trio.Nursery) -> None:
    async def answer(batch: StoredBatch) -> U8:
        await trio.sleep(1 / len(batch))
        return np.full(len(batch), len(batch), np.uint8)

    node = await taken_by(answer, nursery)
    answers: list[list[int]] = []

    async def deliver(count: int) -> None:
        answers.append((await node.deliver(records(count), uncertain=False)).rows.tolist())

    async with trio.open_nursery() as both:
        both.start_soon(deliver, 2)
        both.start_soon(deliver, 3)
    assert answers == [[3, 3, 3], [2, 2]]


@pytest.mark.parametrize("error", [NotReady("not yet"), DiskFullError("no room")])
async def test_records_that_an_operation_refuses_are_certainly_not_answered(
    nursery: trio.Nursery, error: Exception
) -> None:
    async def answer(_batch: StoredBatch) -> U8:
        raise error

    node = await taken_by(answer, nursery)
    with pytest.raises(DeliveryError, match=str(error)) as refused:
        await node.deliver(records(1), uncertain=False)
    assert refused.value.known


async def test_an_operation_that_is_too_slow_has_ended_before_its_records_come_again(nursery: trio.Nursery) -> None:
    ended = 0

    async def answer(_batch: StoredBatch) -> U8:
        nonlocal ended
        try:
            await trio.sleep_forever()
        finally:
            ended += 1
        raise AssertionError

    node = await taken_by(answer, nursery)
    for number in (1, 2):
        with pytest.raises(DeliveryError) as refused:
            await node.deliver(records(1), uncertain=number > 1)
        assert not refused.value.known
        assert ended == number
