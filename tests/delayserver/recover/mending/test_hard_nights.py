"""What an operator may meet at three in the morning: tools that are interrupted, and directories in rare states."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from delayserver.client import Client
from delayserver.recover.checking.check import Check, check_directory, whole_windows
from delayserver.recover.mending import mender
from delayserver.recover.mending.mender import carry_out
from delayserver.recover.mending.rebuild_plan import plan_rebuild
from delayserver.recover.reading.capture import capture
from delayserver.recover.reading.findings import Findings
from store.disk.filesystem import RealFileSystem
from store.errors import StoreError
from store.logs.due_windows import DAY_MS
from store.logs.message_log import MessageLog
from store.logs.schedule_key import ScheduleKey, ScheduleLayout, ScheduleSource
from store.tables import identity
from tests.delayserver.recover import damaging
from tests.delayserver.recover.checking.test_corruption_table import files
from tests.delayserver.recover.directories import SMALL, Made, ServerProcess, copy, in_process
from tests.delayserver.recover.mending.test_repair_rebuild import status_of
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot, Host, faked_settings, small_settings


def ends_here(*_arguments: object) -> NoReturn:
    raise StoreError("the process ends here")


def pending_of(made: Made) -> set[str]:
    """Receipts."""
    return {row["receipt"] for row in in_process("pending", str(made.path), "--list", "--json").rows}


def file_of_pending(made: Made) -> Path:
    """The schedule file of the window that is due in an hour: two records, of which only a checkpoint says that they were
    durable."""
    due_ms = int(made.receipts["pending"].split("-")[1], 16)
    name = ScheduleLayout(60_000).name(ScheduleKey(due_ms - due_ms % 60_000, ScheduleSource.DIRECT))
    return made.path / "schedule_log" / name


def findings_of(disk: FakeDisk, from_ms: int | None = None, to_ms: int | None = None) -> list[str]:
    taken, checked = check_directory(disk, "/data", from_ms=from_ms, to_ms=to_ms)
    taken.close()
    return [f"{finding.kind} {finding.file} {finding.detail}" for finding in checked.findings]


def rebuild(disk: FakeDisk) -> None:
    findings = Findings()
    taken = capture(disk, "/data", findings)
    plan = plan_rebuild(taken, findings)
    assert not plan.refusals
    carry_out(taken, plan)
    taken.close()


@pytest.mark.parametrize("then", ["repair", "start"])
def test_an_interrupted_repair_keeps_the_proof_that_damage_is_no_torn_end(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    for segment in (made.path / "message_log").iterdir():
        segment.unlink()
    damaging.flip_in_columns(file_of_pending(made))
    other = copy(made, tmp_path / "other")
    assert in_process("repair", str(other.path), "--yes").code == 0
    expected = pending_of(other)
    assert expected
    with monkeypatch.context() as patch:
        patch.setattr(mender, "write_quarantine", ends_here)
        assert in_process("repair", str(made.path), "--yes").code == 1
    if then == "repair":
        assert in_process("repair", str(made.path), "--yes").code == 0
    else:
        status_of(made)
    assert pending_of(made) == expected


def test_rebuild_leaves_corrupt_files_to_repair(made: Made) -> None:
    path = files(made.path)["dispatch_log minute"]
    damaging.flip_in_columns(path)
    before = path.read_bytes()
    assert in_process("rebuild", str(made.path), "--yes").code == 1
    assert path.read_bytes() == before


def test_files_that_an_interrupted_repair_left_between_two_names_get_theirs(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = sorted((made.path / "dispatch_log").glob("*/*.log"))
    damaging.swap(first, second)
    replace = RealFileSystem.replace

    def end(self: RealFileSystem, source: str, target: str) -> None:
        if source.endswith(".moving"):
            ends_here()
        replace(self, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(RealFileSystem, "replace", end)
        assert in_process("repair", str(made.path), "--yes").code == 1
    assert in_process("repair", str(made.path), "--yes").code == 0
    after = in_process("check", str(made.path), "--json")
    assert (after.code, after.last["findings"]) == (0, [])


def test_a_file_whose_repair_was_interrupted_again_and_again_gets_its_name(made: Made) -> None:
    first, second, *_ = sorted((made.path / "dispatch_log").glob("*/*.log"))
    first.rename(f"{first}.moving.moving")
    second.rename(f"{second}.moving")
    assert in_process("repair", str(made.path), "--yes").code == 0
    after = in_process("check", str(made.path), "--json")
    assert (after.code, after.last["findings"]) == (0, [])


def test_a_file_on_the_way_to_its_name_takes_no_place_of_one_that_is_stranded_there(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, *_ = sorted((made.path / "schedule_log").glob("*/*.direct.log"))
    stranded, misnamed = second.read_bytes(), third.read_bytes()
    second.rename(f"{first}.moving")
    third.rename(first)
    before = content_of(made)
    replace, left = RealFileSystem.replace, 1

    def end(self: RealFileSystem, source: str, target: str) -> None:
        nonlocal left
        if not left:
            ends_here()
        left -= "schedule_log" in source
        replace(self, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(RealFileSystem, "replace", end)
        assert in_process("repair", str(made.path), "--yes").code == 1
    assert sorted(content_of(made)) == sorted(before)
    assert in_process("repair", str(made.path), "--yes").code == 0
    assert (second.read_bytes(), third.read_bytes()) == (stranded, misnamed)


def content_of(made: Made) -> list[bytes]:
    return [path.read_bytes() for path in (made.path / "schedule_log").rglob("*") if path.is_file()]


def test_a_file_that_gets_its_name_back_takes_no_other_files_place(made: Made) -> None:
    first, second, third, *_ = sorted((made.path / "schedule_log").glob("*/*.direct.log"))
    only_here = third.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(only_here)
    third.write_bytes(only_here[:64])  # made anew by a server in between, without any message
    in_process("repair", str(made.path), "--yes")
    assert any(only_here in path.read_bytes() for path in made.path.rglob("*") if path.is_file())


def test_rebuild_leaves_no_lock_in_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    assert in_process("rebuild", str(tmp_path / "photos"), "--dry-run").code == 2
    assert list((tmp_path / "photos").iterdir()) == []


async def drained_with_copy(host: Host) -> int:
    """A message of a coarse day, and a copy of it that came when the day was fine; the process is killed. The due time."""
    client = await host.start_connected()
    due_ms = host.now_ms - host.now_ms % DAY_MS + 3 * DAY_MS + 5_000
    await client.put("original", due_ms, message_id="x")
    await host.sleep_ms(2_000)
    await host.stop()
    host.clock.step(2 * DAY_MS)
    client = await host.start_connected()
    await host.until(
        lambda: not host.server.parts.files.days.draining() and sum_of_minutes(host) == 1, within_ms=60_000
    )
    copied = (await client.put("copy", due_ms, message_id="x"))["receipt"]
    assert await client.lookup(copied) == ["deduplicated"]
    await host.sleep_ms(3_000)
    await host.kill()
    return due_ms


def sum_of_minutes(host: Host) -> int:
    keys = host.server.parts.files.schedule.keys()
    return sum(key.source == ScheduleSource.FROM_DAY for key in keys) * all(
        key.source != ScheduleSource.DAY for key in keys
    )


@pytest.mark.parametrize("outcomes", ["kept", "lost"])
async def test_a_copy_whose_window_is_rebuilt_is_a_copy_again(boot: Boot, outcomes: str) -> None:
    host = boot(faked_settings())
    due_ms = await drained_with_copy(host)
    assert findings_of(host.disk) == []
    for path in list(host.disk.files("/data/schedule_log")):
        host.disk.remove(path)
    if outcomes == "lost":
        for path in list(host.disk.files("/data/dispatch_log")):
            host.disk.remove(path)
    rebuild(host.disk)
    if outcomes == "kept":
        assert findings_of(host.disk) == []
    host.clock.step(due_ms - host.now_ms)
    await host.start()
    await host.sleep_ms(5_000)
    assert host.fake().texts == ["original"]


def last_is_full(log: MessageLog, segment_bytes: int) -> bool:
    """Whether the next record begins a segment."""
    base, end, _ = log.segments()[-1]
    return end - base >= segment_bytes


async def test_sequences_are_rebuilt_above_those_that_retention_removed(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "BLOCK", 4)  # so that forty messages are what forty million are
    short = {"window_ms": 10_000, "retention_ms": 20_000, "message_log_segment_bytes": 4096}
    host, client = await boot.connected(small_settings(storage=short | {"message_log_retention_ms": 5_000}))
    far = (await client.put("far", host.now_ms + 3_600_000))["receipt"]
    ids: set[str] = set()
    last = 0
    while len(ids) < 40 or not last_is_full(host.server.parts.files.log, 4096):
        reply = await client.put("x" * 500, host.now_ms + 10)
        ids.add(reply["message_id"])
        last = reply["sequence"]
    assert await client.cancel(far) == ["cancelled"], "the next segment begins with what is no message"
    await host.sleep_ms(70_000)
    await host.stop()
    host.disk.remove("/data/sequences")
    rebuild(host.disk)
    assert findings_of(host.disk) == []
    await host.start()
    reply = await (await host.client()).put("new", host.now_ms + 10)
    assert reply["message_id"] not in ids and reply["sequence"] > last


async def test_a_rebuilt_table_of_names_gives_no_code_of_a_consumer_group_to_another(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    await client.put("one", host.now_ms + 10)
    await host.sleep_ms(100)
    for group in ("g1", "g2", "g3"):
        (message,) = await client.pull("s", group)
        await client.request("ack", {"subject": "s", "group": group, "count": 1, "deliveries": [message["delivery"]]})
    await host.sleep_ms(2_000)
    await host.stop()
    host.disk.remove("/data/names.log")
    rebuild(host.disk)
    assert findings_of(host.disk) == []
    client = await host.start_connected()
    pulled = [len(await client.pull("lost-name-2", group)) for group in ("new1", "new2", "new3", "new4")]
    assert pulled == [1] * 4, "a new group begins with the oldest message"


@pytest.mark.parametrize("cut", ["behind a record", "within a record"])
def test_names_that_a_table_lost_at_its_end_are_not_given_to_others(made: Made, cut: str) -> None:
    path = made.path / "names.log"
    start, _, end = damaging.records(path)[0]
    path.write_bytes(path.read_bytes()[: end if cut == "behind a record" else start + 40])
    planned = in_process("rebuild", str(made.path), "--dry-run")
    assert "stand-ins for" in planned.out
    assert in_process("rebuild", str(made.path), "--yes").code == 0
    assert in_process("check", str(made.path)).code == 0
    again = in_process("rebuild", str(made.path), "--dry-run")
    assert "names.log" not in again.out
    with ServerProcess(made.path, *SMALL) as server, Client(server.address) as client:
        client.send("new", "x", delay_ms=3_600_000)
        subjects = [client.lookup(made.receipts[name]).subject for name in ("delivered", "pending", "far")]
    assert all(subject is not None and subject.startswith("lost-name-") for subject in subjects), subjects


async def test_after_a_rebuild_without_a_checkpoint_attempts_are_in_mind(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    await host.sleep_ms(20_000)
    receipt = (await client.put("m", host.now_ms + 1_000))["receipt"]
    fake = host.fake()
    fake.up, fake.known_failures, fake.stores_before_failing = False, False, True
    await host.until(lambda: bool(fake.stored))
    await host.kill()
    host.disk.remove("/data/checkpoint")
    rebuild(host.disk)
    host.clock.step(-10_000)
    await host.start()
    assert await (await host.client()).cancel(receipt) == ["too_late"]


async def die_before_the_outcomes_of_a_drained_day_go(host: Host) -> None:
    """Drain the day in three days, whose outcomes are in its file and in its minutes then."""
    await host.sleep_ms(3_000)
    (coarse,) = [path for path in host.disk.files("/data/dispatch_log") if path.endswith("/day.log")]
    content = host.disk.content(coarse)
    await host.stop()
    host.clock.step(2 * DAY_MS)
    await host.start()
    await host.until(lambda: not host.disk.exists(coarse), within_ms=60_000)
    await host.kill()
    file = host.disk.open(coarse, create=True)  # the end came a moment before it was removed
    file.pwrite(0, [content])
    file.datasync()
    file.close()


async def test_a_check_of_a_range_is_clean_beside_outcomes_that_a_crash_left_of_a_drained_day(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    start_ms = host.now_ms - host.now_ms % DAY_MS + 3 * DAY_MS
    receipts = [(await client.put(f"m{m}", start_ms + 60_000 * m))["receipt"] for m in range(5)]
    assert await client.cancel(receipts[1]) == ["cancelled"]
    await die_before_the_outcomes_of_a_drained_day_go(host)
    assert findings_of(host.disk) == []
    assert findings_of(host.disk, start_ms + 180_000, start_ms + 300_000) == []


async def test_retired_messages_that_message_log_still_has_are_counted_once_after_a_rebuild(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"window_ms": 10_000, "retention_ms": 20_000}))
    for number in range(4):
        await client.put(f"m{number}", host.now_ms + 100)
    await client.put("later", host.now_ms + 3_600_000)
    await host.sleep_ms(60_000)
    await host.stop()
    assert findings_of(host.disk) == []
    host.disk.remove("/data/checkpoint")
    rebuild(host.disk)
    assert findings_of(host.disk) == []
    await host.start()
    await host.sleep_ms(3_000)
    assert host.check_balance(pending=1)["accepted"] == 5
    await host.stop()
    assert findings_of(host.disk) == []


async def test_a_check_is_clean_beside_a_server_whose_retention_takes_a_window_meanwhile(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"window_ms": 10_000, "retention_ms": 20_000}))
    for number in range(4):
        await client.put(f"m{number}", host.now_ms + 100)
        await host.sleep_ms(10_000)
    await client.put("later", host.now_ms + 3_600_000)
    await host.sleep_ms(3_000)
    findings = Findings()
    taken = capture(host.disk, "/data", findings)
    kept = len(host.server.parts.files.schedule.keys())
    await host.sleep_ms(12_000)
    assert len(host.server.parts.files.schedule.keys()) < kept, "a window is retired"
    span = whole_windows(None, None, taken.files.window_ms)
    done = Check(taken, span, findings, lambda *_: None, lambda *_: None).run()
    taken.close()
    assert [finding.detail for finding in findings] == []
    assert int(done.balance.totals()[0]) == 5
