"""The table of tokens: it comes back as it was written, and any damage of it is an error, never an empty table."""

from __future__ import annotations

import pytest

from store.disk.filesystem import FileSystem, read_whole, write_atomically
from store.disk.memory_filesystem import MemoryFileSystem
from store.errors import CorruptionError, FormatError
from store.tables.stored_tokens import FILE_NAME, StoredSecret, StoredToken, read_tokens, write_tokens

SERVER = 0x123456789ABC
DIRECTORY = "/data"
TOKENS = (
    StoredToken("0" * 12, "shop", ("send",), ("orders*",), (StoredSecret(b"a" * 32),), 1, 2, 3, 4, 5),
    StoredToken("1" * 12, "", ("look", "admin"), ("*",), (StoredSecret(b"b" * 32), StoredSecret(b"c" * 32, 9)), 7),
)


@pytest.fixture
def fs() -> FileSystem:
    memory = MemoryFileSystem(1 << 26)
    memory.make_directory(DIRECTORY)
    return memory


def whole(fs: FileSystem) -> bytes:
    return read_whole(fs, f"{DIRECTORY}/{FILE_NAME}")


def replace(fs: FileSystem, data: bytes) -> None:
    write_atomically(fs, f"{DIRECTORY}/{FILE_NAME}", data)


def test_a_table_comes_back_as_it_was_written(fs: FileSystem) -> None:
    assert read_tokens(fs, DIRECTORY, SERVER) is None
    write_tokens(fs, DIRECTORY, SERVER, TOKENS)
    assert read_tokens(fs, DIRECTORY, SERVER) == TOKENS


def test_an_empty_table_is_not_no_table(fs: FileSystem) -> None:
    write_tokens(fs, DIRECTORY, SERVER, ())
    assert read_tokens(fs, DIRECTORY, SERVER) == ()


def test_a_table_of_another_server_is_refused(fs: FileSystem) -> None:
    write_tokens(fs, DIRECTORY, SERVER, TOKENS)
    with pytest.raises(FormatError, match="belongs to server"):
        read_tokens(fs, DIRECTORY, SERVER + 1)


def test_every_changed_byte_and_every_cut_is_found(fs: FileSystem) -> None:
    write_tokens(fs, DIRECTORY, SERVER, TOKENS)
    data = whole(fs)
    for place in range(len(data)):
        replace(fs, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises((CorruptionError, FormatError)):
            read_tokens(fs, DIRECTORY, SERVER)
        replace(fs, data[:place])
        with pytest.raises((CorruptionError, FormatError)):
            read_tokens(fs, DIRECTORY, SERVER)


def test_no_secret_is_in_the_file_or_in_its_text(fs: FileSystem) -> None:
    write_tokens(fs, DIRECTORY, SERVER, TOKENS)
    assert b"dst_" not in whole(fs)
