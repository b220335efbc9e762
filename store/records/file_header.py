"""The first 64 bytes of every log file: what it is, whose it is, where it belongs. FORMAT.md draws them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import google_crc32c

from store.disk.filesystem import FileSystem, read_twice
from store.errors import CorruptionError, FormatError

FILE_MAGIC = b"DELAYLOG"
FORMAT_VERSION = 1
FILE_HEADER_BYTES = 64
_FILE_HEADER = struct.Struct("<8sHHIQqqI20x")
_CHECKED_BYTES = 40
_USED_BYTES = 44
# One read of the search for anything behind a header.
_SEARCH_BYTES = 1 << 20

FILE_MESSAGE_LOG, FILE_SCHEDULE, FILE_DISPATCH, FILE_NAMES, FILE_STORE, FILE_QUEUE, FILE_PROGRESS = range(1, 8)
FILE_LEDGER = 8
FILE_INDEX = 9
FILE_KEYS = 10


@dataclass(frozen=True, slots=True)
class FileHeader:
    """`base` is a logical offset (message_log) or the start of a window in milliseconds, `span_ms` its length."""

    kind: int
    server_id: int
    base: int
    span_ms: int = 0
    flags: int = 0

    def encode(self) -> bytes:
        """64 bytes: 40 of fields, their CRC-32C, and zeros."""
        fields = (FILE_MAGIC, FORMAT_VERSION, self.kind, self.flags, self.server_id, self.base, self.span_ms, 0)
        head = bytes(_FILE_HEADER.pack(*fields))[:_CHECKED_BYTES]
        crc: int = google_crc32c.value(head)
        return head + crc.to_bytes(4, "little") + bytes(FILE_HEADER_BYTES - _USED_BYTES)


def decode_file_header(data: bytes, path: str) -> FileHeader:
    """Raises FormatError for a foreign file or a newer version, CorruptionError for a wrong checksum."""
    if len(data) < FILE_HEADER_BYTES:
        raise CorruptionError(path, 0, f"only {len(data)} bytes: the file header is cut off")
    magic, version, kind, flags, server_id, base, span_ms, _ = _FILE_HEADER.unpack(data[:FILE_HEADER_BYTES])
    checked = header_verifies(data)
    if magic != FILE_MAGIC and (checked or not _looks_like_ours(data)):
        raise FormatError(path, "not a file of this program (wrong magic)")
    if not checked or any(data[_USED_BYTES:FILE_HEADER_BYTES]):
        raise CorruptionError(path, 0, "file header checksum")
    if version > FORMAT_VERSION:
        raise FormatError(path, f"format version {version} is newer than this program's {FORMAT_VERSION}; upgrade it")
    return FileHeader(kind, server_id, base, span_ms, flags)


def header_verifies(data: bytes) -> bool:
    """Whether the checksum of a file header is right; false where less than a header is given."""
    crc: int = google_crc32c.value(data[:_CHECKED_BYTES])
    return len(data) >= FILE_HEADER_BYTES and crc.to_bytes(4, "little") == data[_CHECKED_BYTES:_USED_BYTES]


def _looks_like_ours(data: bytes) -> bool:
    """Whether a header without the magic is a damaged one of ours: zeroed, or most of the magic is there."""
    return not any(data[:FILE_HEADER_BYTES]) or sum(a == b for a, b in zip(data, FILE_MAGIC, strict=False)) >= 6


def is_unfinished(fs: FileSystem, path: str) -> bool:
    """Whether a file is what a crash leaves between making it and writing its header: no header and nothing behind.

    The header is durable before the first record is written, so a bad header with bytes behind it is corruption.
    """
    file = fs.open(path, write=False)
    try:
        if header_verifies(read_twice(file, 0, FILE_HEADER_BYTES)):
            return False
        size = file.size()
        for start in range(FILE_HEADER_BYTES, size, _SEARCH_BYTES):
            data = read_twice(file, start, min(_SEARCH_BYTES, size - start))
            if data.count(0) != len(data):
                return False
        return True
    except CorruptionError:  # where the disk cannot read, there may be a record
        return False
    finally:
        file.close()
