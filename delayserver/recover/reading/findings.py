"""The findings of a check, by kind. Each finding says where it stands and how many messages or records it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64

TORN: Final = "torn"
"""The end that a crash left: normal, the next start cuts it off."""
CORRUPT: Final = "corrupt"
"""Bytes that were durable and do not verify any more."""
MISSING: Final = "missing"
"""A file, a message or an outcome that must be there."""
DOUBLY_DELIVERED: Final = "doubly_delivered"
"""More than one delivery of one message is recorded."""
EARLY: Final = "early"
"""Handed off before it was due."""
ORPHANED: Final = "orphaned"
"""A record about a message that was never accepted, or a file that belongs to nothing."""
CONTRADICTORY: Final = "contradictory"
"""Two records, or a count and the records that it counts, that cannot both be true."""
MISPLACED: Final = "misplaced"
"""A file or a row that belongs elsewhere."""
UNREADABLE: Final = "unreadable"
"""A file of another server, of another program, or of a newer version. Nothing here touches it."""

KINDS: Final = (
    TORN, CORRUPT, MISSING, DOUBLY_DELIVERED, EARLY, ORPHANED, CONTRADICTORY, MISPLACED, UNREADABLE,
)  # fmt: skip
# Findings listed one by one; beyond it only the counts go on, so that a ruined disk costs no memory.
FINDINGS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `offset` is a position in `file` (0: the whole file); `count` messages, outcomes or ranges."""

    kind: str
    file: str
    offset: int
    detail: str
    count: int = 1

    def to_map(self) -> dict[str, Any]:
        """The fields of the JSON form."""
        return {
            "kind": self.kind,
            "file": self.file,
            "offset": self.offset,
            "detail": self.detail,
            "count": self.count,
        }


class Findings:
    """Collects findings and counts them by kind."""

    def __init__(self) -> None:
        self.listed: list[Finding] = []
        self.counts = dict.fromkeys(KINDS, 0)
        self.left_out = 0
        self._seen: set[tuple[str, str, int]] = set()

    def add(self, kind: str, file: str, offset: int, detail: str, count: int = 1) -> None:
        """Note one. `count` is what the kind counts: messages for missing, ranges for corrupt, and so on.

        The same place is noted once a kind: a table is read twice, for its content and for its checksums.
        """
        if (kind, file, offset) in self._seen and kind in (TORN, CORRUPT, UNREADABLE):
            return
        self.counts[kind] += count
        if len(self.listed) < FINDINGS_MAX:
            self._seen.add((kind, file, offset))
            self.listed.append(Finding(kind, file, offset, detail, count))
        else:
            self.left_out += 1

    def add_rows(
        self, kind: str, file: str, offsets: I64, rows: NDArray[np.intp], detail: Callable[[int], str]
    ) -> None:
        """Note these rows, if there are any. `offsets` has the record of each row of the file, i64[n]. The detail is the
        number of rows and what `detail` says about the first."""
        if len(rows):
            first = int(rows[0])
            self.add(kind, file, int(offsets[first]), f"{len(rows)} {detail(first)}", len(rows))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.listed)

    def __len__(self) -> int:
        return len(self.listed) + self.left_out

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong. A torn tail is not wrong: it is how a crash looks."""
        return not any(count for kind, count in self.counts.items() if kind != TORN)
