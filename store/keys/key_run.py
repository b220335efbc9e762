"""One sorted run of the key index: a file that is written once, in blocks of 4 KiB with a checksum each.

Behind the blocks stand the first key of each block and the filter, and last a footer. These stay in memory. A search
reads one block, or none where the filter knows that the key is not there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from store.disk.filesystem import File, FileSystem, read_twice
from store.errors import CorruptionError, FormatError
from store.keys.key_rows import KEY_ROW, KeyRows, matches, no_rows
from store.records.batches import I64, U8, U64
from store.records.file_header import FILE_HEADER_BYTES, FILE_KEYS, FileHeader, decode_file_header

BLOCK_BYTES = 4096
BLOCK_ROWS = 170
BLOCK_WORDS = BLOCK_BYTES // 8
# A block begins with two words: its checksum and number of rows, and its mark.
HEAD_WORDS = 2
_CRC_BYTES = 4
# Runs up to this length have a filter: 2 MiB at most. Longer ones are few.
FILTER_ROWS_MAX = 1 << 20
# One bit of 16 for each row: 6 % of the keys that are not there pass.
FILTER_BITS = 16
_FOOTER = struct.Struct("<8sQQQQII")
_MAGIC = b"KEYSTAIL"
# Blocks that one step of a writer or a reader takes: 1 MiB.
STEP_BLOCKS = 256


@dataclass(frozen=True, slots=True)
class RunName:
    """A run as the manifest names it."""

    number: int
    rows: int
    size_bytes: int


def run_path(directory: str, number: int) -> str:
    """The file of a run, in the folder of the index."""
    return f"{directory}/{number:012d}.run"


class RunWriter:
    """Writes a run from rows in order. A crash leaves a file that no manifest names."""

    def __init__(self, fs: FileSystem, directory: str, server_id: int, number: int, rows_max: int) -> None:
        """`rows_max`: at least as many as will come; it decides about the filter."""
        self._fs = fs
        self._path = run_path(directory, number)
        self._number = number
        self._file = fs.open(self._path, create=True)
        self._rest = no_rows()
        self._first: list[U64] = []
        self._blocks = 0
        self._rows = 0
        self._filter = np.zeros(rows_max * FILTER_BITS if rows_max <= FILTER_ROWS_MAX else 0, np.bool_)
        header = FileHeader(FILE_KEYS, server_id, number).encode()
        self._file.truncate(0)
        self._file.pwrite(0, [header, bytes(BLOCK_BYTES - FILE_HEADER_BYTES)])

    def add(self, rows: KeyRows) -> None:
        """Append rows. Raises DiskFullError, DiskError."""
        if len(self._filter) and len(rows):
            self._filter[_filter_bit(rows["key"], len(self._filter))] = True
        if len(self._rest):
            rows = np.concatenate([self._rest, rows])
        whole = len(rows) // BLOCK_ROWS * BLOCK_ROWS
        for start in range(0, whole, BLOCK_ROWS * STEP_BLOCKS):
            self._write(rows[start : min(start + BLOCK_ROWS * STEP_BLOCKS, whole)])
        self._rest = rows[whole:]

    def sync(self) -> None:
        """Make what is written durable, so that the end does not wait for all of it. Raises SyncFailedError."""
        self._file.datasync()

    def finish(self) -> KeyRun:
        """Make the run durable in its file, but for the name in its directory. Raises DiskFullError, SyncFailedError."""
        if len(self._rest):
            self._write(self._rest)
        first = np.concatenate([np.zeros(0, np.uint64), *self._first])
        bits = np.packbits(self._filter, bitorder="little")
        tail = first.astype("<u8").tobytes() + bits.tobytes()
        footer = _FOOTER.pack(_MAGIC, self._number, self._rows, self._blocks, len(self._filter), _checksum(tail), 0)
        footer = footer[:-_CRC_BYTES] + _checksum(footer[:-_CRC_BYTES]).to_bytes(_CRC_BYTES, "little")
        end = (1 + self._blocks) * BLOCK_BYTES
        self._file.pwrite(end, [tail, footer])
        self._file.datasync()
        name = RunName(self._number, self._rows, end + len(tail) + len(footer))
        return KeyRun(self._file, name, first, bits, len(self._filter))

    def abandon(self) -> None:
        """Give the space back."""
        self._file.close()
        self._fs.remove(self._path)

    def _write(self, rows: KeyRows) -> None:
        count = -(-len(rows) // BLOCK_ROWS)
        # Words, because numpy copies rows of three words one by one.
        blocks = np.zeros((count, BLOCK_WORDS), "<u8")
        short = count * BLOCK_ROWS - len(rows)
        whole = rows if not short else np.concatenate([rows, np.zeros(short, KEY_ROW)])
        blocks[:, HEAD_WORDS:] = whole.view("<u8").reshape(count, -1)
        blocks[:, 0] = BLOCK_ROWS << 32
        blocks[-1, 0] = (BLOCK_ROWS - short) << 32
        blocks[:, 1] = _marks(self._number, self._blocks, count)
        data = blocks.data.cast("B")
        blocks.view("<u4")[:, 0] = _checksums(data)
        self._file.pwrite((1 + self._blocks) * BLOCK_BYTES, [data])
        self._first.append(blocks[:, HEAD_WORDS].copy())
        self._blocks += count
        self._rows += len(rows)


class KeyRun:
    """A run that is open. Its file never changes; for any thread."""

    def __init__(self, file: File, name: RunName, first: U64, bits: U8, filter_bits: int) -> None:
        """`first`: the first key of each block. `bits`: the filter, packed."""
        self._file = file
        self.name = name
        self._first = first
        self._bits = bits
        self._filter_bits = filter_bits

    @property
    def path(self) -> str:
        """Its file."""
        return self._file.path

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self._first.nbytes + self._bits.nbytes

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def find(self, keys: U64, newest: int) -> tuple[I64, KeyRows]:
        """The last `newest` rows of each of n keys: positions in `keys` i64[m] and the rows. Raises CorruptionError,
        DiskError."""
        asked = np.flatnonzero(self._may_have(keys))
        last = np.searchsorted(self._first, keys[asked], side="right") - 1
        asked, last = asked[last >= 0], last[last >= 0]
        if not len(asked):
            return np.zeros(0, np.int64), no_rows()
        first = np.maximum(np.searchsorted(self._first, keys[asked]) - 1, 0)
        first = np.maximum(first, last - (newest + BLOCK_ROWS - 1) // BLOCK_ROWS)
        wanted = np.unique(np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)]))
        rows = np.concatenate([self._blocks(block, 1) for block in wanted.tolist()])
        place, found = matches(rows, keys[asked], newest)
        return asked[place], found

    def parts(self) -> Iterator[KeyRows]:
        """All rows in order, about 1 MiB at a time. Raises CorruptionError, DiskError."""
        for start in range(0, len(self._first), STEP_BLOCKS):
            yield self._blocks(start, min(STEP_BLOCKS, len(self._first) - start))

    def _may_have(self, keys: U64) -> NDArray[np.bool_]:
        if not self._filter_bits:
            return np.ones(len(keys), np.bool_)
        bit = _filter_bit(keys, self._filter_bits)
        is_set: NDArray[np.bool_] = (self._bits[bit >> np.uint64(3)] >> (bit & np.uint64(7)).astype(np.uint8)) & 1 != 0
        return is_set

    def _blocks(self, start: int, count: int) -> KeyRows:
        offset = (1 + start) * BLOCK_BYTES
        data = read_twice(self._file, offset, count * BLOCK_BYTES)
        if len(data) < count * BLOCK_BYTES:
            raise CorruptionError(self._file.path, offset, "the file of a run of keys is cut off")
        blocks = np.frombuffer(data, "<u8").reshape(count, BLOCK_WORDS)
        halves = blocks.view("<u4")
        right = (halves[:, 0] == _checksums(memoryview(data))) & (
            blocks[:, 1] == _marks(self.name.number, start, count)
        )
        right &= (halves[:, 1] == BLOCK_ROWS) | (np.arange(start, start + count) == len(self._first) - 1)
        if not right.all():
            bad = int(np.argmin(right))
            raise CorruptionError(self._file.path, offset + bad * BLOCK_BYTES, "checksum of a block of keys")
        rows = blocks[:, HEAD_WORDS:].reshape(-1).view(KEY_ROW)
        return rows[: len(rows) - BLOCK_ROWS + int(halves[-1, 1])]


def open_run(fs: FileSystem, directory: str, server_id: int, name: RunName) -> KeyRun:
    """Open a run that a manifest names. Raises FileNotFoundError, CorruptionError, FormatError (of another server or a
    newer program), DiskError."""
    path = run_path(directory, name.number)
    file = fs.open(path, write=False)
    try:
        return _opened(file, server_id, name)
    except BaseException:
        file.close()
        raise


def _opened(file: File, server_id: int, name: RunName) -> KeyRun:
    header = decode_file_header(read_twice(file, 0, FILE_HEADER_BYTES), file.path)
    if header.server_id != server_id:
        raise FormatError(file.path, f"belongs to server {header.server_id:012x}, not to {server_id:012x}")
    if (header.kind, header.base) != (FILE_KEYS, name.number):
        raise CorruptionError(file.path, 0, "not the run of keys that its name says")
    if file.size() != name.size_bytes:
        raise CorruptionError(file.path, 0, f"{file.size()} bytes instead of {name.size_bytes}")
    position = name.size_bytes - _FOOTER.size
    footer = read_twice(file, position, _FOOTER.size)
    magic, number, rows, blocks, filter_bits, tail_crc, crc = _FOOTER.unpack(footer)
    if magic != _MAGIC or crc != _checksum(footer[:-_CRC_BYTES]) or (number, rows) != (name.number, name.rows):
        raise CorruptionError(file.path, position, "footer of a run of keys")
    end = (1 + blocks) * BLOCK_BYTES
    tail = read_twice(file, end, position - end)
    if len(tail) != blocks * 8 + (filter_bits + 7) // 8 or _checksum(tail) != tail_crc:
        raise CorruptionError(file.path, end, "checksum of the first keys of a run")
    first = np.frombuffer(tail, "<u8", blocks)
    return KeyRun(file, name, first, np.frombuffer(tail, np.uint8, offset=blocks * 8), filter_bits)


def _filter_bit(keys: U64, count: int) -> U64:
    """The bit of each key in a filter of `count` bits. It rises with the key, so a writer goes through the filter once."""
    return ((keys >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)


def _marks(number: int, start: int, count: int) -> U64:
    """The marks of blocks from `start` on. They name run and block: a block in another's place is found."""
    return np.arange(start, start + count, dtype=np.uint64) + np.uint64(number << 32)


def _checksums(blocks: memoryview) -> list[int]:
    return [_checksum(blocks[at + _CRC_BYTES : at + BLOCK_BYTES]) for at in range(0, len(blocks), BLOCK_BYTES)]


def _checksum(data: bytes | memoryview) -> int:
    value: int = google_crc32c.value(bytes(data))
    return value
