"""The range of rows of a report, and the size of its tasks."""

from __future__ import annotations

from dataclasses import dataclass

from ops.audit.selection import DUE_MAX, DUE_MIN, Selection

# Neighbouring files share a task up to this size, because starting a task costs more than reading a small file.
PACK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """Due times [from_ms, to_ms) and subjects of a report. None or no subjects: all."""

    from_ms: int | None = None
    to_ms: int | None = None
    subjects: tuple[str, ...] = ()

    def selection(self) -> Selection:
        """The rows of this range."""
        return Selection(
            DUE_MIN if self.from_ms is None else self.from_ms,
            DUE_MAX if self.to_ms is None else self.to_ms,
            frozenset(self.subjects) or None,
        )
