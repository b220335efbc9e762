"""Targets for whole log files: each kind is opened by its own reader as after a crash, and scanned by the tools.

The records that a reader returns must have right checksums. A second opening must read the same from the file that the
first one left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.files.progress_log import ProgressLog
from delayserver.broker.files.store import BrokerStore
from delayserver.broker.files.store_index import IndexRows, encode_index, search_index
from delayserver.broker.queues.run_blocks import RunBlocks
from delayserver.broker.reads import Reads, having_read, read_at_once
from ops.fuzz.memory_disk import MemoryDisk
from ops.fuzz.records import examples, log_of, mend_log, verify_accepted
from ops.fuzz.target import Target, ensure
from store.errors import CorruptionError, StoreError
from store.logs.dispatch_log import DispatchLog
from store.logs.message_log import MessageLog
from store.logs.schedule_log import ScheduleLog
from store.records.batches import (
    CancelBatch,
    LedgerBatch,
    MessageBatch,
    NameBatch,
    OutcomeBatch,
    ProgressBatch,
    RunBatch,
    StoredBatch,
)
from store.records.column_batch import ColumnBatch
from store.records.fast_reader import FastReader
from store.records.file_header import (
    FILE_DISPATCH,
    FILE_LEDGER,
    FILE_MESSAGE_LOG,
    FILE_NAMES,
    FILE_PROGRESS,
    FILE_QUEUE,
    FILE_SCHEDULE,
    FILE_STORE,
)
from store.records.scan import Scan, ScanReport
from store.tables.ledger import Ledger
from store.tables.names import Names

SERVER = 5
WINDOW_MS = 60_000
SEGMENT_BYTES = 1 << 14
_LOG = f"/d/{0:020d}.log"
_WINDOW = "/d/1970-01-01/0001"
_LIMITS = BrokerLimits(segment_bytes=SEGMENT_BYTES, queue_segment_bytes=SEGMENT_BYTES)

# Columns that contradict their schema under a right checksum. The tools report them at decoding, not at scanning.
_CONTRADICTS = re.compile("column |lengths do not add up|-?[0-9]+ bytes ")


@dataclass(frozen=True, slots=True)
class Seen:
    """The rows that a reader returned, as comparable values, and whether it reported damage."""

    rows: list[Any]
    damaged: bool


Read = Callable[[MemoryDisk, bytes], Seen]


def _of(*kinds: type[ColumnBatch]) -> list[ColumnBatch]:
    return [batch for batch in examples() if isinstance(batch, kinds)]


def _seeds(kind: int, batches: list[ColumnBatch], base: int = 0, span_ms: int = 0) -> Callable[[], list[bytes]]:
    def seeds() -> list[bytes]:
        whole = log_of(kind, batches, base, span_ms, SERVER)
        return [whole, whole[: -len(whole) // 3], whole + bytes(512)]

    return seeds


def _opened(path: str, read: Read) -> Callable[[bytes], bool]:
    """A check that opens and reads a file, then does so again with the file that the first opening left.

    Both must read the same, unless damage was reported. The first opening may cut off the proof of the damage, the
    header of a torn record behind it.
    """

    def check(data: bytes) -> bool:
        disk = MemoryDisk({path: data})
        try:
            first = read(disk, data)
        except StoreError:
            return False
        left = MemoryDisk({name: disk.content(name) for name in _files(disk)})
        again = read(left, data)
        ensure(first.damaged or again.rows == first.rows, "the second opening reads something else than the first")
        return bool(first.rows)

    return check


def _files(disk: MemoryDisk, folder: str = "/d") -> Iterator[str]:
    for name in disk.listdir(folder):
        path = f"{folder}/{name}"
        if disk.listdir(path):
            yield from _files(disk, path)
        else:
            yield path


def _read_message_log(disk: MemoryDisk, data: bytes) -> Seen:
    """Reads everything from the first offset to the end, and skips damage like the replay."""
    log = MessageLog.open(disk, "/d", SERVER, segment_bytes=SEGMENT_BYTES)
    found: list[tuple[int, int, str]] = []
    offset, end = log.first, log.end
    while offset < end:
        try:
            entries = log.read(offset, end, 1 << 20)
        except CorruptionError:
            following = log.skip_damage(offset)
            ensure(following > offset, "reading does not get past damage")
            offset = following
            continue
        if not entries:
            break
        for entry in entries:
            verify_accepted(data, entry.start, cast(ColumnBatch, entry.batch))
            found.append((entry.start, len(entry.batch), type(entry.batch).__name__))
        ensure(entries[-1].end > offset, "reading stands still")
        offset = entries[-1].end
    return Seen(found, bool(log.damages))


def _read_schedule(disk: MemoryDisk, data: bytes) -> Seen:
    log = ScheduleLog(disk, "/d", SERVER, WINDOW_MS)
    log.recover_all({})
    found: list[tuple[int, int]] = []
    for key in log.keys():
        for header, batch in log.batches(key, damages=[]):
            verify_accepted(data, header.offset, batch)
            found.append((header.offset, len(batch)))
        rows = sum(count for _, count in found)
        index = log.index(key, damages=[])
        ensure(len(index) == rows, "the index has other rows than the batches")
        log.find(key, index.sequence[:4])
        log.read_rows(key, index.sequence[:4])
    return Seen(found, bool(log.damages))


def _read_dispatch(disk: MemoryDisk, _data: bytes) -> Seen:
    log = DispatchLog(disk, "/d", SERVER, WINDOW_MS)
    log.recover_all({})
    found = []
    for key in log.keys():
        batch = log.outcomes(key, damages=[])
        ensure(len(batch) == log.rows(key), "other outcomes than were counted")
        if len(batch):
            found.append((key.start_ms, batch.sequence.tolist(), batch.outcome.tolist()))
    return Seen(found, bool(log.damages))


def _read_names(disk: MemoryDisk, _data: bytes) -> Seen:
    names = Names.open(disk, "/d", SERVER)
    names.check_invariants()
    return Seen([names.name(code) for code in range(1, len(names) + 1)], False)


def _read_ledger(disk: MemoryDisk, _data: bytes) -> Seen:
    ledger = Ledger.open(disk, "/d", SERVER)
    windows = ledger.windows()
    for start_ms, coarse in windows[:4].tolist():
        ensure(len(ledger.window(start_ms, coarse=bool(coarse))) > 0, "a window without rows")
    totals = ledger.totals()
    return Seen(windows.tolist() + totals.subject.tolist(), bool(ledger.damages))


def _read_store(disk: MemoryDisk, _data: bytes) -> Seen:
    store = BrokerStore.open(disk, "/d", SERVER, _LIMITS, 0, Reads())
    found = []
    offset = store.first
    while offset < store.end:
        try:
            for columns in store.columns(offset, store.end):
                found.append((columns.offset, columns.columns["sequence"].tolist()))
                offset = columns.stop
            break
        except CorruptionError:
            following = store.skip_damage(offset)
            ensure(following > offset, "the store does not get past damage")
            offset = following
    return Seen(found, bool(store.damages))


def _read_queue(disk: MemoryDisk, _data: bytes) -> Seen:
    reads = Reads()
    blocks = RunBlocks.open(disk, "/d", SERVER, _LIMITS, 0, reads)
    try:
        return Seen(read_at_once(reads, having_read(partial(blocks.read, 64))).position.tolist(), False)
    except CorruptionError:
        return Seen([], True)


def _read_progress(disk: MemoryDisk, _data: bytes) -> Seen:
    log = ProgressLog.open(disk, "/d/progress.log", SERVER)
    return Seen(list(log.rows()), bool(log.damages))


def _index_seeds() -> list[bytes]:
    hashes, rows = np.array([-5, 8, 8]), np.array([0, 3, 4], np.uint32)
    return [b"".join(encode_index(SERVER, 0, IndexRows(hashes, np.array([64, 4096, 4096]), rows)))]


def _read_index(disk: MemoryDisk, _data: bytes) -> Seen:
    try:
        return Seen(search_index(disk, "/d/0.index", SERVER, 0, 8).place.tolist(), False)
    except CorruptionError:
        return Seen([], True)


def _scan(disk: MemoryDisk, path: str) -> ScanReport:
    file = disk.open(path, write=False)
    scan = FastReader(file, 64, max(file.size(), 64))
    for records in scan:
        ensure(records.rows == sum(records.counts), "a chunk counts its rows wrongly")
    return scan.report


def check_two_scans(data: bytes) -> bool:
    """The scan of the tools must find the same end, damage and verdict as the scan of the server."""
    disk = MemoryDisk({"/f": data})
    fast = _scan(disk, "/f")
    slow = ScanReport(64)
    file = disk.open("/f", write=False)
    offsets = []
    try:
        for header, batch in Scan(file, 64, max(len(data), 64)).records(64, 64, slow, forgive=True):
            verify_accepted(data, header.offset, batch)
            offsets.append(header.offset)
    except StoreError:
        return False
    if not any(
        _CONTRADICTS.match(detail) for detail in (slow.torn_detail, *[damage.detail for damage in slow.damages])
    ):
        ensure(fast.end == slow.end and fast.torn == slow.torn, f"ends at {fast.end} and {slow.end}")
        ensure(fast.damages == slow.damages, "two scans, two kinds of damage")
    return bool(offsets)


_ASKED = [*_of(MessageBatch), CancelBatch.filled(2, sequence=np.arange(11, 13), due_ms=60_000, subject=1)]

TARGETS = (
    Target("message-log", _seeds(FILE_MESSAGE_LOG, _ASKED), _opened(_LOG, _read_message_log), mend_log),
    Target(
        "schedule-log", _seeds(FILE_SCHEDULE, _of(MessageBatch), WINDOW_MS, WINDOW_MS),
        _opened(f"{_WINDOW}.direct.log", _read_schedule), mend_log,
    ),
    Target(
        "dispatch-log", _seeds(FILE_DISPATCH, _of(OutcomeBatch) * 2, WINDOW_MS, WINDOW_MS),
        _opened(f"{_WINDOW}.log", _read_dispatch), mend_log,
    ),
    Target("names", _seeds(FILE_NAMES, _of(NameBatch)), _opened("/d/names.log", _read_names), mend_log),
    Target("ledger", _seeds(FILE_LEDGER, _of(LedgerBatch)), _opened("/d/ledger.log", _read_ledger), mend_log),
    Target("broker-store", _seeds(FILE_STORE, _of(StoredBatch) * 2), _opened(_LOG, _read_store), mend_log),
    Target("broker-queue", _seeds(FILE_QUEUE, _of(RunBatch)), _opened(_LOG, _read_queue), mend_log),
    Target(
        "broker-progress", _seeds(FILE_PROGRESS, _of(ProgressBatch)),
        _opened("/d/progress.log", _read_progress), mend_log,
    ),
    Target("broker-index", _index_seeds, _opened("/d/0.index", _read_index), mend_log),
    Target("two-scans", _seeds(FILE_MESSAGE_LOG, examples()), check_two_scans, mend_log),
)  # fmt: skip
