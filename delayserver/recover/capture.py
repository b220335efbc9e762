"""The state of a data directory at one moment: which files there are and where they end.

Beside a running server the ends are taken in the order dispatch_log, schedule_log, message_log (rule 3): whatever an
outcome speaks of is then in what was captured after it. The checkpoint is read before all of them, so that it claims
nothing that they lack; the ledger and the states of the days after them, so that they know of every file that vanished.
What the server writes later lies behind these ends and is not looked at.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field

from delayserver.checkpointing import dispatch_marks, schedule_marks
from delayserver.recover.findings import CORRUPT, MISSING, UNREADABLE, Findings
from store import checkpoint as checkpoint_file
from store.checkpoint import Checkpoint
from store.days import DayTable
from store.dispatch_log import RESERVE_FILE, DispatchKey, DispatchLayout, DispatchMark
from store.errors import CorruptionError, FormatError, StoreError
from store.file_header import FILE_HEADER_BYTES, decode_file_header
from store.filesystem import File, FileSystem
from store.identity import IDENTITY, read_identity
from store.ledger import Ledger
from store.names import Names
from store.schedule_key import ScheduleKey, ScheduleLayout, Source
from store.window_span import find_span_ms
from store.window_state import FileMark
from store.windows import parse_day_name

DEFAULT_WINDOW_MS = 60_000
# Files held open, so that a server that retires or drains them meanwhile cannot take them away from the reader.
HELD_MAX = 256
# Segments of message_log held besides them, the oldest first: those are what retention takes next.
HELD_SEGMENTS_MAX = 256
_SEGMENT_NAME = re.compile(r"\d{20}\.log")


@dataclass(frozen=True, slots=True)
class LogPart:
    """A segment of message_log: base, and length at the moment of the capture."""

    base: int
    path: str
    size: int


@dataclass(slots=True)
class Capture:
    """A data directory as it was. Sizes of files are in bytes; `held` are files kept open until `close`."""

    fs: FileSystem
    path: str
    server_id: int
    window_ms: int
    checkpoint: Checkpoint
    checkpoint_lost: bool
    schedule_known: dict[ScheduleKey, FileMark]
    dispatch_known: dict[DispatchKey, DispatchMark]
    schedule: dict[ScheduleKey, int] = field(default_factory=dict)
    dispatch: dict[DispatchKey, int] = field(default_factory=dict)
    message_log: list[LogPart] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    # Files whose marks were taken out of the checkpoint since.
    forgotten: set[str] = field(default_factory=set)
    held: dict[str, File] = field(default_factory=dict)
    ledger: Ledger | None = None
    days: DayTable | None = None
    names: Names | None = None
    names_bytes: int = -1

    def schedule_path(self, key: ScheduleKey) -> str:
        """Where a schedule file is; the folder for a window that no file can have, as damage may name one."""
        folder = f"{self.path}/schedule_log"
        with suppress(ValueError):
            return f"{folder}/{ScheduleLayout(self.window_ms).name(key)}"
        return folder

    def dispatch_path(self, key: DispatchKey) -> str:
        """Where a dispatch file is; as `schedule_path`."""
        folder = f"{self.path}/dispatch_log"
        with suppress(ValueError):
            return f"{folder}/{DispatchLayout(self.window_ms).name(key)}"
        return folder

    def open(self, path: str) -> File:
        """The file, also if it was removed after the capture and is held. Raises FileNotFoundError."""
        held = self.held.get(path)
        return held if held is not None else self.fs.open(path, write=False)

    def release(self, file: File) -> None:
        """Close a file that is not held."""
        if self.held.get(file.path) is not file:
            file.close()

    def subject_name(self, code: int) -> str:
        """The name of a code, or its number where the table does not know it."""
        self.read_names_to(code)
        try:
            return self.names.name(code) if self.names is not None else f"#{code}"
        except KeyError:
            return f"#{code}"

    def read_names_to(self, code: int) -> None:
        """A running server has given more names by now, and its preallocated message_log is read beyond the capture."""
        if self.names is None or code <= len(self.names):
            return
        with suppress(StoreError, FileNotFoundError):
            size = self.fs.size(f"{self.path}/names.log")
            if size == self.names_bytes:
                return
            names = Names.open(self.fs, self.path, self.server_id, write=False)
            self.names.close()
            self.names, self.names_bytes = names, size

    def read_ledger_again(self) -> None:
        """A running server may have retired windows since the capture."""
        with suppress(StoreError, FileNotFoundError):
            newest = Ledger.open(self.fs, self.path, self.server_id, write=False)
            if self.ledger is not None:
                self.ledger.close()
            self.ledger = newest

    def close(self) -> None:
        """Close what is held."""
        for file in self.held.values():
            file.close()
        for part in (self.ledger, self.names):
            if part is not None:
                part.close()


def capture(fs: FileSystem, path: str, findings: Findings) -> Capture:
    """Take the ends of all files. What cannot be read at all goes to `findings`.

    Raises FormatError (no data directory of ours), CorruptionError (nothing tells whose it is).
    """
    path = path.rstrip("/") or "/"
    server_id = find_server_id(fs, path, findings)
    checkpoint, lost = _read_checkpoint(fs, path, server_id, findings)
    taken = Capture(
        fs,
        path,
        server_id,
        find_window_ms(fs, path, checkpoint),
        checkpoint,
        lost,
        schedule_marks(checkpoint.schedule),
        dispatch_marks(checkpoint.dispatch),
    )
    try:
        _take_dispatch(taken)
        _take_schedule(taken)
        _take_message_log(taken)
        _read_tables(taken, findings)
    except BaseException:
        taken.close()
        raise
    return taken


def find_server_id(fs: FileSystem, path: str, findings: Findings) -> int:
    """The server id: of the identity, or where that cannot be read, the one that the headers of the logs carry.

    Raises FormatError (no data directory of ours), CorruptionError (nothing tells whose it is).
    """
    file = f"{path}/{IDENTITY}"
    try:
        return read_identity(fs, path)
    except CorruptionError as error:
        kind, failure = CORRUPT, error  # type: tuple[str, CorruptionError | FormatError]
    except FormatError as error:
        if fs.exists(file):
            kind, failure = UNREADABLE, error
        elif fs.exists(f"{path}/names.log"):
            kind, failure = MISSING, error
        else:
            raise
    found = server_id_of_logs(fs, path)
    if not found:
        raise failure
    findings.add(kind, file, 0, f"{failure.detail}; the logs belong to server {found:012x}, `rebuild` writes it anew")
    return found


def server_id_of_logs(fs: FileSystem, path: str) -> int:
    """The server id that names.log and message_log agree on; 0 where they do not, or tell none."""
    found = set()
    names = [f"message_log/{name}" for name in fs.listdir(f"{path}/message_log") if _SEGMENT_NAME.fullmatch(name)]
    for name in ("names.log", *names):
        with suppress(StoreError, FileNotFoundError):
            file = fs.open(f"{path}/{name}", write=False)
            try:
                found.add(decode_file_header(file.pread(0, FILE_HEADER_BYTES), name).server_id)
            finally:
                file.close()
    return found.pop() if len(found) == 1 else 0


def _read_checkpoint(fs: FileSystem, path: str, server_id: int, findings: Findings) -> tuple[Checkpoint, bool]:
    file = f"{path}/{checkpoint_file.FILE_NAME}"
    empty = Checkpoint(server_id=server_id)
    try:
        found = checkpoint_file.read(fs, file)
    except CorruptionError as error:
        findings.add(
            CORRUPT, file, error.offset, f"{error.detail}; nothing is lost: a start or `rebuild` makes it anew"
        )
        return empty, True
    except FormatError as error:
        findings.add(UNREADABLE, file, 0, error.detail)
        return empty, True
    if found is not None and found.server_id != server_id:
        findings.add(UNREADABLE, file, 0, f"belongs to server {found.server_id:012x}, not to {server_id:012x}")
        found = None
    return (found, False) if found is not None else (empty, True)


def find_window_ms(fs: FileSystem, path: str, checkpoint: Checkpoint | None = None) -> int:
    """The length of the windows, from the header of any file that has one. Where all are retired, from the checkpoint, and
    a minute where that does not tell either."""
    told_ms = checkpoint.window_ms if checkpoint is not None else 0
    return find_span_ms(fs, path) or told_ms or DEFAULT_WINDOW_MS


def _hold(taken: Capture, path: str, held_max: int) -> int | None:
    """Keep a file open unless so many are; its size, or None where it has just gone."""
    return hold(taken, path) if len(taken.held) < held_max else _size(taken, path)


def hold(taken: Capture, path: str) -> int | None:
    """Keep a file open for whoever reads it later; its size, or None where it has just gone."""
    try:
        file = taken.fs.open(path, write=False)
    except FileNotFoundError:
        return None
    taken.held[path] = file
    return file.size()


def _take_dispatch(taken: Capture) -> None:
    layout = DispatchLayout(taken.window_ms)
    folder = f"{taken.path}/dispatch_log"
    for day in taken.fs.listdir(folder):
        if day == RESERVE_FILE:
            continue
        # The coarse file first: when a day is drained its rows move to the minutes, and so they are seen twice at most.
        for name in sorted(taken.fs.listdir(f"{folder}/{day}"), key=lambda name: (name != "day.log", name)):
            key = layout.parse(day, name)
            path = f"{folder}/{day}/{name}"
            if key is None:
                taken.strangers.append(path)
                continue
            size = _hold(taken, path, HELD_MAX) if key.coarse else _size(taken, path)
            if size is not None:
                taken.dispatch[key] = size
        if _is_no_day(day):
            taken.strangers.append(f"{folder}/{day}")


def _take_schedule(taken: Capture) -> None:
    layout = ScheduleLayout(taken.window_ms)
    folder = f"{taken.path}/schedule_log"
    for day in taken.fs.listdir(folder):
        names = taken.fs.listdir(f"{folder}/{day}")
        for name in sorted(names, key=lambda name: (name != "day.log", name)):
            key = layout.parse(day, name)
            path = f"{folder}/{day}/{name}"
            if key is None:
                taken.strangers.append(path)
                continue
            size = _hold(taken, path, HELD_MAX) if key.source == Source.DAY else _size(taken, path)
            if size is not None:
                taken.schedule[key] = size
        if _is_no_day(day):
            taken.strangers.append(f"{folder}/{day}")


def _is_no_day(name: str) -> bool:
    try:
        parse_day_name(name)
    except ValueError:
        return True
    return False


def _size(taken: Capture, path: str) -> int | None:
    try:
        return taken.fs.size(path)
    except FileNotFoundError:
        return None


def _take_message_log(taken: Capture) -> None:
    folder = f"{taken.path}/message_log"
    held_max = len(taken.held) + HELD_SEGMENTS_MAX
    for name in taken.fs.listdir(folder):
        path = f"{folder}/{name}"
        if not _SEGMENT_NAME.fullmatch(name):
            taken.strangers.append(path)
            continue
        size = _hold(taken, path, held_max)
        if size is not None:
            taken.message_log.append(LogPart(int(name[:20]), path, size))
    taken.message_log.sort(key=lambda part: part.base)


def _read_tables(taken: Capture, findings: Findings) -> None:
    fs, path, server_id = taken.fs, taken.path, taken.server_id
    for name, read in (("ledger.log", _read_ledger), ("days", _read_days), ("names.log", _read_names)):
        file = f"{path}/{name}"
        try:
            read(fs, path, server_id, taken)
        except CorruptionError as error:
            findings.add(CORRUPT, file, error.offset, error.detail)
        except FormatError as error:
            findings.add(UNREADABLE, file, 0, error.detail)
        except (ValueError, KeyError, TypeError) as error:
            findings.add(CORRUPT, file, 0, f"its content makes no sense: {error}")
        except FileNotFoundError:
            findings.add(MISSING, file, 0, f"{name} is missing")


def _read_ledger(fs: FileSystem, path: str, server_id: int, taken: Capture) -> None:
    taken.ledger = Ledger.open(fs, path, server_id, write=False)


def _read_days(fs: FileSystem, path: str, _server_id: int, taken: Capture) -> None:
    file = f"{path}/days"
    if not fs.exists(file):
        raise FileNotFoundError(file)
    taken.days = DayTable.open(fs, file, 0)


def _read_names(fs: FileSystem, path: str, server_id: int, taken: Capture) -> None:
    if not fs.exists(f"{path}/names.log"):
        raise FileNotFoundError(path)
    taken.names = Names.open(fs, path, server_id, write=False)
