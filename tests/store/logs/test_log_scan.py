"""A range of message_log is read to its end, whatever the disk does."""

from __future__ import annotations

import errno

import pytest

from store.errors import DiskError
from store.failed_reads import READ_TRIES
from store.logs.log_scan import LogScan
from store.logs.message_log import MessageLog
from store.records.batches import MessageBatch
from tests.fakes.disk import FakeDisk
from tests.store.message_logs import fill, opened


def scanned(log: MessageLog) -> tuple[list[int], bool]:
    """The sequences of all readable messages, and whether something was skipped."""
    scan = LogScan(log, log.first, log.synced)
    found = [int(entry.batch.sequence[0]) for entry in scan if isinstance(entry.batch, MessageBatch)]
    return found, scan.has_gaps


def test_a_scan_reads_all_segments_and_has_no_gaps() -> None:
    log = opened(FakeDisk())
    fill(log, 30)
    assert len(log.segments()) > 2
    assert scanned(log) == (list(range(1, 31)), False)


def test_a_scan_ends_where_it_shall() -> None:
    log = opened(FakeDisk())
    starts = fill(log, 30)
    assert [entry.start for entry in LogScan(log, starts[3], starts[5])] == starts[3:5]


def test_damage_is_skipped_and_makes_a_gap(disk: FakeDisk) -> None:
    log = opened(disk)
    starts = fill(log, 30)
    base, _, path = log.segments()[1]
    (lost, *_) = [start for start in starts if start >= base]
    disk.flip_bit(path, lost - base + 3)
    disk.kill()
    assert scanned(opened(disk)) == ([n for n in range(1, 31) if starts[n - 1] != lost], True)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM])
@pytest.mark.parametrize("refusals", range(1, READ_TRIES))
def test_a_disk_that_refuses_for_a_moment_makes_no_gap(code: int, refusals: int, disk: FakeDisk) -> None:
    log = opened(disk)
    fill(log, 30)
    left = [code] * refusals
    disk.refuse = lambda operation, _path: left.pop() if left and operation == "pread" else 0
    assert scanned(log) == (list(range(1, 31)), False)
    assert not left


def test_a_bad_sector_is_skipped_and_a_disk_that_refuses_all_is_an_error(disk: FakeDisk) -> None:
    log = opened(disk)
    starts = fill(log, 30)
    base, _, path = log.segments()[0]
    disk.unreadable[path] = [(starts[1] - base, starts[1] - base + 8)]
    found, has_gaps = scanned(log)
    assert has_gaps and found[0] == 1 and 2 not in found and found[-1] == 30
    disk.refuse = lambda operation, _path: errno.ENOMEM if operation == "pread" else 0
    with pytest.raises(DiskError):
        scanned(log)
