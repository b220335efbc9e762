"""Rule 5: replay is idempotent by sequence, whatever range of the log it meets again; rule 6: the pointer comes last."""

from __future__ import annotations

import errno
from functools import partial

import numpy as np
import pytest
import trio

from delayserver.protocol.errors import DelayServerError
from delayserver.server.delay_server import DelayServer
from delayserver.state.positions.log_queue import LINGER_MS, LogQueue
from delayserver.state.replay_round import Round
from store.failed_reads import PATIENCE_MS
from store.logs.schedule_log import ScheduleSource
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot, Host, faked_settings
from tests.fakes.rows import messages
from tests.fakes.workers import PlacesOfReads

# No checkpoint of its own accord: every start replays everything.
RARE_CHECKPOINTS = {"checkpoint_interval_ms": 1 << 40}


def schedule_rows(host: Host) -> int:
    """Rows in all schedule files."""
    schedule = host.server.parts.files.schedule
    return sum(schedule.rows(key) for key in schedule.keys())


async def test_replaying_a_range_of_the_log_again_adds_nothing(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage=RARE_CHECKPOINTS))
    due_ms = [host.now_ms + 1_000 + 2_003 * number for number in range(60)]
    receipts = [(await client.put(str(due), due, message_id=f"id{due % 3}"))["receipt"] for due in due_ms]
    await client.put("copy", due_ms[50], message_id=f"id{due_ms[50] % 3}")
    await client.cancel(*receipts[40:45])
    for life in range(4):
        await host.kill()
        host.disk.remove("/data/checkpoint")
        await host.start()
        await host.settled()
        assert host.server.parts.opened.found.lost
        assert schedule_rows(host) == 61, f"life {life}"
        status = host.check_balance()
        assert (status["accepted"], status["cancelled"], status["deduplicated"]) == (61, 5, 1)
    await host.sleep_ms(130_000)
    assert len(host.fake().stored) == len(set(host.fake().stored)) == 55
    host.check_balance(pending=0)


@pytest.mark.parametrize("seed", range(3))
async def test_after_a_loss_of_power_the_messages_that_schedule_files_lost_are_replayed(boot: Boot, seed: int) -> None:
    host = boot(faked_settings())
    sent = 0
    for life in range(3):
        client = await host.start_connected()
        for number in range(10):
            await client.put(f"{life}.{number}", host.now_ms + 10_000 + 7_000 * number)
            sent += 1
            await host.sleep_ms(130)
        await host.lose_power(seed * 7 + life)
    await host.start()
    await host.sleep_ms(85_000)
    await host.settled()
    assert sorted(set(host.fake().texts)) == sorted(host.fake().texts)
    assert len(host.fake().texts) == sent
    assert host.check_balance(pending=0)["accepted"] == sent


async def test_a_disk_that_fills_up_in_the_middle_of_a_round_neither_loses_nor_repeats_nor_miscounts(
    boot: Boot, disk: FakeDisk
) -> None:
    host, client = await boot.connected(faked_settings(storage={"message_log_segment_bytes": 4 << 20}), disk=disk)
    await client.put("first", host.now_ms + 3_000)
    await host.settled()
    await host.sleep_ms(1_100)
    disk.capacity_bytes = disk.used_bytes + 40_000
    accepted = 1
    for number in range(12):
        # Spread over minutes, so that a round writes some files and not the others.
        messages = [
            {"subject": "s", "body": f"{number}.{i}" + "x" * 2_000, "due_ms": host.now_ms + 2_000 + i * 60_000}
            for i in range(5)
        ]
        try:
            accepted += sum("receipt" in result for result in await client.send(*messages))
        except DelayServerError as error:
            assert error.name == "disk_full"
    assert host.server.parts.state.positions.lag_bytes > 0, "the replayer must have met the full disk"
    await host.sleep_ms(1_500)
    disk.capacity_bytes = None
    await host.sleep_ms(1_000)
    await host.settled()
    assert host.server.parts.state.balance.placed == accepted
    await host.restart()
    assert host.check_balance()["accepted"] == accepted
    host.clock.step(300_000)
    await host.sleep_ms(2_000)
    await host.settled()
    assert len(set(host.fake().stored)) == len(host.fake().stored) == accepted
    host.check_balance(pending=0)


async def test_a_replay_on_a_full_disk_with_a_lost_checkpoint_counts_each_message_once(
    boot: Boot, nursery: trio.Nursery, disk: FakeDisk
) -> None:
    host, client = await boot.connected(faked_settings(storage=RARE_CHECKPOINTS), disk=disk)
    disk.capacity_bytes = disk.used_bytes + 12_000
    accepted = 0
    for number in range(8):
        messages = [
            {"subject": "s", "body": "x" * 3_000, "due_ms": host.now_ms + 600_000 + i * 60_000} for i in range(4)
        ]
        try:
            accepted += sum("receipt" in result for result in await client.send(*messages))
        except DelayServerError as error:
            assert error.name == "disk_full", number
    await host.kill()
    disk.capacity_bytes = disk.used_bytes + 30_000

    async def make_room() -> None:
        await host.sleep_ms(2_000)
        disk.capacity_bytes = None

    nursery.start_soon(make_room)
    await host.start()
    assert (await host.balanced(pending=accepted))["accepted"] == accepted
    assert host.server.parts.state.balance.placed == accepted


async def test_a_checkpoint_never_says_more_than_the_schedule_files_durably_hold(boot: Boot) -> None:
    """Rule 6: power is lost at every operation around a checkpoint; what was accepted is there every time."""
    for operations in range(1, 26, 2):
        host, client = await boot.connected(faked_settings(), name=f"host{operations}")
        receipts = [(await client.put(str(i), host.now_ms + 90_000 + 61_000 * i))["receipt"] for i in range(4)]
        await host.settled()
        host.disk.crash_after(operations)
        await host.sleep_ms(1_500)
        if host.disk.dead:
            await host.wait_down()
        await host.restart_unpowered(operations)
        client = await host.client()
        assert await client.lookup(*receipts) == ["pending"] * 4, operations
        assert not host.server.damage.corruption, operations
        assert host.check_balance(pending=4)["accepted"] == 4
        await host.kill()


async def test_replay_reads_the_log_back_when_it_fell_behind(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    """More is committed than the queue in memory may hold; the log itself is the queue then."""
    monkeypatch.setattr("delayserver.server.state_parts.LogQueue", partial(LogQueue, bytes_max=120_000))
    host, client = await boot.connected(faked_settings(storage={"message_log_segment_bytes": 8 << 20}))
    receipts = [(await client.put("x" * 50_000, host.now_ms + 2_000))["receipt"] for _ in range(20)]
    assert host.server.parts.state.log_queue.overflowed
    await host.sleep_ms(3_000)
    assert set(await client.lookup(*receipts)) == {"delivered"}
    assert len(host.fake().stored) == 20
    await host.balanced(pending=0)


async def test_rounds_over_more_files_than_may_be_open_begin_with_those_that_are(boot: Boot, disk: FakeDisk) -> None:
    """In the same order each time, the least recently used one would always be the next one wanted."""
    host = boot(faked_settings(storage={"open_files_max": 24} | RARE_CHECKPOINTS), disk=disk)
    server = await host.start()
    windows, rounds = 30, 6
    start_ms = host.now_ms // 60_000 * 60_000 + 3_600_000
    for number in range(rounds):
        if number == 1:
            opens = disk.counts["open"]
        rows = messages(1 + number * windows, windows).with_columns(
            due_ms=start_ms + 60_000 * np.arange(windows, dtype=np.int64)
        )
        server.parts.replay.placing.place_batch(rows, Round(0, 0), ScheduleSource.DIRECT)
    assert schedule_rows(host) == windows * rounds
    table = host.server.parts.files.schedule.open_file_count()
    assert disk.counts["open"] - opens == (rounds - 1) * (windows - table)


async def test_a_round_takes_its_turn_unless_something_in_it_is_urgent(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, client = await boot.connected(faked_settings())
    server = host.server
    await client.put("makes the window's file", host.now_ms + 30_000)
    await host.sleep_ms(1_000)
    turns: list[int] = []

    async def take_turn() -> None:
        turns.append(host.now_ms)

    monkeypatch.setattr(server.runtime.turns, "take", take_turn)
    receipt = (await client.put("later", host.now_ms + 29_000))["receipt"]
    await host.sleep_ms(100)
    assert len(turns) == 1
    await client.put("soon", host.now_ms + 100)
    await client.cancel(receipt)
    await host.sleep_ms(100)
    assert len(turns) == 1
    await host.sleep_ms(1_000)
    assert host.fake().texts == ["soon"]


async def test_single_sends_that_never_pause_share_their_rounds(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    host = await boot.started(faked_settings())
    client, server = await host.client(), host.server
    await client.put("first", host.now_ms + 600_000)
    await host.settled()
    publish, rounds = server.parts.replay.publisher.publish, []

    def counted(done: Round) -> None:
        rounds.append(len(done.placed))
        publish(done)

    monkeypatch.setattr(server.parts.replay.publisher, "publish", counted)
    # The next ones come while a round takes its time.
    monkeypatch.setattr(server.runtime.turns, "take", partial(host.sleep_ms, 2))
    for number in range(300):
        await client.put(str(number), host.now_ms + 600_000)
        await host.sleep_ms(1)
    await host.settled()
    assert schedule_rows(host) == 301
    assert len(rounds) <= 300 / LINGER_MS * 2, rounds


@pytest.mark.parametrize(("code", "refusals"), [(errno.EIO, 4), (errno.EIO, 9), (errno.ENOMEM, 5)])
async def test_messages_of_a_log_that_the_disk_refuses_to_read_for_a_moment_are_replayed(
    boot: Boot, code: int, refusals: int
) -> None:
    host, client = await boot.connected(faked_settings(storage=RARE_CHECKPOINTS))
    for number in range(3):
        await client.put(str(number), host.now_ms + 20_000 + number)
    await host.kill()
    left = [code] * refusals

    def refuse(operation: str, path: str) -> int:
        return left.pop() if left and operation == "pread" and "/message_log/" in path else 0

    def begin(_server: object) -> None:
        host.disk.refuse = refuse

    host.before_run = begin
    await host.start()
    assert host.died_of is None and not left
    await host.sleep_ms(25_000)
    assert host.fake().texts == ["0", "1", "2"]
    host.check_balance(pending=0)


async def test_messages_of_a_log_that_the_disk_cannot_read_for_long_are_replayed(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage=RARE_CHECKPOINTS))
    for number in range(3):
        await client.put(str(number), host.now_ms + 20_000 + number)
    await host.kill()
    until_ms = host.now_ms + PATIENCE_MS - 5_000

    def begin(_server: object) -> None:
        host.disk.refuse = lambda operation, path: (
            errno.EIO if operation == "pread" and "/message_log/" in path and host.now_ms < until_ms else 0
        )

    host.before_run = begin
    await host.start()
    assert host.died_of is None
    await host.sleep_ms(25_000)
    assert host.fake().texts == ["0", "1", "2"]
    host.check_balance(pending=0)


@pytest.mark.parametrize("offset", [3, 20, 41])
async def test_messages_of_a_segment_with_a_damaged_file_header_are_replayed(boot: Boot, offset: int) -> None:
    host, client = await boot.connected(faked_settings(storage=RARE_CHECKPOINTS))
    for number in range(3):
        await client.put(str(number), host.now_ms + 5_000 + number)
    await host.kill()
    (path,) = host.disk.files("/data/message_log/0")
    host.disk.flip_bit(path, offset)
    for number in range(3, 5):
        await host.start()
        assert host.died_of is None
        await (await host.client()).put(str(number), host.now_ms + 5_000)
        await host.kill()
    await host.start()
    await host.sleep_ms(10_000)
    assert sorted(host.fake().texts) == ["0", "1", "2", "3", "4"]
    assert any(path in text for text in host.check_balance(pending=0)["corruption"])


async def test_the_replay_goes_around_a_bad_sector_of_the_log(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage=RARE_CHECKPOINTS))
    places = []
    for body in ("before", "bad", "behind"):
        places.append(host.server.parts.state.positions.durable.value)
        await client.put(body, host.now_ms + 20_000)
    await host.kill()

    def begin(server: DelayServer) -> None:
        base, segment = server.parts.files.log.locate(places[1])
        host.disk.unreadable[segment.path] = [(places[1] - base, places[1] - base + 8)]

    host.before_run = begin
    await host.start()
    assert host.died_of is None
    await host.sleep_ms(25_000)
    assert host.fake().texts == ["before", "behind"]
    assert len(host.server.damage.unreadable) == 1
    host.check_balance(pending=0)


async def test_the_replay_waits_as_long_for_the_disk_after_it_went_around_a_bad_sector(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayserver.server.state_parts.LogQueue", partial(LogQueue, bytes_max=120_000))
    host, client = await boot.connected(faked_settings(storage=RARE_CHECKPOINTS))
    start = host.server.parts.state.positions.durable.value
    await client.put("bad", host.now_ms + 20_000)
    await host.kill()

    def begin(server: DelayServer) -> None:
        base, segment = server.parts.files.log.locate(start)
        host.disk.unreadable[segment.path] = [(start - base, start - base + 8)]

    host.before_run = begin
    await host.start()
    assert host.server.readiness.ready
    client = await host.client()
    until_ms = host.now_ms + 20_000
    host.disk.refuse = lambda operation, path: (
        errno.EIO if operation == "pread" and "/message_log/" in path and host.now_ms < until_ms else 0
    )
    for number in range(20):
        await client.put(f"{number}" + "x" * 50_000, host.now_ms + 2_000)
    assert host.server.parts.state.log_queue.overflowed
    await host.sleep_ms(60_000)
    assert len(host.fake().stored) == 20
    host.check_balance(pending=0)


@pytest.mark.parametrize("read", ["of the index", "of the ids"])
async def test_a_copy_is_recognised_also_where_the_disk_cannot_read_its_original_for_a_moment(
    boot: Boot, read: str
) -> None:
    host = await boot.started(faked_settings())
    due_ms = host.now_ms + 3_600_000
    client = await host.client()
    await client.put("original", due_ms, message_id="id")
    await host.settled()
    if read == "of the index":
        await host.restart()
        client = await host.client()
    left = [errno.EIO] * 3

    def refuse(operation: str, path: str) -> int:
        return left.pop() if left and operation == "pread" and "/schedule_log/" in path else 0

    host.disk.refuse = refuse
    await client.put("copy", due_ms, message_id="id")
    await host.settled()
    assert not left and host.server.damage.refused and not host.server.damage.corruption
    host.clock.step(due_ms - host.now_ms)
    await host.sleep_ms(3_000)
    assert host.fake().texts == ["original"]
    assert host.check_balance(pending=0)["deduplicated"] == 1


async def test_a_copy_of_a_message_that_the_disk_cannot_read_any_more_is_delivered(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    due_ms = host.now_ms + 3_600_000
    client = await host.client()
    await client.put("original" * 200, due_ms, message_id="id")
    await host.settled()
    await host.restart()
    client = await host.client()
    (path,) = host.disk.files("/data/schedule_log")
    host.disk.unreadable[path] = [(64, 128)]
    await client.put("copy", due_ms, message_id="id")
    await host.settled()
    host.clock.step(due_ms - host.now_ms)
    await host.sleep_ms(30_000)
    assert host.died_of is None and host.fake().texts == ["copy"]


@pytest.mark.parametrize("message_id", ["new", "known"])
async def test_ids_of_earlier_messages_are_read_beside_the_event_loop(boot: Boot, message_id: str) -> None:
    host = await boot.started(faked_settings())
    due_ms = host.now_ms + 3_600_000
    client = await host.client()
    await client.put("original", due_ms, message_id="known")
    await host.settled()
    await host.restart()
    client = await host.client()
    reads = PlacesOfReads(host.workers, host.disk, "/schedule_log/")
    await client.put("later", due_ms, message_id=message_id)
    await client.put("later", due_ms, message_id=message_id)
    await host.settled()
    assert reads.beside and not reads.on_loop
    host.clock.step(due_ms - host.now_ms)
    await host.sleep_ms(3_000)
    assert host.fake().texts == (["original", "later"] if message_id == "new" else ["original"])
    host.check_balance(pending=0)
