"""What is known of a file of a window, and what a log has to say about its own files. No disk here."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from store.columns import ColumnBatch
from store.segment import Damage

Key = TypeVar("Key", bound=Hashable)


class FileMark(NamedTuple):
    """What a checkpoint keeps of a file: everything below `end` is durable and counted. `counts` is the log's own."""

    end: int
    last_sequence: int = 0
    rows: int = 0
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowDamage(Generic[Key]):
    """Corruption found in a file of a window: what is affected (the key), where, and the range of bytes."""

    key: Key
    path: str
    damage: Damage

    def __str__(self) -> str:
        return f"{self.path}: corrupt at offset {self.damage.start}: {self.damage.detail}"


@dataclass(slots=True)
class FileState:
    """One file. `durable` is the mark of the last sync: counts and offset belong together (rule 6)."""

    path: str
    end: int
    last_sequence: int
    rows: int
    counts: list[int]
    durable: FileMark
    settled: bool  # recovered or created here: bytes behind `end` are leftovers and may be cut
    failed: bool = False  # a sync failed: final for this process
    listed: bool = True  # its name is durable in its folder, and the folder's in the log's
    header_damage: str = ""  # what is wrong with its header; its records are served all the same

    def mark(self) -> FileMark:
        """The file as it is now, synced or not."""
        return FileMark(self.end, self.last_sequence, self.rows, tuple(self.counts))


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
        """What a batch adds to the `counters` counters."""
