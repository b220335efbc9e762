"""The key index on its disk: it finds what a dict would find, whatever is merged, and no damage of it stays unseen."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.errors import CorruptionError, DiskFullError, FormatError, StoreError, SyncFailedError
from store.keys import key_run
from store.keys.key_merge import KeepRows, level
from store.keys.key_rows import KEY_ROW, KeyRows, key_rows, name_keys, newest_first
from store.keys.key_run import BLOCK_BYTES, BLOCK_ROWS
from store.keys.key_table import KeyTable, new_table, open_table
from store.records.id_hash import hash_ids
from tests.fakes.disk import FakeDisk, SimulatedCrash

SERVER = 0x123456789ABC
DIRECTORY = "/data/keys"
Model = dict[int, list[tuple[int, int]]]
ALL: KeepRows = lambda rows: np.ones(len(rows), np.bool_)  # noqa: E731


def rows_of(keys: list[int], first: int) -> KeyRows:
    """Rows with these keys and sequences from `first` on; each is due ten times its sequence."""
    sequence = np.arange(first, first + len(keys))
    return key_rows(np.array(keys, np.uint64), sequence, sequence * 10)


def flush(table: KeyTable, covered: int) -> None:
    captured = table.capture(covered)
    try:
        table.write(captured)
    except StoreError:
        table.settle_capture(captured, written=False)
        raise
    table.settle_capture(captured, written=True)


def merge(table: KeyTable, keep: KeepRows = ALL) -> bool:
    begun = table.begin_merge(keep)
    if begun is None:
        return False
    while (run := begun.step()) is None:
        pass
    table.end_merge(begun, run)
    return True


def found(table: KeyTable, keys: list[int], newest: int = 1 << 20) -> Model:
    asked = np.array(keys, np.uint64)
    place, rows = newest_first(table.find_young(asked, newest) + table.find_in_runs(asked, newest))
    model: Model = defaultdict(list)
    for at, row in zip(place.tolist(), rows, strict=True):
        assert int(row["key"]) == keys[at]
        model[keys[at]].append((int(row["sequence"]), int(row["due_ms"])))
    return model


class Sent:
    """A table and the dict that it is compared with."""

    def __init__(self, table: KeyTable) -> None:
        self.table = table
        self.model: Model = defaultdict(list)
        self.next = 1

    def send(self, keys: list[int]) -> None:
        self.table.add(rows_of(keys, self.next))
        for key in keys:
            self.model[key].insert(0, (self.next, self.next * 10))
            self.next += 1

    def check(self, keys: list[int]) -> None:
        assert found(self.table, keys) == {key: self.model[key] for key in keys if self.model.get(key)}


@pytest.fixture
def sent(disk: FakeDisk) -> Sent:
    return Sent(new_table(disk, DIRECTORY, SERVER, complete=True))


def filled(sent: Sent, runs: int = 3, rows: int = 400) -> None:
    """Some runs of some blocks, each with keys of its own."""
    for run in range(runs):
        sent.send([(run + 1) * 1_000_003 + 97 * row for row in range(rows)])
        flush(sent.table, sent.next - 1)


KEYS = st.integers(0, 7) | st.integers(0, (1 << 64) - 1)
STEPS = st.lists(st.lists(KEYS, max_size=40) | st.sampled_from(["flush", "merge", "reopen"]), max_size=60)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_it_finds_what_a_dict_would_find(steps: list[list[int] | str]) -> None:
    disk = FakeDisk()
    sent = Sent(new_table(disk, DIRECTORY, SERVER, complete=True))
    asked = list(range(8))
    for step in steps:
        if isinstance(step, list):
            sent.send(step)
            asked += step[:3]
        elif step == "merge":
            merge(sent.table)
        else:
            flush(sent.table, sent.next - 1)
            if step == "reopen":
                sent.table.close()
                sent.table = open_table(disk, DIRECTORY, SERVER)
                assert (sent.table.covered, sent.table.complete) == (sent.next - 1, True)
        sent.check(sorted(set(asked)))
        assert sent.table.rows == sent.next - 1


def test_runs_of_one_level_become_one_run_and_their_files_go(disk: FakeDisk, sent: Sent) -> None:
    random = Random(3)
    for _ in range(80):
        sent.send([random.randrange(1 << 64) for _ in range(300)] + [5])
        flush(sent.table, sent.next - 1)
        while merge(sent.table):
            pass
    assert sent.table.run_count < 16
    assert len(disk.files(DIRECTORY)) == sent.table.run_count + 1
    sent.check(list(sent.model)[:500])
    assert [level(rows) for rows in (1, 8191, 8192, 65535, 65536, 1 << 26)] == [0, 0, 1, 1, 2, 5]


def test_a_key_of_many_messages_is_found_from_its_newest_on(sent: Sent) -> None:
    """A million messages may bear one id: a search reads no more blocks than it asks for."""
    for _ in range(3):
        sent.send([3] * (4 * BLOCK_ROWS) + [2, 4])
        flush(sent.table, sent.next - 1)
    sent.send([3] * 5)
    merge(sent.table)
    assert len(found(sent.table, [3], 7)[3]) == 3 * 7 + 5
    assert found(sent.table, [3], 7)[3][:6] == sent.model[3][:6]
    sent.check([2, 3, 4, 9])


def test_a_search_reads_a_block_of_a_run(disk: FakeDisk, sent: Sent) -> None:
    filled(sent, runs=1, rows=20 * BLOCK_ROWS)
    before = disk.counts["pread"]
    sent.check([1_000_003 + 97 * 1000])
    assert disk.counts["pread"] == before + 1
    # The filter of a run knows most keys that are not there.
    found(sent.table, list(range(1_000_004, 1_000_004 + 97 * 3000, 97)))
    strangers = [Random(1).randrange(1 << 64) for _ in range(100)]
    before = disk.counts["pread"]
    assert found(sent.table, strangers) == {}
    assert disk.counts["pread"] - before < 20


def test_a_long_run_has_no_filter(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(new_table(disk, DIRECTORY, SERVER, complete=True))
    filled(sent, runs=1)
    with_filter = sent.table.nbytes
    monkeypatch.setattr(key_run, "FILTER_ROWS_MAX", 100)
    other = Sent(new_table(disk, "/data/other", SERVER, complete=True))
    filled(other, runs=1)
    assert other.table.nbytes < with_filter == other.table.nbytes + 400 * key_run.FILTER_BITS // 8
    other.check(list(other.model))


def test_a_merge_drops_what_is_not_kept_any_more(sent: Sent) -> None:
    filled(sent, runs=8, rows=100)
    assert merge(sent.table, lambda rows: rows["due_ms"] > 4000)
    assert sent.table.rows == 400
    assert all(due > 4000 for messages in found(sent.table, list(sent.model)).values() for _, due in messages)


def test_a_search_goes_on_while_a_merge_ends(disk: FakeDisk, sent: Sent) -> None:
    filled(sent, runs=8)
    merges: list[str] = []

    def merge_at_the_first_read(operation: str, path: str) -> int:
        if operation == "pread" and not merges:
            merges.append(path)
            assert merge(sent.table)
        return 0

    disk.refuse = merge_at_the_first_read
    sent.check(list(sent.model))
    assert merges and sent.table.run_count == 1
    sent.check(list(sent.model))


def test_a_message_that_moves_to_a_run_is_found_at_every_moment(sent: Sent) -> None:
    sent.send([4, 4])
    captured = sent.table.capture(2)
    sent.send([4])
    sent.check([4])
    sent.table.write(captured)
    sent.check([4])  # in memory and in the run
    sent.table.settle_capture(captured, written=True)
    sent.check([4])


def test_a_full_disk_keeps_the_rows_in_memory(disk: FakeDisk, sent: Sent) -> None:
    filled(sent, runs=8)
    sent.send([7, 8])
    disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        flush(sent.table, sent.next - 1)
    with pytest.raises(DiskFullError):
        merge(sent.table)
    sent.send([7])
    sent.check([7, 8, *sent.model][:30])
    disk.capacity_bytes = None
    flush(sent.table, sent.next - 1)
    sent.table.close()
    sent.table = open_table(disk, DIRECTORY, SERVER)
    sent.check([7, 8, *sent.model][:30])


def test_a_failed_sync_is_an_error(disk: FakeDisk, sent: Sent) -> None:
    sent.send([7])
    disk.fail_next_sync(".run")
    with pytest.raises(SyncFailedError):
        flush(sent.table, 1)


@pytest.mark.parametrize("seed", range(40))
def test_a_loss_of_power_at_any_step_leaves_all_that_was_covered(seed: int) -> None:
    random, disk = Random(seed), FakeDisk()
    sent = Sent(new_table(disk, DIRECTORY, SERVER, complete=True))
    covered = 0
    disk.crash_after(random.randrange(1, 90))
    try:
        for _ in range(12):
            sent.send([random.randrange(1 << 64) for _ in range(random.randrange(200))])
            flush(sent.table, sent.next - 1)
            covered = sent.next - 1
            merge(sent.table)
    except SimulatedCrash:
        pass
    disk.crash(random)
    sent.table = open_table(disk, DIRECTORY, SERVER)
    assert sent.table.covered >= covered and sent.table.complete
    durable = {key: rows for key, rows in sent.model.items() if rows[0][0] <= sent.table.covered}
    assert found(sent.table, list(sent.model)) == durable
    assert len(disk.files(DIRECTORY)) == sent.table.run_count + 1


def test_every_damage_is_found_before_it_is_believed(disk: FakeDisk, sent: Sent) -> None:
    filled(sent, runs=1)
    sent.table.close()
    keys = list(sent.model)
    for path in disk.files(DIRECTORY):
        size = disk.size(path)
        places = range(size) if size < 300 else [*range(0, size, 61), *range(size - 60, size), *range(44)]
        for place in places:
            if path.endswith(".run") and 64 <= place < BLOCK_BYTES:
                continue  # nothing stands there
            disk.flip_bit(path, place)
            with pytest.raises((CorruptionError, FormatError)):
                found(open_table(disk, DIRECTORY, SERVER), keys)
            disk.flip_bit(path, place)
    assert len(found(open_table(disk, DIRECTORY, SERVER), keys)) == 400


def test_a_block_in_the_place_of_another_is_damage(disk: FakeDisk, sent: Sent) -> None:
    filled(sent, runs=1)
    [path] = [path for path in disk.files(DIRECTORY) if path.endswith(".run")]
    block = disk.content(path)[BLOCK_BYTES : 2 * BLOCK_BYTES]
    disk.overwrite(path, 2 * BLOCK_BYTES, block)
    with pytest.raises(CorruptionError, match="checksum of a block"):
        found(sent.table, list(sent.model))


def test_a_file_that_is_cut_or_missing_is_named(disk: FakeDisk, sent: Sent) -> None:
    filled(sent)
    path = next(path for path in disk.files(DIRECTORY) if path.endswith(".run"))
    file = disk.open(path)
    file.truncate(disk.size(path) - 1)
    file.datasync()
    with pytest.raises(CorruptionError, match="bytes instead of"):
        open_table(disk, DIRECTORY, SERVER)
    disk.remove(path)
    with pytest.raises(FileNotFoundError):
        open_table(disk, DIRECTORY, SERVER)
    with pytest.raises(FileNotFoundError):
        open_table(disk, "/data/none", SERVER)


def test_an_index_of_another_directory_is_refused(disk: FakeDisk, sent: Sent) -> None:
    filled(sent)
    with pytest.raises(FormatError, match="belongs to server"):
        open_table(disk, DIRECTORY, SERVER + 1)
    other = Sent(new_table(disk, "/data/other", SERVER + 1, complete=True))
    filled(other)
    for path in disk.files("/data/other"):
        if path.endswith(".run"):
            disk.overwrite(path.replace("/data/other", DIRECTORY), 0, disk.content(path))
    with pytest.raises(FormatError, match="belongs to server"):
        open_table(disk, DIRECTORY, SERVER)


def test_a_new_index_has_nothing_of_the_one_before(disk: FakeDisk, sent: Sent) -> None:
    filled(sent)
    new = new_table(disk, DIRECTORY, SERVER, complete=False)
    assert not found(new, list(sent.model)) and not new.complete and len(disk.files(DIRECTORY)) == 1


def test_an_index_that_is_being_made_is_not_complete_before_its_end(disk: FakeDisk) -> None:
    table = new_table(disk, DIRECTORY, SERVER, complete=False)
    table.add(rows_of([5, 6], 100))
    table.write_older([rows_of([5, 7], 8), rows_of([5], 3)])
    flush(table, 101)
    table.close()
    table = open_table(disk, DIRECTORY, SERVER)
    assert not table.complete
    table.write_older([rows_of([7], 9)])  # the row is in two runs
    table.end_making(gaps=True)
    table.close()
    table = open_table(disk, DIRECTORY, SERVER)
    assert table.complete and table.gaps
    assert found(table, [5, 6, 7]) == {5: [(100, 1000), (8, 80), (3, 30)], 6: [(101, 1010)], 7: [(9, 90)]}


def test_the_key_of_a_name_never_changes() -> None:
    """It is part of the format."""
    keys = name_keys(hash_ids(b"abcabc", np.array([3, 3], np.uint32)), np.array([1, 2], np.uint32))
    assert keys.tolist() == [11156450955883286782, 12053826801241909471]
    assert KEY_ROW.itemsize == 24
