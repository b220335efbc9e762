"""Rows of a data directory as Python objects, read by the store alone: the slow way, to check the fast one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delayserver.protocol.outcomes import Outcome
from store.disk.filesystem import RealFileSystem
from store.records.segment import FILE_DISPATCH, FILE_STORE, Segment


@dataclass(frozen=True)
class OutcomeRow:
    """One row of dispatch_log."""

    sequence: int
    due_ms: int
    accepted_us: int
    loaded_us: int
    released_us: int
    queued_us: int
    dispatched_us: int
    settled_us: int
    origin_sequence: int
    redelivery: int
    attempts: int
    outcome: int

    @property
    def delivered(self) -> bool:
        return self.outcome == Outcome.DELIVERED

    @property
    def internal(self) -> bool:
        return self.origin_sequence != 0 or self.redelivery > 0

    def stages_us(self) -> dict[str, int]:
        due_us = max(self.due_ms * 1000, self.accepted_us)
        return {
            "load": max(self.loaded_us - due_us, 0),
            "wheel": self.released_us - max(due_us, self.loaded_us),
            "queue": self.queued_us - self.released_us,
            "handoff": self.dispatched_us - self.queued_us,
            "settle": self.settled_us - self.dispatched_us,
        }


@dataclass(frozen=True)
class StoreRecord:
    """One record of a broker's store; `keys` are (server id, sequence) of its messages."""

    path: str
    offset: int
    keys: list[tuple[int, int]]


def outcome_rows(directory: str) -> list[OutcomeRow]:
    """Every row of every dispatch file."""
    names = list(OutcomeRow.__dataclass_fields__)
    return [
        OutcomeRow(*values)
        for path in sorted(Path(directory, "dispatch_log").glob("*/*.log"))
        for _, batch in _records(path, FILE_DISPATCH)
        for values in zip(*[getattr(batch, name).tolist() for name in names], strict=True)
    ]


def store_records(directory: str) -> list[StoreRecord]:
    """Every record of a broker's store, in order."""
    return [
        StoreRecord(str(path), header.offset, list(zip(batch.server_id.tolist(), batch.sequence.tolist(), strict=True)))
        for path in sorted(Path(directory, "broker", "store").glob("*.log"))
        for header, batch in _records(path, FILE_STORE)
    ]


def _records(path: Path, kind: int) -> Iterator[tuple[Any, Any]]:
    segment = Segment.open(RealFileSystem(), str(path), kind, None, write=False)
    try:
        yield from segment.records()
    finally:
        segment.close()
