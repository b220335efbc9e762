"""Damages of files, by name: what a disk, a person or another program may do to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import google_crc32c

from store.records.record import HEADER_BYTES, RECORD_MAGIC, decode_header

Damage = Callable[[Path], None]
FIRST_RECORD = 64


def records(path: Path) -> list[tuple[int, int, int]]:
    """(start, start of the blob, end) of every record of a log."""
    data = path.read_bytes()
    found, position = [], FIRST_RECORD
    while (
        position + HEADER_BYTES <= len(data) and int.from_bytes(data[position : position + 4], "little") == RECORD_MAGIC
    ):
        header = decode_header(data[position : position + HEADER_BYTES], position)
        found.append((position, header.blob_offset, header.end))
        position = header.end
    return found


def flip(path: Path, offset: int) -> None:
    """One bit of a byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def flip_in_record(place: int) -> Damage:
    """A bit at this position of the first record."""
    return lambda path: flip(path, records(path)[0][0] + place)


def flip_in_columns(path: Path) -> None:
    start, blob, _ = records(path)[0]
    flip(path, start + HEADER_BYTES + (blob - start - HEADER_BYTES) // 2)


def flip_in_body(path: Path) -> None:
    _, blob, end = records(path)[0]
    flip(path, blob if blob < end else blob - 1)


def flip_file_header(path: Path) -> None:
    flip(path, 24)


def zero_page(path: Path) -> None:
    """Zeros from the first record on, as a page that never reached the disk; the last record stays."""
    found = records(path)
    stop = found[-1][0] if len(found) > 1 else found[0][2]
    data = bytearray(path.read_bytes())
    data[FIRST_RECORD:stop] = bytes(stop - FIRST_RECORD)
    path.write_bytes(data)


def repeat_batch(path: Path) -> None:
    """The first record once more behind the last one, as a write that was sent twice."""
    found = records(path)
    start, _, end = found[0]
    last = found[-1][2]
    data = bytearray(path.read_bytes())
    data[last : last + end - start] = data[start:end]
    path.write_bytes(data)


def cut_at(part: str) -> Damage:
    """The file ends within its last record: in its header, columns or blob, or right before its end."""

    def cut(path: Path) -> None:
        start, blob, end = records(path)[-1]
        stop = {"magic": start + 2, "header": start + 40, "columns": (start + 64 + blob) // 2, "end": end - 1}[part]
        path.write_bytes(path.read_bytes()[:stop])

    return cut


def cut_before_last_record(path: Path) -> None:
    """The file ends exactly behind a whole record, as if the last one had never been."""
    path.write_bytes(path.read_bytes()[: records(path)[-1][0]])


def cut_to_header(path: Path) -> None:
    """Nothing is left but the file header."""
    path.write_bytes(path.read_bytes()[:64])


def cut_to_nothing(path: Path) -> None:
    """An empty file."""
    path.write_bytes(b"")


def append_torn(path: Path) -> None:
    """Half a record behind the last one, as a crash leaves it."""
    found = records(path)
    start, _, end = found[0]
    last = found[-1][2]
    data = bytearray(path.read_bytes()[:last])
    data += path.read_bytes()[start : start + (end - start) // 2]
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def sealed_header(path: Path, start: int, field: bytes) -> None:
    """Another value in the file header, with a right checksum."""
    data = bytearray(path.read_bytes())
    data[start : start + len(field)] = field
    crc: int = google_crc32c.value(bytes(data[:40]))
    data[40:44] = crc.to_bytes(4, "little")
    path.write_bytes(data)


def foreign_cluster(path: Path) -> None:
    sealed_header(path, 16, (0xABCDEF).to_bytes(8, "little"))


def newer_version(path: Path) -> None:
    sealed_header(path, 8, (99).to_bytes(2, "little"))


def swap(first: Path, second: Path) -> None:
    """Two files change their names."""
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
