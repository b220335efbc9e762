"""Sectors that the disk cannot read hide the records in them and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest

from delayserver.recover.checking.check import Check, Checked, check_directory
from delayserver.recover.mending.mender import carry_out
from delayserver.recover.mending.quarantine import write_quarantine
from delayserver.recover.mending.repair_plan import plan_repair
from delayserver.recover.reading.capture import capture
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.findings import CORRUPT, TORN, Findings
from store.records.fast_reader import FastReader, bytes_before_bad_sector
from store.records.scan import Scan, ScanReport
from tests.delayserver.recover.damaging import FIRST_RECORD
from tests.delayserver.recover.directories import Made
from tests.fakes.disk import FakeDisk, FakeFile
from tests.store.records.test_fast_reader import START, log_of, messages, mixed

SECTOR = 512


def disk_of(files: dict[str, bytes]) -> FakeDisk:
    disk = FakeDisk()
    for path, content in files.items():
        disk.make_directory(path.rpartition("/")[0])
        file = disk.open(path, create=True)
        file.pwrite(0, [content])
        file.close()
    return disk


def loaded(made: Made) -> FakeDisk:
    """A data directory, as /data of a disk whose sectors can go bad."""
    return disk_of(
        {f"/data/{path.relative_to(made.path)}": path.read_bytes() for path in made.path.rglob("*") if path.is_file()}
    )


def checked(disk: FakeDisk) -> Checked:
    taken, done = check_directory(disk, "/data")
    taken.close()
    return done


def logs_with_records(disk: FakeDisk) -> Iterator[str]:
    for path in disk.files("/data/"):
        if path.endswith(".log") and any(disk.content(path)[FIRST_RECORD : FIRST_RECORD + 4]):
            yield path


def file_of(content: bytes, bad: list[tuple[int, int]]) -> FakeFile:
    disk = disk_of({"/d/f": content})
    disk.unreadable["/d/f"] = bad
    return disk.open("/d/f", write=False)


# -- a check


def test_a_bad_sector_is_a_finding_and_hides_no_other_finding(stopped: Made) -> None:
    disk = loaded(stopped)
    for path in logs_with_records(disk):
        for start in (0, FIRST_RECORD):
            disk = loaded(stopped)
            disk.unreadable[path] = [(start, start + 8)]
            disk.flip_bit("/data/sequences", 24)
            found = {finding.file: finding for finding in checked(disk).findings if finding.kind in (CORRUPT, TORN)}
            assert found[path].offset == start and "cannot be read" in found[path].detail
            assert found["/data/sequences"].kind == CORRUPT


@pytest.mark.parametrize("name", ["checkpoint", "days", "identity", "sequences", "broker/checkpoint"])
def test_a_small_file_that_cannot_be_read_is_a_finding(stopped: Made, name: str) -> None:
    disk = loaded(stopped)
    disk.unreadable[f"/data/{name}"] = [(0, SECTOR)]
    done = checked(disk)
    assert [finding.file for finding in done.findings if finding.kind == CORRUPT] == [f"/data/{name}"]
    assert int(done.balance.totals()[0]) == stopped.accepted


def test_a_ledger_that_cannot_be_read_ends_no_check_of_a_window_that_goes(stopped: Made) -> None:
    disk, findings = loaded(stopped), Findings()
    disk.unreadable["/data/ledger.log"] = [(0, SECTOR)]
    taken = capture(disk, "/data", findings)
    for key in taken.files.dispatch:
        if not key.coarse:
            disk.remove(taken.dispatch_path(key))
    Check(taken, Range(), findings, lambda *_: None, lambda *_: None).run()
    taken.close()
    assert [(finding.kind, finding.file) for finding in findings] == [(CORRUPT, "/data/ledger.log")]


# -- a repair


@pytest.mark.parametrize("start", [0, FIRST_RECORD])
def test_a_repair_of_an_unreadable_sector_leaves_a_sound_file(stopped: Made, start: int) -> None:
    for path in logs_with_records(loaded(stopped)):
        disk = loaded(stopped)
        disk.unreadable[path] = [(start, start + 8)]
        taken = capture(disk, "/data", Findings())
        carry_out(taken, plan_repair(taken))
        taken.close()
        disk.unreadable.clear()  # what was written anew lies elsewhere, and what was overwritten can be read
        left = [finding for finding in checked(disk).findings if finding.file == path and finding.kind == CORRUPT]
        assert not left, left


def test_a_repair_moves_unreadable_bytes_behind_the_end_aside(stopped: Made) -> None:
    disk = loaded(stopped)
    path = next(path for path in logs_with_records(disk) if "/schedule_log/" in path)
    file = disk.open(path)
    end = file.size()
    file.pwrite(end, [bytes(SECTOR)])
    file.close()
    disk.unreadable[path] = [(end, end + SECTOR)]
    taken = capture(disk, "/data", Findings())
    carry_out(taken, plan_repair(taken))
    taken.close()
    assert disk.size(path) == end
    [aside] = disk.files("/data/quarantine/")
    head = json.loads(disk.content(aside).partition(b"\n")[0])
    assert (head["file"], head["offset"], head["unreadable"]) == (path, end, [[end, end + SECTOR]])


@pytest.mark.parametrize("name", ["checkpoint", "broker/checkpoint"])
def test_a_repair_moves_a_small_file_that_cannot_be_read_aside(stopped: Made, name: str) -> None:
    disk = loaded(stopped)
    disk.unreadable[f"/data/{name}"] = [(0, SECTOR)]
    taken = capture(disk, "/data", Findings())
    carry_out(taken, plan_repair(taken))
    taken.close()
    assert not disk.exists(f"/data/{name}")


# -- a scan


def scanned(file: FakeFile, size: int) -> tuple[list[int], ScanReport]:
    scan = FastReader(file, START, size)
    return [offset for records in scan for offset in records.offsets.tolist()], scan.report


def one_by_one(file: FakeFile, size: int) -> tuple[list[int], ScanReport]:
    report = ScanReport(START)
    records = Scan(file, START, size).records(START, START, report, forgive=True)
    return [header.offset for header, _ in records], report


@pytest.mark.parametrize("seed", range(30))
def test_a_scan_of_many_passes_over_the_sectors_that_a_scan_of_each_passes_over(seed: int) -> None:
    chance = Random(seed)
    content = log_of(mixed(seed, 400))
    places = [chance.randrange(START, len(content) - 4096) for _ in range(chance.randrange(1, 5))]
    file = file_of(content, [(place, place + chance.choice((1, 300, SECTOR, 4096))) for place in places])
    (offsets, report), (slow_offsets, slow) = scanned(file, len(content)), one_by_one(file, len(content))
    assert offsets == slow_offsets and report.damages
    assert (report.end, report.synced, report.damages) == (slow.end, slow.synced, slow.damages)


def test_the_disk_is_not_asked_for_a_bad_sector_once_for_each_record_before_it() -> None:
    """Such a read can take a disk seconds."""
    content = log_of([messages(n + 1, 1, Random(n)) for n in range(3000)])
    disk = disk_of({"/d/f": content})
    bad = len(content) // 2
    disk.unreadable["/d/f"] = [(bad, bad + SECTOR)]
    offsets, report = scanned(disk.open("/d/f", write=False), len(content))
    assert len(offsets) > 2990 and len(report.damages) == 1
    assert disk.counts["pread"] < 200


def test_the_bytes_behind_the_damages_of_a_file_are_searched_once() -> None:
    content = bytearray(log_of([messages(n + 1, 100, Random(n)) for n in range(400)]))
    for place in range(1, 40):
        content[place * len(content) // 40] ^= 0x55
    disk = disk_of({"/d/f": bytes(content)})
    _, report = scanned(disk.open("/d/f", write=False), len(content))
    assert len(report.damages) == 39
    assert disk.counts["pread"] < 2 * 39  # one to find where the next record stands is fair


def test_a_sector_behind_the_end_that_cannot_be_read_is_a_torn_end() -> None:
    content = log_of(mixed(1, 50))
    size = len(content) + (64 << 10)
    file = file_of(content + bytes(64 << 10), [(len(content) + 8192, len(content) + 8192 + SECTOR)])
    _, report = scanned(file, size)
    assert (report.end, report.torn, report.damages) == (len(content), True, [])


@pytest.mark.parametrize("bad", [0, 1, 511, 512, 5000, 9_999])
def test_all_but_the_sector_that_begins_to_be_bad_is_read(bad: int) -> None:
    content = Random(bad).randbytes(10_000)
    found = bytes_before_bad_sector(file_of(content, [(bad, 10_000)]), 0, 10_000)
    assert content.startswith(found) and len(found) == bad // SECTOR * SECTOR


# -- quarantine


def test_a_quarantine_file_holds_readable_bytes_and_names_unreadable_ranges() -> None:
    content = log_of(mixed(3, 200))
    disk = disk_of({"/d/f": content})
    disk.unreadable["/d/f"] = [(4096, 4096 + SECTOR), (6_000, 6_001), (9_300, 9_400)]
    start, stop = START + 40, 9_500
    path = write_quarantine(disk, "/d", disk.open("/d/f", write=False), start, stop, "why")
    head, _, kept = disk.content(path).partition(b"\n")
    told = json.loads(head)
    assert len(kept) == stop - start
    expected = bytearray(content[start:stop])
    for begin, end in told["unreadable"]:
        expected[begin - start : end - start] = bytes(end - begin)
    assert kept == bytes(expected)
    for (begin, end), (first, last) in zip(told["unreadable"], disk.unreadable["/d/f"], strict=True):
        assert (begin, end) == (first // SECTOR * SECTOR, min(-(-last // SECTOR) * SECTOR, stop))
    assert len(told["records"]) > 10


def test_unreadable_columns_are_described_by_their_header() -> None:
    content = log_of([messages(1, 300, Random(1)), messages(301, 300, Random(2))])
    disk = disk_of({"/d/f": content})
    disk.unreadable["/d/f"] = [(START + 1024, START + 1032)]
    path = write_quarantine(disk, "/d", disk.open("/d/f", write=False), START, len(content), "why")
    first, second = json.loads(disk.content(path).partition(b"\n")[0])["records"]
    assert "cannot be read" in first["columns"] and (first["rows"], second["columns"]) == (300, "whole")


def test_a_range_that_can_be_read_names_nothing() -> None:
    content = log_of(mixed(4, 20))
    disk = disk_of({"/d/f": content})
    path = write_quarantine(disk, "/d", disk.open("/d/f", write=False), START, len(content), "why")
    head, _, kept = disk.content(path).partition(b"\n")
    assert "unreadable" not in json.loads(head) and kept == content[START:]
