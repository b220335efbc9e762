"""Bits that flip at rest and files that are cut or go, and what may be wrong because of them: nothing but what they hit, and
that only if it is named.

A bit is flipped where the file itself says that it was durable (below the highest `synced_before` of its records, and in no
padding): the last group before a crash cannot be told from a torn one by anybody. Before that it is noted which messages
the record holds. They may be unavailable, or come twice where their outcome was hit, if the server or the final check
names the file. Every other message is judged as ever.

While the server is down, a schedule or dispatch file is cut or removed, where the checkpoint knows more of it. That explains
less than a bit: a cancelled message is not delivered because of it, a message does not come again, and none is forgotten.

What else a bit may explain depends on the file: in the ledger, of the windows in the record; in the broker's progress log,
only that messages come again; in its table of policies, that a group goes by the defaults; in the broker's index and its
checkpoint nothing, since the store has all that is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from delayserver.recover.checking.check import Check
from delayserver.recover.reading.capture import capture
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.findings import TORN, Finding, Findings
from store.errors import StoreError
from store.logs.dispatch_log import DispatchKey, DispatchLayout
from store.logs.schedule_key import ScheduleKey, ScheduleLayout, ScheduleSource
from store.records.file_header import FILE_HEADER_BYTES
from store.records.record import HEADER_BYTES, BadRecordError, RecordHeader, decode_header, verify_columns
from store.tables import checkpoint as checkpoint_file
from store.tables.checkpoint_marks import dispatch_marks, schedule_marks
from tests.fakes.disk import FakeDisk
from tests.simulation.failures import SimulationFailure

DAY_MS = 86_400_000
LOGS = ("/data/message_log/", "/data/schedule_log/", "/data/dispatch_log/")
LEDGER, PROGRESS = "/data/ledger.log", "/data/broker/progress.log"
STORE, POLICIES = "/data/broker/store/", "/data/broker/groups"
BROKER = (STORE, "/data/broker/queue/", PROGRESS, "/data/broker/checkpoint", POLICIES)
# Small files that a start cannot do without: it refuses and names them, and the operator brings them back from a copy.
TABLES = ("/data/identity", "/data/names.log", "/data/days", "/data/sequences")
CHECKPOINT = "/data/checkpoint"
REPLACED = (CHECKPOINT, "/data/broker/checkpoint", POLICIES, "/data/identity", "/data/days", "/data/sequences")


@dataclass(slots=True)
class Flip:
    """One bit, and the sequences of the messages in the record that it hit."""

    path: str
    offset: int
    bit: int
    before: int
    sequences: frozenset[int]
    whole: bool
    """Whether nothing of the file can be trusted: its header was hit, or it holds the outcomes of messages."""
    windows: frozenset[tuple[int, bool]] = frozenset()
    """Of a record of the ledger: starts of its windows in ms, and whether one is a day."""
    left: bytes = b""
    """All that the flip left of a file that is replaced as a whole: one byte may be the same by chance."""
    is_cut: bool = False
    """The file was cut at `offset`, or removed; `sequences` are those of all its rows."""
    uncovered: bool = False
    """The file had rows that no checkpoint knew. Those are replayed, or may have been attempted, as after any crash."""

    def stands(self, disk: FakeDisk) -> bool:
        """Whether the damage is still there: files are replaced, cut off and removed."""
        return not self.is_cut and self.shows(disk) and (not self.left or disk.content(self.path) == self.left)

    def shows(self, disk: FakeDisk) -> bool:
        """Whether the byte is still as the flip left it."""
        if self.path not in disk.files(self.path):
            return False
        content = disk.content(self.path)
        return self.offset < len(content) and content[self.offset] == self.before ^ 1 << self.bit


class Damage:
    """Flips bits on one disk, and knows what they explain."""

    def __init__(self, disk: FakeDisk, chance: Random, window_ms: int, note: Callable[..., None]) -> None:
        self._disk = disk
        self._chance = chance
        self._window_ms = window_ms
        self._outcomes, self._messages = DispatchLayout(window_ms), ScheduleLayout(window_ms)
        self._note = note
        self.flips: list[Flip] = []
        self.reports: set[str] = set()
        self.excused: list[tuple[list[Flip], str]] = []

    # -- doing it

    def flip(self) -> None:
        """One bit of some file that has anything durable."""
        kind = self._chance.random()
        if kind < 0.12:
            paths = [path for path in (*TABLES, CHECKPOINT) if path in self._disk.files(path)]
        elif kind < 0.24:
            paths = self._disk.files(LEDGER)
        elif kind < 0.44:
            folder = self._chance.choice(BROKER)
            paths = [path for path in self._disk.files(folder) if not path.endswith(".tmp")]
        else:
            folder = self._chance.choice(LOGS)
            paths = [path for path in self._disk.files(folder) if path.endswith(".log")]
        if not paths:
            return
        path = self._chance.choice(paths)
        content = self._disk.content(path)
        found = self._place(path, content)
        if found is None:
            return
        offset, sequences = found
        bit = self._chance.randrange(8)
        whole = "/dispatch_log/" in path or ("/schedule_log/" in path and offset < FILE_HEADER_BYTES)
        windows = _windows(content, offset) if path == LEDGER else frozenset()
        flip = Flip(path, offset, bit, content[offset], sequences, whole, windows)
        self._disk.flip_bit(path, offset, bit)
        if path in REPLACED:
            flip.left = self._disk.content(path)
        self.flips.append(flip)
        self._note("fault", "bit flips", path=path, offset=offset, bit=bit, sequences=sorted(sequences)[:12])

    def cut(self) -> None:
        """Cut or remove some file of a window, below the end that the checkpoint knows. The server is down."""
        known = self._known()
        folder = self._chance.choice(["/dispatch_log/", "/dispatch_log/", "/schedule_log/"])
        paths = sorted(path for path in known if folder in path and path in self._disk.files(path))
        if not paths:
            return
        path = self._chance.choice(paths)
        content, end = self._disk.content(path), known[path]
        ends = [FILE_HEADER_BYTES, *[header.end for header in _records(content)]]
        below = [place for place in ends if place < end]
        if end <= FILE_HEADER_BYTES or end > len(content):
            return
        length = self._chance.choice([None, 0, 40, FILE_HEADER_BYTES, below[-1], self._chance.randrange(end)])
        if length is None:
            self._disk.remove(path)
            self._disk.sync_directory(path.rpartition("/")[0])
        else:
            file = self._disk.open(path)
            file.truncate(length)
            file.datasync()
            file.close()
        sequences = frozenset().union(*[_sequences(content, header) for header in _records(content)])
        uncovered = len(content) > end
        self.flips.append(Flip(path, length or 0, 0, 0, sequences, whole=True, is_cut=True, uncovered=uncovered))
        self._note("fault", "file is cut", path=path, length=length, known=end, uncovered=uncovered)

    def _known(self) -> dict[str, int]:
        """How far the checkpoint knows the files of windows that were not retired or drained since, by path."""
        try:
            found = checkpoint_file.read(self._disk, CHECKPOINT)
        except StoreError:
            found = None
        if found is None:
            return {}
        known = {
            f"/data/dispatch_log/{self._outcomes.name(key)}": mark.end
            for key, mark in dispatch_marks(found.dispatch).items()
        }
        return known | {
            f"/data/schedule_log/{self._messages.name(key)}": mark.end
            for key, mark in schedule_marks(found.schedule).items()
        }

    def _place(self, path: str, content: bytes) -> tuple[int, frozenset[int]] | None:
        """An offset with something in it, and the messages that lose it."""
        if path in REPLACED:
            return (self._chance.randrange(len(content)), frozenset()) if content else None
        # A record that tells what is durable must be durable itself: else a loss of power takes it, and a start has to take
        # what was hit before it for a torn tail.
        synced = max([header.synced_before for header in _records(self._disk.durable(path))], default=0)
        records = [header for header in _records(content) if header.end <= synced]
        if not records:
            return None
        if self._chance.random() < 0.1 and "/message_log/" not in path and not _restored_only(path):
            everything = frozenset().union(*[_sequences(content, header) for header in records])
            return self._chance.randrange(FILE_HEADER_BYTES), everything
        header = self._chance.choice(records)
        length = HEADER_BYTES + header.columns_bytes + header.blob_bytes
        return header.offset + self._chance.randrange(length), _sequences(content, header)

    def restore(self, why: str) -> bool:
        """Bring a table back that a start named when it refused; whether there was one."""
        named = [flip for flip in self.flips if flip.path in TABLES and flip.path in why and flip.shows(self._disk)]
        for flip in named:
            self._disk.flip_bit(flip.path, flip.offset, flip.bit)
            self.flips.remove(flip)
            self._note("operator", "restores", path=flip.path)
        return bool(named)

    # -- judging

    def explains(self, sequences: set[int], due_ms: list[int], *, again: bool = False) -> list[Flip]:
        """The flips that may be the cause of what is wrong with a message; `again`: that it came again. A dispatch file that
        lost some of its outcomes does not tell any more which: nothing of its window or day may be delivered until it is
        repaired."""
        return [
            flip
            for flip in self.flips
            if flip.sequences & sequences
            or (flip.whole and any(self._in_file(flip.path, due) for due in due_ms))
            or any(self._starts(due) & flip.windows for due in due_ms)
            or (flip.is_cut and self._waiting_behind(flip.path) & sequences)
            or (again and flip.path == PROGRESS)
        ]

    def _waiting_behind(self, path: str) -> frozenset[int]:
        """The messages of a window or day whose dispatch file was cut. Redeliveries count for their first record: they have
        due times of their own, which no producer knows, and a replay may place them after the cut."""
        day, _, name = path.removeprefix("/data/dispatch_log/").partition("/")
        key = self._outcomes.parse(day, name)
        if key is None:
            return frozenset()
        sources = [ScheduleSource.DAY] if key.coarse else [ScheduleSource.DIRECT, ScheduleSource.FROM_DAY]
        paths = ["/data/schedule_log/" + self._messages.name(ScheduleKey(key.start_ms, source)) for source in sources]
        contents = [self._disk.content(path) for path in paths if path in self._disk.files(path)]
        return frozenset().union(*[_sequences(content, header) for content in contents for header in _records(content)])

    @property
    def of_store(self) -> bool:
        """Whether a bit of the broker's store flipped: a message of its queues may be lost."""
        return any(flip.path.startswith(STORE) for flip in self.flips)

    @property
    def of_outcomes(self) -> list[Flip]:
        """The damages of dispatch files. Redeliveries of their windows are held back, and no producer knows which."""
        return [flip for flip in self.flips if "/dispatch_log/" in flip.path]

    @property
    def of_progress(self) -> bool:
        """Whether a bit of the broker's progress log flipped: a start may forget acks, seeks and removals of groups."""
        return any(flip.path == PROGRESS for flip in self.flips)

    def _starts(self, due_ms: int) -> set[tuple[int, bool]]:
        return {(due_ms - due_ms % self._window_ms, False), (due_ms - due_ms % DAY_MS, True)}

    def _in_file(self, path: str, due_ms: int) -> bool:
        """Whether messages with this due time, or their outcomes, lie in the file."""
        window, day = due_ms - due_ms % self._window_ms, due_ms - due_ms % DAY_MS
        names = [self._outcomes.name(DispatchKey(window, False)), self._outcomes.name(DispatchKey(day, True))]
        names += [
            self._messages.name(ScheduleKey(window, source))
            for source in (ScheduleSource.DIRECT, ScheduleSource.FROM_DAY)
        ]
        names.append(self._messages.name(ScheduleKey(day, ScheduleSource.DAY)))
        return any(path.endswith("/" + name) for name in names)

    def check_reports(self, texts: list[str]) -> None:
        """What the server says about damage must be about files that were damaged."""
        for text in texts:
            # Outcomes whose messages are lost are named by the file that holds them, wherever the bit was that lost them.
            orphaned = bool(self.flips) and "no schedule file holds" in text
            explained = orphaned or self._retired(text) or self._without_path(text)
            if not explained and not any(flip.path in text for flip in self.flips):
                raise SimulationFailure(f"corruption reported without damage: {text}")
        self.reports |= set(texts)

    def _without_path(self, text: str) -> bool:
        """Whether it is one of the reports that follow another one and name offsets alone."""
        begins = {"store offset": "/data/broker/", "acked up to ": "/data/broker/"}
        return any(
            text.startswith(begin) and flip.path.startswith(folder)
            for begin, folder in begins.items()
            for flip in self.flips
        )

    def _retired(self, text: str) -> bool:
        """Whether it is about the files of a window whose counts in the ledger were hit: nobody can know that they were
        removed as they should."""
        path = text.partition(":")[0]
        return any(self._in_file(path, start) for flip in self.flips for start, _ in flip.windows)

    def verdict(self) -> None:
        """At the end, with the server down: the check must find what still stands, and nothing but that; and whatever was
        excused must have been named by somebody."""
        findings = [finding for finding in recover_check(self._disk, self._window_ms) if finding.kind != TORN]
        if not self.flips and findings:
            raise SimulationFailure(f"recover check finds {findings[:3]} where nothing was damaged")
        named = self.reports | {finding.file for finding in findings}
        for flip in self.flips:
            if flip.stands(self._disk) and not any(flip.path in text for text in named):
                raise SimulationFailure(
                    f"neither the server nor the check names the damage in {flip.path} at {flip.offset}"
                )
        for flips, what in self.excused:
            if not any(flip.path in text for flip in flips for text in named):
                paths = sorted({flip.path for flip in flips})
                raise SimulationFailure(
                    f"{what}; bits flipped in {paths} may be the cause, but no report names any of them"
                )


def recover_check(disk: FakeDisk, window_ms: int) -> list[Finding]:
    """What `delayserver recover check` finds in the data directory."""
    findings = Findings()
    # A capture reads the length off the names of windows, of which none may be left.
    taken = capture(disk, "/data", findings, window_ms)
    try:
        Check(taken, Range(), findings, lambda *_: None, lambda *_: None).run()
    finally:
        taken.close()
    return list(findings)


def _records(content: bytes) -> Iterator[RecordHeader]:
    offset = FILE_HEADER_BYTES
    while True:
        try:
            header = decode_header(content, offset, offset)
            verify_columns(header, _columns(content, header))
        except BadRecordError:
            return
        yield header
        offset = header.end


def _restored_only(path: str) -> bool:
    """Files whose header is not damaged here: a start refuses them like a table, by name."""
    return path == LEDGER or path.startswith("/data/broker/")


def _windows(content: bytes, offset: int) -> frozenset[tuple[int, bool]]:
    """The windows in the record of the ledger that holds this offset."""
    header = next(header for header in _records(content) if header.offset <= offset < header.end)
    columns = verify_columns(header, _columns(content, header))
    return frozenset(
        (int(start), bool(coarse)) for start, coarse in zip(columns["start_ms"], columns["coarse"], strict=True)
    )


def _columns(content: bytes, header: RecordHeader) -> bytes:
    start = header.offset + HEADER_BYTES
    return content[start : start + header.columns_bytes]


def _sequences(content: bytes, header: RecordHeader) -> frozenset[int]:
    columns = verify_columns(header, _columns(content, header))
    names = [name for name in ("sequence", "replaces_sequence", "origin_sequence", "duplicate_of") if name in columns]
    return frozenset(int(value) for name in names for value in columns[name] if value)
