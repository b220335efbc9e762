"""Any file of a data directory as maps of plain values: header, records, rows, and what does not verify."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import google_crc32c
import msgpack
import numpy as np

from delayserver.broker.files.broker_checkpoint import decode_checkpoint
from delayserver.recover.reading.code_words import FILE_KINDS, RECORD_KINDS, outcome_name
from delayserver.recover.reading.quarantine_file import SUFFIX, read_description
from store.disk.filesystem import File, FileSystem, directory_of, read_whole
from store.errors import CorruptionError, FormatError, StoreError
from store.keys.key_manifest import FILE_NAME as KEY_RUNS
from store.keys.key_manifest import look_at_manifest
from store.records.column_batch import ColumnBatch, ragged_offsets
from store.records.file_header import FILE_HEADER_BYTES, decode_file_header
from store.records.record import RecordHeader
from store.records.scan import Scan, ScanReport
from store.records.shared_column import plain_columns
from store.tables import checkpoint as checkpoint_file
from store.tables.identity import IDENTITY, LOCK, SEQUENCES, read_identity, read_reservation, read_role
from store.tables.member_file import FILE_NAME as OWNER
from store.tables.member_file import read_owner
from store.tables.names import FILE_NAME as NAMES_FILE
from store.tables.names import Names

# Columns that hold codes of names.
_CODES: Final = ("subject", "target_group", "broker_group", "consumer_group", "tag")
_LOG, _CHECKPOINT, _BROKER_CHECKPOINT = b"DELAYLOG", b"DELAYCHK", b"DELAYBCP"
# How much of a file that replaces another one is looked through at once.
_STEP_BYTES = 1 << 20
# As `store.disk.filesystem` names the file that replaces a small one.
_TEMPORARY = ".tmp"
# A run of the index of ids holds hashes and places, nothing that a person could read.
_KEY_RUN = ".run"
# How far up from a file its data directory is looked for: <directory>/schedule_log/<day>/<file>.
_PARENTS_MAX = 4

Row = dict[str, Any]


def dump_file(fs: FileSystem, path: str, *, rows: bool = True) -> Iterator[Row]:
    """Maps, one a line of output. `rows` False: headers of records only.

    Raises FormatError for a file that is none of ours, FileNotFoundError.
    """
    name = path.rpartition("/")[2]
    file = fs.open(path, write=False)
    try:
        head = file.pread(0, FILE_HEADER_BYTES)
        if head[:8] == _CHECKPOINT:
            yield from _checkpoint(fs, path)
        elif head[:8] == _BROKER_CHECKPOINT:
            yield from _broker_checkpoint(fs, path)
        elif name in _SMALL:
            yield from _SMALL[name](fs, path)
        elif name.endswith(_KEY_RUN):
            yield {"file": path, "kind": "key run", "bytes": file.size()}
        elif name.endswith(SUFFIX):
            yield read_description(file)
        elif head[:8] == _LOG or name.endswith(".log"):
            yield from _log(fs, path, file, head, rows)
        elif name.endswith(_TEMPORARY) and name.removesuffix(_TEMPORARY) in _REPLACED:
            yield _replacement(path, file)
        else:
            raise FormatError(path, "not a file of this program (its beginning is none of ours)")
    finally:
        file.close()


# -- logs


def _log(fs: FileSystem, path: str, file: File, head: bytes, rows: bool) -> Iterator[Row]:
    try:
        header = decode_file_header(head, path)
        yield {
            "file": path,
            "kind": FILE_KINDS.get(header.kind, header.kind),
            "server_id": f"{header.server_id:012x}",
            "base": header.base,
            "span_ms": header.span_ms,
            "bytes": file.size(),
        }
    except CorruptionError as error:
        yield {"file": path, "corrupt": error.detail, "offset": 0, "bytes": file.size()}
    names = _names_near(fs, path)
    report = ScanReport(FILE_HEADER_BYTES)
    told = 0
    try:
        scan = Scan(file, FILE_HEADER_BYTES, file.size())
        for record, batch in scan.records(FILE_HEADER_BYTES, FILE_HEADER_BYTES, report, forgive=True):
            yield from _damages(report, told)
            told = len(report.damages)
            yield _record(record)
            if rows:
                yield from row_maps(record.offset, batch, names)
    except FormatError as error:
        yield {"newer": error.detail, "offset": report.end}
    yield from _damages(report, told)
    if report.torn:
        yield {"torn": report.torn_detail, "offset": report.end}


def _damages(report: ScanReport, told: int) -> Iterator[Row]:
    for damage in report.damages[told:]:
        yield {"corrupt": damage.detail, "offset": damage.start, "stop": damage.stop}


def _record(header: RecordHeader) -> Row:
    return {
        "record": RECORD_KINDS.get(header.kind, str(header.kind)),
        "offset": header.offset,
        "end": header.end,
        "rows": header.count,
        "synced_before": header.synced_before,
    }


def row_maps(offset: int, batch: ColumnBatch, names: Callable[[int], str]) -> Iterator[Row]:
    """One map a row: its columns with one number each, names beside their codes, blobs as text or base64."""
    stored = {name: getattr(batch, name) for name, _ in batch.schema.fields if name[:-7] not in batch.schema.blobs}
    columns = {name: column.tolist() for name, column in plain_columns(batch.schema.kind, stored).items()}
    blobs = {name: _pieces(batch, name) for name in batch.schema.blobs}
    for row in range(len(batch)):
        record: Row = {"offset": offset, "row": row}
        for name, values in columns.items():
            record[name] = values[row]
            if name in _CODES and values[row]:
                record[f"{name}_name"] = names(values[row])
        if "outcome" in record:
            record["outcome_name"] = outcome_name(record["outcome"])
        for name, pieces in blobs.items():
            if name == "order_keys" and not pieces[row]:
                continue
            put_blob(record, name, pieces[row])
        yield record


def _pieces(batch: ColumnBatch, name: str) -> list[bytes]:
    offsets = ragged_offsets(getattr(batch, f"{name}_length")).tolist()
    blob = bytes(getattr(batch, name))
    return [blob[start:stop] for start, stop in pairwise(offsets)]


def put_blob(record: Row, name: str, data: bytes) -> None:
    """A blob's bytes in readable form: properties as a map, text as text, everything else as base64."""
    single = {"ids": "message_id", "bodies": "body", "names": "name", "order_keys": "order_key"}.get(name, name)
    if name == "properties":
        if data:
            record[single] = _properties(data)
        return
    try:
        record[single] = data.decode()
    except UnicodeDecodeError:
        record[single] = base64.b64encode(data).decode()
        record[f"{single}_encoding"] = "base64"


def _properties(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException):
        return base64.b64encode(data).decode()


def _names_near(fs: FileSystem, path: str) -> Callable[[int], str]:
    """Names by code from the directory that the file lies in; the code as text where there is no table."""
    folder = path
    for _ in range(_PARENTS_MAX):
        folder = directory_of(folder)
        if fs.exists(f"{folder}/{NAMES_FILE}") and fs.exists(f"{folder}/{IDENTITY}"):
            try:
                names = Names.open(fs, folder, read_identity(fs, folder), write=False)
            except (StoreError, ValueError):  # a name that is no text stands behind a right checksum
                break
            names.close()
            return lambda code: names.name(code) if 0 < code <= len(names) else f"#{code}"
    return lambda code: f"#{code}"


# -- small files


def _replacement(path: str, file: File) -> Row:
    """A file that was to replace a small one. It holds zeros where only room is kept for the next replacement."""
    size, zeros = file.size(), True
    for offset in range(0, size, _STEP_BYTES):
        zeros = zeros and not any(file.pread(offset, min(_STEP_BYTES, size - offset)))
    return {"file": path, "kind": "kept room" if zeros else "unfinished replacement", "bytes": size}


@contextmanager
def _senseless(path: str, offset: int) -> Iterator[None]:
    """Content that makes no sense behind a right checksum is corruption like any other."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, msgpack.UnpackException) as error:
        raise CorruptionError(path, offset, f"its content makes no sense: {error}") from error


def _identity(fs: FileSystem, path: str) -> Iterator[Row]:
    folder = directory_of(path)
    server_id, role = read_identity(fs, folder), read_role(fs, folder)
    yield {"file": path, "kind": "identity", "server_id": f"{server_id:012x}", "role": role or None}


def _owner(fs: FileSystem, path: str) -> Iterator[Row]:
    found = read_owner(fs, directory_of(path))
    assert found is not None
    yield {
        "file": path,
        "kind": "cluster",
        "cluster_id": f"{found.cluster_id:012x}",
        "shard": found.shard,
        "member": found.member or None,
        "log_offset": found.log_offset,
        "left": found.left,
    }


def _sequences(fs: FileSystem, path: str) -> Iterator[Row]:
    data = read_whole(fs, path)
    server_id = int.from_bytes(data[16:24], "little")
    found = read_reservation(fs, path, server_id)
    yield {
        "file": path,
        "kind": "sequences",
        "server_id": f"{server_id:012x}",
        "clean": found.clean,
        "next": found.next,
        "reserved": found.reserved,
        "clock_us": found.clock_us,
    }


def _lock(fs: FileSystem, path: str) -> Iterator[Row]:
    yield {"file": path, "kind": "lock", "holder": read_whole(fs, path).decode("utf-8", "replace")}


def _days(fs: FileSystem, path: str) -> Iterator[Row]:
    data = read_whole(fs, path)
    if len(data) < 4 or google_crc32c.value(data[4:]) != int.from_bytes(data[:4], "little"):
        raise CorruptionError(path, 0, "checksum of the table of days")
    with _senseless(path, 4):
        content = msgpack.unpackb(data[4:])
        sealed = [(start, sequence, drained) for start, sequence, drained in content["sealed"]]
        whole = [int(start) for start in content.get("whole", ())]
        fields = {str(name): value for name, value in content.items() if name not in ("sealed", "whole")}
    yield {"file": path, "kind": "days"} | fields
    for start, sequence, drained in sealed:
        yield {"sealed_day": start, "sequence": sequence, "drained": drained}
    for start in whole:
        yield {"whole_day": start}


def _reserve(fs: FileSystem, path: str) -> Iterator[Row]:
    yield {"file": path, "kind": "reserve", "bytes": fs.size(path)}


def _key_runs(fs: FileSystem, path: str) -> Iterator[Row]:
    server_id, manifest = look_at_manifest(fs, path)
    yield {
        "file": path,
        "kind": "key runs",
        "server_id": f"{server_id:012x}",
        "covered": manifest.covered,
        "complete": manifest.complete,
        "gaps": manifest.gaps,
    }
    for run in manifest.names():
        yield {"run": run.number, "rows": run.rows, "bytes": run.size_bytes}


_SMALL: Final[dict[str, Callable[[FileSystem, str], Iterator[Row]]]] = {
    IDENTITY: _identity,
    SEQUENCES: _sequences,
    OWNER: _owner,
    LOCK: _lock,
    "days": _days,
    "reserve": _reserve,
    KEY_RUNS: _key_runs,
}
_REPLACED: Final = frozenset({"checkpoint", "ledger.log", "progress.log", *_SMALL})


def _checkpoint(fs: FileSystem, path: str) -> Iterator[Row]:
    found = checkpoint_file.read(fs, path)
    assert found is not None
    yield {
        "file": path,
        "kind": "checkpoint",
        "server_id": f"{found.server_id:012x}",
        "replay_offset": found.replay_offset,
        "replayed_sequence": found.replayed_sequence,
        "totals": dict(found.totals),
        "clean": found.clean,
        "written_us": found.written_us,
        "believable_us": found.believable_us,
    }
    for name in ("schedule", "dispatch", "coarse_days"):
        table = getattr(found, name)
        columns = {column: getattr(table, column) for column, _, _ in table.columns}
        for row in range(len(table)):
            values = {column: _plain(values[row]) for column, values in columns.items()}
            yield {"table": name} | values


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _broker_checkpoint(fs: FileSystem, path: str) -> Iterator[Row]:
    data = read_whole(fs, path)
    body = data[12:]
    if google_crc32c.value(body) != int.from_bytes(data[8:12], "little"):
        raise CorruptionError(path, 12, "checksum of the broker's checkpoint")
    with _senseless(path, 12):
        server_id = int(msgpack.unpackb(body)["server_id"])
        found = decode_checkpoint(data, server_id)
    if found is None:
        raise FormatError(path, "written by another version of this program")
    yield {
        "file": path,
        "kind": "broker checkpoint",
        "server_id": f"{found.server_id:012x}",
        "epoch": found.epoch,
        "store_offset": found.store_offset,
        "blocks_offset": found.blocks_offset,
    }
    for (subject, group), first, end in found.queue_bounds():
        yield {"queue": subject, "target_group": group, "first": first, "end": end}
    for (server_id, window_ms), extents in found.windows.items():
        yield {"window_ms": window_ms, "server_id": f"{server_id:012x}", "extents": len(extents)}
