"""What a reading of the recovery tools found: damage beside damage, and tools that are run in another order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import trio

from delayserver.recover.checking.cancel_check import Cancels, cancels_without_outcome
from delayserver.recover.checking.check import Check, check_directory, whole_windows
from delayserver.recover.mending import restore
from delayserver.recover.mending.mender import carry_out
from delayserver.recover.mending.repair_plan import plan_repair
from delayserver.recover.reading.capture import capture
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.file_read import FileRead
from delayserver.recover.reading.findings import Findings
from delayserver.recover.reading.outcomes_of_file import OutcomeRows
from delayserver.recover.reading.subject_balances import SubjectBalances
from delayserver.recover.telling.export import ACCEPTED_FILE, DISPATCHED_FILE, Export
from delayserver.replay import day_drain, day_tier
from store.disk.filesystem import RealFileSystem
from store.errors import DiskFullError
from store.logs.due_windows import DAY_MS
from store.records.batches import MessageBatch
from store.records.file_header import FILE_HEADER_BYTES, FILE_MESSAGE_LOG, FILE_STORE, FileHeader
from store.records.record import decode_header, encode_record
from store.records.records import Records
from store.records.scan import Scan, ScanReport
from tests.delayserver.recover import damaging
from tests.delayserver.recover.checking.test_corruption_table import files
from tests.delayserver.recover.directories import Made, copy, in_process
from tests.delayserver.recover.mending.test_hard_nights import (
    die_before_the_outcomes_of_a_drained_day_go,
    file_of_pending,
    findings_of,
    pending_of,
)
from tests.delayserver.recover.mending.test_hard_nights import rebuild as rebuild_directory
from tests.fakes.host import Boot, faked_settings


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_foreign_segment_between_ours_costs_none_of_our_bytes(made: Made) -> None:
    for folder, kind in (("message_log", FILE_MESSAGE_LOG), ("broker/store", FILE_STORE)):
        (segment,) = (made.path / folder).iterdir()
        _, _, base = damaging.records(segment)[0]
        header = FileHeader(kind, 0x123456, base).encode()
        segment.with_name(f"{base:020d}.log").write_bytes(header + bytes(1000))
        before = content(made.path / folder)
        assert in_process("repair", str(made.path), "--yes").code == 1  # it is left
        assert content(made.path / folder) == before


def test_a_segment_under_a_lower_name_costs_its_neighbour_nothing(aged: Made, tmp_path: Path) -> None:
    made = copy(aged, tmp_path / "data")
    first, second, *_ = sorted((made.path / "message_log").iterdir())
    before = content(first.parent)
    _, _, low = damaging.records(first)[0]
    second.rename(first.with_name(f"{low:020d}.log"))
    assert (
        in_process("repair", str(made.path), "--yes").code == 1
    )  # while names are wrong, the ends of segments are not known
    assert content(first.parent) == before
    assert in_process("repair", str(made.path), "--yes").code == 0
    assert content(first.parent) == before


def test_a_whole_record_between_damage_and_the_torn_end_that_proves_it_is_kept(made: Made) -> None:
    for segment in (made.path / "message_log").iterdir():
        segment.unlink()
    path = file_of_pending(made)
    header, batch = path.read_bytes()[:FILE_HEADER_BYTES], first_batch(path)
    parts = [batch.slice(0, 10), batch.slice(10, 20), batch.slice(20, 30)]
    data = header
    for part, synced in zip(parts, (64, 64, None), strict=True):
        record = encode_record(part, len(data) if synced is None else synced, len(data))
        data += b"".join(record.buffers)
    path.write_bytes(data[:-8])
    (made.path / "checkpoint").unlink()
    damaging.flip_in_columns(path)
    assert in_process("repair", str(made.path), "--yes").code == 0
    assert first_batch(path).sequence.tolist() == parts[1].sequence.tolist()


def first_batch(path: Path) -> MessageBatch:
    file = RealFileSystem().open(str(path), write=False)
    try:
        size = file.size()
        scan = Scan(file, FILE_HEADER_BYTES, size)
        _, batch = next(scan.records(FILE_HEADER_BYTES, size, ScanReport(FILE_HEADER_BYTES), forgive=True))
        assert isinstance(batch, MessageBatch)
        return batch
    finally:
        file.close()


def test_a_check_of_some_minutes_of_a_coarse_day_is_clean(stopped: Made) -> None:
    due_ms = int(stopped.receipts["far"].split("-")[1], 16)
    taken, checked = check_directory(RealFileSystem(), str(stopped.path), from_ms=due_ms, to_ms=due_ms + 300_000)
    taken.close()
    assert [finding.detail for finding in checked.findings] == []
    assert int(checked.balance.totals()[0]) == 5


def test_rebuild_takes_nothing_from_the_torn_end_of_message_log(made: Made) -> None:
    (segment,) = (made.path / "message_log").iterdir()
    batch = first_batch(file_of_pending(made)).slice(0, 1)
    end = damaging.records(segment)[-1][2]
    first = b"".join(encode_record(batch.with_columns(sequence=np.array([1000])), end, end).buffers)
    behind = end + len(first)
    second = b"".join(encode_record(batch.with_columns(sequence=np.array([1001])), end, behind).buffers)
    data = segment.read_bytes()
    segment.write_bytes(data[:end] + bytes(64) + first[64:] + second + data[behind + len(second) :])
    expected = pending_of(made)
    assert in_process("check", str(made.path)).code == 0
    assert in_process("rebuild", str(made.path), "--yes").code == 0
    assert pending_of(made) == expected
    after = in_process("check", str(made.path), "--json").last
    assert (after["findings"][1:], after["torn"], after["accepted"]) == ([], 1, made.accepted)


async def test_a_check_is_clean_beside_a_server_that_meets_a_new_subject_meanwhile(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    await client.put("m", host.now_ms + 3_600_000)
    await host.sleep_ms(3_000)
    findings, subjects = Findings(), set[str]()
    taken = capture(host.disk, "/data", findings)
    await client.put("m", host.now_ms + 3_600_000, subject="new")
    await host.sleep_ms(3_000)

    def publish(_tier: str, _start_ms: int, balance: SubjectBalances) -> None:
        subjects.update(map(taken.tables.subject_name, balance.rows()[0].tolist()))

    Check(taken, whole_windows(None, None, taken.files.window_ms), findings, publish, lambda *_: None).run()
    taken.close()
    assert [finding.detail for finding in findings] == []
    assert subjects == {"s", "new"}


@pytest.mark.parametrize("command", ["check", "trace"])
def test_segments_that_a_running_broker_retires_meanwhile_end_no_reading(
    aged: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    made = copy(aged, tmp_path / "data")
    listdir = RealFileSystem.listdir

    def retire(self: RealFileSystem, path: str) -> list[str]:
        names = listdir(self, path)
        if path.endswith("/broker/store") and len(names) > 1:
            Path(path, names[0]).unlink()
        return names

    monkeypatch.setattr(RealFileSystem, "listdir", retire)
    done = in_process(command, str(made.path), *(["--sequence", "85"] if command == "trace" else []), "--json")
    assert (done.code, done.err) == (0, "")


def test_a_plan_promises_no_name_that_is_taken(made: Made) -> None:
    first, second, *_ = sorted((made.path / "dispatch_log").glob("*/*.log"))
    second.write_bytes(first.read_bytes())
    planned = in_process("repair", str(made.path), "--dry-run", "--json").rows
    assert [(row["action"], row["file"]) for row in planned] == [("leave", str(second))]
    assert str(first) in planned[0]["detail"]


@pytest.mark.parametrize("damage", [damaging.flip_in_columns, damaging.flip_file_header])
def test_rebuild_restores_no_message_that_a_corrupt_ledger_may_count(
    aged: Made, tmp_path: Path, damage: damaging.Damage
) -> None:
    made = copy(aged, tmp_path / "data")
    damage(made.path / "ledger.log")
    done = in_process("rebuild", str(made.path), "--yes")
    assert (done.code, done.out) == (1, "")
    assert str(made.path / "ledger.log") in done.err


def test_rebuild_takes_no_place_of_a_file_that_bears_another_name(made: Made) -> None:
    path = file_of_pending(made)
    names = [path.with_name(f"12{minute:02d}.direct.log") for minute in range(60)]
    path.rename(next(name for name in names if not name.exists()))
    done = in_process("rebuild", str(made.path), "--yes")
    assert (done.code, done.out, path.exists()) == (1, "", False)
    assert in_process("repair", str(made.path), "--yes").code == 0
    assert in_process("check", str(made.path)).code == 0


@pytest.mark.parametrize("damage", [damaging.flip_in_columns, damaging.flip_in_body])
@pytest.mark.parametrize("command", ["pending", "export"])
def test_pending_and_export_name_the_damage_that_hides_messages(
    stopped: Made, tmp_path: Path, command: str, damage: damaging.Damage
) -> None:
    made = copy(stopped, tmp_path / "data")
    path = file_of_pending(made)
    damage(path)
    arguments = ["--to", str(tmp_path / "out")] if command == "export" else ["--list"]
    done = in_process(command, str(made.path), *arguments)
    assert done.code == 1
    assert all(str(path) in line for line in done.err.splitlines())
    kinds = [line.split()[0] for line in done.err.splitlines()]
    assert kinds == (["corrupt"] if damage is damaging.flip_in_body else ["corrupt", "missing"])
    assert in_process(command, str(stopped.path), *arguments).code == 0


def test_a_rebuild_that_fills_the_disk_gives_the_space_back(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of_pending(made)
    path.unlink()

    def full(*_arguments: object) -> NoReturn:
        raise DiskFullError("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(restore, "write_file", full)
        assert in_process("rebuild", str(made.path), "--yes").code == 1
    assert not (made.path / restore.SIDE_FOLDER).exists()
    assert in_process("rebuild", str(made.path), "--yes").code == 0
    assert in_process("check", str(made.path)).code == 0


async def test_an_outcome_that_a_drain_left_in_two_files_is_exported_once(boot: Boot, tmp_path: Path) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms - host.now_ms % DAY_MS + 3 * DAY_MS
    assert await client.cancel((await client.put("m", due_ms))["receipt"]) == ["cancelled"]
    await die_before_the_outcomes_of_a_drained_day_go(host)
    taken = capture(host.disk, "/data", Findings())
    work = Export(taken, Range(), str(tmp_path))
    work.run()
    taken.close()
    assert work.rows == {ACCEPTED_FILE: 1, DISPATCHED_FILE: 1}


def test_a_quarantine_file_can_be_dumped(made: Made) -> None:
    path = file_of_pending(made)
    damaging.flip_in_columns(path)
    assert in_process("repair", str(made.path), "--yes").code == 0
    (aside,) = (made.path / "quarantine").iterdir()
    done = in_process("dump", str(aside))
    assert (done.code, done.last["file"], done.last["bytes"]) == (0, str(path), done.last["stop"] - done.last["offset"])
    aside.write_bytes(b"nothing of ours")
    assert in_process("dump", str(aside)).code == 2


@pytest.mark.parametrize("record", [0, 2])
async def test_a_damaged_minute_of_a_day_that_is_being_drained_is_restored(
    boot: Boot, monkeypatch: pytest.MonkeyPatch, record: int
) -> None:
    rounds = 0
    step = day_tier.DayTier.step

    async def stuck(self: day_tier.DayTier) -> None:
        nonlocal rounds
        rounds += 1
        if rounds > 4:
            await trio.sleep(3_600)
        await step(self)

    host, client = await boot.connected(faked_settings())
    start_ms = host.now_ms - host.now_ms % DAY_MS + 3 * DAY_MS
    for number in range(6):
        await client.put(f"m{number}", start_ms + 5_000)
        await host.settled()
    await host.sleep_ms(3_000)
    await host.stop()
    host.clock.step(2 * DAY_MS)
    with monkeypatch.context() as patch:
        patch.setattr(day_drain, "DRAIN_ROWS", 1)
        patch.setattr(day_tier.DayTier, "step", stuck)
        await host.start()
        await host.until(lambda: rounds > 4, within_ms=60_000)
        await host.sleep_ms(20_000)
        await host.kill()
    assert findings_of(host.disk) == []
    (minute,) = [path for path in host.disk.files("/data/schedule_log") if path.endswith("/0000.day.log")]
    offset = FILE_HEADER_BYTES
    for _ in range(record):
        offset = decode_header(host.disk.content(minute)[offset : offset + 64], offset).end
    host.disk.flip_bit(minute, offset + 70)
    taken = capture(host.disk, "/data", Findings())
    carry_out(taken, plan_repair(taken))
    taken.close()
    rebuild_directory(host.disk)
    assert findings_of(host.disk) == []
    host.clock.step(start_ms + 10_000 - host.now_ms)
    await host.start()
    await host.sleep_ms(60_000)
    assert sorted(host.fake().texts) == [f"m{number}" for number in range(6)]
    assert findings_of(host.disk) == []


def test_cancels_of_many_windows_of_a_day_read_its_file_once(stopped: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    due_ms = int(stopped.receipts["far_cancelled"].split("-")[1], 16) + np.arange(20, dtype=np.int64) * 60_000
    sequence = np.full(20, int(stopped.receipts["far_cancelled"].split("-")[2], 16), np.int64)
    taken = capture(RealFileSystem(), str(stopped.path), Findings())
    read: list[str] = []
    opened = FileRead.records

    def note(self: FileRead, *, blobs: bool = True) -> Iterator[Records]:
        read.append(self.path)
        return opened(self, blobs=blobs)

    monkeypatch.setattr(FileRead, "records", note)
    cancels = Cancels.of(sequence, due_ms, np.zeros(20, np.uint8), np.zeros(20, np.int64))
    absent = cancels_without_outcome(taken, cancels, OutcomeRows.empty())
    taken.close()
    assert not absent.any()
    assert len(read) == 1


def test_a_planned_rebuild_counts_the_messages_that_will_be_delivered_again(made: Made) -> None:
    path = files(made.path)["dispatch_log minute"]
    path.unlink()
    planned = in_process("rebuild", str(made.path), "--dry-run").out
    assert any(str(path) in line and "delivered again" in line for line in planned.splitlines())
