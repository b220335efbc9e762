"""The table of days is read as it was written, or refused by name."""

from __future__ import annotations

from typing import Any

import google_crc32c
import msgpack
import numpy as np
import pytest

from store.errors import CorruptionError, FormatError
from store.logs.due_windows import DAY_MS
from store.tables.days import DayTable, SealedDay
from tests.fakes.disk import FakeDisk

PATH = "/d/days"
ROW = (DAY_MS, 9, False)


def holding(payload: bytes) -> FakeDisk:
    """A disk whose table of days is these bytes behind their right checksum."""
    fs = FakeDisk()
    fs.make_directory("/d")
    fs.open(PATH, create=True).pwrite(0, [google_crc32c.value(payload).to_bytes(4, "little") + payload])
    return fs


def table(version: Any = 1, fine_until_ms: Any = 2 * DAY_MS, sealed: Any = (ROW,)) -> bytes:
    packed: bytes = msgpack.packb({"version": version, "fine_until_ms": fine_until_ms, "sealed": sealed})
    return packed


def test_a_table_is_read_back() -> None:
    days = DayTable.open(holding(table()), PATH, 0)
    assert days.fine_until_ms == 2 * DAY_MS and days.draining() == [SealedDay(DAY_MS, 9, False)]


def test_whole_days_are_kept_in_a_table_of_version_2_and_only_there() -> None:
    fs = holding(table())
    days = DayTable.open(fs, PATH, 0)
    assert msgpack.unpackb(fs.open(PATH, write=False).pread(4, 1 << 10))["version"] == 1
    days.seal(6 * DAY_MS, 20, [3 * DAY_MS, 4 * DAY_MS], [3 * DAY_MS])
    for known in (days, DayTable.open(fs, PATH, 0)):
        assert known.whole() == [3 * DAY_MS] and known.is_whole(3 * DAY_MS)
        assert known.draining() == [SealedDay(DAY_MS, 9, False), SealedDay(4 * DAY_MS, 20, False)]
        assert [known.is_coarse(due) for due in (2 * DAY_MS, 3 * DAY_MS + 7, 4 * DAY_MS, 6 * DAY_MS)] == [
            False, True, False, True,
        ]  # fmt: skip
    content = msgpack.unpackb(fs.open(PATH, write=False).pread(4, 1 << 10))
    assert (content["version"], content["whole"]) == (2, [3 * DAY_MS])


def test_all_messages_of_a_whole_day_belong_to_its_file_in_spite_of_their_sequences() -> None:
    days = DayTable.open(holding(table()), PATH, 0)
    days.seal(6 * DAY_MS, 20, [3 * DAY_MS, 4 * DAY_MS], [3 * DAY_MS])
    due_ms = np.array([3 * DAY_MS, 4 * DAY_MS - 1, 4 * DAY_MS, 4 * DAY_MS, 6 * DAY_MS, 2 * DAY_MS])
    coarse = days.coarse_rows(due_ms, np.array([1, 90, 20, 21, 99, 3]))
    assert coarse is not None and coarse.tolist() == [True, True, True, False, True, False]
    assert days.starts_of(due_ms, 60_000).tolist() == [days.start_of(due, 60_000) for due in due_ms.tolist()]
    assert days.start_of(4 * DAY_MS - 1, 60_000) == 3 * DAY_MS and days.start_of(5 * DAY_MS - 1, 60_000) != 4 * DAY_MS


@pytest.mark.parametrize("whole", [7, [DAY_MS + 1], ["1"], [DAY_MS]], ids=["no list", "no day", "text", "sealed too"])
def test_whole_days_that_make_no_sense_are_corruption(whole: Any) -> None:
    payload = msgpack.packb({"version": 2, "fine_until_ms": 2 * DAY_MS, "sealed": [ROW], "whole": whole})
    with pytest.raises(CorruptionError, match="makes no sense"):
        DayTable.open(holding(payload), PATH, 0)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        table()[:-1],
        table() + b"\x00",
        msgpack.packb([1, 2]),
        msgpack.packb({"version": 1}),
        table(version="1"),
        table(fine_until_ms="soon"),
        table(fine_until_ms=True),
        table(fine_until_ms=-1),
        table(fine_until_ms=1 << 63),
        table(sealed=7),
        table(sealed=[(DAY_MS, 9)]),
        table(sealed=[(DAY_MS, 9, False, 1)]),
        table(sealed=[([DAY_MS], 9, False)]),
        table(sealed=[(DAY_MS + 1, 9, False)]),
        table(sealed=[(DAY_MS * 3_000_000, 9, False)]),
        table(sealed=[(DAY_MS, "9", False)]),
        table(sealed=[(DAY_MS, 9, 0)]),
    ],
    ids=[
        "nothing", "no msgpack", "cut off", "more behind it", "no map", "no fields", "version", "text", "truth", "negative",
        "beyond 64 bits", "no rows", "short row", "long row", "list as start", "no start of a day", "beyond the calendar",
        "text as sequence", "number as truth",
    ],
)  # fmt: skip
def test_content_that_makes_no_sense_behind_a_right_checksum_is_corruption(payload: bytes) -> None:
    with pytest.raises(CorruptionError, match="makes no sense"):
        DayTable.open(holding(payload), PATH, 0)


def test_a_wrong_checksum_is_corruption_and_a_newer_version_is_a_format_error() -> None:
    fs = holding(table())
    fs.flip_bit(PATH, 9)
    with pytest.raises(CorruptionError, match="checksum"):
        DayTable.open(fs, PATH, 0)
    with pytest.raises(FormatError, match="newer"):
        DayTable.open(holding(table(version=3)), PATH, 0)
