"""Plans a `repair`: reads the files and finds the torn, corrupt and misplaced ones among those that are ours.

Files of another server or of a newer program are left alone. Missing files are left to `rebuild`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest

from delayserver.broker.files.broker_checkpoint import decode_checkpoint
from delayserver.broker.files.policies_file import POLICIES_FILE, decode_policies
from delayserver.recover.mending.plan import Deed, MendingStep, Plan
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.file_read import Expected, log_parts
from store.disk.filesystem import FileSystem, directory_of, read_whole
from store.errors import CorruptionError, FormatError
from store.logs.dispatch_log import DispatchKey, DispatchLayout
from store.logs.due_windows import DAY_MS, TIME_MS_MAX, day_of
from store.logs.schedule_key import ScheduleKey, ScheduleLayout
from store.logs.schedule_log import ScheduleSource
from store.records.fast_reader import FastReader
from store.records.file_header import (
    FILE_DISPATCH,
    FILE_HEADER_BYTES,
    FILE_LEDGER,
    FILE_MESSAGE_LOG,
    FILE_NAMES,
    FILE_PROGRESS,
    FILE_QUEUE,
    FILE_SCHEDULE,
    FILE_STORE,
    FileHeader,
    decode_file_header,
    is_unfinished,
)
from store.tables import checkpoint as checkpoint_file

# The name of a file ends with this, once or more, while it is renamed.
MOVING = ".moving"


@dataclass(frozen=True, slots=True)
class _Target:
    """A log file with what must stand in its header, and whether its records may change their place."""

    path: str
    size: int
    expected: Expected
    header: FileHeader
    movable: bool


def plan_repair(taken: Capture) -> Plan:
    """The plan of a repair. Raises StoreError where the disk fails."""
    steps: list[MendingStep] = list(_stranded(taken))
    for target in _targets(taken):
        steps += _plan_file(taken, target)
    return Plan((*_names_first(taken, _with_room(taken.fs, steps)), *_small_files(taken)))


def _with_room(fs: FileSystem, steps: list[MendingStep]) -> list[MendingStep]:
    """Files that were swapped change places; one whose place is taken stays."""
    free = [step for step in steps if step.deed == Deed.RENAME]
    before: list[MendingStep] = []
    while free != before:
        before, leaving = free, {step.path for step in free}
        first = {step.target: step.path for step in reversed(free)}
        free = [
            step
            for step in free
            if first[step.target] == step.path and (step.target in leaving or not fs.exists(step.target))
        ]
    moving = {step.path for step in free}
    return [
        step
        if step.deed != Deed.RENAME or step.path in moving
        else replace(step, deed=Deed.LEAVE, detail=f"{step.detail}, and {step.target} is there already", target="")
        for step in steps
    ]


def _names_first(taken: Capture, steps: list[MendingStep]) -> list[MendingStep]:
    """Where a folder of segments has a misnamed file, only names are put right. A segment ends where the next one begins, so
    damage can be judged only when the names are right. The steps for bytes say that the next repair does them."""
    folders = {f"{taken.path}/{name}" for name in ("message_log", "broker/store", "broker/queue")}
    misnamed = {step.path for step in steps if step.deed == Deed.RENAME or (step.deed == Deed.LEAVE and not step.start)}
    folders &= {directory_of(path) for path in misnamed}
    return [
        step
        if step.path in misnamed or directory_of(step.path) not in folders
        else replace(
            step,
            deed=Deed.LEAVE,
            detail=f"{step.detail}; first the files beside it get their names: run `repair` once more",
        )
        for step in steps
    ]


def _stranded(taken: Capture) -> Iterator[MendingStep]:
    """Files that an interrupted repair left between two names."""
    for path in taken.files.strangers:
        if not path.endswith(MOVING):
            continue
        before = path
        while before.endswith(MOVING):
            before = before.removesuffix(MOVING)
        file = taken.open(path)
        try:
            size = file.size()
            header = decode_file_header(file.pread(0, FILE_HEADER_BYTES), path)
        except (CorruptionError, FormatError):
            continue
        finally:
            taken.release(file)
        name = _name_of(taken, before, header) if header.server_id == taken.server_id else ""
        if name:
            yield MendingStep(Deed.RENAME, path, 0, size, "an interrupted repair left it under this name", target=name)


def _targets(taken: Capture) -> Iterator[_Target]:
    server = taken.server_id
    following = [part.base for part in taken.files.message_log[1:]]
    for (part, expected), after in zip_longest(log_parts(taken), following):
        if after is not None:  # sealed: it must reach to its successor, whatever its own length says
            expected = replace(expected, synced=after - part.base)  # noqa: PLW2901
        whole = taken.fs.size(part.path)
        header = FileHeader(FILE_MESSAGE_LOG, server, part.base)
        yield _Target(part.path, max(whole, part.size), expected, header, False)
    for key, size in sorted(taken.files.schedule.items()):
        known = taken.marks.schedule_known.get(key)
        expected = Expected(FILE_SCHEDULE, key.start_ms, known.end if known else FILE_HEADER_BYTES)
        span_ms = DAY_MS if key.source == ScheduleSource.DAY else taken.files.window_ms
        header = FileHeader(FILE_SCHEDULE, server, key.start_ms, span_ms)
        yield _Target(taken.schedule_path(key), size, expected, header, True)
    for found, size in sorted(taken.files.dispatch.items()):
        mark = taken.marks.dispatch_known.get(found)
        expected = Expected(FILE_DISPATCH, found.start_ms, mark.end if mark else FILE_HEADER_BYTES)
        header = FileHeader(FILE_DISPATCH, server, found.start_ms, DAY_MS if found.coarse else taken.files.window_ms)
        yield _Target(taken.dispatch_path(found), size, expected, header, True)
    yield from _tables(taken)


def _tables(taken: Capture) -> Iterator[_Target]:
    fs, root, server = taken.fs, taken.path, taken.server_id
    for name, kind in (("names.log", FILE_NAMES), ("ledger.log", FILE_LEDGER), ("broker/progress.log", FILE_PROGRESS)):
        path = f"{root}/{name}"
        if fs.exists(path):
            # Names count up by one: without a record the later ones would be read as damage.
            yield _Target(path, fs.size(path), Expected(kind, 0), FileHeader(kind, server, 0), kind != FILE_NAMES)
    for folder, kind in (("store", FILE_STORE), ("queue", FILE_QUEUE)):
        where = f"{root}/broker/{folder}"
        names = [name for name in fs.listdir(where) if re.fullmatch(r"\d{20}\.log", name)]
        ends = [int(after[:20]) for _, after in pairwise(names)] + [0] * bool(names)
        for name, end in zip(names, ends, strict=True):
            base = int(name[:20])
            size = fs.size(f"{where}/{name}")
            known = min(size, end - base) if end else FILE_HEADER_BYTES
            expected = Expected(kind, base, known, sealed=bool(end))
            yield _Target(f"{where}/{name}", size, expected, FileHeader(kind, server, base), False)


def _plan_file(taken: Capture, target: _Target) -> Iterator[MendingStep]:
    file = taken.open(target.path)
    try:
        try:
            header = decode_file_header(file.pread(0, FILE_HEADER_BYTES), target.path)
        except FormatError as error:
            yield MendingStep(Deed.LEAVE, target.path, 0, target.size, error.detail)
            return
        except CorruptionError as error:
            if is_unfinished(taken.fs, target.path):
                if target.expected.synced <= FILE_HEADER_BYTES and not target.expected.sealed:
                    yield MendingStep(
                        Deed.REMOVE, target.path, 0, target.size, "a crash came before its header was written"
                    )
                return
            yield MendingStep(Deed.HEADER, target.path, 0, FILE_HEADER_BYTES, error.detail, header=target.header)
        else:
            wrong = _not_in_place(taken, target, header)
            if wrong is not None:
                yield wrong
                return
        yield from _plan_records(
            target, FastReader(file, FILE_HEADER_BYTES, target.size, min(target.expected.synced, target.size))
        )
    finally:
        taken.release(file)


def _not_in_place(taken: Capture, target: _Target, header: FileHeader) -> MendingStep | None:
    if header.server_id != taken.server_id or header.kind != target.header.kind:
        detail = f"file kind {header.kind} of server {header.server_id:012x}: not what belongs here"
        return MendingStep(Deed.LEAVE, target.path, 0, target.size, detail)
    if (header.base, header.span_ms) == (target.header.base, target.header.span_ms):
        return None
    name = _name_of(taken, target.path, header)
    length = f" and is {header.span_ms} ms long" if header.span_ms != target.header.span_ms else ""
    detail = f"its header says that it starts at {header.base}{length}"
    if not name and target.header.kind == FILE_SCHEDULE and header.span_ms == taken.files.window_ms:
        free = [taken.schedule_path(key) for key in _free_places(taken, header)]
        detail += f"; rename it to {' or '.join(free)}" if free else "; the files of that minute are there already"
    return MendingStep(Deed.RENAME if name else Deed.LEAVE, target.path, 0, target.size, detail, target=name)


def _name_of(taken: Capture, path: str, header: FileHeader) -> str:
    """Where a file with this header belongs; empty where neither the header nor the name says it.

    The header has the start and the length, so it says whether this is a minute or a day. Which of the two schedule files of
    a minute it is, the name alone says; a minute's file that bears the name of a day's is the one that is not in its place.
    """
    if header.kind == FILE_MESSAGE_LOG:
        return f"{taken.path}/message_log/{header.base:020d}.log"
    coarse = header.span_ms == DAY_MS
    if (
        header.span_ms not in (DAY_MS, taken.files.window_ms)
        or not 0 <= header.base <= TIME_MS_MAX
        or header.base % header.span_ms
    ):
        return ""
    folder, day, name = path.rsplit("/", 2)
    if folder.endswith("/schedule_log"):
        key = ScheduleLayout(taken.files.window_ms).parse(day, name)
        if key is None:
            return ""
        if key.source == ScheduleSource.DAY and not coarse:
            free = _free_places(taken, header)
            return taken.schedule_path(free[0]) if len(free) == 1 else ""
        return taken.schedule_path(ScheduleKey(header.base, ScheduleSource.DAY if coarse else key.source))
    if folder.endswith("/dispatch_log"):
        found = DispatchLayout(taken.files.window_ms).parse(day, name)
        return "" if found is None else taken.dispatch_path(DispatchKey(header.base, coarse))
    return ""


def _free_places(taken: Capture, header: FileHeader) -> list[ScheduleKey]:
    """The schedule files of a minute whose place is empty, or taken by another window's file. Only a minute of a sealed day
    has a file from its day. Where the checkpoint knows one of the two alone, that one is meant."""
    sealed = (
        taken.tables.days is None
        or taken.tables.days.is_draining(header.base)
        or taken.tables.days.is_drained(day_of(header.base))
    )
    keys = [
        ScheduleKey(header.base, source)
        for source in (ScheduleSource.DIRECT, ScheduleSource.FROM_DAY)[: 2 if sealed else 1]
    ]
    free = [key for key in keys if not _is_in_place(taken, taken.schedule_path(key), header)]
    known = [key for key in free if key in taken.marks.schedule_known]
    return known if len(known) == 1 else free


def _is_in_place(taken: Capture, path: str, wanted: FileHeader) -> bool:
    """Whether the file at a path is the one of this window. A file without a readable header counts as that."""
    try:
        file = taken.open(path)
    except FileNotFoundError:
        return False
    try:
        found = decode_file_header(file.pread(0, FILE_HEADER_BYTES), path)
    except (CorruptionError, FormatError):
        return True
    finally:
        taken.release(file)
    return (found.base, found.span_ms) == (wanted.base, wanted.span_ms)


def _plan_records(target: _Target, scan: FastReader) -> Iterator[MendingStep]:
    for _ in scan:
        pass
    report, expected, path = scan.report, target.expected, target.path
    if scan.newer:
        yield MendingStep(Deed.LEAVE, path, report.end, target.size, scan.newer)
        return
    stop = expected.synced if expected.sealed else target.size
    reached = report.end
    for damage in report.damages:
        lost_end = damage.stop >= target.size < expected.synced
        reached = expected.synced if lost_end else report.end
        yield _range_step(target, damage.start, expected.synced if lost_end else min(damage.stop, stop), damage.detail)
    if not report.damages and target.size < expected.synced and not expected.sealed:
        yield _range_step(target, report.end, expected.synced, "the file ends before what was durable")
    if expected.sealed:
        if reached < stop:
            yield _range_step(target, reached, stop, report.torn_detail or "the sealed segment ends early")
        if target.size > stop:
            yield MendingStep(Deed.CUT_BEHIND, path, stop, target.size, "bytes behind the end of a sealed segment")
    elif report.torn:
        yield MendingStep(Deed.CUT, path, report.end, target.size, report.torn_detail)


def _range_step(target: _Target, start: int, stop: int, detail: str) -> MendingStep:
    if target.movable:
        return MendingStep(Deed.TAKE_OUT, target.path, start, stop, detail, target.expected, target.header)
    if target.header.kind == FILE_MESSAGE_LOG:
        return MendingStep(Deed.FILL, target.path, start, stop, detail, target.expected, target.header)
    if target.header.kind == FILE_NAMES:
        return MendingStep(Deed.TAKE_OUT, target.path, start, stop, detail, target.expected, target.header)
    return MendingStep(
        Deed.PASS_OVER, target.path, start, stop, f"{detail}; the broker passes over it and says so to consumers"
    )


def _small_files(taken: Capture) -> Iterator[MendingStep]:
    fs = taken.fs
    path = f"{taken.path}/{checkpoint_file.FILE_NAME}"
    try:
        checkpoint_file.read(fs, path)
    except CorruptionError as error:
        yield MendingStep(Deed.MOVE_FILE, path, 0, fs.size(path), error.detail)
    except FormatError as error:
        yield MendingStep(Deed.LEAVE, path, 0, fs.size(path), error.detail)
    path = f"{taken.path}/broker/checkpoint"
    if fs.exists(path):
        try:
            found = decode_checkpoint(read_whole(fs, path), taken.server_id)
        except (CorruptionError, ValueError, KeyError, TypeError):
            found = None
        if found is None:
            yield MendingStep(Deed.MOVE_FILE, path, 0, fs.size(path), "does not verify")
        elif found.store_offset > _store_end(taken):
            detail = f"it speaks of {found.store_offset} bytes of the store, which has fewer"
            yield MendingStep(Deed.MOVE_FILE, path, 0, fs.size(path), detail)
    path = f"{taken.path}/broker/{POLICIES_FILE}"
    try:
        decode_policies(read_whole(fs, path), taken.server_id)
    except FileNotFoundError:
        pass
    except (CorruptionError, ValueError) as error:
        yield MendingStep(Deed.MOVE_FILE, path, 0, fs.size(path), f"{error}; then groups have the defaults")


def _store_end(taken: Capture) -> int:
    folder = f"{taken.path}/broker/store"
    names = [name for name in taken.fs.listdir(folder) if re.fullmatch(r"\d{20}\.log", name)]
    return int(names[-1][:20]) + taken.fs.size(f"{folder}/{names[-1]}") if names else 0
