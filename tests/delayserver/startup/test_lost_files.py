"""Files of windows that are missing or cut: their content is not guessed, and everything else is served (rules 4, 11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from store.records.record import HEADER_BYTES, decode_header
from store.records.segment import FILE_HEADER_BYTES
from tests.delayserver.replay.test_day_tier import DAY_MS, HOUR_MS, coarse_settings
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot, Client, Host, faked_settings

# Where a file is cut: behind how many bytes, given its content; None: it is removed.
Cut = Callable[[bytes], int | None]


def records(content: bytes) -> list[int]:
    """Offsets of the records of a file, and its end."""
    offsets = [FILE_HEADER_BYTES]
    while offsets[-1] < len(content):
        offsets.append(decode_header(content[offsets[-1] :][:HEADER_BYTES], offsets[-1]).end)
    return offsets


CUTS: dict[str, Cut] = {
    "missing": lambda _content: None,
    "cut to nothing": lambda _content: 0,
    "cut within the header": lambda _content: 40,
    "cut to the header": lambda _content: FILE_HEADER_BYTES,
    "cut to half": lambda content: len(content) // 2,
    "cut before the last record": lambda content: records(content)[-2],
    "cut behind the first record": lambda content: records(content)[1],
    "cut by a byte": lambda content: len(content) - 1,
}


def cut(disk: FakeDisk, path: str, where: str) -> None:
    """Damage a file of a server that is down."""
    length = CUTS[where](disk.content(path))
    if length is None:
        disk.remove(path)
    else:
        disk.open(path).truncate(length)
        disk.open(path).datasync()


def only_file(host: Host, folder: str, suffix: str = ".log") -> str:
    """The path of the only file there."""
    (path,) = [path for path in host.disk.files(f"/data/{folder}") if path.endswith(suffix)]
    return path


@dataclass
class Sent:
    """Messages of one minute, with their receipts, and one of another minute."""

    cancelled: list[str]
    delivered: list[str]
    pending: str


async def a_minute_of_all_kinds(host: Host, client: Client, *, last: str) -> Sent:
    """Two cancelled, two delivered and one pending message of one minute, each outcome in a record of its own, the `last`
    kind at the end; and one message of the minute behind it."""
    host.clock.step(60_000 - host.now_ms % 60_000)
    start_ms = host.now_ms
    pending = (await client.put("pending", start_ms + 50_000))["receipt"]
    cancelled = [(await client.put(f"cancelled {i}", start_ms + 51_000 + i))["receipt"] for i in range(2)]
    delivered = [(await client.put(f"delivered {i}", start_ms + 100 + i * 1_000))["receipt"] for i in range(2)]
    await client.put("other", start_ms + 70_000)
    await host.settled()
    if last == "delivered":
        assert await client.cancel(cancelled[0]) == ["cancelled"]
        await host.settled()
        assert await client.cancel(cancelled[1]) == ["cancelled"]
        await host.settled()
    await host.until(lambda: len(host.fake().texts) == 2)
    await host.settled()
    if last == "cancelled":
        assert await client.cancel(cancelled[0]) == ["cancelled"]
        await host.settled()
        assert await client.cancel(cancelled[1]) == ["cancelled"]
        await host.settled()
    return Sent(cancelled, delivered, pending)


@pytest.mark.parametrize("last", ["delivered", "cancelled"])
@pytest.mark.parametrize("where", CUTS)
async def test_lookup_says_cancelled_in_a_minute_that_is_held_back_for_lost_outcomes(
    boot: Boot, where: str, last: str
) -> None:
    host = await boot.started(faked_settings())
    sent = await a_minute_of_all_kinds(host, await host.client(), last=last)
    await host.stop()
    path = only_file(host, "dispatch_log")
    content = host.disk.content(path)
    cut(host.disk, path, where)
    # What is at the end can be lost alone: cancels are in message_log, and then nothing is held back.
    left = CUTS[where](content) or 0
    restored = last == "cancelled" and left >= records(content)[2]
    for life in range(3):
        await host.start()
        assert host.died_of is None, host.died_of
        client = await host.client()
        assert await client.lookup(*sent.cancelled) == ["cancelled"] * 2, f"life {life}"
        assert await client.cancel(*sent.cancelled) == ["already_cancelled"] * 2
        if not restored:
            assert await client.cancel(sent.pending) == ["too_late"]
            assert any(path in text for text in (await client.status())["corruption"])
        told = await client.lookup(*sent.delivered, sent.pending)
        assert set(told) <= {"delivered", "pending"}
        await host.sleep_ms(100_000)
        await host.server.parts.upkeep.checkpointing.write()
        expected = ["delivered 0", "delivered 1", "other"] + ["pending"] * restored
        assert sorted(host.fake().texts) == expected, f"life {life}"
        host.check_balance()
        await (host.stop if life else host.kill)()


async def test_a_file_of_outcomes_that_is_cut_twice_holds_back_all_that_it_lost(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    sent = await a_minute_of_all_kinds(host, await host.client(), last="cancelled")
    await host.stop()
    path = only_file(host, "dispatch_log")
    for where in ("cut before the last record", "cut to the header", "cut to nothing", "missing"):
        if path in host.disk.files(path):
            cut(host.disk, path, where)
        await host.start()
        assert host.died_of is None, host.died_of
        client = await host.client()
        assert await client.lookup(*sent.cancelled) == ["cancelled"] * 2
        if where == "cut to the header":
            assert await client.cancel(sent.pending) == ["too_late"]
        await host.server.parts.upkeep.checkpointing.write()
        await host.stop()
    await host.start()
    await host.sleep_ms(200_000)
    assert sorted(host.fake().texts) == ["delivered 0", "delivered 1", "other"]


@pytest.mark.parametrize("dies_after", range(1, 60, 3))
async def test_a_crash_at_any_step_of_the_start_that_finds_a_loss_forgets_nothing(boot: Boot, dies_after: int) -> None:
    host = await boot.started(faked_settings())
    sent = await a_minute_of_all_kinds(host, await host.client(), last="cancelled")
    await host.stop()
    cut(host.disk, only_file(host, "dispatch_log"), "cut behind the first record")
    host.disk.crash_after(dies_after)
    await host.start()
    await host.restart_unpowered(dies_after)
    assert host.died_of is None, host.died_of
    client = await host.client()
    assert await client.lookup(*sent.cancelled) == ["cancelled"] * 2
    await host.sleep_ms(200_000)
    assert set(host.fake().texts) <= {"delivered 0", "delivered 1", "other"}
    assert host.fake().texts.count("delivered 0") == host.fake().texts.count("delivered 1") == 1
    host.check_balance()


async def put_far(host: Host, client: Client) -> list[str]:
    """Two cancelled messages and a pending one of a coarse day, and one of the next day."""
    start_ms = (host.now_ms // DAY_MS + 2) * DAY_MS
    receipts: list[str] = []
    for name in ("cancelled 0", "cancelled 1", "pending"):
        receipts.append((await client.put(name, start_ms + HOUR_MS + len(receipts)))["receipt"])
        await host.settled()
    await client.put("other", start_ms + DAY_MS + HOUR_MS)
    for receipt in receipts[:2]:
        assert await client.cancel(receipt) == ["cancelled"]
        await host.settled()
    return receipts


@pytest.mark.parametrize("message_log", ["is kept", "is retired"])
@pytest.mark.parametrize("where", CUTS)
async def test_a_day_whose_outcomes_are_lost_delivers_no_cancelled_message(
    boot: Boot, where: str, message_log: str
) -> None:
    retention: dict[str, object] = {
        "message_log_segment_bytes": 65_536,
        "message_log_retention_ms": 0,
        "checkpoint_interval_ms": 1_000,
    }
    host, client = await boot.connected(coarse_settings(storage=retention if message_log == "is retired" else {}))
    receipts = await put_far(host, client)
    if message_log == "is retired":
        for _ in range(2):
            await client.put("x" * 70_000, host.now_ms, subject="filler")
        await host.until(lambda: host.server.parts.files.log.first > FILE_HEADER_BYTES, within_ms=20_000)
    await host.stop()
    path = only_file(host, "dispatch_log", "day.log")
    content = host.disk.content(path)
    left = CUTS[where](content) or 0
    cut(host.disk, path, where)
    known = sum([left >= end for end in records(content)[1:]]) if message_log == "is retired" else 2
    await host.start()
    for life in range(2):
        assert host.died_of is None, host.died_of
        client = await host.client()
        told = await client.lookup(*receipts)
        assert told == ["cancelled"] * known + ["pending"] * (3 - known), f"life {life}"
        if known < 2:
            assert await client.cancel(receipts[2]) == ["too_late"]
        await host.server.parts.upkeep.checkpointing.write()
        await host.restart()
    host.clock.step(3 * DAY_MS + 2 * HOUR_MS - host.now_ms % DAY_MS)
    await host.sleep_ms(120_000)
    await host.restart_killed()
    await host.sleep_ms(120_000)
    texts = [text for text in host.fake().texts if not text.startswith("x")]
    assert sorted(texts) == ["other"] + ["pending"] * (known == 2)
    host.check_balance()


@pytest.mark.parametrize("day", ["a minute", "a coarse day"])
@pytest.mark.parametrize("where", CUTS)
async def test_messages_whose_file_is_lost_are_known_to_lookup_and_cancel(boot: Boot, where: str, day: str) -> None:
    host, client = await boot.connected(coarse_settings())
    due_ms = (host.now_ms // 60_000 + 3) * 60_000 if day == "a minute" else (host.now_ms // DAY_MS + 2) * DAY_MS
    receipts = []
    for number in range(4):
        receipts.append((await client.put(f"m{number}", due_ms + number, message_id=f"id{number}"))["receipt"])
        await host.settled()
    assert await client.cancel(receipts[0]) == ["cancelled"]
    await client.put("other", due_ms + 60_000 + DAY_MS * (day != "a minute"))
    await host.settled()
    await host.stop()
    path = sorted(path for path in host.disk.files("/data/schedule_log") if path.endswith(".log"))[0]
    content = host.disk.content(path)
    left = CUTS[where](content) or 0
    kept = sum([left >= end for end in records(content)[1:]])
    cut(host.disk, path, where)
    for life in range(3):
        await host.start()
        assert host.died_of is None, host.died_of
        client = await host.client()
        expected = (["cancelled"] + ["pending"] * 3)[:kept] + ["message_damaged"] * (4 - kept)
        assert await client.lookup(*receipts) == expected, f"life {life}"
        ids = [{"subject": "s", "message_id": f"id{number}", "due_ms": due_ms + number} for number in range(4)]
        found = (await client.request("lookup", {"messages": ids}))["results"]
        # What is lost may have been a message that a reschedule put in the place of the cancelled one.
        assert [result.get("outcome") or result["error"] for result in found] == ["message_damaged", *expected[1:]]
        assert await client.cancel(*receipts[kept:]) == ["too_late"] * (4 - kept)
        assert await client.lookup(receipts[0][:-4] + "0fff") == ["unknown"], "never accepted"
        assert any(path in text for text in (await client.status())["corruption"])
        fresh = (await client.put(f"fresh {life}", due_ms + 10 + life))["receipt"]
        assert await client.lookup(fresh) == ["pending"]
        await host.settled()
        await host.server.parts.upkeep.checkpointing.write()
        await (host.stop if life else host.kill)()
    await host.start()
    host.clock.step(due_ms + (2 * DAY_MS if day != "a minute" else 0) - host.now_ms)
    await host.sleep_ms(120_000)
    expected = [f"fresh {life}" for life in range(3)] + [f"m{i}" for i in range(1, kept)] + ["other"]
    assert sorted(host.fake().texts) == sorted(expected)
    host.check_balance()


async def test_a_schedule_file_that_is_put_back_is_served_whole(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = (host.now_ms // 60_000 + 3) * 60_000
    receipts = [(await client.put(f"m{number}", due_ms + number))["receipt"] for number in range(3)]
    await host.settled()
    await host.stop()
    path = only_file(host, "schedule_log")
    content = host.disk.content(path)
    cut(host.disk, path, "missing")
    await host.start()
    assert await (await host.client()).lookup(*receipts) == ["message_damaged"] * 3
    await host.server.parts.upkeep.checkpointing.write()
    await host.stop()
    host.disk.open(path, create=True).pwrite(0, [content])
    host.disk.open(path).datasync()
    client = await host.start_connected()
    assert await client.lookup(*receipts) == ["pending"] * 3
    assert (await client.status())["corruption"] == []
    await host.sleep_ms(300_000)
    assert host.fake().texts == ["m0", "m1", "m2"]


@pytest.mark.parametrize("log", ["schedule_log", "dispatch_log"])
async def test_messages_whose_file_bears_the_wrong_name_are_known_to_lookup_and_cancel(boot: Boot, log: str) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = (host.now_ms // 60_000 + 3) * 60_000
    receipts = [(await client.put(f"m{number}", due_ms + number * 60_000))["receipt"] for number in range(2)]
    extra = [(await client.put(f"c{number}", due_ms + number * 60_000))["receipt"] for number in range(2)]
    extra.append((await client.put("c2", due_ms))["receipt"])  # files of one size are not opened by the start
    assert await client.cancel(*extra) == ["cancelled"] * 3
    await host.settled()
    await host.stop()
    one, other = [path for path in host.disk.files(f"/data/{log}") if path.endswith(".log")]
    for source, target in ((one, one + ".tmp"), (other, one), (one + ".tmp", other)):
        host.disk.replace(source, target)
    client = await host.start_connected()
    expected = "message_damaged" if log == "schedule_log" else "pending"
    assert await client.lookup(*receipts) == [expected] * 2
    assert await client.cancel(*receipts) == ["too_late"] * 2
    await host.sleep_ms(400_000)
    assert host.fake().texts == []


@pytest.mark.parametrize("log", ["schedule_log", "dispatch_log"])
@pytest.mark.parametrize("where", ["missing", "cut to the header"])
async def test_a_redispatch_names_the_lost_file_and_counts_its_hidden_messages(
    boot: Boot, log: str, where: str
) -> None:
    host = await boot.started(faked_settings())
    sent = await a_minute_of_all_kinds(host, await host.client(), last="cancelled")
    await host.stop()
    path = sorted(path for path in host.disk.files(f"/data/{log}") if path.endswith(".log"))[0]
    cut(host.disk, path, where)
    await host.start()
    start_ms = int(sent.pending.split("-")[1], 16) // 60_000 * 60_000
    asked = {"from_ms": start_ms, "to_ms": start_ms + 60_000, "dry_run": True}
    reply = await (await host.client()).request("redispatch", asked)
    assert reply["messages"] == 0
    assert [damage["file"] for damage in reply["damages"]] == [path]
    assert reply["unreadable"] >= 2
