"""Reading where the disk cannot read everything."""

from __future__ import annotations

import pytest

from store.records.scan import SECTOR_BYTES, read_around
from tests.fakes.disk import PAGE, FakeDisk


@pytest.mark.parametrize("start", range(0, SECTOR_BYTES, 56))
def test_zeros_stand_for_the_sectors_that_cannot_be_read_and_for_nothing_else(start: int, disk: FakeDisk) -> None:
    file = disk.open("/f", create=True)
    file.pwrite(0, [b"\1" * 6 * PAGE])
    disk.unreadable["/f"] = [(PAGE, 2 * PAGE), (4 * PAGE + SECTOR_BYTES, 4 * PAGE + 2 * SECTOR_BYTES)]
    expected = bytearray(b"\1" * 6 * PAGE)
    for first, last in disk.unreadable["/f"]:
        expected[first:last] = bytes(last - first)
    for stop in (PAGE + 8, 2 * PAGE, 2 * PAGE + 8, 5 * PAGE - start):
        assert read_around(file, start, stop - start) == expected[start:stop]
