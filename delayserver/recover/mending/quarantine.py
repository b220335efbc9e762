"""Writes quarantine files: bytes that were taken out of a log, behind one line that says what they were."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from delayserver.recover.reading.code_words import RECORD_KINDS
from delayserver.recover.reading.quarantine_file import FOLDER, SUFFIX
from store.disk.filesystem import File, FileSystem
from store.errors import CorruptionError, StoreError
from store.records.batches import CancelBatch, MessageBatch, OutcomeBatch, StoredBatch
from store.records.file_header import FILE_HEADER_BYTES
from store.records.record import (
    ALIGN,
    HEADER_BYTES,
    RECORD_MAGIC,
    BadRecordError,
    RecordHeader,
    decode_header,
    verify_columns,
)
from store.records.scan import pieces, read_around

# Bytes looked through and copied at once.
_STEP_BYTES = 4 << 20
# Records described one by one; a longer range is described by its first ones.
_RECORDS_MAX = 1000
_DUE = (MessageBatch, CancelBatch, OutcomeBatch, StoredBatch)


def describe_range(file: File, start: int, stop: int) -> list[dict[str, Any]]:
    """One map for each record in a range whose header verifies, with the facts that header and columns still give."""
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
    """Copy [start, stop) of a file aside, durably; returns the path. Sectors that the disk cannot read are listed and left
    out.

    Raises DiskFullError, StoreError.
    """
    folder = f"{directory}/{FOLDER}"
    fs.make_directory(folder)
    numbers = [int(name[: -len(SUFFIX)]) for name in fs.listdir(folder) if name[: -len(SUFFIX)].isdigit()]
    path = f"{folder}/{max(numbers, default=0) + 1:06d}{SUFFIX}"
    readable = _readable_ranges(file, start, stop)
    edges = [start, *[edge for found in readable for edge in found], stop]
    unreadable = [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]
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


def _readable_ranges(file: File, start: int, stop: int) -> list[tuple[int, int]]:
    """The ranges (start, stop) of [start, stop) that can be read, in order. No range touches the next. Reads all of them."""
    found: list[tuple[int, int]] = []
    for position in range(start, stop, _STEP_BYTES):
        for begin, _, data in pieces(file, position, min(_STEP_BYTES, stop - position)):
            if data is None:
                continue
            before = found.pop() if found and found[-1][1] == begin else (begin, begin)
            found.append((before[0], begin + len(data)))
    return found
