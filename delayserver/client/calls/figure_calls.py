"""Calls for the figures of a server: what is pending, and all that monitors draw. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delayserver.client.calls.core import Call
from delayserver.client.values.messages import ServerInfo
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operations import METRICS, PENDING

Metrics = dict[str, Any]
"""The map of `metrics` as the server sends it. Later servers may add keys."""

UNITS = ("minute", "hour")


@dataclass(frozen=True, slots=True)
class PendingBucket:
    """Messages without an outcome that are due within ``width_ms`` from ``start_ms`` on."""

    start_ms: int
    width_ms: int
    pending: int


@dataclass(frozen=True, slots=True)
class PendingPage:
    """Some buckets, in the order of their times. The next page begins at ``next_ms``; None: there is none.

    ``unplaced``: accepted messages that the server has not sorted into a bucket yet.
    """

    buckets: list[PendingBucket]
    next_ms: int | None
    unplaced: int


@dataclass(frozen=True, slots=True)
class PendingSubject:
    """Messages of a subject without an outcome."""

    subject: str
    pending: int


@dataclass(frozen=True, slots=True)
class PendingSubjectsPage:
    """Some subjects, in the order in which the server met them. The next page comes behind ``next``; None: there is none."""

    subjects: list[PendingSubject]
    next: int | None


def pending_call(by: str, from_ms: int | None, to_ms: int | None) -> Call[PendingPage]:
    """A page of the pending messages by due time."""
    if by not in UNITS:
        raise InvalidArgument(f"by must be one of {', '.join(UNITS)}, not {by!r}")

    def read(result: dict[str, Any], _: ServerInfo) -> PendingPage:
        buckets = [PendingBucket(row["start_ms"], row["width_ms"], row["pending"]) for row in result["buckets"]]
        return PendingPage(buckets, result["next_ms"], result["unplaced"])

    return Call(PENDING, {"by": by, "from_ms": from_ms, "to_ms": to_ms}, read)


def pending_subjects_call(after: int | None) -> Call[PendingSubjectsPage]:
    """A page of the pending messages by subject."""

    def read(result: dict[str, Any], _: ServerInfo) -> PendingSubjectsPage:
        rows = [PendingSubject(row["subject"], row["pending"]) for row in result["subjects"]]
        return PendingSubjectsPage(rows, result["next"])

    return Call(PENDING, {"by": "subject", "after": after}, read)


def metrics_call() -> Call[Metrics]:
    """The map of all figures as it is."""
    return Call(METRICS, {}, lambda result, _: result)
