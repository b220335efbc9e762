"""Calls for the figures of a server: what is pending, and all that monitors draw. No I/O."""

from __future__ import annotations

from typing import Any

from delayserver.client.calls.core import Call, described_call
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operation_names import METRICS, PENDING
from delayserver.protocol.schema.pending import (
    MESSAGES_AT_ONCE,
    CountBySubject,
    CountByTime,
    ListMessages,
    PendingMessagesPage,
    PendingPage,
    PendingSubjectsPage,
)
from delayserver.protocol.schema.words import TIME_MS_MAX

Metrics = dict[str, Any]
"""The map of `metrics` as the server sends it. Later servers may add keys."""

UNITS = ("minute", "hour")


def pending_call(by: str, from_ms: int | None, to_ms: int | None) -> Call[PendingPage]:
    """A page of the pending messages by due time."""
    if by not in UNITS:
        raise InvalidArgument(f"by must be one of {', '.join(UNITS)}, not {by!r}")
    asked = CountByTime(
        by=by,  # type: ignore[arg-type]  # one of them
        from_ms=0 if from_ms is None else from_ms,
        to_ms=TIME_MS_MAX if to_ms is None else to_ms,
    )
    return described_call(PENDING, asked, PendingPage)


def pending_subjects_call(after: int | str | None) -> Call[PendingSubjectsPage]:
    """A page of the pending messages by subject."""
    asked = CountBySubject(by="subject", after=after or 0)  # type: ignore[arg-type]  # no server gets a name
    return described_call(PENDING, asked, PendingSubjectsPage)


def pending_messages_call(asked: ListMessages) -> Call[PendingMessagesPage]:
    """A page of the pending messages themselves."""
    return described_call(PENDING, asked, PendingMessagesPage)


def list_of(
    subject: str | None,
    from_ms: int | None,
    to_ms: int | None,
    tag: str | None,
    where: str | None,
    *,
    latest_first: bool,
    bodies: bool,
    count: bool,
    after: str | None,
    max_messages: int | None,
) -> ListMessages:
    """The request for a page. None stands for the default."""
    return ListMessages(
        by="message",
        subject=subject,
        from_ms=0 if from_ms is None else from_ms,
        to_ms=TIME_MS_MAX if to_ms is None else to_ms,
        tag=tag,
        where=where,
        latest_first=latest_first,
        bodies=bodies,
        count=count,
        after=after,
        max=MESSAGES_AT_ONCE if max_messages is None else max_messages,
    )


def metrics_call() -> Call[Metrics]:
    """The map of all figures as it is."""
    return Call(METRICS, {}, lambda result, _: result)
