"""The state of a data directory at one moment: which files there are and where they end.

Beside a running server the ends are taken in the order dispatch_log, schedule_log, message_log (rule 3): whatever an
outcome speaks of is then in what was captured after it. The checkpoint is read before all of them, so that it claims
nothing that they lack; the ledger and the states of the days after them, so that they know of every file that vanished.
Later writes of the server lie behind these ends and are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from delayserver.recover.reading.findings import CORRUPT, MISSING, UNREADABLE, Findings
from delayserver.recover.reading.logged_names import logged_names
from store.disk.filesystem import File, FileSystem
from store.errors import CorruptionError, FormatError, StoreError
from store.logs.dispatch_log import RESERVE_FILE, DispatchKey, DispatchLayout, DispatchMark
from store.logs.due_windows import parse_day_name
from store.logs.schedule_key import ScheduleKey, ScheduleLayout, ScheduleSource
from store.logs.window_span import find_span_ms
from store.logs.window_state import FileMark, Loss
from store.records.file_header import FILE_HEADER_BYTES, decode_file_header
from store.shared.followed import FollowedTo
from store.shared.readable_place import readable_place
from store.tables import checkpoint as checkpoint_file
from store.tables.checkpoint import Checkpoint
from store.tables.checkpoint_marks import dispatch_losses, dispatch_marks, schedule_losses, schedule_marks
from store.tables.days import DayTable
from store.tables.identity import IDENTITY, read_identity
from store.tables.ledger import Ledger
from store.tables.names import Names

DEFAULT_WINDOW_MS = 60_000
# Files held open, so that a server that retires or drains them meanwhile cannot take them away from the reader.
HELD_MAX = 256
# Segments of message_log held besides them, the oldest first: those are what retention takes next.
HELD_SEGMENTS_MAX = 256
_SEGMENT_NAME = re.compile(r"\d{20}\.log")
Key = TypeVar("Key", ScheduleKey, DispatchKey)
Table = TypeVar("Table")


@dataclass(frozen=True, slots=True)
class LogPart:
    """A segment of message_log: base, and length at the moment of the capture."""

    base: int
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class CapturedMarks:
    """What the checkpoint knew; nothing if it was lost. `schedule_lost` and `dispatch_lost` have the files that lost rows
    and whose loss a start has noted."""

    checkpoint: Checkpoint
    checkpoint_lost: bool
    schedule_known: dict[ScheduleKey, FileMark]
    dispatch_known: dict[DispatchKey, DispatchMark]
    schedule_lost: dict[ScheduleKey, Loss]
    dispatch_lost: dict[DispatchKey, Loss]


@dataclass(frozen=True, slots=True)
class CapturedFiles:
    """The files with their sizes in bytes, and the length of a window. `strangers`: paths that nothing reads. `held` are
    kept open until the capture is closed."""

    window_ms: int
    schedule: dict[ScheduleKey, int]
    dispatch: dict[DispatchKey, int]
    message_log: list[LogPart]
    strangers: list[str]
    held: dict[str, File]


class CapturedTables:
    """The tables; None for one that is missing or cannot be read."""

    def __init__(
        self, fs: FileSystem, path: str, server_id: int, findings: Findings, unreplayed: Sequence[tuple[str, int]]
    ) -> None:
        """Tables that cannot be read go to `findings`. `unreplayed`: path of each segment of message_log that replay has to
        read yet, and where it goes on in it."""
        self._fs = fs
        self._path = path
        self._server_id = server_id
        self._unreplayed = unreplayed
        self._names_bytes = -1
        ledger, days, names = f"{path}/ledger.log", f"{path}/days", f"{path}/names.log"
        self.ledger = _read_table(findings, ledger, True, lambda: Ledger.open(fs, path, server_id, write=False))
        self.days = _read_table(findings, days, fs.exists(days), lambda: DayTable.open(fs, days, 0))
        self.names = _read_table(
            findings, names, fs.exists(names), lambda: Names.open(fs, path, server_id, write=False)
        )

    def subject_name(self, code: int) -> str:
        """The name of a code, or its number where the table does not know it."""
        self.read_names_to(code)
        try:
            return self.names.name(code) if self.names is not None else f"#{code}"
        except KeyError:
            return f"#{code}"

    def read_names_to(self, code: int) -> None:
        """A running server has given more names by now, and its preallocated message_log is read beyond the capture. A
        member's message_log may have names that its names.log has not."""
        if self.names is None or code <= len(self.names):
            return
        with suppress(StoreError, FileNotFoundError):
            size = self._fs.size(f"{self._path}/names.log")
            if size == self._names_bytes:
                return
            names = Names.open(self._fs, self._path, self._server_id, write=False)
            self.names.close()
            self.names, self._names_bytes = names, size
            for path, start in self._unreplayed:
                for batch in logged_names(self._fs, path, self._server_id, start):
                    names.add_logged(batch)

    def read_ledger_again(self) -> None:
        """A running server may have retired windows since the capture."""
        with suppress(StoreError, FileNotFoundError):
            newest = Ledger.open(self._fs, self._path, self._server_id, write=False)
            if self.ledger is not None:
                self.ledger.close()
            self.ledger = newest

    def use_days(self, days: DayTable) -> None:
        """Go on with this table of days, where the directory has lost its own."""
        self.days = days

    def close(self) -> None:
        """Close the tables that have a file."""
        for part in (self.ledger, self.names):
            if part is not None:
                part.close()


@dataclass(frozen=True, slots=True)
class Capture:
    """A data directory as it was."""

    fs: FileSystem
    path: str
    server_id: int
    marks: CapturedMarks
    files: CapturedFiles
    tables: CapturedTables

    def followed(self) -> FollowedTo | None:
        """Up to where a member had followed the log of its shard; None for the directory of no member. Raises
        UpgradeNeededError where the log has a version there that this program does not read."""
        segments = [(part.path, part.size) for part in self.files.message_log]
        return readable_place(self.fs, self.path, self.server_id, segments)

    def schedule_path(self, key: ScheduleKey) -> str:
        """Where a schedule file is; the folder for a window that no file can have, as damage may name one."""
        folder = f"{self.path}/schedule_log"
        with suppress(ValueError):
            return f"{folder}/{ScheduleLayout(self.files.window_ms).name(key)}"
        return folder

    def dispatch_path(self, key: DispatchKey) -> str:
        """Where a dispatch file is; as `schedule_path`."""
        folder = f"{self.path}/dispatch_log"
        with suppress(ValueError):
            return f"{folder}/{DispatchLayout(self.files.window_ms).name(key)}"
        return folder

    def open(self, path: str) -> File:
        """The file, also if it was removed after the capture and is held. Raises FileNotFoundError."""
        held = self.files.held.get(path)
        return held if held is not None else self.fs.open(path, write=False)

    def release(self, file: File) -> None:
        """Close a file that is not held."""
        if self.files.held.get(file.path) is not file:
            file.close()

    def with_checkpoint(self, checkpoint: Checkpoint) -> Capture:
        """The same files, read by another checkpoint."""
        return replace(self, marks=replace(self.marks, checkpoint=checkpoint))

    def leave_out_tail(self, end: int) -> None:
        """Read the last segment of message_log up to `end` only."""
        self.files.message_log[-1] = replace(self.files.message_log[-1], size=end)

    def hold(self, path: str) -> None:
        """Keep a file open until `close`, unless it has just gone or is held already."""
        if path not in self.files.held:
            with suppress(FileNotFoundError):
                self.files.held[path] = self.fs.open(path, write=False)

    def close(self) -> None:
        """Close what is held."""
        for file in self.files.held.values():
            file.close()
        self.tables.close()


def capture(fs: FileSystem, path: str, findings: Findings, window_ms: int = 0) -> Capture:
    """Take the ends of all files. Tables that cannot be read go to `findings`. Without `window_ms` the length of the windows
    comes from the files.

    Raises FormatError (no data directory of ours), CorruptionError (no file shows its server), UpgradeNeededError (of a
    member whose log has a version that this program does not read).
    """
    path = path.rstrip("/") or "/"
    server_id = find_server_id(fs, path, findings)
    checkpoint, lost = _read_checkpoint(fs, path, server_id, findings)
    window_ms = window_ms or find_window_ms(fs, path, checkpoint)
    ends = _Ends(fs, path)
    try:
        # In this order: an outcome that is taken has its message taken behind it.
        dispatch = ends.of_windows("dispatch_log", DispatchLayout(window_ms).parse, lambda key: key.coarse)
        schedule = ends.of_windows(
            "schedule_log", ScheduleLayout(window_ms).parse, lambda key: key.source == ScheduleSource.DAY
        )
        message_log = ends.of_message_log()
        replayed = checkpoint.replay_offset
        unreplayed = [(each.path, replayed - each.base) for each in message_log if each.base + each.size > replayed]
        taken = Capture(
            fs,
            path,
            server_id,
            CapturedMarks(
                checkpoint,
                lost,
                schedule_marks(checkpoint.schedule),
                dispatch_marks(checkpoint.dispatch),
                schedule_losses(checkpoint.lost),
                dispatch_losses(checkpoint.lost),
            ),
            CapturedFiles(window_ms, schedule, dispatch, message_log, ends.strangers, ends.held),
            CapturedTables(fs, path, server_id, findings, unreplayed),
        )
        taken.followed()
        return taken
    except BaseException:
        ends.close()
        raise


def find_server_id(fs: FileSystem, path: str, findings: Findings) -> int:
    """The server id. Where the identity cannot be read, it comes from the headers of the logs.

    Raises FormatError (no data directory of ours), CorruptionError (no file shows its server).
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
    """The server id that names.log and message_log agree on; 0 where they do not, or have none."""
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
    """The length of the windows, from the header of any file that has one. Where all are retired, it comes from the
    checkpoint. If that does not have it either, it is a minute."""
    told_ms = checkpoint.window_ms if checkpoint is not None else 0
    return find_span_ms(fs, path) or told_ms or DEFAULT_WINDOW_MS


class _Ends:
    """Takes the ends of the files of a directory. `held`: files kept open. `strangers`: paths that nothing reads."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self.held: dict[str, File] = {}
        self.strangers: list[str] = []

    def of_windows(
        self, folder: str, parse: Callable[[str, str], Key | None], is_coarse: Callable[[Key], bool]
    ) -> dict[Key, int]:
        """The files of windows and days, with their sizes."""
        found: dict[Key, int] = {}
        folder = f"{self._path}/{folder}"
        for day in self._fs.listdir(folder):
            if day == RESERVE_FILE:
                continue
            # The day's file first: when a day is drained its rows move to the minutes, and so they are seen twice at most.
            for name in sorted(self._fs.listdir(f"{folder}/{day}"), key=lambda name: (name != "day.log", name)):
                key, path = parse(day, name), f"{folder}/{day}/{name}"
                if key is None:
                    self.strangers.append(path)
                    continue
                size = self._size(path, HELD_MAX if is_coarse(key) else 0)
                if size is not None:
                    found[key] = size
            if _is_no_day(day):
                self.strangers.append(f"{folder}/{day}")
        return found

    def of_message_log(self) -> list[LogPart]:
        """The segments, in order."""
        folder, held_max = f"{self._path}/message_log", len(self.held) + HELD_SEGMENTS_MAX
        parts: list[LogPart] = []
        for name in self._fs.listdir(folder):
            path = f"{folder}/{name}"
            if not _SEGMENT_NAME.fullmatch(name):
                self.strangers.append(path)
                continue
            size = self._size(path, held_max)
            if size is not None:
                parts.append(LogPart(int(name[:20]), path, size))
        return sorted(parts, key=lambda part: part.base)

    def _size(self, path: str, held_max: int) -> int | None:
        """The size, or None where the file has just gone. The file is held unless so many are."""
        try:
            if len(self.held) >= held_max:
                return self._fs.size(path)
            self.held[path] = self._fs.open(path, write=False)
        except FileNotFoundError:
            return None
        return self.held[path].size()

    def close(self) -> None:
        """Close what is held."""
        for file in self.held.values():
            file.close()


def _is_no_day(name: str) -> bool:
    try:
        parse_day_name(name)
    except ValueError:
        return True
    return False


def _read_table(findings: Findings, file: str, is_there: bool, read: Callable[[], Table]) -> Table | None:
    """A table, or None where it is missing or cannot be read; then a finding says so."""
    try:
        if is_there:
            return read()
    except CorruptionError as error:
        findings.add(CORRUPT, file, error.offset, error.detail)
    except FormatError as error:
        findings.add(UNREADABLE, file, 0, error.detail)
    except (ValueError, KeyError, TypeError) as error:
        findings.add(CORRUPT, file, 0, f"its content makes no sense: {error}")
    except FileNotFoundError:
        is_there = False
    if not is_there:
        findings.add(MISSING, file, 0, f"{file.rpartition('/')[2]} is missing")
    return None
