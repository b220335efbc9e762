"""The ledger keeps the balance of what is deleted, and no crash doubles it."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import numpy as np
import pytest

import store.tables.ledger as ledger_module
from store.errors import CorruptionError, DiskError, DiskFullError, FormatError, SyncFailedError
from store.records.batches import LedgerBatch
from store.records.segment import FILE_LEDGER, Damage, Segment
from store.tables.ledger import Ledger
from tests.fakes.disk import FakeDisk, SimulatedCrash, new_disk

MINUTE = 60_000


def rows(start_ms: int, subjects: list[int], accepted: int, *, coarse: int = 0) -> LedgerBatch:
    return LedgerBatch.filled(
        len(subjects),
        start_ms=start_ms,
        subject=np.array(subjects, np.uint32),
        coarse=coarse,
        accepted=accepted,
        delivered=accepted - 1,
        cancelled=1,
        last_sequence=accepted * 10,
    )


def accepted(ledger: Ledger) -> dict[int, int]:
    totals = ledger.totals()
    return dict(zip(totals.subject.tolist(), totals.accepted.tolist(), strict=True))


def test_totals_add_up_over_windows_and_survive_a_restart() -> None:
    fs = new_disk()
    ledger = Ledger.open(fs, "/d", 7)
    ledger.append(rows(MINUTE, [1, 3], 5))
    ledger.append(rows(2 * MINUTE, [3], 2))
    for current in (ledger, Ledger.open(fs, "/d", 7), Ledger.open(fs, "/d", 7, write=False)):
        assert accepted(current) == {1: 5, 3: 7}
        assert current.has(MINUTE) and current.has(2 * MINUTE) and not current.has(3 * MINUTE)
        assert current.window(MINUTE).delivered.tolist() == [4, 4]
        assert len(current) == 2


def test_a_window_written_twice_counts_once_and_the_later_one_stands() -> None:
    fs = new_disk()
    ledger = Ledger.open(fs, "/d", 7)
    ledger.append(rows(MINUTE, [1, 2], 5))
    ledger.append(rows(MINUTE, [1], 9))
    for current in (ledger, Ledger.open(fs, "/d", 7)):
        assert accepted(current) == {1: 9}
        assert current.window(MINUTE).accepted.tolist() == [9]


def test_one_record_may_hold_several_windows_and_a_part_of_them_be_replaced() -> None:
    fs = new_disk()
    ledger = Ledger.open(fs, "/d", 7)
    ledger.append(LedgerBatch.concatenate([rows(MINUTE, [1], 5), rows(2 * MINUTE, [1], 6)]))
    ledger.append(rows(MINUTE, [1], 7))
    for current in (ledger, Ledger.open(fs, "/d", 7)):
        assert accepted(current) == {1: 13}
        assert current.windows().tolist() == [[MINUTE, 0], [2 * MINUTE, 0]]


def test_a_coarse_day_and_its_first_minute_are_two_windows() -> None:
    ledger = Ledger.open(new_disk(), "/d", 7)
    ledger.append(rows(MINUTE, [1], 5))
    assert not ledger.has(MINUTE, coarse=True)
    ledger.append(rows(MINUTE, [1], 4, coarse=1))
    assert accepted(ledger) == {1: 9}
    assert ledger.window(MINUTE, coarse=True).accepted.tolist() == [4]


def test_the_last_sequence_over_the_minutes_of_a_day_is_found() -> None:
    fs = new_disk()
    ledger = Ledger.open(fs, "/d", 7)
    ledger.append(LedgerBatch.concatenate([rows(3 * MINUTE, [1, 3], 5), rows(4 * MINUTE, [1], 5)]))
    ledger.append(rows(6 * MINUTE, [3], 9))
    for current in (ledger, Ledger.open(fs, "/d", 7)):
        spans = [(0, 3), (3, 4), (4, 6), (4, 7), (7, 9)]
        last = [current.last_sequence_between(low * MINUTE, high * MINUTE) for low, high in spans]
        assert last == [0, 50, 50, 90, 0]
        assert [current.has_between(low * MINUTE, high * MINUTE) for low, high in spans] == [x > 0 for x in last]


def test_the_last_sequence_of_a_window_is_known_though_its_record_cannot_be_read() -> None:
    fs = new_disk()
    ledger = Ledger.open(fs, "/d", 7)
    ledger.append(rows(MINUTE, [1], 5))
    ledger.append(rows(2 * MINUTE, [1], 9))
    fs.flip_bit("/d/ledger.log", fs.size("/d/ledger.log") - 40)
    with pytest.raises(CorruptionError):
        ledger.window(2 * MINUTE)
    assert ledger.last_sequence(2 * MINUTE) == 90
    assert ledger.last_sequence_between(MINUTE, 3 * MINUTE) == 90


def test_a_code_that_no_subject_can_have_is_damage_and_no_table_is_made_up_to_it() -> None:
    fs = new_disk()
    Ledger.open(fs, "/d", 7).append(rows(MINUTE, [1], 5))
    segment = Segment.open(fs, "/d/ledger.log", FILE_LEDGER, 7)
    segment.recover()
    place = segment.append(rows(2 * MINUTE, [(1 << 32) - 1], 5))
    segment.sync()
    ledger = Ledger.open(fs, "/d", 7)
    assert ledger.damages == [Damage(place.start, place.end, "no subject has code 4294967295")]
    assert accepted(ledger) == {1: 5} and not ledger.has(2 * MINUTE)


def test_many_windows_are_found_after_they_moved_from_the_dict_to_the_arrays() -> None:
    ledger = Ledger.open(new_disk(), "/d", 7)
    count = 20_000
    starts = np.arange(1, count + 1, dtype=np.int64) * MINUTE
    ledger.append(LedgerBatch.filled(count, start_ms=starts, subject=1, accepted=1))
    assert len(ledger) == count and accepted(ledger) == {1: count}
    assert ledger.has(MINUTE) and ledger.has(count * MINUTE) and not ledger.has((count + 1) * MINUTE)


@pytest.mark.parametrize("seed", range(20))
def test_rows_whose_append_returned_survive_a_crash(seed: int) -> None:
    random = Random(seed)
    fs = new_disk()
    ledger = Ledger.open(fs, "/d", 7)
    fs.crash_after(random.randrange(2, 20))
    expected: dict[int, int] = {}
    begun = 0
    try:
        for minute in range(1, 20):
            begun = minute
            ledger.append(rows(minute * MINUTE, [1], minute))
            expected[minute] = minute
    except SimulatedCrash:
        pass
    fs.crash(random)
    ledger = Ledger.open(fs, "/d", 7)
    assert not ledger.damages
    for minute in expected:
        assert ledger.window(minute * MINUTE).accepted.tolist() == [minute]
    assert accepted(ledger)[1] - sum(expected.values()) in (0, begun)


def test_a_full_disk_records_nothing_and_leaves_the_ledger_usable() -> None:
    fs = FakeDisk(capacity_bytes=2 * 4096)
    fs.make_directory("/d")
    ledger = Ledger.open(fs, "/d", 7)
    with pytest.raises(DiskFullError):
        ledger.append(LedgerBatch.filled(1000, start_ms=MINUTE, subject=np.arange(1000), accepted=np.arange(1000)))
    assert not ledger.has(MINUTE) and accepted(ledger) == {}
    ledger.append(rows(MINUTE, [1], 5))
    assert accepted(Ledger.open(fs, "/d", 7)) == {1: 5}


def test_corruption_is_reported_and_the_other_windows_stand() -> None:
    fs = new_disk()
    ledger = Ledger.open(fs, "/d", 7)
    for minute in (1, 2, 3):
        ledger.append(rows(minute * MINUTE, [1], minute))
    fs.flip_bit("/d/ledger.log", 64 + 20)
    ledger = Ledger.open(fs, "/d", 7)
    assert [damage.start for damage in ledger.damages] == [64]
    assert accepted(ledger) == {1: 5} and not ledger.has(MINUTE)


def test_a_ledger_of_another_server_is_refused() -> None:
    fs = new_disk()
    Ledger.open(fs, "/d", 7).close()
    with pytest.raises(FormatError, match="belongs to server"):
        Ledger.open(fs, "/d", 8)


def compacted(fs: FakeDisk, count: int) -> Ledger:
    """A ledger with `count` windows of two subjects in records of their own, the fifth written twice."""
    ledger = Ledger.open(fs, "/d", 7)
    for minute in range(1, count + 1):
        ledger.append(rows(minute * MINUTE, [1, 3], minute))
    ledger.append(rows(5 * MINUTE, [3], 100))
    return ledger


def wants_compaction(ledger: Ledger) -> bool:
    """Asked again each time: the type checker takes a property for a constant."""
    return ledger.wants_compaction


def contents(ledger: Ledger) -> list[list[int]]:
    """Every window's rows, as far as they distinguish windows."""
    found = []
    for start, coarse in ledger.windows().tolist():
        window = ledger.window(start, coarse=bool(coarse))
        found += [[start, coarse, *row] for row in zip(window.subject.tolist(), window.accepted.tolist(), strict=True)]
    return found


def test_a_file_that_is_written_anew_holds_the_same_in_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "SPARE_RECORDS_MAX", 18)
    monkeypatch.setattr(ledger_module, "MERGED_ROWS", 16)
    fs = new_disk()
    ledger = compacted(fs, 15)
    assert not wants_compaction(ledger)
    for minute in range(16, 25):
        ledger.append(rows(minute * MINUTE, [1, 3], minute, coarse=minute % 2))
    before, totals = contents(ledger), accepted(ledger)
    assert wants_compaction(ledger)
    ledger.compact()
    assert not wants_compaction(ledger)
    assert (contents(ledger), accepted(ledger)) == (before, totals)
    ledger.append(rows(30 * MINUTE, [2], 9))
    for current in (ledger, Ledger.open(fs, "/d", 7)):
        assert contents(current) == [*before, [30 * MINUTE, 0, 2, 9]]
        assert accepted(current) == totals | {2: 9}
    segment = Segment.open(fs, "/d/ledger.log", FILE_LEDGER, 7)
    segment.recover()
    assert [len(batch) for _, batch in segment.records()] == [16, 17, 14, 1]
    ledger.compact()
    assert contents(Ledger.open(fs, "/d", 7)) == [*before, [30 * MINUTE, 0, 2, 9]]


@pytest.mark.parametrize("operations", range(12))
def test_a_crash_while_the_ledger_is_written_anew_loses_nothing(operations: int) -> None:
    fs = new_disk()
    ledger = compacted(fs, 8)
    before, totals = contents(ledger), accepted(ledger)
    fs.crash_after(operations)
    try:
        ledger.compact()
        ledger.append(rows(9 * MINUTE, [1], 9))
    except SimulatedCrash:
        pass
    fs.crash(Random(operations))
    again = Ledger.open(fs, "/d", 7)
    assert not again.damages
    there = again.has(9 * MINUTE)
    assert contents(again) == before + [[9 * MINUTE, 0, 1, 9]] * there
    assert accepted(again)[1] == totals[1] + 9 * there
    assert fs.files("/d") == ["/d/ledger.log"]


def test_a_disk_too_full_for_a_second_file_keeps_the_first() -> None:
    fs = FakeDisk(capacity_bytes=2 * 4096)
    fs.make_directory("/d")
    ledger = compacted(fs, 40)
    before = contents(ledger)
    with pytest.raises(DiskFullError):
        ledger.compact()
    assert fs.files("/d") == ["/d/ledger.log"]
    ledger.append(rows(41 * MINUTE, [1], 1))
    assert contents(Ledger.open(fs, "/d", 7)) == [*before, [41 * MINUTE, 0, 1, 1]]


def test_a_damaged_file_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "SPARE_RECORDS_MAX", 3)
    fs = new_disk()
    compacted(fs, 8)
    assert Ledger.open(fs, "/d", 7).wants_compaction
    fs.flip_bit("/d/ledger.log", 200)
    damaged = Ledger.open(fs, "/d", 7)
    assert damaged.damages and not damaged.wants_compaction


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("call", range(1, 17))
def test_windows_that_are_recorded_after_a_compaction_that_was_refused_are_not_lost(call: int, power: bool) -> None:
    fs = new_disk()
    ledger = compacted(fs, 8)
    before, calls = accepted(ledger), 0

    def refuse(_operation: str, _path: str) -> int:
        nonlocal calls
        calls += 1
        return errno.EMFILE if calls == call else 0

    fs.refuse = refuse
    with suppress(DiskError, SyncFailedError):
        ledger.compact()
    fs.refuse = None
    ledger.append(rows(900 * MINUTE, [9], 5))
    if power:
        fs.crash(Random(call))
    else:
        fs.kill()
    assert accepted(Ledger.open(fs, "/d", 7)) == before | {9: 5}
