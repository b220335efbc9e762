"""The rows that a reader selects: a range of due times and a set of subjects, from options and pushed filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.config.units import parse_instant_ms
from ops.audit.capture import Part
from store.tables.names import SUBJECT, Names

DUE_MIN, DUE_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows with `from_ms` <= due_ms < `to_ms` and, if `subjects` is given, one of these subjects."""

    from_ms: int = DUE_MIN
    to_ms: int = DUE_MAX
    subjects: frozenset[str] | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Selection:
        """The selection of the options `from`, `to` (ISO 8601 with a zone, or ms since 1970), `subjects` (with commas).

        Raises ValueError with advice.
        """
        subjects = options.get("subjects")
        from_ms, to_ms = options.get("from"), options.get("to")
        chosen = cls(
            DUE_MIN if from_ms is None else _instant_ms(from_ms),
            DUE_MAX if to_ms is None else _instant_ms(to_ms),
            None if subjects is None else frozenset([name.strip() for name in subjects.split(",") if name.strip()]),
        )
        if chosen.from_ms >= chosen.to_ms:
            raise ValueError("`from` must lie before `to`")
        return chosen

    def between(self, from_ms: int, to_ms: int) -> Selection:
        """The selection narrowed to [from_ms, to_ms)."""
        return replace(self, from_ms=max(self.from_ms, from_ms), to_ms=min(self.to_ms, to_ms))

    def only(self, subjects: Sequence[str]) -> Selection:
        """The selection narrowed to these subjects."""
        wanted = frozenset(subjects)
        return replace(self, subjects=wanted if self.subjects is None else self.subjects & wanted)

    def of_all_subjects(self) -> Selection:
        """The same range, of all subjects."""
        return replace(self, subjects=None)

    def touches(self, part: Part) -> bool:
        """True if a part can hold selected rows, judged by the window of its file."""
        if not part.span_ms:
            return True
        return part.base < self.to_ms and part.base + part.span_ms > self.from_ms

    @property
    def columns(self) -> tuple[str, ...]:
        """Stored columns that `mask` reads."""
        by_time = ("due_ms",) if (self.from_ms, self.to_ms) != (DUE_MIN, DUE_MAX) else ()
        return by_time + (("subject",) if self.subjects is not None else ())

    def mask(self, columns: Mapping[str, NDArray[Any]], names: Names) -> NDArray[np.bool_] | None:
        """True for selected rows, bool[n]; None if all are selected."""
        parts = []
        if "due_ms" in self.columns:
            due_ms = columns["due_ms"]
            parts.append((due_ms >= self.from_ms) & (due_ms < self.to_ms))
        if self.subjects is not None:
            codes = [names.code(SUBJECT, name) for name in self.subjects]
            parts.append(np.isin(columns["subject"], np.array([code for code in codes if code], np.uint32)))
        if not parts:
            return None
        mask: NDArray[np.bool_] = np.logical_and.reduce(parts)
        return None if mask.all() else mask


def _instant_ms(text: str) -> int:
    plain = text.strip()
    return int(plain) if plain.lstrip("-").isdigit() else parse_instant_ms(plain)
