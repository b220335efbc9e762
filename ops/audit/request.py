"""The options of a report. Imports Spark only when a run has begun."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.audit.log_frames import Range

JSON, HTML, PARQUET = ".json", ".html", ".parquet"


@dataclass(frozen=True, slots=True)
class Request:
    """The options that both reports share."""

    directories: tuple[str, ...]
    cluster: str | None
    from_ms: int | None
    to_ms: int | None
    subjects: tuple[str, ...]
    by: tuple[str, ...]
    slo_ms: float
    objective: float
    broker_log: bool
    master: str | None
    out: str | None
    as_json: bool

    @property
    def format(self) -> str:
        """The suffix of `out`; empty for output to the terminal."""
        return Path(self.out).suffix.lower() if self.out else ""

    def chosen(self) -> Range:
        """The range of rows of the report."""
        from ops.audit.log_frames import Range

        return Range(self.from_ms, self.to_ms, self.subjects)
