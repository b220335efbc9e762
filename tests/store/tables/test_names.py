"""A code handed out has its name for ever."""

from __future__ import annotations

from random import Random

import pytest

from store.errors import CorruptionError, DiskFullError, FormatError, SyncFailedError, TableFullError
from store.records.batches import MessageBatch, NameBatch
from store.records.segment import FILE_NAMES, FileHeader, Segment
from store.tables.names import BROKER_GROUP, CONSUMER_GROUP, SUBJECT, Names
from tests.fakes.disk import PAGE, FakeDisk, SimulatedCrash, new_disk


def opened(fs: FakeDisk) -> Names:
    names = Names.open(fs, "/d", 7)
    names.check_invariants()
    return names


def test_codes_count_from_one_over_all_kinds_and_stay_after_a_restart() -> None:
    fs = new_disk()
    names = opened(fs)
    assert names.intern(SUBJECT, ["orders", "mail", "orders"]).tolist() == [1, 2, 1]
    assert names.intern(CONSUMER_GROUP, ["orders"]).tolist() == [3]
    assert names.intern(BROKER_GROUP, ["größe 🚚"]).tolist() == [4]
    assert names.intern(SUBJECT, []).tolist() == []
    for current in (names, opened(fs), Names.open(fs, "/d", 7, write=False)):
        assert len(current) == 4
        assert current.code(SUBJECT, "mail") == 2 and current.code(CONSUMER_GROUP, "mail") == 0
        assert current.name(4) == "größe 🚚" and current.codes(BROKER_GROUP).tolist() == [4]
        assert current.names_of(current.codes(SUBJECT)) == ["orders", "mail"]
        assert current.codes(CONSUMER_GROUP).tolist() == [3]
        for code in (0, 5, -1):
            with pytest.raises(KeyError):
                current.name(code)


def test_a_name_is_durable_before_its_code_is_handed_out() -> None:
    for point in range(1, 12):
        for seed in range(8):
            fs = new_disk()
            names = opened(fs)
            given: dict[str, int] = {}
            fs.crash_after(point)
            try:
                for name in ("a", "b", "c", "d"):
                    given[name] = int(names.intern(SUBJECT, [name, name * 2000])[0])
            except SimulatedCrash:
                pass
            fs.crash(Random(seed))
            names = opened(fs)
            assert all(names.code(SUBJECT, name) == code for name, code in given.items())
            names.intern(SUBJECT, ["e"])
            assert opened(fs).code(SUBJECT, "e") == len(names)


def test_a_full_table_refuses_and_adds_nothing() -> None:
    fs = new_disk()
    names = Names.open(fs, "/d", 7, subjects_max=3)
    names.intern(SUBJECT, ["a", "b"])
    with pytest.raises(TableFullError, match="2 of 3"):
        names.intern(SUBJECT, ["c", "d"])
    assert len(names) == 2 and names.code(SUBJECT, "c") == 0
    assert names.intern(SUBJECT, ["c", "a"]).tolist() == [3, 1]


def test_subjects_and_consumer_groups_have_bounds_of_their_own() -> None:
    names = Names.open(new_disk(), "/d", 7, subjects_max=2, groups_max=1)
    names.intern(BROKER_GROUP, ["default", "other"])
    names.intern(SUBJECT, ["a", "b"])
    names.intern(CONSUMER_GROUP, ["g"])
    for kind, setting in ((SUBJECT, "message.subjects_max"), (CONSUMER_GROUP, "broker.groups_max")):
        with pytest.raises(TableFullError, match=setting):
            names.intern(kind, ["one more"])
    assert (names.count(SUBJECT), names.count(CONSUMER_GROUP), names.count(BROKER_GROUP)) == (2, 1, 2)


def test_a_table_takes_as_many_new_names_as_fit() -> None:
    fs = new_disk()
    names = Names.open(fs, "/d", 7, subjects_max=3)
    assert names.intern(SUBJECT, ["a", "b", "a"], fitting=True).tolist() == [1, 2, 1]
    assert names.intern(SUBJECT, ["c", "d", "b", "c"], fitting=True).tolist() == [3, 0, 2, 3]
    assert names.intern(SUBJECT, ["e", "a"], fitting=True).tolist() == [0, 1]
    lowered = Names.open(fs, "/d", 7, subjects_max=2)
    assert lowered.intern(SUBJECT, ["e", "c"], fitting=True).tolist() == [0, 3]
    lowered.check_invariants()


def test_a_full_disk_and_a_failed_sync_hand_out_nothing() -> None:
    fs = new_disk(capacity_bytes=PAGE)
    names = opened(fs)
    with pytest.raises(DiskFullError):
        names.intern(SUBJECT, ["x" * 5000])
    assert len(names) == 0 and names.intern(SUBJECT, ["a"]).tolist() == [1]
    fs.fail_next_sync("names.log")
    for _ in range(2):
        with pytest.raises(SyncFailedError):
            names.intern(SUBJECT, ["b"])
    assert names.code(SUBJECT, "b") == 0


def test_more_names_than_one_record_holds_are_interned_at_once() -> None:
    fs = new_disk()
    many = [f"subject-{index}" for index in range(70_000)]
    assert opened(fs).intern(SUBJECT, many).tolist() == list(range(1, 70_001))
    names = opened(fs)
    assert names.names_of(range(1, 70_001)) == many


@pytest.mark.parametrize(
    ("batch", "detail"),
    [
        (NameBatch.filled(1, code=3, names_length=1, names=b"z"), "code 3 where 2"),
        (NameBatch.filled(1, code=2, names_length=1, names=b"a"), "stands twice"),
        (NameBatch.filled(1, code=2, name_kind=9, names_length=1, names=b"b"), "unknown kind"),
        (NameBatch.filled(1, code=2, names_length=1, names=b"\xff"), "not UTF-8"),
        (MessageBatch.filled(1, sequence=1), "record kind 1"),
    ],
    ids=["gap", "twice", "kind", "text", "record"],
)
def test_contents_that_contradict_the_table_are_corruption(batch: NameBatch, detail: str) -> None:
    fs = new_disk()
    segment = Segment.create(fs, "/d/names.log", FileHeader(FILE_NAMES, 7, 0))
    segment.append(NameBatch.filled(1, code=1, names_length=1, names=b"a"))
    segment.append(batch)
    segment.sync()
    with pytest.raises(CorruptionError, match=detail):
        opened(fs)


def test_damage_is_corruption_and_a_torn_end_is_not() -> None:
    fs = new_disk()
    names = opened(fs)
    names.intern(SUBJECT, ["a"])
    names.intern(SUBJECT, ["b"])
    fs.open("/d/names.log").pwrite(fs.size("/d/names.log"), [b"torn"])
    assert len(opened(fs)) == 2
    fs.flip_bit("/d/names.log", 70)
    with pytest.raises(CorruptionError):
        opened(fs)


def test_reading_changes_nothing_and_another_server_is_refused() -> None:
    fs = new_disk()
    assert len(Names.open(fs, "/d", 7, write=False)) == 0 and fs.files() == []
    opened(fs)
    with pytest.raises(FormatError):
        Names.open(fs, "/d", 8)
