"""A hot moment's messages are read before it comes: the same bytes, bounded, and nothing is decided by it."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from delayserver.config.pacing import READ_EARLY_BYTES
from delayserver.dispatch.delivery import Shipment, read_batch, shipments
from delayserver.dispatch.message_reader import KEPT_MS, MessageReader, is_dense
from delayserver.runtime.clock import SystemClock
from delayserver.runtime.runtime import Runtime
from delayserver.state.memory.rows import ROW, make_rows
from store.logs.schedule_log import ScheduleLog
from store.records.batches import StoredBatch
from tests.delayserver.dispatch.test_broker_group import put_many
from tests.fakes.clock import SimulatedClock
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot, Host, faked_settings
from tests.fakes.schedule_files import KEY, filled
from tests.fakes.workers import FakeWorkers
from wheel.due_rows import DueRows

HOT = 3_000


def reader_of(host: Host) -> MessageReader:
    (group,) = host.server.parts.dispatch.groups
    return group.reader


class HeldPart(NamedTuple):
    """Messages that the reader has in memory. Some of their rows were handed over."""

    rows: int
    rows_left: int
    bytes: int


def held(reader: MessageReader) -> list[HeldPart]:
    """The messages that were read ahead and wait for their time. Only the bound of memory speaks of them: no figure counts
    them, and a delivery is the same with and without them."""
    return [HeldPart(len(part.batch), part.rows_left, part.bytes) for part in reader._parts]


async def heated(boot: Boot, count: int = HOT) -> tuple[Host, int]:
    """A server 100 ms before so many messages are due at once."""
    host = await boot.started(faked_settings())
    due_ms = host.now_ms + 10_000
    await put_many(await host.client(), count, due_ms, "s")
    await host.settled()
    await host.sleep_ms(due_ms - 100 - host.now_ms)
    return host, due_ms


async def test_a_hot_moment_is_read_before_it_comes_and_delivered_from_memory(boot: Boot) -> None:
    host, due_ms = await heated(boot)
    reader = reader_of(host)
    assert sum(part.rows for part in held(reader)) == HOT
    assert not host.fake().stored and not reader.rows_ahead
    for path in host.disk.files("/data/schedule_log"):  # no part reads there any more
        host.disk.flip_bit(path, host.disk.content(path).index(b"0"))
    await host.until(lambda: len(host.fake().stored) == HOT)
    assert sorted(map(int, host.fake().texts)) == list(range(HOT))
    assert reader.rows_ahead == HOT and not held(reader)
    assert all(at_us >= due_ms * 1_000 for at_us in host.fake().at_us.values())


async def test_a_message_that_is_cancelled_after_it_was_read_ahead_is_not_delivered(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    client, due_ms = await host.client(), host.now_ms + 10_000
    receipts = []
    for first in range(0, HOT, HOT // 3):  # here and there among the others
        await put_many(client, HOT // 3, due_ms, "s", first=first)
        receipts.append((await client.put("cancelled", due_ms))["receipt"])
    await host.settled()
    await host.sleep_ms(due_ms - 100 - host.now_ms)
    assert sum(part.rows for part in held(reader_of(host))) == HOT + 3
    assert await client.cancel(*receipts) == ["cancelled"] * 3
    await host.until(lambda: len(host.fake().stored) == HOT)
    await host.sleep_ms(1_000)
    assert sorted(map(int, host.fake().texts)) == list(range(HOT))
    assert reader_of(host).rows_ahead == HOT
    host.check_balance(pending=0)


async def test_bytes_that_cannot_be_read_ahead_are_reported_once_they_are_due(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    due_ms = host.now_ms + 10_000
    client = await host.client()
    await client.put("damaged", due_ms)
    await put_many(client, HOT, due_ms, "s")
    await host.settled()
    (path,) = host.disk.files("/data/schedule_log")
    host.disk.flip_bit(path, host.disk.content(path).index(b"damaged"))
    await host.sleep_ms(due_ms - 500 - host.now_ms)
    reads = host.disk.counts["pread"]
    await host.sleep_ms(450)
    assert host.disk.counts["pread"] > reads, "the reader tried"
    assert not held(reader_of(host)) and not host.server.damage.corruption
    await host.until(lambda: len(host.fake().stored) == HOT)
    assert host.died_of is None and sorted(map(int, host.fake().texts)) == list(range(HOT))
    assert any("have changed since they were loaded" in text for text in host.server.damage.corruption)


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
async def test_bodies_that_no_worker_takes_are_let_go(boot: Boot, step_ms: int) -> None:
    host, _due_ms = await heated(boot)
    host.server.parts.dispatch.groups.stop()
    assert held(reader_of(host))
    host.clock.step(step_ms)
    await host.sleep_ms(2 * KEPT_MS)
    assert not held(reader_of(host)) and not host.fake().stored


async def test_memory_for_messages_read_ahead_is_bounded(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayserver.config.pacing.READ_EARLY_BYTES", 70 * HOT)
    host = await boot.started(faked_settings())
    client, due_ms = await host.client(), host.now_ms + 10_000
    for first in range(0, 3 * HOT, HOT):
        await put_many(client, HOT, due_ms + first // HOT, "s", first=first)
        await host.settled()
    await host.sleep_ms(due_ms - 100 - host.now_ms)
    assert sum(part.bytes for part in held(reader_of(host))) in range(1, 70 * HOT + 1)
    await host.until(lambda: len(host.fake().stored) == 3 * HOT)
    assert 0 < reader_of(host).rows_ahead < 3 * HOT
    assert READ_EARLY_BYTES <= 64 << 20


async def test_large_runs_are_read_in_parts(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayserver.dispatch.message_reader.PART_BYTES", 20_000)
    host, _due_ms = await heated(boot)
    parts = held(reader_of(host))
    assert len(parts) > 5 and all(part.bytes <= 20_100 for part in parts)
    assert sum(part.rows_left for part in parts) == HOT
    await host.until(lambda: len(host.fake().stored) == HOT)
    assert reader_of(host).rows_ahead == HOT


async def test_parts_end_where_hand_overs_end_however_the_runs_lie(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayserver.dispatch.message_reader.PART_ROWS", 1_000)
    host = await boot.started(faked_settings())
    client, due_ms = await host.client(), host.now_ms + 10_000
    for first, count in ((0, 700), (700, 1_900), (2_600, HOT - 2_600)):
        await put_many(client, count, due_ms, "s", first=first)
        await host.settled()
    await host.sleep_ms(due_ms - 100 - host.now_ms)
    assert [part.rows for part in held(reader_of(host))] == [1_000] * (HOT // 1_000)
    await host.until(lambda: len(host.fake().stored) == HOT)
    assert sorted(map(int, host.fake().texts)) == list(range(HOT))
    assert reader_of(host).rows_ahead == HOT


async def test_a_read_that_the_system_refuses_ends_nothing(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def refused_once(log: ScheduleLog, shipment: Shipment, server_id: int) -> StoredBatch:
        tried.append(len(shipment.rows))
        if len(tried) == 1:
            raise OSError(errno.ENOMEM, "no memory")
        return read_batch(log, shipment, server_id)

    monkeypatch.setattr("delayserver.dispatch.message_reader.read_batch", refused_once)
    host, _due_ms = await heated(boot)
    await host.until(lambda: len(host.fake().stored) == HOT)
    assert host.died_of is None and tried[0] == HOT and sum(tried[1:]) == HOT
    assert reader_of(host).rows_ahead == 0


def test_a_run_that_is_being_read_ahead_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log, _messages = filled(FakeDisk(), [60])
    index = log.index(KEY)
    reads: list[int] = []

    def slow(log: ScheduleLog, shipment: Shipment, server_id: int) -> StoredBatch:
        reads.append(len(shipment.rows))
        time.sleep(0.05)  # in a thread
        return read_batch(log, shipment, server_id)

    async def look_twice() -> None:
        clock = SystemClock()
        due_ms = np.full(60, clock.now_ms() + 60_000)
        rows = DueRows(due_ms, index.sequence, make_rows(index, KEY.start_ms, KEY.source, loaded_us=1))
        reader = MessageReader(log, 7, READ_EARLY_BYTES, Runtime.on(clock=clock))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            reader.look_ahead([rows])
            while not reads:
                await trio.sleep(0.001)
            reader.look_ahead([rows])
            while not held(reader):
                await trio.sleep(0.001)
            reader.look_ahead([rows])
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    monkeypatch.setattr("delayserver.dispatch.message_reader.read_batch", slow)
    monkeypatch.setattr("delayserver.dispatch.message_reader.KEPT_MS", 120_000)
    with hot_from(1):
        trio.run(look_twice)
    assert reads == [60]


async def test_a_few_hundred_messages_are_read_when_they_are_due(boot: Boot) -> None:
    host, _due_ms = await heated(boot, 1_000)
    assert not held(reader_of(host))
    await host.until(lambda: len(host.fake().stored) == 1_000)


async def test_messages_spread_over_seconds_are_read_when_they_are_due(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    client, due_ms = await host.client(), host.now_ms + 10_000
    for number in range(200):
        await put_many(client, 20, due_ms + 5 * number, "s", first=20 * number)
    await host.until(lambda: len(host.fake().stored) == 4_000, within_ms=15_000)
    assert reader_of(host).rows_ahead == 0


@settings(max_examples=50)
@given(counts=st.lists(st.integers(1, 60), min_size=1, max_size=6), span_ms=st.integers(1, 4), data=st.data())
def test_bodies_read_ahead_are_those_of_the_file(counts: list[int], span_ms: int, data: st.DataObject) -> None:
    log, messages = filled(FakeDisk(), counts)
    index = log.index(KEY)
    payload = make_rows(index, KEY.start_ms, KEY.source, loaded_us=1)
    chance = data.draw(st.randoms(use_true_random=False))
    due_ms = KEY.start_ms + np.array([chance.randrange(span_ms) for _ in range(len(messages))])
    order = np.lexsort((index.sequence, due_ms))
    rows = DueRows(due_ms[order], index.sequence[order], payload[order])
    cuts = sorted({0, len(rows), *data.draw(st.lists(st.integers(0, len(rows)), max_size=4))})
    runs = [rows.slice(*cut) for cut in pairwise(cuts)]
    looked_at = runs
    if data.draw(st.booleans()):
        looked_at = [run for run in runs if data.draw(st.booleans())]  # what came since is not there
    taken = np.array(sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1))))

    async def compare() -> int:
        clock = SimulatedClock()
        clock.step(KEY.start_ms - 100 - clock.now_ms())
        reader = MessageReader(log, 7, READ_EARLY_BYTES, Runtime.on(clock=clock, workers=FakeWorkers()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            await trio.testing.wait_all_tasks_blocked()
            reader.look_ahead(looked_at)
            await trio.testing.wait_all_tasks_blocked()
            for shipment in shipments(rows.take(taken)):
                got, wanted = await reader.read(shipment), read_batch(log, shipment, 7)
                for name, _ in StoredBatch.schema.fields:
                    np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name), name)
                for name in StoredBatch.schema.blobs:
                    assert bytes(getattr(got, name)) == bytes(getattr(wanted, name)), name
            nursery.cancel_scope.cancel()
        return reader.rows_ahead

    with hot_from(1), pytest.MonkeyPatch.context() as patch:
        patch.setattr("delayserver.dispatch.message_reader.PART_ROWS", data.draw(st.integers(1, 80), "rows of a part"))
        ahead = trio.run(compare, clock=trio.testing.MockClock(autojump_threshold=0))
    if looked_at is runs:  # also where parts have sequences that lie between each other's
        assert ahead == len(taken)


@contextmanager
def hot_from(rows: int) -> Iterator[None]:
    """Whatever has so many rows is hot."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("HOT_ROWS_MIN", rows), ("HOT_ROWS_A_MS", 0), ("LARGE_ROWS", 0)):
            patch.setattr(f"delayserver.dispatch.message_reader.{name}", value)
        yield


def test_a_run_is_dense_with_many_rows_in_each_millisecond() -> None:
    def rows(count: int, span_ms: int) -> DueRows:
        return DueRows(np.sort(np.arange(count) % span_ms), np.arange(count), np.zeros(count, ROW))

    assert is_dense(rows(256, 1)) and not is_dense(rows(255, 1))
    assert is_dense(rows(8_192, 32)) and not is_dense(rows(8_192, 33))
