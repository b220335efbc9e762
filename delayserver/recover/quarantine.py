"""Quarantine files: bytes that were taken out of a log, behind one line that says what they were.

`quarantine/<number>.quarantine` in the data directory: a JSON object and a newline, then the bytes as they stood. Where the
disk could not read them they are zeros, and `unreadable` of the object holds those ranges, as offsets of the file.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from delayserver.recover.dump import RECORD_KINDS
from delayserver.recover.sectors import ranges_between, readable_ranges
from store.batches import CancelBatch, MessageBatch, OutcomeBatch, StoredBatch
from store.errors import CorruptionError, StoreError
from store.file_header import FILE_HEADER_BYTES
from store.filesystem import File, FileSystem
from store.record import ALIGN, HEADER_BYTES, RECORD_MAGIC, BadRecordError, RecordHeader, decode_header, verify_columns
from store.scan import read_around

FOLDER: Final = "quarantine"
SUFFIX: Final = ".quarantine"
# Bytes looked through and copied at once.
_STEP_BYTES = 4 << 20
# Records described one by one; a longer range is described by its first ones.
_RECORDS_MAX = 1000
_DUE = (MessageBatch, CancelBatch, OutcomeBatch, StoredBatch)


def describe_range(file: File, start: int, stop: int) -> list[dict[str, Any]]:
    """What headers and columns in a range still tell: one map for each record whose header verifies."""
    found: list[dict[str, Any]] = []
    position = max(start, FILE_HEADER_BYTES)
    position += -position % ALIGN
    while position < stop and len(found) < _RECORDS_MAX:
        data = read_around(file, position, min(_STEP_BYTES + HEADER_BYTES, stop - position))
        words = np.frombuffer(data, "<u8", len(data) // ALIGN)
        for place in (np.flatnonzero((words & np.uint64(0xFFFFFFFF)) == RECORD_MAGIC) * ALIGN).tolist():
            try:
                header = decode_header(data, position + place, place)
            except BadRecordError:
                continue
            if place < _STEP_BYTES:
                found.append(_describe(file, header))
        position += _STEP_BYTES
    return found[:_RECORDS_MAX]


def _describe(file: File, header: RecordHeader) -> dict[str, Any]:
    record: dict[str, Any] = {
        "record": RECORD_KINDS.get(header.kind, str(header.kind)),
        "offset": header.offset,
        "rows": header.count,
        "first_sequence": header.first_sequence,
        "last_sequence": header.last_sequence,
    }
    try:
        columns = verify_columns(header, file.pread(header.offset + HEADER_BYTES, header.columns_bytes))
    except BadRecordError as error:
        return record | {"columns": str(error)}
    except CorruptionError as error:
        return record | {"columns": error.detail}
    record["columns"] = "whole"
    if "due_ms" in columns:
        record |= {"due_ms_first": int(columns["due_ms"].min()), "due_ms_last": int(columns["due_ms"].max())}
    if "sequence" in columns:
        record["sequences"] = columns["sequence"].tolist()
    if "subject" in columns:
        record["subject_codes"] = np.unique(columns["subject"]).tolist()
    return record


def write_quarantine(fs: FileSystem, directory: str, file: File, start: int, stop: int, detail: str) -> str:
    """Copy [start, stop) of a file aside, durably; returns the path. What cannot be read of it is told, and left out.

    Raises DiskFullError, StoreError.
    """
    folder = f"{directory}/{FOLDER}"
    fs.make_directory(folder)
    numbers = [int(name[: -len(SUFFIX)]) for name in fs.listdir(folder) if name[: -len(SUFFIX)].isdigit()]
    path = f"{folder}/{max(numbers, default=0) + 1:06d}{SUFFIX}"
    readable = readable_ranges(file, start, stop)
    unreadable = ranges_between(readable, start, stop)
    description: dict[str, Any] = {
        "quarantine": path,
        "file": file.path,
        "offset": start,
        "stop": stop,
        "detail": detail,
        "records": describe_range(file, start, stop),
    }
    if unreadable:
        description["unreadable"] = unreadable
    head = json.dumps(description, ensure_ascii=False).encode() + b"\n"
    copy = fs.open(path, create=True)
    try:
        copy.truncate(0)
        copy.pwrite(0, [head])
        for begin, end in readable:
            for position in range(begin, end, _STEP_BYTES):
                copy.pwrite(len(head) + position - start, [file.pread(position, min(_STEP_BYTES, end - position))])
        if unreadable:
            copy.truncate(len(head) + stop - start)
        copy.datasync()
    except StoreError:
        fs.remove(path)
        raise
    finally:
        copy.close()
    fs.sync_directory(folder)
    return path
