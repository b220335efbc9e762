"""The operation `pending`: how many messages wait, by the time at which they are due, or by subject."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from delayserver.protocol.schema.structs import Reply, Request, says
from delayserver.protocol.schema.words import DUE_MS, TIME_MS_MAX, Subject

BUCKETS_AT_ONCE_MAX: Final = 1_440
"""Buckets of a reply: the minutes of a day."""
SUBJECTS_AT_ONCE_MAX: Final = 4_096
"""Subjects of a reply. With names of 255 bytes that is a megabyte."""
_CODE_MAX: Final = 1 << 32


class CountByTime(Request, frozen=True):
    """The pending messages by the minute or the hour in which they are due."""

    by: Annotated[Literal["minute", "hour"], says("`minute` or `hour`: the width of the buckets.", "minute")]
    from_ms: Annotated[
        int, says("Only buckets that begin from here on, in milliseconds since 1970.", DUE_MS, ge=0, le=TIME_MS_MAX)
    ] = 0
    to_ms: Annotated[
        int, says("Only buckets that begin before it, in milliseconds since 1970.", DUE_MS, ge=0, le=TIME_MS_MAX)
    ] = TIME_MS_MAX
    max: Annotated[int, says("At most so many buckets.", 60, ge=1, le=BUCKETS_AT_ONCE_MAX)] = BUCKETS_AT_ONCE_MAX


class CountBySubject(Request, frozen=True):
    """The pending messages by subject, all times together."""

    by: Annotated[Literal["subject"], says("`subject`.", "subject")]
    after: Annotated[int, says("The `next` of the reply before.", 41, ge=0, le=_CODE_MAX)] = 0
    max: Annotated[int, says("At most so many subjects.", 100, ge=1, le=SUBJECTS_AT_ONCE_MAX)] = SUBJECTS_AT_ONCE_MAX


class PendingBucket(Reply, frozen=True):
    """Messages without an outcome that are due within ``width_ms`` from ``start_ms`` on."""

    start_ms: Annotated[int, says("When this time begins, in milliseconds since 1970.", DUE_MS)]
    width_ms: Annotated[int, says("How long this time is, in milliseconds.", 60_000)]
    pending: Annotated[int, says("How many messages wait for their due time.", 5)]


class PendingPage(Reply, frozen=True):
    """Some buckets, in the order of their times. The next page begins at ``next_ms``; None: there is none.

    ``unplaced``: accepted messages that the server has not sorted into a bucket yet.
    """

    buckets: Annotated[list[PendingBucket], says("The times with pending messages, in their order.")]
    next_ms: Annotated[int, says("Where the next page begins. The last page has none.", DUE_MS)] | None
    unplaced: Annotated[int, says("Accepted messages that are in no bucket yet.", 0)]


class PendingSubject(Reply, frozen=True):
    """Messages of a subject without an outcome."""

    subject: Subject
    pending: Annotated[int, says("How many messages of the subject wait for their due time.", 5)]


class PendingSubjectsPage(Reply, frozen=True):
    """Some subjects, in the order in which the server met them. The next page comes behind ``next``; None: there is none."""

    subjects: Annotated[list[PendingSubject], says("The subjects with pending messages.")]
    # A client of several shards makes pages of all of them: behind a name.
    next: Annotated[int | str, says("Where the next page begins. The last page has none.", 41)] | None
