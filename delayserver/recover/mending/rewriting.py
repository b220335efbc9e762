"""Files of records written anew, and the records that stand for lost ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from store.disk.filesystem import FileSystem, directory_of
from store.errors import StoreError
from store.records.batches import NameBatch
from store.records.column_batch import ColumnBatch, encode_columns
from store.records.file_header import FILE_HEADER_BYTES, FileHeader
from store.records.record import HEADER_BYTES, RECORD_BYTES_MAX, encode_record, record_bytes
from store.tables.names import SUBJECT


def write_file(
    fs: FileSystem,
    path: str,
    header: FileHeader,
    batches: Iterable[ColumnBatch],
    before: Callable[[int], None] = lambda _end: None,
) -> int:
    """Replace a log file by one with these records, atomically; returns its length. Raises DiskFullError, StoreError.

    `before` is called with that length when the new file is durable and the old one still in its place. Each record may say
    that all before it was synced: the file has no reader before its sync.
    """
    temporary = f"{path}.tmp"
    fs.make_directory(directory_of(path))
    file = fs.open(temporary, create=True)
    try:
        file.truncate(0)
        file.pwrite(0, [header.encode()])
        end = FILE_HEADER_BYTES
        for batch in batches:
            record = encode_record(batch, end, end)
            file.pwrite(end, record.buffers)
            end += record.total_bytes
        file.datasync()
    except StoreError:
        file.close()
        fs.remove(temporary)
        raise
    finally:
        file.close()
    before(end)
    fs.replace(temporary, path)
    fs.sync_directory(directory_of(path))
    return end


def placeholders(start: int, stop: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields (position, buffers) of empty records that fill [start, stop) of a message_log exactly. Replay ignores
    them. Raises StoreError where the range is too small for a record."""
    while start < stop:
        length = min(stop - start, RECORD_BYTES_MAX // 2)  # the rest gets further ones
        yield start, _placeholder(start, length)
        start += length


def _placeholder(offset: int, length: int) -> list[bytes]:
    empty = NameBatch.filled(1, code=0, name_kind=SUBJECT, names_length=0)
    room = length - HEADER_BYTES - len(encode_columns(empty))
    if room < 0:
        raise StoreError(f"a range of {length} bytes at {offset} is too small for a placeholder")
    text = b"moved aside by `delayserver recover repair`"[:room].ljust(room, b" ")
    batch = NameBatch.filled(1, code=0, name_kind=SUBJECT, names_length=len(text), names=text)
    record = encode_record(batch, offset, offset)
    assert record.total_bytes == length == record_bytes(len(encode_columns(batch)), room)
    return [bytes(buffer) for buffer in record.buffers]


def with_lost_names(batches: Iterable[ColumnBatch]) -> Iterator[ColumnBatch]:
    """The records of a table of names, with stand-ins for the codes that are missing between them."""
    following = 1
    for batch in batches:
        if isinstance(batch, NameBatch):
            lost = int(batch.code[0]) - following
            if lost > 0:
                yield lost_names(following, lost)
            following = int(batch.code[-1]) + 1
        yield batch


def lost_names(first: int, count: int) -> NameBatch:
    """Stand-ins for names that cannot be read any more: codes in all logs point to them."""
    names = [lost_name(code).encode() for code in range(first, first + count)]
    return NameBatch.filled(
        count,
        code=np.arange(first, first + count, dtype=np.uint32),
        name_kind=SUBJECT,
        names_length=np.array([len(name) for name in names], np.uint32),
        names=b"".join(names),
    )


def lost_name(code: int) -> str:
    """The stand-in for one name."""
    return f"lost-name-{code}"
