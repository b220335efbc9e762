"""Many small records verified at once say exactly what one by one says, and nothing damaged slips through."""

from __future__ import annotations

import random

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.fuzz.memory_disk import MemoryDisk, MemoryFile
from store.records import record
from store.records.batches import CancelBatch, MessageBatch
from store.records.checksum_fold import multiply, records_verify
from store.records.column_batch import ColumnBatch, MalformedColumnsError
from store.records.fast_reader import CHUNK_BLOB_BYTES_MAX, READ_BYTES, Blobs, FastReader
from store.records.record import HEADER_BYTES, RECORD_MAGIC, encode_record
from store.records.record_run import find_run
from store.records.scan import Scan, ScanReport

START = 64
NAMES = ("sequence", "due_ms", "subject", "redelivery")


def messages(sequence: int, count: int, chance: random.Random) -> MessageBatch:
    lengths = np.array([chance.randrange(30) for _ in range(count)], np.uint32)
    return MessageBatch.filled(
        count,
        sequence=np.arange(sequence, sequence + count),
        due_ms=np.array([chance.randrange(1 << 40) for _ in range(count)]),
        subject=chance.randrange(1, 9),
        redelivery=np.array([chance.randrange(3) for _ in range(count)], np.uint32),
        bodies_length=lengths,
        bodies=chance.randbytes(int(lengths.sum())),
    )


def log_of(batches: list[ColumnBatch]) -> bytes:
    data, offset = bytes(START), START
    for batch in batches:
        encoded = encode_record(batch, offset, offset)
        data += b"".join(map(bytes, encoded.buffers))
        offset += encoded.total_bytes
    return data


def mixed(seed: int, number: int) -> list[ColumnBatch]:
    """Single messages, small batches and cancels, in the order of their sequence."""
    chance, sequence, batches = random.Random(seed), 1, list[ColumnBatch]()
    for _ in range(number):
        count = chance.choice((1, 1, 1, 2, 7))
        if chance.random() < 0.1:
            batches.append(
                CancelBatch.filled(count, sequence=np.arange(sequence, sequence + count), due_ms=5, subject=1)
            )
        else:
            batches.append(messages(sequence, count, chance))
        sequence += count
    return batches


def scanned(data: bytes) -> tuple[list[int], ScanReport, dict[str, list[int]]]:
    scan = FastReader(MemoryDisk({"/f": data}).open("/f", write=False), START, len(data))
    offsets: list[int] = []
    columns: dict[str, list[int]] = {name: [] for name in NAMES}
    for records in scan:
        offsets += records.offsets.tolist()
        mine = records.of_kind(MessageBatch.schema.kind)
        if len(mine):
            for name, column in mine.columns(MessageBatch, NAMES).items():
                if name in NAMES:
                    columns[name] += column.tolist()
    return offsets, scan.report, columns


def one_by_one(data: bytes) -> tuple[list[int], ScanReport, dict[str, list[int]]]:
    file, report = MemoryDisk({"/f": data}).open("/f", write=False), ScanReport(START)
    offsets: list[int] = []
    columns: dict[str, list[int]] = {name: [] for name in NAMES}
    for header, batch in Scan(file, START, len(data)).records(START, START, report, forgive=True):
        offsets.append(header.offset)
        if isinstance(batch, MessageBatch):
            for name in NAMES:
                columns[name] += getattr(batch, name).tolist()
    return offsets, report, columns


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1 << 20), st.integers(0, 60), st.lists(st.tuples(st.integers(0), st.integers(1, 255)), max_size=3)
)
def test_a_scan_of_a_log_agrees_with_a_scan_of_each_record(
    seed: int, number: int, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(log_of(mixed(seed, number)))
    for place, bits in flips:
        if len(data) > START:
            data[START + place % (len(data) - START)] ^= bits
    (offsets, report, columns), (slow_offsets, slow, slow_columns) = scanned(bytes(data)), one_by_one(bytes(data))
    assert offsets == slow_offsets and columns == slow_columns
    assert (report.end, report.torn, report.synced, report.damages) == (slow.end, slow.torn, slow.synced, slow.damages)


def test_every_changed_byte_of_a_run_is_noticed() -> None:
    data = log_of([messages(n + 1, 1, random.Random(n)) for n in range(12)])
    buffer = data[START:]
    run = find_run(buffer, START)
    assert run is not None and len(run.starts) == 12 and run.ends[-1] == len(buffer)
    for place in range(len(buffer)):
        changed = bytearray(buffer)
        changed[place] ^= 0x21
        found = find_run(bytes(changed), START)
        # Damage may end a run early; what is in it never holds the changed byte.
        assert found is None or int(found.ends[-1]) <= place


@pytest.mark.parametrize("number", [1, 4])
def test_a_record_that_calls_later_bytes_durable_is_no_record(number: int) -> None:
    """Alone or in a run of small records."""
    data = bytearray(log_of(mixed(1, number)))
    data[START + 40 : START + 48] = (START + 8).to_bytes(8, "little")
    data[START + 4 : START + 8] = google_crc32c.value(bytes(data[START + 8 : START + 64])).to_bytes(4, "little")
    assert scanned(bytes(data))[:2] == one_by_one(bytes(data))[:2]
    assert START not in scanned(bytes(data))[0]


def test_two_checksums_that_are_exchanged_do_not_cancel_each_other() -> None:
    batches = [messages(n + 1, 1, random.Random(n)) for n in range(4)]
    data = bytearray(log_of(list(batches))[START:])
    run = find_run(bytes(data), START)
    assert run is not None
    first, second = int(run.starts[0]) + 32, int(run.starts[1]) + 32  # the blobs' checksums
    data[first : first + 4], data[second : second + 4] = data[second : second + 4], data[first : first + 4]
    for start in run.starts[:2].tolist():  # and the headers made right again
        header_crc: int = google_crc32c.value(bytes(data[start + 8 : start + HEADER_BYTES]))
        data[start + 4 : start + 8] = header_crc.to_bytes(4, "little")
    assert find_run(bytes(data), START) is None


def test_a_record_within_a_body_is_no_record_of_the_run() -> None:
    outer = MessageBatch.filled(1, sequence=1, due_ms=5, subject=1, bodies_length=400, bodies=bytes(400))
    head = encode_record(outer, START, START).blob_start
    inner = b"".join(map(bytes, encode_record(messages(99, 1, random.Random(2)), START, START + head).buffers))
    body = inner + bytes(400 - len(inner))
    hostile = MessageBatch.filled(1, sequence=1, due_ms=5, subject=1, bodies_length=400, bodies=body)
    data = log_of([hostile, messages(2, 1, random.Random(3)), messages(3, 1, random.Random(4))])
    assert inner in data
    assert scanned(data)[2]["sequence"] == [1, 2, 3]


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_the_checksum_of_a_whole_follows_from_those_of_its_parts(first: bytes, second: bytes) -> None:
    power = 0x80000000
    for _ in range(len(second)):
        power = multiply(power, 1 << 23)
    joined = multiply(google_crc32c.value(first), power) ^ google_crc32c.value(second)
    assert joined == google_crc32c.value(first + second)


def test_a_wrong_magic_or_padding_does_not_verify() -> None:
    data = log_of([messages(n + 1, 1, random.Random(n)) for n in range(3)])[START:]
    run = find_run(data, START)
    assert run is not None
    columns = run.starts + HEADER_BYTES
    blobs = columns + run.columns_bytes
    stops = blobs + run.blob_bytes
    header, column, blob = [
        np.array([int.from_bytes(data[start + at : start + at + 4], "little") for start in run.starts], np.uint32)
        for at in (4, 20, 32)
    ]

    def verify(data: bytes, magic: int) -> bool:
        return records_verify(
            memoryview(data), run.ends, magic, header, column, blob,
            columns_starts=columns, blob_starts=blobs, blob_stops=stops,
        )  # fmt: skip

    assert verify(data, RECORD_MAGIC)
    assert not verify(data, RECORD_MAGIC ^ 1)
    changed = bytearray(data)
    changed[next(int(stop) for stop, end in zip(stops, run.ends, strict=True) if stop < end)] = 1
    assert not verify(bytes(changed), RECORD_MAGIC)


@pytest.mark.parametrize("number", [0, 1, 2, 3000])
def test_logs_of_any_length_are_read_to_their_end(number: int) -> None:
    data = log_of([messages(n + 1, 1, random.Random(n)) for n in range(number)])
    offsets, report, columns = scanned(data + bytes(4096))
    assert len(offsets) == number and columns["sequence"] == list(range(1, number + 1))
    assert report.end == len(data) and not report.torn


class _CountingFile(MemoryFile):
    """A file that counts the bytes that are read of it."""

    read = 0

    def pread(self, offset: int, length: int) -> bytes:
        data = super().pread(offset, length)
        self.read += len(data)
        return data


def long_ones(number: int, body_bytes: int) -> list[ColumnBatch]:
    chance = random.Random(number)
    return [
        MessageBatch.filled(
            2, sequence=np.array([2 * n + 1, 2 * n + 2]), due_ms=5, subject=1,
            bodies_length=np.array([body_bytes, n], np.uint32), bodies=chance.randbytes(body_bytes + n),
            ids_length=np.array([n % 3, 1], np.uint32), ids=chance.randbytes(n % 3 + 1),
        )
        for n in range(number)
    ]  # fmt: skip


@pytest.mark.parametrize("body_bytes", [0, 40, 5_000, 200_000])
def test_blobs_that_are_kept_are_those_of_the_rows(body_bytes: int) -> None:
    """Of runs of small records and of records that are verified one by one."""
    batches = long_ones(200, body_bytes)
    data = log_of(batches)
    reader = FastReader(MemoryDisk({"/f": data}).open("/f", write=False), START, len(data), blobs=Blobs.KEEP)
    found = {"ids": b"", "bodies": b""}
    for records in reader:
        columns = records.columns(MessageBatch, ())
        for name in found:
            found[name] += records.blob(MessageBatch, columns, name)
        assert records.blob_bytes.sum() <= CHUNK_BLOB_BYTES_MAX + (1 << 20), "a chunk is bounded by its blobs"
    assert reader.report.end == len(data)
    for name, joined in found.items():
        assert joined == b"".join([bytes(getattr(batch, name)) for batch in batches])


def test_large_blobs_that_are_not_wanted_are_not_read() -> None:
    data = log_of(long_ones(50, 200_000))
    file = _CountingFile("/f", bytearray(data), write=False)
    reader = FastReader(file, START, len(data), blobs=Blobs.SKIP)
    assert sum([len(records) for records in reader]) == 50
    # The first read may take more: the reader does not know yet that blobs are large.
    assert file.read < READ_BYTES + len(data) // 50
    assert reader.report.end == len(data)


def test_lengths_that_do_not_add_up_to_the_blob_of_a_record_are_noticed() -> None:
    data = log_of(long_ones(3, 40))
    [records] = FastReader(MemoryDisk({"/f": data}).open("/f", write=False), START, len(data), blobs=Blobs.KEEP)
    columns = records.columns(MessageBatch, ())
    moved = columns["bodies_length"] + np.array([1, 0, -1, 0, 0, 0])
    with pytest.raises(MalformedColumnsError, match="add up"):
        records.blob(MessageBatch, columns | {"bodies_length": moved}, "bodies")


def test_records_that_only_the_scan_takes_are_damage_and_reading_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two readers agree, unless one of them has a mistake. To read the same record again would never end."""
    for name in ("_checksum", "_extend"):
        monkeypatch.setattr(record, name, lambda *_: 0)
    data = log_of(long_ones(3, 40))
    offsets, report, _ = scanned(data)
    assert offsets == [] and len(report.damages) == 3 and report.damages[-1].stop == len(data)


class _GrowingFile(MemoryFile):
    """A preallocated file of a running server: each read sees some bytes more than the one before."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__("/f", bytearray(data), write=False)
        self._step = step
        self._written = START

    def pread(self, offset: int, length: int) -> bytes:
        found = super().pread(offset, length)
        there = min(max(self._written - offset, 0), length)
        self._written += self._step
        return found[:there] + bytes(len(found) - there)


@pytest.mark.parametrize("step", [*range(8, 200, 8), 1000, 3000])
def test_a_record_that_is_written_between_two_reads_is_no_damage(step: int) -> None:
    data = log_of(long_ones(40, 40))
    fast = FastReader(_GrowingFile(data, step), START, len(data))
    whole = [int(offset) for records in fast for offset in records.offsets]
    assert (fast.report.damages, fast.newer) == ([], "")
    report = ScanReport(START)
    slow = Scan(_GrowingFile(data, step), START, len(data)).records(START, START, report, forgive=True)
    assert {header.offset for header, _ in slow} | set(whole) <= set(scanned(data)[0])
    assert report.damages == []
