"""The state of a file of a window, and the interface by which a log names and counts its files. No disk here."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from store.errors import CorruptionError
from store.records.column_batch import ColumnBatch
from store.records.segment import Damage

Key = TypeVar("Key", bound=Hashable)


class FileMark(NamedTuple):
    """The mark of a file in a checkpoint: everything below `end` is durable and counted. `counts` is the log's own."""

    end: int
    last_sequence: int = 0
    rows: int = 0
    counts: tuple[int, ...] = ()


class Loss(NamedTuple):
    """The rows that a file of a window lost: it is missing, or shorter than a checkpoint said.

    `end` is where the rest of the file ended when the loss was found; later records stand behind it. The file must hold
    `rows` rows with sequences up to `last_sequence`; `left_rows` were left. `counts` are the log's own counters of the rows
    that are lost. `searched`: message_log was searched for what it can give back.
    """

    end: int
    last_sequence: int
    rows: int
    left_rows: int
    counts: tuple[int, ...] = ()
    searched: bool = False

    @property
    def lost_rows(self) -> int:
        """Rows that were durable once and are not in the file."""
        return self.rows - self.left_rows

    def detail(self) -> str:
        """The text of the error."""
        return (
            f"{self.lost_rows} rows that were durable are lost: the file was missing, or shorter than the checkpoint said; "
            "stop the server, then `delayserver recover rebuild` restores what the logs still hold"
        )


def loss_between(known: FileMark, left: FileMark, before: Loss | None) -> Loss | None:
    """The loss of a file that a checkpoint knew as `known` and of which `left` is left, added to an earlier loss. None
    where all rows are there."""
    if left.rows >= known.rows:
        return before
    left_counts = left.counts or (0,) * len(known.counts)
    counts = tuple(all_ - rest for all_, rest in zip(known.counts, left_counts, strict=True))
    if before is None:
        return Loss(left.end, known.last_sequence, known.rows, left.rows, counts)
    return Loss(
        min(left.end, before.end),
        max(known.last_sequence, before.last_sequence),
        known.rows + before.lost_rows,
        left.rows,
        tuple(one + other for one, other in zip(counts, before.counts, strict=True)),
    )


@dataclass(frozen=True, slots=True)
class WindowDamage(Generic[Key]):
    """Corruption found in a file of a window: what is affected (the key), where, and the range of bytes."""

    key: Key
    path: str
    damage: Damage

    def __str__(self) -> str:
        return str(self.error())

    def error(self) -> CorruptionError:
        """As an error; UnreadableError where the disk cannot read the range."""
        return self.damage.error(self.path)


class FileState:
    """One file, as its log knows it."""

    __slots__ = (
        "counts",
        "durable",
        "end",
        "failed",
        "header_damage",
        "header_errno",
        "last_sequence",
        "listed",
        "path",
        "rows",
        "settled",
    )

    def __init__(self, path: str, durable: FileMark, *, settled: bool = False, listed: bool = True) -> None:
        """`durable` is the mark of the last sync: its counts and its offset belong together (rule 6)."""
        self.path = path
        self.durable = durable
        self.end, self.last_sequence, self.rows, counts = durable
        self.counts = list(counts)
        # The file was recovered or made here. Bytes behind `end` are leftovers, and may be cut off.
        self.settled = settled
        # The name of the file is durable in its folder, and the folder's name in the folder of the log.
        self.listed = listed
        # A sync failed: the file takes no more records from this process.
        self.failed = False
        # The damage of the file header, as text. The records are served all the same.
        self.header_damage = ""
        self.header_errno = 0

    def mark(self) -> FileMark:
        """The file as it is now, synced or not."""
        return FileMark(self.end, self.last_sequence, self.rows, tuple(self.counts))

    def count(self, rows: int, last_sequence: int, counts: Sequence[int]) -> None:
        """Add the rows of a record; `counts` is what they add to the counters."""
        if counts:
            self.counts = [count + more for count, more in zip(self.counts, counts, strict=True)]
        self.rows += rows
        self.last_sequence = last_sequence

    def move_end(self, end: int) -> None:
        """Keeps the offset at which the last record ends now."""
        self.end = end

    def note_durable(self, mark: FileMark) -> None:
        """Keeps the mark up to which the file is durable."""
        self.durable = mark

    def settle(self) -> None:
        """Lets records be written, because the file is known to its end."""
        self.settled = True

    def fail(self) -> None:
        """Notes that a sync failed."""
        self.failed = True

    def name_is_durable(self) -> None:
        """Notes that the directory of the file was synced, and the one of the log."""
        self.listed = True

    def damage_header(self, detail: str, errno: int) -> None:
        """Notes that the file header cannot be used. `errno` is not 0 where the disk cannot read it."""
        self.header_damage, self.header_errno = detail, errno


class Layout(Protocol[Key]):
    """Names and counts of one log."""

    kind: int
    counters: int

    def name(self, key: Key) -> str:
        """`day/file` of a key, relative to the log's directory."""

    def parse(self, day: str, name: str) -> Key | None:
        """The inverse; None for a name that is not of this log."""

    def header_base(self, key: Key) -> tuple[int, int]:
        """Start and span of the window in milliseconds, for the file header."""

    def count(self, batch: ColumnBatch) -> Sequence[int]:
        """The amounts that a batch adds to the `counters` counters."""
