"""The file `cluster`: it comes back as it was written, and any damage of it is an error, never a missing one."""

from __future__ import annotations

import pytest

from store.disk.filesystem import FileSystem, read_whole, write_atomically
from store.disk.memory_filesystem import MemoryFileSystem
from store.errors import CorruptionError, FormatError
from store.tables.member_file import FILE_NAME, MemberOf, read_owner, require_owner, write_owner

SERVER = 0x123456789ABC
DIRECTORY = "/data"
OWNER = MemberOf(77, 1, "a", 4096)


@pytest.fixture
def fs() -> FileSystem:
    memory = MemoryFileSystem(1 << 26)
    memory.make_directory(DIRECTORY)
    return memory


def test_an_owner_comes_back_as_it_was_written(fs: FileSystem) -> None:
    assert read_owner(fs, DIRECTORY) is None and require_owner(fs, DIRECTORY, None) is None
    write_owner(fs, DIRECTORY, SERVER, OWNER)
    assert read_owner(fs, DIRECTORY, SERVER) == OWNER
    with pytest.raises(FormatError, match="belongs to server"):
        read_owner(fs, DIRECTORY, SERVER + 1)


def test_every_changed_byte_and_every_cut_is_found(fs: FileSystem) -> None:
    write_owner(fs, DIRECTORY, SERVER, OWNER)
    data = read_whole(fs, f"{DIRECTORY}/{FILE_NAME}")
    for place in range(len(data)):
        for damaged in (data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], data[:place]):
            write_atomically(fs, f"{DIRECTORY}/{FILE_NAME}", damaged)
            with pytest.raises((CorruptionError, FormatError)):
                read_owner(fs, DIRECTORY)


@pytest.mark.parametrize(
    ("opener", "said"),
    [
        (None, "the directory of member a of shard 1 of cluster 00000000004d. Start it with the file of its cluster"),
        (MemberOf(78, 1, "a"), "and this is member a of shard 1 of cluster 00000000004e"),
        (MemberOf(77, 0, "a"), "and this is member a of shard 0 of cluster"),
        (MemberOf(77, 1, "b"), "and this is member b of shard 1 of cluster"),
    ],
)
def test_the_directory_of_a_member_is_refused_in_another(fs: FileSystem, opener: MemberOf | None, said: str) -> None:
    write_owner(fs, DIRECTORY, SERVER, OWNER)
    with pytest.raises(FormatError, match=said):
        require_owner(fs, DIRECTORY, opener)
    assert require_owner(fs, DIRECTORY, MemberOf(77, 1, "a")) == OWNER


def test_a_directory_of_a_shard_may_become_that_of_any_member(fs: FileSystem) -> None:
    write_owner(fs, DIRECTORY, SERVER, MemberOf(77, 1, ""))
    assert require_owner(fs, DIRECTORY, MemberOf(77, 1, "b")) is not None


def test_a_directory_that_left_is_that_of_a_single_server(fs: FileSystem) -> None:
    write_owner(fs, DIRECTORY, SERVER, MemberOf(77, 1, "a", 9, left=True))
    assert require_owner(fs, DIRECTORY, None) is not None
    with pytest.raises(FormatError, match="that of a server of its own since"):
        require_owner(fs, DIRECTORY, MemberOf(77, 1, "a"))
