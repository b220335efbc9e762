"""The index file of a store segment: rows by hash, found with two reads, and damage that is reported."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayserver.broker.files.store_index import (
    BUCKET_ROWS,
    IndexRows,
    base_of,
    encode_index,
    index_path,
    search_index,
    write_index,
)
from store.errors import CorruptionError, FormatError
from store.records.file_header import FILE_HEADER_BYTES
from tests.fakes.disk import FakeDisk, FakeFile

SERVER, BASE = 7, 4096
PATH = index_path("/b", BASE)


def rows(hashes: list[int]) -> IndexRows:
    """Rows with these hashes; the place and the row of each hold its number."""
    count = len(hashes)
    numbers = np.arange(count)
    return IndexRows.joined([IndexRows(np.array(hashes, np.int64), BASE + numbers * 8, numbers.astype(np.uint32))])


def written(hashes: list[int]) -> FakeDisk:
    disk = FakeDisk()
    list(write_index(disk, PATH, SERVER, BASE, rows(hashes)))
    return disk


def found(disk: FakeDisk, hashed: int) -> list[int]:
    """The numbers of the rows with a hash."""
    result = search_index(disk, PATH, SERVER, BASE, hashed)
    assert (result.place == BASE + result.row.astype(np.int64) * 8).all()
    return [int(row) for row in result.row]


@given(st.lists(st.integers(-3, 3) | st.integers(-(1 << 63), (1 << 63) - 1), max_size=60), st.integers(-4, 4))
def test_each_hash_leads_to_all_its_rows_in_order(hashes: list[int], other: int) -> None:
    disk = written(hashes)
    for hashed in {*hashes, other}:
        assert found(disk, hashed) == [row for row, one in enumerate(hashes) if one == hashed]


def test_a_hash_that_fills_several_buckets_is_found_whole() -> None:
    hashes = [*range(-BUCKET_ROWS // 2, 0), *[5] * (3 * BUCKET_ROWS), 9]
    disk = written(hashes)
    assert len(found(disk, 5)) == 3 * BUCKET_ROWS
    assert found(disk, 9) == [len(hashes) - 1] and found(disk, -1) == [BUCKET_ROWS // 2 - 1]
    assert found(disk, 6) == [] and found(disk, -BUCKET_ROWS) == [] and found(disk, 10) == []


def test_a_search_reads_the_directory_and_one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = list(range(0, 100 * BUCKET_ROWS))
    disk, read = written(hashes), []
    pread = FakeFile.pread

    def counted(self: FakeFile, offset: int, length: int) -> bytes:
        read.append(length)
        return pread(self, offset, length)

    monkeypatch.setattr(FakeFile, "pread", counted)
    assert found(disk, 70_000) == [70_000]
    assert sum(read) < 2 * BUCKET_ROWS * 20 and len(read) <= 5


@pytest.mark.parametrize("offset", [FILE_HEADER_BYTES + 20, FILE_HEADER_BYTES + 90, -100])
def test_damage_is_reported_and_never_taken_for_an_answer(offset: int) -> None:
    disk = written([1, 2, 3] * 40)
    disk.flip_bit(PATH, offset if offset > 0 else disk.size(PATH) + offset)
    with pytest.raises(CorruptionError, match="index"):
        found(disk, 2)


def test_a_cut_file_is_damage() -> None:
    data = b"".join(encode_index(SERVER, BASE, rows([1, 2, 3] * 40)))
    for length in (FILE_HEADER_BYTES - 1, FILE_HEADER_BYTES + 10, len(data) - 8):
        disk = FakeDisk()
        disk.make_directory("/b/index")
        file = disk.open(PATH, create=True)
        file.pwrite(0, [data[:length]])
        with pytest.raises(CorruptionError):
            found(disk, 2)


def test_the_index_of_another_segment_or_server_is_refused() -> None:
    disk = written([1])
    with pytest.raises(CorruptionError, match="not the index of this segment"):
        search_index(disk, PATH, SERVER, BASE + 1, 1)
    with pytest.raises((CorruptionError, FormatError)):
        search_index(disk, PATH, SERVER + 1, BASE, 1)


def test_an_index_without_rows_finds_nothing() -> None:
    assert found(written([]), 5) == []


def test_the_name_of_an_index_file_states_the_base_of_its_segment() -> None:
    assert base_of(PATH.rsplit("/", 1)[1]) == BASE
    assert base_of("00000000000000004096.log") == base_of("x.index") == base_of(f"{BASE:020d}.index.tmp") == -1
