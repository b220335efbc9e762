"""Starts on a disk without room: they answer, stop on demand, say what they wait for, and go on by themselves."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from delayserver.state.positions.readiness import Stage
from tests.delayserver.dispatch.test_broker_group import put_many
from tests.delayserver.replay.test_day_tier import coarse_settings
from tests.delayserver.server.test_rare_interleavings import day_after_next
from tests.fakes.host import Boot, Client, Host, faked_settings, small_settings, texts

HOUR_MS = 3_600_000
MESSAGE = {"subject": "s", "body": "x", "delay_ms": 1}
# What every client may ask, and who waits for an answer must get one.
REQUESTS: dict[str, dict[str, Any]] = {
    "send": {"messages": [MESSAGE]},
    "cancel": {"receipts": ["x"]},
    "reschedule": {"items": [{"receipt": "x", "delay_ms": 1}]},
    "lookup": {"receipts": ["x"]},
}


async def with_backlog(boot: Boot, count: int = 30, **storage: Any) -> Host:
    """A host whose process was killed when one message was placed, and `count` of 5 kB were accepted and not replayed."""
    host, client = await boot.connected(small_settings(storage={"dispatch_reserve_bytes": 1 << 16} | storage))
    await client.put("placed", host.now_ms + 60_000)
    await host.settled()
    await host.sleep_ms(3_000)  # a checkpoint knows it
    await block_replay(host)
    for number in range(count):
        await client.put(f"{number} " + "x" * 5_000, host.now_ms + 60_000 + number * 60_000)
    await host.kill()
    return host


async def block_replay(host: Host) -> None:
    """Hold the replay up, as a long round of it does."""
    host.server.parts.replay.tier.step, host.server.parts.replay.tier.is_due = trio.Event().wait, True  # type: ignore[method-assign]
    host.server.parts.state.log_queue.arrived.ring()
    await host.sleep_ms(100)


async def start_with_room(host: Host, room_bytes: int) -> Client:
    """Begin a life on a disk with this much room, and let it go as far as it gets; a connection."""
    host.disk.capacity_bytes = host.disk.used_bytes + room_bytes
    host.begin()
    await host.sleep_ms(2_000)
    return await host.client()


@pytest.mark.parametrize("room_bytes", [0, 4_096, 77_824])
async def test_a_start_that_waits_for_room_answers_everything_and_goes_on_by_itself(
    boot: Boot, room_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    host = await with_backlog(boot)
    client = await start_with_room(host, room_bytes)
    assert (await client.request("ping"))["server_us"]
    assert (await client.request("hello", {"versions": [1]}))["version"] == 1
    status = await client.status()
    assert not status["ready"]
    assert "the replay of accepted messages needs about" in status["waits_for"]
    for operation, arguments in REQUESTS.items():
        assert await client.refused(operation, arguments) == "not_ready", operation
    lines = [record.getMessage() for record in caplog.records if "disk full" in record.getMessage()]
    (line,) = lines
    assert f"on a disk with {host.disk.free_bytes('/data')} bytes free" in line
    assert "goes on by itself" in line
    host.disk.capacity_bytes = None
    await host.until(lambda: host.server.readiness.ready)
    await host.balanced(pending=31)


async def test_the_line_about_a_full_disk_comes_once_a_minute(boot: Boot, caplog: pytest.LogCaptureFixture) -> None:
    host = await with_backlog(boot)
    await start_with_room(host, 0)
    await host.sleep_ms(130_000)
    lines = [record for record in caplog.records if "disk full" in record.getMessage()]
    assert len(lines) == 3


@pytest.mark.parametrize("room_bytes", [0, 77_824])
async def test_a_stop_ends_a_start_that_waits_for_room(boot: Boot, room_bytes: int) -> None:
    host = await with_backlog(boot)
    await start_with_room(host, room_bytes)
    asked_ms = host.now_ms
    await host.stop()
    assert host.now_ms - asked_ms < 1_000
    host.disk.capacity_bytes = None
    await host.start()
    await host.balanced(pending=31)


async def test_a_stop_of_a_server_whose_replay_waits_for_room_does_not_wait_for_it(boot: Boot) -> None:
    host, client = await boot.connected()
    server = host.server
    host.disk.capacity_bytes = host.disk.used_bytes
    for number in range(3):
        await client.put("x" * 500, host.now_ms + HOUR_MS + number * 60_000)
    await host.until(lambda: server.replay_room.waiting)
    asked_ms = host.now_ms
    await host.stop()
    assert host.now_ms - asked_ms < 1_000
    host.disk.capacity_bytes = None
    await host.start()
    await host.balanced(pending=3)


async def test_an_empty_directory_on_a_full_disk_is_made_when_there_is_room(boot: Boot) -> None:
    host = boot()
    client = await start_with_room(host, 0)
    assert host.server.readiness.stage == Stage.OPENING
    assert (await client.request("ping"))["server_us"]
    for operation in ("hello", "status", "pull", *REQUESTS):
        assert await client.refused(operation, {}) == "not_ready"
    host.disk.capacity_bytes = None
    await host.until(lambda: host.server.readiness.ready)
    await client.put("m", host.now_ms + HOUR_MS)
    await host.balanced(pending=1)


async def test_a_stop_ends_a_start_whose_directory_cannot_be_opened_yet(boot: Boot) -> None:
    host = boot()
    await start_with_room(host, 0)
    await host.stop()
    assert not host.server.is_open


# -- what goes out meanwhile


async def blocked_start(boot: Boot, room_bytes: int = 0, **storage: Any) -> tuple[Host, dict[str, str]]:
    """A start that waits for room: of what it has placed, messages named below are cancelled or rescheduled in the part of
    message_log that is not replayed. The receipts by body."""
    host, client = await boot.connected(faked_settings(storage={"dispatch_reserve_bytes": 1 << 16} | storage))
    receipts = {}
    for name in ("a", "b", "cancelled", "rescheduled"):
        receipts[name] = (await client.put(name, host.now_ms + 30_000))["receipt"]
    await host.settled()
    await host.sleep_ms(3_000)
    await block_replay(host)
    for number in range(20):
        await client.put("x" * 5_000, host.now_ms + 3_600_000 + number * 60_000)
    assert await client.cancel(receipts["cancelled"]) == ["cancelled"]
    item = {"receipt": receipts["rescheduled"], "delay_ms": 45_000, "body": "later"}
    (result,) = (await client.request("reschedule", {"items": [item]}))["results"]
    assert result["outcome"] == "cancelled"
    await host.kill()
    await start_with_room(host, room_bytes)
    return host, receipts


@pytest.mark.parametrize("room_bytes", [0, 20_000])
async def test_placed_messages_are_delivered_while_the_replay_waits_for_room_and_cancelled_ones_are_not(
    boot: Boot, room_bytes: int
) -> None:
    host, receipts = await blocked_start(boot, room_bytes)
    await host.until(lambda: host.fake().texts == ["a", "b"], within_ms=60_000)
    await host.sleep_ms(60_000)
    assert host.server.readiness.stage == Stage.DELIVERING
    assert host.fake().texts == ["a", "b"]
    status = await (await host.client()).status()
    assert (status["accepted"], status["delivered"], status["pending"]) == (25, 2, 23)
    host.disk.capacity_bytes = None
    await host.until(lambda: host.server.readiness.ready)
    client = await host.client()
    assert await client.lookup(receipts["cancelled"], receipts["rescheduled"]) == ["cancelled", "cancelled"]
    await host.until(lambda: host.fake().texts == ["a", "b", "later"], within_ms=60_000)
    await host.sleep_ms(1_000)
    assert (await host.balanced(pending=20))["cancelled"] == 2


async def test_messages_delivered_during_a_start_on_a_full_disk_do_not_come_again_after_its_crash(boot: Boot) -> None:
    host, _ = await blocked_start(boot)
    await host.until(lambda: host.fake().texts == ["a", "b"], within_ms=60_000)
    await host.sleep_ms(1_000)
    for room_bytes in (0, 1 << 30):
        await host.kill()
        await start_with_room(host, room_bytes)
        await host.sleep_ms(2_000)
    await host.until(lambda: host.server.readiness.ready)
    await host.until(lambda: host.fake().texts == ["a", "b", "later"], within_ms=60_000)
    await host.balanced(pending=20)


async def test_messages_delivered_before_a_loss_of_power_do_not_come_again_when_their_replay_finds_room(
    boot: Boot,
) -> None:
    host, client = await boot.connected(
        faked_settings(storage={"dispatch_reserve_bytes": 1 << 16, "checkpoint_interval_ms": 1 << 40})
    )
    first_ms = host.now_ms
    await client.put("first", first_ms)
    await host.until(lambda: host.fake().texts == ["first"])
    await host.sleep_ms(1_000)
    await block_replay(host)
    for number in range(20):
        await client.put("x" * 5_000, host.now_ms + HOUR_MS + number * 60_000)
    await host.kill()
    for path in host.disk.files("/data/schedule_log/"):
        if path.endswith(".direct.log"):
            host.disk.remove(path)  # it was not synced; what was delivered from it is recorded
    await start_with_room(host, 0)
    await host.until(lambda: host.server.readiness.stage == Stage.DELIVERING)
    await host.until(lambda: host.server.parts.state.windows.cursors.is_taken(first_ms // 60_000 * 60_000))
    host.disk.capacity_bytes = None
    await host.until(lambda: host.server.readiness.ready)
    await host.sleep_ms(2_000)
    assert host.fake().texts == ["first"]
    await host.balanced(pending=20)


async def test_a_duplicate_whose_outcome_was_lost_is_ended_though_the_replay_finds_it_placed(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"dispatch_reserve_bytes": 1 << 16}))
    server = host.server
    due_ms = host.now_ms + 60_000
    await client.put("once", due_ms, message_id="a")
    await host.settled()
    await server.parts.upkeep.checkpointing.write()
    await client.put("once", due_ms, message_id="a")
    await host.settled()
    assert (await client.status())["deduplicated"] == 1
    await block_replay(host)
    for number in range(20):
        await client.put("x" * 5_000, host.now_ms + HOUR_MS + number * 60_000)
    await host.kill()
    for path in host.disk.files("/data/dispatch_log/"):
        host.disk.remove(path)  # the outcome was not synced; the schedule file says that it is a duplicate
    await start_with_room(host, 0)
    await host.until(lambda: host.fake().texts == ["once"], within_ms=60_000)
    host.disk.capacity_bytes = None
    await host.until(lambda: host.server.readiness.ready)
    assert (await host.balanced(pending=20))["deduplicated"] == 1


async def test_consumers_pull_and_ack_while_the_replay_waits_for_room(boot: Boot) -> None:
    host = await with_backlog(boot)
    await start_with_room(host, 0)
    client = await host.client()
    await host.until(lambda: host.server.parts.broker.core.status()["delivered"] == 1, within_ms=70_000)
    (message,) = await client.pull()
    assert texts([message]) == ["placed"]
    delivery = {"subject": "s", "group": "g", "count": 1, "deliveries": int(message["delivery"]).to_bytes(8, "little")}
    assert await client.refused("nack", delivery) == "not_ready"
    host.disk.capacity_bytes = host.disk.used_bytes + 4_096 * 3
    assert (await client.request("ack", delivery))["acked"] == 1


async def test_rows_that_a_waiting_start_delivers_leave_a_full_queue_and_come_back(boot: Boot) -> None:
    """The files of windows outlived the crash, and the replay has not come to their messages again."""
    dispatch = {"queue_rows_max": 5, "batch_messages_max": 1, "workers": 1}
    host, client = await boot.connected(faked_settings(dispatch=dispatch, storage={"dispatch_reserve_bytes": 1 << 16}))
    await client.put("known to the checkpoint", host.now_ms + HOUR_MS)
    await host.settled()
    await host.sleep_ms(3_000)
    await put_many(client, 30, host.now_ms + 60_000, "s")
    await host.settled()
    await block_replay(host)
    for number in range(30):
        await client.put("x" * 5_000, host.now_ms + HOUR_MS + number * 60_000)
    await host.kill()
    await start_with_room(host, 0)
    assert host.server.readiness.stage == Stage.DELIVERING
    await host.until(lambda: len(host.fake().stored) == 30, within_ms=90_000)
    assert host.server.replay_room.waiting
    host.disk.capacity_bytes = None
    await host.until(lambda: host.server.readiness.ready)
    await host.settled()
    assert len(set(host.fake().stored)) == 30
    host.check_balance(pending=31)


# -- before it comes to that


async def test_the_store_of_the_broker_does_not_take_the_room_that_accepted_messages_need(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(storage={"free_bytes_min": 1 << 15}))
    server = host.server
    for number in range(60):
        await client.put(f"{number} " + "x" * 5_000, host.now_ms + 5_000 + 10 * number)
    await host.settled()
    go_on = trio.Event()
    server.parts.replay.tier.step, server.parts.replay.tier.is_due = go_on.wait, True  # type: ignore[method-assign]
    server.parts.state.log_queue.arrived.ring()
    await host.sleep_ms(100)
    for _ in range(20):
        await client.put("y" * 5_000, host.now_ms + HOUR_MS)
    segments = len(host.disk.files("/data/broker/store/"))
    # Enough for another segment of the store, and not for what waits for its replay beside it.
    host.disk.capacity_bytes = host.disk.used_bytes + (1 << 18) + 50_000
    await host.sleep_ms(10_000)
    assert 0 < server.parts.broker.core.status()["delivered"] < 60
    assert len(host.disk.files("/data/broker/store/")) == segments
    server.parts.replay.tier.is_due = False
    go_on.set()
    await host.until(lambda: not server.parts.state.positions.lag_bytes)
    assert not server.replay_room.waiting
    host.disk.capacity_bytes = None
    await host.until(lambda: server.parts.broker.core.status()["delivered"] == 60, within_ms=60_000)
    await host.balanced(pending=20)


async def test_a_redelivery_is_refused_where_accepted_messages_need_the_room(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    server = host.server
    await client.put("x" * 50_000, host.now_ms)
    await host.until(lambda: server.parts.broker.core.status()["delivered"] == 1)
    (message,) = await client.pull()
    host.disk.capacity_bytes = host.disk.used_bytes + 80_000
    delivery = {"subject": "s", "group": "g", "count": 1, "deliveries": int(message["delivery"]).to_bytes(8, "little")}
    assert await client.refused("nack", delivery) == "disk_full"
    host.disk.capacity_bytes = None
    assert (await client.request("nack", delivery))["nacked"] == 1
    await host.until(lambda: server.parts.broker.core.status()["delivered"] == 2)


async def test_a_day_that_is_drained_keeps_its_room(boot: Boot) -> None:
    host, client = await boot.connected(coarse_settings())
    server = host.server
    due_ms = day_after_next(host)
    for _ in range(10):
        await client.put("x" * 5_000, due_ms + HOUR_MS)
    await host.settled()
    assert not server.parts.upkeep.kept_room.needed_bytes
    host.disk.capacity_bytes = host.disk.used_bytes + 20_000
    host.clock.step(due_ms - host.now_ms)
    await host.until(lambda: server.parts.upkeep.kept_room.needed_bytes > 50_000)
    host.disk.capacity_bytes = None
    await host.until(lambda: not server.parts.upkeep.kept_room.needed_bytes)
