"""Indexes of sealed segments are made beside the event loop, in small steps with rests. Time passes by trio's clock."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from delayserver.broker.actions import indexing
from delayserver.broker.actions.find_plan import StoredQuery
from delayserver.broker.service.find_service import FULL_MS, GIVE_WAY_MS_MAX, LATER_MS, LOOK_MS, REST_SHARE, FindService
from delayserver.runtime.runtime import Runtime
from tests.delayserver.broker.actions.test_find_plan import INDEXES, filled
from tests.delayserver.broker.service.test_pulls import TrioTime
from tests.fakes.disk import FakeDisk
from tests.fakes.workers import FakeWorkers

STEP_S = 0.01


class Finding:
    """The service over a store of several segments. Each work in a thread takes STEP_S."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        self.broker = filled(self.disk)
        self.sealed = len(self.disk.files("/data/broker/store/")) - 1
        self.began_s: list[float] = []
        workers = FakeWorkers()
        workers.around = self._slowly
        self.runtime = Runtime.on(clock=TrioTime(), workers=workers)
        self.service = FindService(self.broker.indexes, self.runtime)

    async def _slowly(self, _function: str, work: Callable[[], Any]) -> Any:
        self.began_s.append(trio.current_time())
        await trio.sleep(STEP_S)
        return work()

    async def burst(self) -> None:
        """Large steps, one after the other."""
        while True:
            await self.runtime.turns.take()
            await trio.sleep(0.002)

    @property
    def indexes(self) -> int:
        """How many segments have an index."""
        return len(self.disk.files(INDEXES))


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is a step, so that a segment takes several."""
    monkeypatch.setattr(indexing, "STEP_ROWS", 10)


async def test_an_index_is_made_in_steps_that_leave_the_event_loop_three_quarters_of_the_time(
    autojump_clock: MockClock,
) -> None:
    finding = Finding()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(finding.service.run)
        await trio.sleep(0.9 * LOOK_MS / 1000)
        while finding.indexes < finding.sealed:
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert finding.sealed > 4 and len(finding.began_s) > 4 * finding.sealed
    assert np.diff(finding.began_s).min() > 0.9 * (1 + REST_SHARE) * STEP_S
    assert finding.broker.indexes.index_plan() is None


async def test_a_search_that_waits_for_an_index_ends_its_rests(autojump_clock: MockClock) -> None:
    finding = Finding()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(finding.service.run)
        await trio.sleep(2.5 * STEP_S)
        asked_s, begun = trio.current_time(), len(finding.began_s)
        assert (await finding.service.find(StoredQuery(message_id=b"m-2", messages_max=1000))).count == 1
        waited_s = trio.current_time() - asked_s
        assert finding.indexes > 0
        nursery.cancel_scope.cancel()
    steps = len(finding.began_s) - begun
    assert steps > 2 and waited_s <= steps * STEP_S + REST_SHARE * STEP_S + 0.001


async def test_an_index_gives_way_to_large_steps_for_half_a_minute(autojump_clock: MockClock) -> None:
    finding = Finding()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(finding.service.run)
        nursery.start_soon(finding.burst)
        await trio.sleep(0.9 * GIVE_WAY_MS_MAX / 1000)
        assert finding.began_s == []
        await trio.sleep(0.3 * GIVE_WAY_MS_MAX / 1000)
        assert finding.indexes == finding.sealed, "bursts that follow one another put off no index for ever"
        nursery.cancel_scope.cancel()


async def test_a_search_finds_messages_at_once_beside_large_steps(autojump_clock: MockClock) -> None:
    finding = Finding()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(finding.service.run)
        nursery.start_soon(finding.burst)
        await trio.sleep(1)
        with trio.fail_after(1):
            assert (await finding.service.find(StoredQuery(message_id=b"m-2", messages_max=1000))).count == 1
        nursery.cancel_scope.cancel()


async def test_a_stop_in_the_middle_leaves_no_part_of_an_index(autojump_clock: MockClock) -> None:
    finding = Finding()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(finding.service.run)
        await trio.sleep(2.5 * STEP_S)
        nursery.cancel_scope.cancel()
    assert len(finding.began_s) == 1 and finding.indexes == 0
    assert finding.broker.indexes.index_plan() is not None


@pytest.mark.parametrize("operation", ["open", "pread"])
async def test_a_segment_that_the_disk_refuses_is_indexed_later_and_the_others_now(
    autojump_clock: MockClock, operation: str
) -> None:
    finding = Finding()
    refused = finding.disk.files("/data/broker/store/")[0]
    finding.disk.refuse = lambda name, path: errno.EIO if (name, path) == (operation, refused) else 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(finding.service.run)
        await trio.sleep(0.9 * LATER_MS / 1000)
        assert finding.indexes == finding.sealed - 1, "the server works on without this index"
        finding.disk.refuse = None
        await trio.sleep(0.2 * LATER_MS / 1000)
        assert finding.indexes == finding.sealed
        nursery.cancel_scope.cancel()


async def test_on_a_full_disk_a_segment_is_read_once_a_minute(autojump_clock: MockClock) -> None:
    finding = Finding()
    finding.disk.refuse = lambda name, path: errno.ENOSPC if name == "pwrite" and INDEXES in path else 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(finding.service.run)
        await trio.sleep(1)
        steps = len(finding.began_s)
        assert steps > 1 and finding.indexes == 0
        await trio.sleep(0.8 * FULL_MS / 1000)
        assert len(finding.began_s) == steps, "the whole segment would be read again for nothing"
        finding.disk.refuse = None
        await trio.sleep(2 * FULL_MS / 1000)
        assert finding.indexes == finding.sealed
        nursery.cancel_scope.cancel()
