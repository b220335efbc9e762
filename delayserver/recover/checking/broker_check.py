"""The embedded broker's directory: every checksum, and no delivery twice in its store.

A hand-off is recognised by (server id, sequence, redelivery number); the store must not hold one key twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from delayserver.broker.files.broker_checkpoint import decode_checkpoint
from delayserver.broker.files.policies_file import DAMAGED_FILE, POLICIES_FILE, decode_policies
from delayserver.broker.files.store_index import base_of
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.file_read import Expected, FileRead, Reader
from delayserver.recover.reading.findings import CORRUPT, DOUBLY_DELIVERED, MISSING, ORPHANED
from store.disk.filesystem import FileSystem, read_whole
from store.errors import CorruptionError
from store.records.batches import I64, U64, StoredBatch
from store.records.column_batch import MalformedColumnsError
from store.records.file_header import FILE_HEADER_BYTES, FILE_INDEX, FILE_PROGRESS, FILE_QUEUE, FILE_STORE
from store.records.id_hash import mix
from store.records.shared_column import REDELIVERY

_SEGMENT = re.compile(r"\d{20}\.log")
_KNOWN = {"checkpoint", "checkpoint.tmp", "progress.log", "progress.log.tmp", "store", "queue", "index"}
_KNOWN |= {POLICIES_FILE, f"{POLICIES_FILE}.tmp", DAMAGED_FILE}
# Keys compared at once, 16 bytes each; a larger store is read several times, a share of the keys each time.
KEYS_AT_ONCE = 1 << 24
_REDELIVERY = np.uint64(0x9E3779B97F4A7C15)


def broker_bytes(taken: Capture) -> int:
    """How much there is to read."""
    root = f"{taken.path}/broker"
    total = 0
    for folder in (root, f"{root}/store", f"{root}/queue"):
        for name in taken.fs.listdir(folder):
            if name.endswith(".log"):
                total += size_of(taken.fs, f"{folder}/{name}") or 0
    return total


def size_of(fs: FileSystem, path: str) -> int | None:
    """The size, or None where the retention of a running broker has just taken the file."""
    try:
        return fs.size(path)
    except FileNotFoundError:
        return None


class BrokerCheck:
    """Reads `broker/` of a data directory."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._taken = reader.taken
        self._findings = reader.findings
        self._root = f"{reader.taken.path}/broker"
        self._parts: list[tuple[str, int, Expected]] = []
        self._synced = 0
        self._blocks = 0

    def run(self) -> None:
        """Read and compare everything. Damage goes to the findings; only a disk that fails raises StoreError."""
        fs = self._taken.fs
        if not fs.exists(self._root):
            return
        self._read_checkpoint()
        self._read_policies()
        self._parts = list(self._segments("store", FILE_STORE, self._synced))
        self._verify_presence()
        self._verify_store()
        for path, size, expected in self._segments("queue", FILE_QUEUE, 0):
            self._drain(self._reader.file(path, size, expected))
        self._verify_indexes()
        progress = f"{self._root}/progress.log"
        if fs.exists(progress):
            self._drain(self._reader.file(progress, fs.size(progress), Expected(FILE_PROGRESS, 0)))
        for name in fs.listdir(self._root):
            if name not in _KNOWN:
                self._findings.add(ORPHANED, f"{self._root}/{name}", 0, "no file of the broker has such a name")

    def _verify_indexes(self) -> None:
        """Every index is whole. The next search makes a damaged index anew."""
        folder = f"{self._root}/index"
        for name in self._taken.fs.listdir(folder):
            path, base = f"{folder}/{name}", base_of(name)
            size = size_of(self._taken.fs, path)
            if size is None or name.endswith(".tmp"):
                continue
            if base < 0:
                self._findings.add(ORPHANED, path, 0, "no index of a segment has such a name")
            else:
                self._drain(self._reader.file(path, size, Expected(FILE_INDEX, base, size, sealed=True)))

    def _verify_presence(self) -> None:
        """Find missing files: those that the checkpoint knows, and those that every broker has from its first start on."""
        if self._synced > FILE_HEADER_BYTES and not self._parts:
            self._findings.add(MISSING, f"{self._root}/store", 0, f"the store of {self._synced} bytes is missing")
        for (path, size, expected), (_, _, following) in pairwise(self._parts):
            assert expected.base is not None and following.base is not None
            if expected.base + size < following.base:
                lost = following.base - expected.base - size
                self._findings.add(
                    MISSING, path, size, f"{lost} bytes of the store are missing before the next segment"
                )
        blocks = [
            expected.base + size
            for _, size, expected in self._segments("queue", FILE_QUEUE, 0)
            if expected.base is not None
        ]
        if max(blocks, default=0) < self._blocks:
            detail = f"index rows up to {self._blocks} were spilled, the files end at {max(blocks, default=0)}"
            self._findings.add(MISSING, f"{self._root}/queue", 0, detail)
        progress = f"{self._root}/progress.log"
        if self._taken.fs.exists(f"{self._root}/checkpoint") and not self._taken.fs.exists(progress):
            detail = "progress.log is missing: every consumer group would begin at the oldest message again"
            self._findings.add(MISSING, progress, 0, detail)

    def _read_checkpoint(self) -> None:
        path = f"{self._root}/checkpoint"
        if not self._taken.fs.exists(path):
            return
        found = None
        try:
            found = decode_checkpoint(read_whole(self._taken.fs, path), self._taken.server_id)
        except (CorruptionError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            pass  # reported below like any other that cannot be read
        if found is None:
            detail = "does not verify, or is of another server or version; a start makes it anew from the store"
            self._findings.add(CORRUPT, path, 0, detail)
        else:
            self._synced = found.store_offset
            # An offset behind an empty log is that of its header.
            self._blocks = found.blocks_offset if len(found.queues.spilled) else 0

    def _read_policies(self) -> None:
        """Find damage in the table of policies, and a damaged one that a change of a policy has put aside."""
        path = f"{self._root}/{POLICIES_FILE}"
        try:
            decode_policies(read_whole(self._taken.fs, path), self._taken.server_id)
        except FileNotFoundError:
            pass
        except (CorruptionError, ValueError) as error:
            self._findings.add(CORRUPT, path, 0, f"{error}; a start serves consumer groups by the defaults")
        aside = f"{self._root}/{DAMAGED_FILE}"
        if self._taken.fs.exists(aside):
            detail = "a damaged table of policies, kept for you: set the policies anew, then remove it"
            self._findings.add(ORPHANED, aside, 0, detail)

    def _segments(self, folder: str, kind: int, synced: int) -> Iterator[tuple[str, int, Expected]]:
        fs, path = self._taken.fs, f"{self._root}/{folder}"
        names = [name for name in fs.listdir(path) if _SEGMENT.fullmatch(name)]
        bases = [int(name[:20]) for name in names]
        for place, (base, name) in enumerate(zip(bases, names, strict=True)):
            size = size_of(fs, f"{path}/{name}")
            if size is None:
                continue
            sealed = place + 1 < len(bases)
            if sealed:
                size = min(size, bases[place + 1] - base)
            known = size if sealed else max(FILE_HEADER_BYTES, synced - base)
            yield f"{path}/{name}", size, Expected(kind, base, known, sealed=sealed)

    def _drain(self, read: FileRead) -> None:
        for _ in read.records():
            pass

    # -- deliveries

    def _verify_store(self) -> None:
        """Read all of the store once with its bytes, and where it is large again for further shares of the keys."""
        rows = self._share(0, 1, count_only=True)
        shares = rows // KEYS_AT_ONCE + 1
        if shares == 1 and rows == 0:
            return
        for share in range(shares):
            self._share(share, shares, count_only=False)

    def _share(self, share: int, shares: int, *, count_only: bool) -> int:
        parts: list[U64] = []
        places: list[I64] = []
        rows = 0
        for number, (path, size, expected) in enumerate(self._parts):
            reader = self._reader if count_only else Reader(self._taken)
            for records in reader.file(path, size, expected).records(blobs=count_only):
                mine = records.of_kind(StoredBatch.schema.kind)
                if not len(mine):
                    continue
                rows += mine.rows
                if count_only:
                    continue
                try:
                    columns = mine.columns(StoredBatch, ("sequence", "server_id", "redelivery"))
                except MalformedColumnsError as error:
                    self._findings.add(
                        CORRUPT, path, int(mine.offsets[0]), f"columns that contradict each other: {error}"
                    )
                    continue
                keys = columns["server_id"].astype(np.uint64) << np.uint64(16)
                keys = mix(
                    mix(keys ^ REDELIVERY.number(columns["redelivery"]))
                    ^ columns["sequence"].astype(np.uint64) * _REDELIVERY
                )
                wanted = np.flatnonzero(keys % np.uint64(shares) == share)
                parts.append(keys[wanted])
                places.append(np.int64(number) << np.int64(40) | mine.row_offsets()[wanted])
        if not count_only and parts:
            self._twice(np.concatenate(parts), np.concatenate(places))
        return rows

    def _twice(self, keys: U64, places: I64) -> None:
        order = np.argsort(keys, kind="stable")
        again = order[np.flatnonzero(np.diff(keys[order]) == 0) + 1]
        if len(again):
            place = int(places[again].min())
            path = self._parts[place >> 40][0]
            detail = f"{len(again)} deliveries stand twice in the broker's store (same server, sequence and redelivery)"
            self._findings.add(DOUBLY_DELIVERED, path, place & (1 << 40) - 1, detail, len(again))
