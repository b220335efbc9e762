"""Opening a data directory as the last stop left it: clean, killed, without power, without checkpoint, in use."""

from __future__ import annotations

import errno

import pytest
import trio

from delayserver.state.positions.readiness import Stage
from store.disk.filesystem import write_atomically
from store.errors import CorruptionError, FormatError, LockedError, StoreError
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.record import HEADER_BYTES, decode_header
from store.records.segment import FILE_DISPATCH, FileHeader
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot, faked_settings, small_settings, texts, with_settings


async def test_every_incomplete_window_is_recovered_not_only_the_newest(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    start_ms = host.now_ms // 60_000 * 60_000
    for window in range(12):
        await client.put(str(window), start_ms + window * 60_000 + 30_000)
    await host.settled()
    await host.sleep_ms(35_000)
    await host.kill()
    host.clock.step(8 * 60_000)
    await host.start()
    await host.until(lambda: len(host.fake().stored) == 9, within_ms=1_000)
    assert host.server.parts.state.book.oldest_incomplete_ms is not None
    host.clock.step(4 * 60_000)
    await host.until(lambda: len(host.fake().stored) == 12, within_ms=1_000)
    assert sorted(host.fake().texts, key=int) == [str(window) for window in range(12)]
    await host.balanced(pending=0)


@pytest.mark.parametrize("how", ["kept", "lost", "damaged", "old"])
async def test_a_start_without_the_newest_checkpoint_gives_the_same_balance(boot: Boot, how: str) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 300
    await client.put("first", due_ms + 100)
    await host.sleep_ms(1_100)
    old = host.disk.content("/data/checkpoint")
    receipts = [
        (await client.put(str(i), due_ms + 1_000 + i * 10_000, message_id=f"id{i}"))["receipt"] for i in range(20)
    ]
    await client.put("copy", due_ms + 1_000, message_id="id0")
    await client.cancel(*receipts[15:])
    await host.sleep_ms(2_000)
    await host.kill()
    match how:
        case "lost":
            host.disk.remove("/data/checkpoint")
        case "damaged":
            host.disk.flip_bit("/data/checkpoint", 40)
        case "old":
            write_atomically(host.disk, "/data/checkpoint", old)
    await host.start()
    status = host.check_balance()
    assert (status["accepted"], status["cancelled"], status["deduplicated"]) == (22, 5, 1)
    assert bool(status["corruption"]) == (how == "damaged")
    await host.sleep_ms(160_000)
    await host.settled()
    assert len(host.fake().stored) == len(set(host.fake().stored)) == 16
    assert host.check_balance(pending=0)["delivered"] == 16


async def test_a_clean_stop_is_quick_says_so_and_a_kill_does_not(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    await (await host.client()).put("m", host.now_ms + 60_000)
    before = trio.current_time()
    await host.stop()
    assert trio.current_time() - before < 1
    await host.start()
    assert host.server.parts.opened.sequences.clean
    assert host.server.parts.opened.found.checkpoint.clean
    await host.restart_killed()
    assert not host.server.parts.opened.sequences.clean


@pytest.mark.parametrize("room_kept", [True, False])
async def test_a_stop_on_a_full_disk_ends_and_the_next_start_recovers(boot: Boot, room_kept: bool) -> None:
    disk = FakeDisk()
    host, client = await boot.connected(disk=disk)
    receipts = [(await client.put(f"m{number}", host.now_ms + 60_000 + number))["receipt"] for number in range(20)]
    await host.settled()
    if not room_kept:
        disk.remove("/data/checkpoint.tmp")
    disk.capacity_bytes = disk.used_bytes
    host.server.stop()
    await host.wait_down()
    assert host.died_of is None, host.died_of
    disk.kill()
    disk.capacity_bytes = None
    await host.start()
    assert host.server.parts.opened.sequences.clean == room_kept, "a clean end needs room to be written"
    assert await (await host.client()).lookup(*receipts) == ["pending"] * 20
    host.check_balance(pending=20)


async def test_a_stop_waits_for_attempts_in_flight_and_no_longer_than_its_bound(boot: Boot) -> None:
    for slow_ms, clean in ((500, True), (60_000, False)):
        host = await boot.started(
            faked_settings(shutdown_timeout_ms=3_000, dispatch={"deliver_timeout_ms": 60_000}), name=f"h{slow_ms}"
        )
        host.fake().delay_ms = slow_ms
        await (await host.client()).put("m", host.now_ms)
        await host.until(lambda host=host: bool(host.fake().attempts))  # type: ignore[misc]
        before = trio.current_time()
        await host.stop()
        assert trio.current_time() - before < 3.2
        host.fake().delay_ms = 0
        await host.start()
        assert host.server.parts.opened.sequences.clean == clean
        await host.sleep_ms(1_000)
        assert host.fake().texts == ["m"]


async def test_a_second_server_on_the_same_directory_is_refused(boot: Boot) -> None:
    host = await boot.started()
    other = await boot.started(disk=host.disk, name="other")
    assert isinstance(other.died_of, LockedError)
    await (await host.client()).put("m", host.now_ms)


async def test_requests_are_answered_only_after_recovery(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    receipt = (await client.put("m", host.now_ms + 60_000))["receipt"]
    await host.restart_killed()
    assert await (await host.client()).lookup(receipt) == ["pending"]
    host.server.readiness.stage = Stage.REPLAYING
    message = {"subject": "s", "body": "x", "due_ms": host.now_ms}
    assert await (await host.client()).refused("send", {"messages": [message]}) == "not_ready"


async def test_a_cancel_that_only_message_log_knows_counts_before_anything_is_loaded(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"checkpoint_interval_ms": 1 << 40}))
    receipts = [(await client.put(str(i), host.now_ms + 2_000))["receipt"] for i in range(6)]
    assert await client.cancel(*receipts[:3]) == ["cancelled"] * 3
    for seed in range(4):
        await host.restart_unpowered(seed)
    await host.sleep_ms(4_000)
    assert sorted(host.fake().texts) == ["3", "4", "5"]
    assert (await host.balanced(pending=0))["cancelled"] == 3


async def test_a_damaged_file_that_a_start_needs_is_refused_by_name(boot: Boot) -> None:
    for path in ("/data/identity", "/data/days", "/data/sequences"):
        host = await boot.started(name=path[6:])
        await host.stop()
        host.disk.flip_bit(path, 12)
        await host.start()
        assert isinstance(host.died_of, StoreError)
        assert path in str(host.died_of)


async def test_damage_in_message_log_behind_the_checkpoint_does_no_harm(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    receipts = [(await client.put(f"{i}" * 100, host.now_ms + 5_000))["receipt"] for i in range(5)]
    await host.stop()
    log = host.disk.files("/data/message_log")[0]
    host.disk.flip_bit(log, 64 + 200)
    await host.start()
    assert not isinstance(host.died_of, CorruptionError)
    await host.sleep_ms(6_000)
    assert set(await (await host.client()).lookup(*receipts)) == {"delivered"}
    host.check_balance(pending=0)


@pytest.mark.parametrize("delivered", [False, True])
@pytest.mark.parametrize("damage", ["record", "segment"])
async def test_messages_that_only_schedule_log_still_has_count_as_accepted(
    boot: Boot, damage: str, delivered: bool
) -> None:
    host = await boot.started(
        faked_settings(storage={"checkpoint_interval_ms": 3_600_000, "message_log_segment_bytes": 1 << 14})
    )
    server = await host.restart()
    client = await host.client()
    for number in range(6):
        await client.put(f"{number}" * 8_000, host.now_ms + (0 if delivered else 60_000))
        await host.settled()
    await host.sleep_ms(1_000)
    await host.settled()
    log = server.parts.files.log
    (_, _, path), *others = log.segments()
    assert others
    second = log.read(log.first, log.synced, 1 << 20)[1].start
    await host.kill()
    if damage == "record":
        host.disk.flip_bit(path, second + 100)
    else:
        host.disk.remove(path)
    client = await host.start_connected()
    host.check_balance(pending=0 if delivered else 6)
    await host.sleep_ms(61_000)
    assert (await host.balanced(pending=0))["accepted"] == 6
    await host.restart()
    assert host.check_balance(pending=0)["accepted"] == 6


@pytest.mark.parametrize("checkpoint", ["kept", "lost"])
async def test_a_damaged_record_does_not_keep_new_messages_with_ids_from_its_window(
    boot: Boot, checkpoint: str
) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms // 60_000 * 60_000 + 90_000
    for number in range(3):
        await client.put(str(number), due_ms, message_id=f"id{number}")
        await host.settled()
        await host.sleep_ms(2_000)  # a checkpoint, so that what lies before it is known to be durable
    await host.stop()
    (path,) = [path for path in host.disk.files("/data/schedule_log") if path.endswith(".direct.log")]
    position = decode_header(host.disk.content(path)[64 : 64 + HEADER_BYTES], 64).end
    host.disk.flip_bit(path, position + HEADER_BYTES + 20)
    if checkpoint == "lost":
        host.disk.remove("/data/checkpoint")
    await host.start()
    assert host.died_of is None
    client = await host.client()
    for number in range(4):
        await client.put(f"again {number}", due_ms, message_id=f"id{number}")
    await host.settled()
    await host.sleep_ms(120_000)
    # The copy of the damaged one is the only one that can be delivered, and so it is.
    assert sorted(host.fake().texts) == ["0", "2", "again 1", "again 3"]
    status = host.check_balance(pending=1 if checkpoint == "kept" else None)
    assert any(path in text for text in status["corruption"])


async def test_a_damaged_outcome_file_stops_no_start_and_brings_no_cancelled_message(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"checkpoint_interval_ms": 1 << 40}))
    due_ms = host.now_ms // 60_000 * 60_000 + 180_000
    first, second, _ = [(await client.put(text, due_ms + 5))["receipt"] for text in ("a", "b", "c")]
    assert await client.cancel(first) == ["cancelled"]
    await host.settled()
    assert await client.cancel(second) == ["cancelled"]
    await host.settled()
    await host.kill()
    (path,) = [path for path in host.disk.files("/data/dispatch_log") if not path.endswith("reserve")]
    host.disk.flip_bit(path, 64 + HEADER_BYTES + 20)
    await host.start()  # it met both cancels in message_log again, and cannot read which of them were recorded
    assert host.died_of is None, host.died_of
    client = await host.client()
    assert any(path in text for text in (await client.status())["corruption"])
    await host.sleep_ms(240_000)
    assert "a" not in host.fake().texts and "b" not in host.fake().texts
    assert "receipt" in await client.put("later", host.now_ms + 1_000)


async def test_swapped_window_files_are_reported_and_hold_back_their_windows_only(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"checkpoint_interval_ms": 1_000}))
    start_ms = host.now_ms // 60_000 * 60_000 + 60_000
    receipts = [(await client.put(f"m{i}", start_ms + i * 60_000))["receipt"] for i in range(4)]
    await host.settled()
    await host.stop()
    one, other, *_ = [path for path in host.disk.files("/data/schedule_log") if path.endswith(".direct.log")]
    for source, target in ((one, one + ".tmp"), (other, one), (one + ".tmp", other)):
        host.disk.replace(source, target)
    client = await host.start_connected()
    await client.put("fresh", start_ms + 10)
    await host.sleep_ms(300_000)
    assert sorted(host.fake().texts) == ["fresh", "m2", "m3"]
    status = host.check_balance(pending=2)
    for path in (one, other):
        assert any(path in text and "window starts at" in text for text in status["corruption"])
    assert await client.lookup(*receipts[2:]) == ["delivered"] * 2
    await host.restart()
    assert any(one + ".misplaced" in text for text in host.status()["corruption"])


async def test_no_outcome_is_guessed_where_the_file_of_outcomes_bears_the_wrong_name(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    start_ms = host.now_ms // 60_000 * 60_000 + 60_000
    cancelled = (await client.put("cancelled", start_ms + 60_000))["receipt"]
    pending = (await client.put("pending", start_ms + 60_000))["receipt"]
    await client.put("other", start_ms + 120_000)
    assert await client.cancel(cancelled) == ["cancelled"]
    await host.settled()
    await host.stop()
    (path,) = [path for path in host.disk.files("/data/dispatch_log") if path.endswith(".log")]
    host.disk.overwrite(path, 0, FileHeader(FILE_DISPATCH, host.server.parts.opened.directory.server_id, 0).encode())
    client = await host.start_connected()
    await host.sleep_ms(300_000)
    assert host.fake().texts == ["other"]
    assert await client.cancel(pending) == ["too_late"]
    assert await client.lookup(pending) == ["pending"]
    assert any(path in text for text in host.status()["corruption"])


async def test_delivered_without_a_record_of_it_the_broker_is_asked_and_the_consumer_sees_it_once(boot: Boot) -> None:
    for seed in range(6):
        host, client = await boot.connected(small_settings(), name=f"host{seed}")
        for number in range(20):
            await client.put(str(number), host.now_ms + 100 + number * 3)
        await host.sleep_ms(102 + seed * 9)
        await host.restart_unpowered(seed)
        await host.sleep_ms(2_000)
        await host.settled()
        got = texts(await (await host.client()).pull())
        assert sorted(got, key=int) == [str(number) for number in range(20)], seed
        host.check_balance(pending=0)


@pytest.mark.parametrize("idle_ms", [0, 200_000])
@pytest.mark.parametrize("back_ms", [10_000, 3_600_000])
async def test_a_clock_that_goes_back_by_any_amount_before_a_crash_does_not_hide_attempts(
    boot: Boot, idle_ms: int, back_ms: int
) -> None:
    host = await boot.started(small_settings(storage={"checkpoint_interval_ms": 1 << 30}))
    await host.sleep_ms(idle_ms)
    receipt = (await (await host.client()).put("m", host.now_ms + 200))["receipt"]
    (message,) = await (await host.client()).pull(group="before", wait_ms=1_000)
    # Here, and nothing says yet that it was delivered.
    host.clock.step(-back_ms)
    await host.restart_killed()
    client = await host.client()
    assert host.now_ms < message["due_ms"], "it lies ahead again"
    assert await client.cancel(receipt) == ["too_late"]
    host.clock.step(back_ms)
    await host.sleep_ms(2_000)
    assert texts(await client.pull(group="after")) == ["m"]
    host.check_balance(pending=0)


async def test_a_missing_broker_is_reported_and_a_new_directory_is_no_loss(boot: Boot) -> None:
    host = await boot.started()
    assert not host.status()["corruption"]
    await (await host.client()).put("m", host.now_ms)
    await host.sleep_ms(1_000)
    await host.restart()
    assert not host.status()["corruption"]
    await host.stop()
    for path in host.disk.files("/data/broker"):
        host.disk.remove(path)
    for folder in ("store", "queue"):
        host.disk.remove_directory(f"/data/broker/{folder}")
    await host.start()
    (text,) = host.status()["corruption"]
    assert "/data/broker" in text and "redispatch" in text


async def test_schedule_files_are_found_by_name_in_utc(boot: Boot) -> None:
    host = await boot.started()
    await (await host.client()).put("m", 1_772_366_400_000)
    await host.settled()
    path = host.server.parts.files.schedule.path(ScheduleKey(1_772_366_400_000, ScheduleSource.DIRECT))
    assert "2026-03-01" in path or "20260301" in path


@pytest.mark.parametrize("left", ["everything", "no checkpoint", "no files of windows"])
async def test_windows_of_another_length_are_refused_by_name(boot: Boot, left: str) -> None:
    host = await boot.started(faked_settings())
    await (await host.client()).put("m", host.now_ms + 30_000)
    await host.settled()
    await host.stop()
    if left == "no checkpoint":
        host.disk.remove("/data/checkpoint")
    elif left == "no files of windows":
        host.disk.remove_directory("/data/schedule_log")
    host.settings = with_settings(host.settings, storage={"window_ms": 10_000})
    await host.start()
    refusal: object = host.died_of
    assert isinstance(refusal, FormatError)
    assert "its windows are 60000 ms long, and storage.window_ms is 10000 ms" in str(refusal)
    await host.kill()
    host.settings = with_settings(host.settings, storage={"window_ms": 60_000})
    await host.start()
    assert host.died_of is None, host.died_of
    if left != "no files of windows":
        await host.until(lambda: host.fake().texts == ["m"], within_ms=40_000)


@pytest.mark.parametrize("part", ["/broker/store/", "/message_log/"])
async def test_a_disk_that_reads_nothing_for_a_moment_at_a_start_loses_no_message(boot: Boot, part: str) -> None:
    host, client = await boot.connected(
        small_settings(storage={"message_log_segment_bytes": 1 << 16}, broker={"segment_bytes": 1 << 14})
    )
    for number in range(10):
        await client.put(f"{number}" + "x" * 9_000, host.now_ms + 2_000)
    if part == "/broker/store/":
        await host.sleep_ms(3_000)
        await host.settled()
    await host.lose_power()
    until_ms = host.now_ms + 500
    host.disk.refuse = lambda operation, path: (
        errno.EIO if operation == "pread" and part in path and host.now_ms < until_ms else 0
    )
    await host.start()
    assert host.died_of is None
    await host.sleep_ms(5_000)
    got = [message["body"][:1].decode() for message in await (await host.client()).pull()]
    assert sorted(got) == list("0123456789")
    host.check_balance(pending=0)


async def test_a_start_cuts_off_no_message_whose_header_the_disk_cannot_read_for_a_moment(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(storage={"checkpoint_interval_ms": 1 << 40}))
    for body in ("0", "1", "2"):
        start = host.server.parts.state.positions.durable.value
        await client.put(body + "x" * 9_000, host.now_ms + 2_000)
    base, segment = host.server.parts.files.log.locate(start)
    await host.kill()
    host.disk.unreadable[segment.path] = [(start - base, start - base + 8)]
    host.begin()
    await host.sleep_ms(500)
    host.disk.unreadable.clear()
    await host.until(lambda: host.server.readiness.ready)
    await host.sleep_ms(5_000)
    got = [message["body"][:1].decode() for message in await (await host.client()).pull()]
    assert sorted(got) == ["0", "1", "2"]
    host.check_balance(pending=0)


@pytest.mark.parametrize("part", ["/schedule_log/", "/dispatch_log/", "/ledger.log", "/checkpoint"])
async def test_files_that_the_disk_cannot_read_for_a_moment_at_a_start_are_counted_whole(boot: Boot, part: str) -> None:
    host, client = await boot.connected(
        faked_settings(storage={"checkpoint_interval_ms": 1 << 40, "retention_ms": 60_000})
    )
    for number in range(4):
        await client.put(f"gone {number}", host.now_ms + 1_000)
    await host.sleep_ms(3_000)
    host.clock.step(300_000)
    await host.until(lambda: len(host.server.parts.files.ledger) == 1, within_ms=20_000)
    due_ms = (host.now_ms // 60_000 + 1) * 60_000
    for number in range(4):
        receipt = (await client.put(f"{number}" + "x" * 5_000, due_ms + number * 20_000))["receipt"]
        await host.settled()
    await client.cancel(receipt)
    host.clock.step(due_ms - host.now_ms)
    await host.until(lambda: host.fake().texts[-1].startswith("0"))
    await host.settled()
    await host.kill()
    until_ms = host.now_ms + 500
    host.disk.refuse = lambda operation, path: (
        errno.EIO if operation == "pread" and part in path and host.now_ms < until_ms else 0
    )
    await host.start()
    assert host.died_of is None
    assert host.check_balance(pending=2)["accepted"] == 8
    await host.sleep_ms(70_000)
    assert [text[:6] for text in host.fake().texts].count("gone 0") == 1
    assert sorted(text[0] for text in host.fake().texts if text[0] != "g") == ["0", "1", "2"]
    assert host.check_balance(pending=0)["cancelled"] == 1


@pytest.mark.parametrize("hidden", ["header", "body"])
async def test_a_message_comes_once_whose_record_in_its_window_the_disk_reads_again_after_a_start(
    boot: Boot, hidden: str
) -> None:
    host, client = await boot.connected(faked_settings(storage={"checkpoint_interval_ms": 1 << 40}))
    due_ms = host.now_ms + 1_800_000
    for number in range(3):
        await client.put(f"{number}" + "x" * 5_000, due_ms + number)
        await host.settled()
    (path,) = host.disk.files("/data/schedule_log/2")
    size = host.disk.size(path)
    await host.kill()
    start = size - (size - 64) // 3
    place = start if hidden == "header" else start + 2_000
    host.disk.unreadable[path] = [(place, place + 8)]
    await host.start()
    assert host.died_of is None
    await host.sleep_ms(5_000)
    host.disk.unreadable.clear()
    host.clock.step(due_ms - 5_000 - host.now_ms)
    await host.sleep_ms(60_000)
    assert sorted(text[0] for text in host.fake().texts) == ["0", "1", "2"]
    host.check_balance(pending=0)
