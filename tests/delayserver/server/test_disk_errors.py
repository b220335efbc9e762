"""A disk that refuses an operation: the error has a name and a line that says what to do, and parts that can wait do so."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import pytest

from delayserver.protocol.errors import DiskFull, StorageFailed
from delayserver.runtime.damage import LINES_A_MINUTE, UNREADABLE_MAX, DamageReport
from store.errors import CorruptionError, DiskError, UnreadableError
from store.logs.due_windows import day_name, day_of
from tests.delayserver.replay.test_day_tier import coarse_settings
from tests.delayserver.server.test_rare_interleavings import day_after_next
from tests.fakes.host import Boot, Host, faked_settings, small_settings


def refusing(operation: str, part: str, code: int, times: int = 1 << 30) -> Callable[[str, str], int]:
    """Refuses the first `times` calls of this name on paths that hold `part`."""
    left = [times]

    def refuse(asked: str, path: str) -> int:
        if asked != operation or part not in path or not left[0]:
            return 0
        left[0] -= 1
        return code

    return refuse


async def delivered_and_closed(host: Host) -> str:
    """The receipt of a delivered message of a server that was started again, with no file of a window open."""
    await host.start()
    receipt = (await (await host.client()).put("m", host.now_ms))["receipt"]
    await host.until(lambda: host.fake().texts == ["m"])
    await host.settled()
    await host.stop()
    await host.sleep_ms(3_600_000)  # no load needs the window of the message any more
    await host.start()
    return str(receipt)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES], ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", ["cancel", "lookup"])
@pytest.mark.parametrize("folder", ["dispatch_log", "schedule_log"])
async def test_a_file_that_cannot_be_opened_is_storage_failed_and_neither_a_bug_nor_corruption(
    boot: Boot, caplog: pytest.LogCaptureFixture, operation: str, folder: str, code: int
) -> None:
    host = boot(faked_settings())
    receipt = await delivered_and_closed(host)
    client = await host.client()
    host.disk.refuse = refusing("open", folder, code)
    assert await client.refused(operation, {"receipts": [receipt]}) == "storage_failed"
    assert "Traceback" not in caplog.text and "bug" not in caplog.text and "corrupt" not in caplog.text
    assert "disk error: " in caplog.text and "cannot open" in caplog.text
    status = host.check_balance()
    assert status["corruption"] == [] and status["storage"]["disk_errors"] >= 1
    assert folder in status["storage"]["disk_error_last"]
    host.disk.refuse = None
    answer = {"cancel": "delivered", "lookup": "delivered"}[operation]
    assert (await client.request(operation, {"receipts": [receipt]}))["results"][0]["outcome"] == answer


@pytest.mark.parametrize("operation", ["open", "pread"])
async def test_a_schedule_file_that_the_disk_refuses_holds_back_its_own_rows_until_it_can_be_read(
    boot: Boot, operation: str
) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms // 60_000 * 60_000 + 600_000
    await client.put("held", due_ms)
    await client.put("other", due_ms + 60_000)
    await host.settled()
    path = host.server.parts.files.schedule.path(min(host.server.parts.files.schedule.keys()))
    await host.restart()
    host.disk.refuse = refusing(operation, path, errno.EIO)
    await host.sleep_ms(due_ms + 61_000 - host.now_ms)
    assert host.fake().texts == ["other"] and host.died_of is None
    host.disk.refuse = None
    if operation == "pread":  # what stands around was loaded; the rest is read with the next start
        await host.restart_killed()
    await host.until(lambda: host.fake().texts == ["other", "held"], within_ms=10_000)
    assert host.check_balance(pending=0)["corruption"] == []


async def test_free_space_that_cannot_be_read_ends_nothing(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    host.disk.refuse = refusing("free_bytes", "", errno.EIO)
    await host.sleep_ms(2_000)
    await (await host.client()).put("m", host.now_ms)
    await host.until(lambda: host.fake().texts == ["m"])


async def test_a_disk_that_refuses_everything_gets_a_few_lines_a_minute(
    boot: Boot, caplog: pytest.LogCaptureFixture
) -> None:
    host = boot(faked_settings())
    report = DamageReport(host.clock)
    with caplog.at_level(logging.ERROR):
        for number in range(500):
            report.report(DiskError(f"/data/{number % 100}", "open", errno.EIO, "Input/output error"))
            report.check_invariants()
        assert len(caplog.records) == LINES_A_MINUTE
        await host.sleep_ms(60_000)
        report.report(DiskError("/data/x", "open", errno.EIO, "Input/output error"))
    assert len(caplog.records) == LINES_A_MINUTE + 1
    assert f"({500 - LINES_A_MINUTE} more disk errors were not logged)" in caplog.records[-1].getMessage()
    assert report.refused == 501 and report.corruption == []


async def test_a_damage_report_lists_an_unreadable_file_once_and_not_as_corruption(boot: Boot) -> None:
    report = DamageReport(boot(faked_settings()).clock)
    for number in range(3 * UNREADABLE_MAX):
        report.report(UnreadableError(f"/data/{number // 2}", number, "8 bytes cannot be read", errno.EIO))
        report.check_invariants()
    assert len(report.unreadable) == UNREADABLE_MAX and report.unreadable[0].startswith(
        "/data/0: unreadable at offset 0"
    )
    assert report.corruption == []
    for _ in range(2):
        report.report(CorruptionError("/data/c", 8, "checksum"))
    assert report.corruption == ["/data/c: corrupt at offset 8: checksum"]


@pytest.mark.parametrize("step", ["seal", "read", "finish"])
async def test_a_day_whose_files_the_disk_refuses_to_give_waits_and_others_are_served(boot: Boot, step: str) -> None:
    host, client = await boot.connected(coarse_settings())
    due_ms = day_after_next(host) + 3_600_000
    await client.put("kept", due_ms)
    cancelled = (await client.put("cancelled", due_ms))["receipt"]
    assert await client.cancel(cancelled) == ["cancelled"]
    await host.settled()
    await host.restart()
    client = await host.client()
    day, begun, refused = day_name(day_of(due_ms)), [], []

    def refuse(operation: str, path: str) -> int:
        if operation == "pread" and path.endswith(f"schedule_log/{day}/day.log"):
            begun.append(path)
        if step == "read":
            mine = operation == "open" and path.endswith(f"schedule_log/{day}/day.log")
        else:  # the outcomes of a day are read when it is sealed, and again when its messages are in their minutes
            mine = operation == "pread" and f"dispatch_log/{day}/day" in path and (step == "seal" or bool(begun))
        if not mine:
            return 0
        refused.append(path)
        return errno.ENOMEM

    host.disk.refuse = refuse
    host.clock.step(due_ms - 3_600_000 * 2 - host.now_ms)
    await host.sleep_ms(5_000)
    assert host.died_of is None and len(refused) > 3
    await client.put("other", host.now_ms)
    await host.until(lambda: host.fake().texts == ["other"])
    host.disk.refuse = None
    await host.sleep_ms(3_000)
    host.clock.step(due_ms - host.now_ms)
    await host.until(lambda: host.fake().texts == ["other", "kept"])
    assert await client.lookup(cancelled) == ["cancelled"]
    assert (await host.balanced(pending=0))["corruption"] == []


@pytest.mark.parametrize("refusals", [0, 2])
async def test_a_day_whose_outcomes_the_disk_refused_first_is_held_back_if_they_are_damaged(
    boot: Boot, refusals: int
) -> None:
    host, client = await boot.connected(coarse_settings())
    due_ms = day_after_next(host) + 3_600_000
    await client.put("pending", due_ms)
    cancelled = (await client.put("cancelled", due_ms))["receipt"]
    assert await client.cancel(cancelled) == ["cancelled"]
    await host.settled()
    await host.stop()
    (path,) = host.disk.files("/data/dispatch_log")
    host.disk.flip_bit(path, host.disk.size(path) - 16)
    server = await host.start()
    host.disk.refuse = refusing("open", path, errno.EMFILE, refusals)
    host.clock.step(due_ms - 3_600_000 - host.now_ms)
    await host.sleep_ms(3_000)
    host.clock.step(due_ms - host.now_ms)
    await host.sleep_ms(60_000)
    assert server.damage.refused == refusals and any(path in text for text in server.damage.corruption)
    assert host.fake().texts == [], "one of the two was answered `cancelled`"
    assert await (await host.client()).cancel(cancelled) == ["too_late"]


@pytest.mark.parametrize("refusals", [4, 5, 6])
async def test_a_message_that_a_lookup_could_not_read_for_a_moment_is_found_and_cancelled_later(
    boot: Boot, refusals: int
) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 3_600_000
    receipts = []
    for body in ("first", "second"):
        receipts.append((await client.put(body, due_ms))["receipt"])
        await host.settled()
    await host.restart()
    client = await host.client()
    (path,) = host.disk.files("/data/schedule_log")
    host.disk.refuse = refusing("pread", path, errno.EIO, refusals)
    await client.lookup(receipts[0])
    host.disk.refuse = None
    assert await client.lookup(*receipts) == ["pending"] * 2
    assert await client.cancel(receipts[0]) == ["cancelled"]
    await host.balanced(pending=1)


async def test_a_message_that_the_broker_has_is_not_stored_again_where_the_disk_cannot_read_it_for_a_moment(
    boot: Boot,
) -> None:
    host, client = await boot.connected(small_settings())
    host.disk.refuse = refusing("pwrite", "/dispatch_log/", errno.ENOSPC)
    await client.put("m", host.now_ms + 500)
    while not await client.pull(wait_ms=10):
        pass
    await host.server.parts.broker.local_broker.commit.durable()
    await host.kill()
    assert host.disk.files("/data/dispatch_log") == [], "its outcome is not written"
    left = [errno.EIO] * 3

    def begin(_server: object) -> None:
        host.disk.refuse = lambda operation, path: (
            left.pop() if left and operation == "pread" and "/broker/store/" in path else 0
        )

    host.before_run = begin
    await host.start()
    await host.sleep_ms(10_000)
    assert host.died_of is None and not left
    assert host.server.parts.broker.core.status()["delivered"] == 0, "the node had it already"
    assert len(await (await host.client()).pull()) == 1
    host.check_balance(pending=0)


@pytest.mark.parametrize("folder", ["", "schedule_log", "dispatch_log", "message_log", "broker", "checkpoint"])
async def test_a_process_without_descriptors_goes_on_when_it_has_some_again(boot: Boot, folder: str) -> None:
    settings = small_settings(
        storage={"open_files_max": 24, "message_log_segment_bytes": 1 << 16, "warm_ahead_bytes": 0},
        broker={"segment_bytes": 1 << 16},
    )
    host, client = await boot.connected(settings)
    server = host.server
    now, accepted = host.now_ms, 0
    await client.put("before", now + 60_000)
    for turn in range(6):
        host.disk.refuse = refusing("open", folder, errno.EMFILE)
        dues = [now + 60_000 * (1 + n % 40) for n in range(40)] + [host.now_ms] * 20
        asked = await client.ask(
            "send", {"messages": [{"subject": f"s.{turn}", "body": "x" * 1_000, "due_ms": due} for due in dues]}
        )
        await host.sleep_ms(2_000)
        host.disk.refuse = None
        try:
            accepted += sum("receipt" in row for row in (await client.reply(asked))["results"])
        except (DiskFull, StorageFailed) as error:
            assert "too many open files" in str(error) and error.retry_after_ms
        await host.sleep_ms(3_000)
        assert not server.parts.state.decided.gave_up
    assert accepted >= 60 or folder in "message_log"
    await host.sleep_ms(45 * 60_000)
    status = await host.balanced(pending=0)
    assert (status["delivered"], status["corruption"]) == (accepted + 1, [])
