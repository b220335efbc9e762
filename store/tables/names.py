"""The table of interned names: subjects, consumer groups, broker groups, tags, the server's own. Append-only, part of the
truth.

A record holds the code of a name, never its text. So a new name is synced here before its code is handed out, and every
code that any file can hold has its name. Codes count from 1 over all kinds; 0 says "none". FORMAT.md draws the bytes.

The members of a cluster share their names. There a new name gets its code in memory, and its record goes to the shared log
in front of the records that use it (`take_new`). Each member writes it here when it reads it there (`keep`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, TableFullError
from store.records.batches import U32, NameBatch
from store.records.column_batch import ragged_offsets
from store.records.segment import FILE_HEADER_BYTES, FILE_NAMES, FileHeader, Segment, is_unfinished

SUBJECT, CONSUMER_GROUP, BROKER_GROUP, TAG, OWN, SCHEDULING = 0, 1, 2, 3, 4, 5
"""`SCHEDULING` has one name, the subject of the timers of schedules. A program that knows no schedules knows no such kind,
and refuses the directory: it would deliver timers as messages."""
KINDS = 6
FILE_NAME = "names.log"
# A name costs about 200 bytes of memory for ever: this many are 200 MB, and a client that invents subjects is refused.
NAMES_MAX = 1_000_000
# The plural of each kind, and the setting that bounds it.
_SETTINGS = (
    ("subjects", "message.subjects_max"),
    ("consumer groups", "broker.groups_max"),
    ("broker groups", "nothing: a million broker groups are configured"),
    ("tags", "message.tags_max"),
    ("names of the server", "nothing: they are a few"),
    ("names of schedules", "nothing: there is one"),
)
# Rows of one record: bounded, so that a record stays far below the bound of its readers.
_RECORD_ROWS = 1 << 16


class Names:
    """Names by code and codes by name. One writer; lookups may run beside it in other threads."""

    __slots__ = ("_bounds", "_codes", "_kept", "_kinds", "_names", "_new", "_segment", "_shared")

    def __init__(
        self, segment: Segment | None, subjects_max: int, groups_max: int, tags_max: int, *, shared: bool = False
    ) -> None:
        self._segment = segment
        self._shared = shared
        # Of shared names: those that no record of the shared log has yet, and how many names the file has.
        self._new: list[NameBatch] = []
        self._kept = 0
        # The bound of each kind. Names of broker groups come from the configuration.
        self._bounds = (subjects_max, groups_max, NAMES_MAX, tags_max, NAMES_MAX, NAMES_MAX)
        self._names: list[str] = [""]
        self._kinds = bytearray(1)
        self._codes: list[dict[str, int]] = [{} for _ in range(KINDS)]

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: str,
        server_id: int,
        subjects_max: int = NAMES_MAX,
        groups_max: int = NAMES_MAX,
        tags_max: int = NAMES_MAX,
        *,
        write: bool = True,
        shared: bool = False,
    ) -> Names:
        """Open or create `names.log`. With `write` a torn tail is cut; without, nothing is touched or created. `shared`: the
        names are those of a cluster.

        Raises CorruptionError (damage, a gap in the codes, a name twice or not in UTF-8), FormatError (foreign, newer).
        """
        path = f"{directory}/{FILE_NAME}"
        if not fs.exists(path) or is_unfinished(fs, path):
            made = Segment.create(fs, path, FileHeader(FILE_NAMES, server_id, 0)) if write else None
            return cls(made, subjects_max, groups_max, tags_max, shared=shared)
        segment = Segment.open(fs, path, FILE_NAMES, server_id, write=write)
        table = cls(segment, subjects_max, groups_max, tags_max, shared=shared)
        try:
            if write:
                segment.recover()
            for header, batch in segment.records(FILE_HEADER_BYTES, segment.end):
                if not isinstance(batch, NameBatch):
                    raise CorruptionError(path, header.offset, f"record kind {header.kind} in a table of names")
                table._load(path, header.offset, batch)
            table._kept = len(table)
        except BaseException:
            segment.close()
            raise
        return table

    @classmethod
    def listed(cls, names: Iterable[tuple[int, str]]) -> Names:
        """A table without a file, for reading: kind and text of each name, by code from 1 on."""
        table = cls(None, NAMES_MAX, NAMES_MAX, NAMES_MAX)
        pairs = list(names)
        table._adopt([kind for kind, _ in pairs], [name for _, name in pairs])
        return table

    def _load(self, path: str, offset: int, batch: NameBatch) -> None:
        first = len(self._names)
        if not np.array_equal(batch.code, np.arange(first, first + len(batch))):
            raise CorruptionError(path, offset, f"code {int(batch.code[0])} where {first} must follow")
        if int(batch.name_kind.max()) >= KINDS:
            raise CorruptionError(path, offset, f"unknown kind of name {int(batch.name_kind.max())}")
        try:
            names = _texts(batch)
        except UnicodeDecodeError as error:
            raise CorruptionError(path, offset, f"a name is not UTF-8: {error}") from error
        self._adopt(batch.name_kind.tolist(), names)
        if len(self) != sum(map(len, self._codes)):
            raise CorruptionError(path, offset, "a name stands twice")

    def _adopt(self, kinds: Sequence[int], names: Sequence[str]) -> None:
        # The text comes before the code: a reader in another thread that finds a code finds its name as well.
        code = len(self._names)
        self._names += names
        self._kinds += bytes(kinds)
        for kind, name in zip(kinds, names, strict=True):
            self._codes[kind][name] = code
            code += 1

    def __len__(self) -> int:
        """Count of names, and so the highest code."""
        return len(self._names) - 1

    def bound(self, kind: int) -> int:
        """How many names of a kind there may be."""
        return self._bounds[kind]

    def count(self, kind: int) -> int:
        """How many names of a kind there are."""
        return len(self._codes[kind])

    def code(self, kind: int, name: str) -> int:
        """The code of a name, 0 if it is not interned."""
        return self._codes[kind].get(name, 0)

    def intern(self, kind: int, names: Sequence[str], *, fitting: bool = False) -> U32:
        """The codes u32[n] of names (repetitions allowed); new ones are appended and durable when this returns.

        With `fitting` a table that has no room for all new ones takes the first of them; the code of the others is 0.
        Raises TableFullError (nothing was added), DiskFullError (nothing was added), SyncFailedError.
        """
        known = self._codes[kind]
        new = [name for name in dict.fromkeys(names) if name not in known]
        if fitting:
            new = new[: max(self._bounds[kind] - len(known), 0)]
        if new:
            self._append(kind, new)
        return np.fromiter((known.get(name, 0) for name in names), np.uint32, len(names))

    def _append(self, kind: int, new: list[str]) -> None:
        taken, bound = len(self._codes[kind]), self._bounds[kind]
        if taken + len(new) > bound:
            what, setting = _SETTINGS[kind]
            raise TableFullError(
                f"{len(new)} new names of {what} do not fit: {taken} of {bound} are taken; "
                f"raise {setting} or use fewer names"
            )
        assert self._segment is not None, "a table opened for reading only"
        first = len(self._names)
        batches = [
            _batch(kind, first + start, new[start : start + _RECORD_ROWS]) for start in range(0, len(new), _RECORD_ROWS)
        ]
        if self._shared:
            self._new += batches
        else:
            self._segment.append_all(batches)
            self._segment.sync()
        self._adopt([kind] * len(new), new)

    # -- of a cluster

    @property
    def new(self) -> list[NameBatch]:
        """The names that no record of the shared log has yet. The caller puts them there, before a record that uses them."""
        return [*self._new]

    def take_new(self) -> list[NameBatch]:
        """As `new`: a record that was handed to the shared log has them now."""
        new, self._new = self._new, []
        return new

    def keep(self, batch: NameBatch) -> None:
        """Names came out of the shared log: write them, without a sync. What the file has already is passed over. Raises
        CorruptionError where the log has another name for a code, DiskFullError."""
        assert self._segment is not None
        first, path = int(batch.code[0]), self._segment.path
        if first + len(batch) - 1 <= self._kept:
            return  # also in a single server that was a member
        assert self._shared
        if first != self._kept + 1:
            raise CorruptionError(path, self._segment.end, f"code {first} where {self._kept + 1} must follow")
        if first > len(self):
            self._load(path, self._segment.end, batch)
        elif self._names[first : first + len(batch)] != _texts(batch):
            raise CorruptionError(path, self._segment.end, f"code {first} has another name in the shared log")
        self._segment.append_all([batch])
        self._kept += len(batch)

    def add_logged(self, batch: NameBatch) -> None:
        """Know these names too, of a record that `keep` has not got yet. What is known already is passed over. For a table
        opened for reading. Raises CorruptionError where a code is left out."""
        known = max(len(self) - int(batch.code[0]) + 1, 0)
        if known < len(batch):
            self._load(FILE_NAME, 0, batch.slice(known, len(batch)))

    def sync(self) -> None:
        """Make durable what `keep` has written. May run in a thread beside it. Raises SyncFailedError."""
        if self._shared and self._segment is not None and self._segment.synced < self._segment.end:
            self._segment.sync()

    def name(self, code: int) -> str:
        """The name of a code. Raises KeyError for a code that was never given out."""
        if not 0 < code < len(self._names):
            raise KeyError(code)
        return self._names[code]

    def names_of(self, codes: Iterable[int]) -> list[str]:
        """`name` for each code; 0 gives an empty text. Raises IndexError for a code that was never given out."""
        names = self._names
        return [names[code] for code in (codes.tolist() if isinstance(codes, np.ndarray) else codes)]

    def codes(self, kind: int) -> U32:
        """All codes of a kind, u32[n], ascending."""
        kinds = np.frombuffer(bytes(self._kinds), np.uint8)
        return (np.flatnonzero(kinds[1:] == kind) + 1).astype(np.uint32)

    def codes_behind(self, kind: int, code: int, scanned_max: int) -> tuple[list[int], int]:
        """The codes of a kind among the `scanned_max` codes behind `code`, ascending, and the last code looked at."""
        kinds = self._kinds[code + 1 : code + 1 + scanned_max]
        found = np.flatnonzero(np.frombuffer(kinds, np.uint8) == kind) + (code + 1)
        return found.tolist(), code + len(kinds)

    def check_invariants(self) -> None:
        """Assert that both directions of the table say the same."""
        assert len(self._names) == len(self._kinds) == 1 + sum(map(len, self._codes))
        for kind, codes in enumerate(self._codes):
            for name, code in codes.items():
                assert self._names[code] == name and self._kinds[code] == kind

    def close(self) -> None:
        """Close the file; everything given out is durable already."""
        if self._segment is not None:
            self._segment.close()


def _texts(batch: NameBatch) -> list[str]:
    offsets, blob = ragged_offsets(batch.names_length).tolist(), bytes(batch.names)
    return [blob[a:b].decode("utf-8") for a, b in pairwise(offsets)]


def _batch(kind: int, first: int, names: list[str]) -> NameBatch:
    encoded = [name.encode("utf-8") for name in names]
    return NameBatch.filled(
        len(names),
        code=np.arange(first, first + len(names), dtype=np.uint32),
        name_kind=kind,
        names_length=np.array([len(name) for name in encoded], np.uint32),
        names=b"".join(encoded),
    )
