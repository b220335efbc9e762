"""Carries out a plan of repair, under the lock of the directory.

Every byte that is taken away is in a quarantine file, synced, before the file is touched. Records know their place, so
a file without one of its ranges is written anew beside the old one and put in its place at once; message_log, whose
offsets others point to, gets a placeholder of the same length instead. Interrupted anywhere, it can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

import numpy as np

from delayserver.recover.capture import Capture
from delayserver.recover.quarantine import write_quarantine
from delayserver.recover.repair_plan import MOVING, Deed, Step
from store import checkpoint as checkpoint_file
from store.batches import NameBatch
from store.checkpoint import Checkpoint, CoarseDays
from store.columns import ColumnBatch, encode_columns
from store.errors import CorruptionError, StoreError
from store.file_header import FILE_HEADER_BYTES, FILE_NAMES, FileHeader
from store.filesystem import File, FileSystem, directory_of
from store.names import SUBJECT
from store.record import HEADER_BYTES, RECORD_BYTES_MAX, encode_record, record_bytes
from store.scan import Scan, ScanReport
from store.schedule_log import Source
from store.windows import day_of

Tell = Callable[[str], None]


def apply_repair(taken: Capture, steps: Iterable[Step], tell: Tell = lambda _text: None) -> None:
    """Do all steps. The caller holds the lock. Raises DiskFullError (nothing was lost), StoreError."""
    steps = [step for step in steps if step.changes]
    moved = {step.path for step in steps if step.deed == Deed.RENAME}
    forget_marks(taken, moved | {step.target for step in steps if step.target})
    _rename(taken.fs, [step for step in steps if step.deed == Deed.RENAME], tell)
    for path, group in groupby([step for step in steps if step.deed != Deed.RENAME], key=lambda step: step.path):
        _repair_file(taken, path, list(group), tell)


def forget_marks(taken: Capture, paths: set[str]) -> None:
    """Take files out of the checkpoint, so that the next start reads them whole: their offsets change.

    While a file is damaged its mark may be all that says how far it was durable. Without it, what stands behind the damage
    looks like the rest of a torn end.
    """
    checkpoint = taken.checkpoint
    if paths <= taken.forgotten or taken.checkpoint_lost:
        return
    taken.forgotten |= paths
    paths = taken.forgotten
    schedule, dispatch = checkpoint.schedule, checkpoint.dispatch
    known_schedule = np.array([taken.schedule_path(key) not in paths for key in taken.schedule_known], bool)
    known_dispatch = np.array([taken.dispatch_path(key) not in paths for key in taken.dispatch_known], bool)
    if known_schedule.all() and known_dispatch.all():
        return
    # A day is drained from its beginning once more, where its own file has changed or what it gave to a minute.
    drained = [key for key in taken.schedule if key.source != Source.DIRECT and taken.schedule_path(key) in paths]
    days = {day_of(key.start_ms) for key in drained}
    kept_days = ~np.isin(checkpoint.coarse_days.start_ms, np.array(sorted(days), np.int64))
    changed = replace(
        checkpoint,
        schedule=type(schedule)(**_take(schedule, known_schedule)),
        dispatch=type(dispatch)(**_take(dispatch, known_dispatch)),
        coarse_days=CoarseDays(**_take(checkpoint.coarse_days, kept_days)),
        clean=False,
    )
    checkpoint_file.write(taken.fs, f"{taken.path}/{checkpoint_file.FILE_NAME}", changed)


def _take(table: checkpoint_file.Table, mask: np.ndarray) -> dict[str, np.ndarray]:
    return {name: getattr(table, name)[mask] for name, _, _ in table.columns}


def recount(taken: Capture, accepted: int) -> None:
    """Write the count of accepted messages that the files hold into the checkpoint, after records were taken out."""
    found = checkpoint_file.read(taken.fs, f"{taken.path}/{checkpoint_file.FILE_NAME}")
    if found is not None and found.totals.get("accepted", accepted) != accepted:
        changed: Checkpoint = replace(found, totals={**found.totals, "accepted": accepted}, clean=False)
        checkpoint_file.write(taken.fs, f"{taken.path}/{checkpoint_file.FILE_NAME}", changed)


def _rename(fs: FileSystem, steps: list[Step], tell: Tell) -> None:
    """Two steps, so that two files that were swapped can change places; who is between two names already takes the
    second alone."""
    between: dict[str, str] = {}
    for step in steps:
        between[step.path] = _between(fs, step.path)
        if between[step.path] != step.path:
            fs.replace(step.path, between[step.path])
    for step in steps:
        fs.make_directory(directory_of(step.target))
        fs.replace(between[step.path], step.target)
        tell(f"{step.path} is {step.target} now")
    for folder in {directory_of(path) for step in steps for path in (step.path, step.target)}:
        fs.sync_directory(folder)


def _between(fs: FileSystem, path: str) -> str:
    """A name that nobody has, on the way to another; the plan of the next repair finds whatever ends like it."""
    if path.endswith(MOVING):
        return path
    between = f"{path}{MOVING}"
    while fs.exists(between):
        between += MOVING
    return between


def _repair_file(taken: Capture, path: str, steps: list[Step], tell: Tell) -> None:
    fs = taken.fs
    if any(step.deed == Deed.REMOVE for step in steps):
        fs.remove(path)
        fs.sync_directory(directory_of(path))
        tell(f"{path} is removed")
        return
    taken_out = [step for step in steps if step.deed == Deed.TAKE_OUT]
    file = fs.open(path)
    try:
        for step in steps:
            if step.deed != Deed.CUT or _holds_anything(file, step.start, step.stop):
                end = min(step.stop, file.size())
                if end <= step.start:
                    tell(f"{path}: of bytes {step.start} to {step.stop} nothing is left: the file ended before")
                    continue
                aside = write_quarantine(fs, taken.path, file, step.start, end, str(step.detail))
                tell(f"{path}: bytes {step.start} to {end} are in {aside}")
                if end < step.stop:
                    tell(f"{path}: of bytes {end} to {step.stop} nothing is left: the file ended there")
        if any(step.deed == Deed.MOVE_FILE for step in steps):
            fs.remove(path)
            fs.sync_directory(directory_of(path))
            return
        for step in steps:
            if step.deed == Deed.HEADER:
                assert step.header is not None
                file.pwrite(0, [step.header.encode()])
            elif step.deed == Deed.FILL:
                for position, data in placeholders(step.start, step.stop):
                    file.pwrite(position, data)
        file.datasync()
        # A file that is written anew keeps its torn end until then: what a header there calls durable is the proof that
        # damage before it is no torn end, and the records in between are none. In message_log placeholders go first.
        for step in [] if taken_out else steps:
            if step.deed in (Deed.CUT, Deed.CUT_BEHIND):
                file.truncate(step.start)
        file.datasync()
    finally:
        file.close()
    if taken_out:
        _write_anew(taken, path, taken_out[0], tell)


def _holds_anything(file: File, start: int, stop: int) -> bool:
    try:
        return any(file.pread(start, stop - start))
    except CorruptionError:  # whatever stands where the disk cannot read
        return True


def placeholders(start: int, stop: int) -> Iterable[tuple[int, list[bytes]]]:
    """Records without meaning that fill [start, stop) of a message_log exactly: names of nothing, which replay passes
    over. (position, buffers) of each."""
    room_max = RECORD_BYTES_MAX // 2
    while start < stop:
        length = stop - start
        length = min(length, room_max)  # the rest gets further ones
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


def _write_anew(taken: Capture, path: str, step: Step, tell: Tell) -> None:
    """The same records behind one another, without what does not verify."""
    assert step.header is not None and step.expected is not None
    synced = step.expected.synced

    def forget_if_longer(end: int) -> None:
        if end >= synced:  # the old mark would look right for the new file, and its place may be inside a record
            forget_marks(taken, {path})

    write_file(taken.fs, path, step.header, _whole_records(taken.fs, path, step), forget_if_longer)
    forget_marks(taken, {path})
    tell(f"{path} is written anew")


def _whole_records(fs: FileSystem, path: str, step: Step) -> Iterable[ColumnBatch]:
    assert step.header is not None and step.expected is not None
    file = fs.open(path, write=False)
    try:
        size = file.size()
        scan = Scan(file, FILE_HEADER_BYTES, size)
        synced = min(step.expected.synced, size)
        following = 1
        for _, batch in scan.records(FILE_HEADER_BYTES, synced, ScanReport(FILE_HEADER_BYTES), forgive=True):
            if step.header.kind == FILE_NAMES and isinstance(batch, NameBatch):
                lost = int(batch.code[0]) - following
                if lost > 0:
                    yield lost_names(following, lost)
                following = int(batch.code[-1]) + 1
            yield batch
    finally:
        file.close()


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
    """The stand-in for one."""
    return f"lost-name-{code}"


def write_file(
    fs: FileSystem,
    path: str,
    header: FileHeader,
    batches: Iterable[ColumnBatch],
    before: Callable[[int], None] = lambda _end: None,
) -> int:
    """Replace a log file by one with these records, atomically; returns its length. Raises DiskFullError, StoreError.

    `before` is told that length when the new file is durable and the old one still in its place.

    Each record may say that all before it was synced: nobody sees the file before its sync.
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
