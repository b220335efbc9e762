"""The operation `pending`: how many messages wait, by the time at which they are due, or by subject; or which ones."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from delayserver.protocol.schema.structs import Reply, Request, says
from delayserver.protocol.schema.words import DUE_MS, RECEIPT, TIME_MS_MAX, DueMs, MessageId, Subject

BUCKETS_AT_ONCE_MAX: Final = 1_440
"""Buckets of a reply: the minutes of a day."""
SUBJECTS_AT_ONCE_MAX: Final = 4_096
"""Subjects of a reply. With names of 255 bytes that is a megabyte."""
MESSAGES_AT_ONCE_MAX: Final = 1_024
"""Messages of a reply."""
MESSAGES_AT_ONCE: Final = 100
_CODE_MAX: Final = 1 << 32
_TEXT_BYTES_MAX: Final = 1024
_PLACE_BYTES_MAX: Final = 256
_EXPRESSION_BYTES_MAX: Final = 65_536
"""Expressions have a smaller bound in characters."""


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


class ListMessages(Request, frozen=True):
    """The pending messages themselves, by pages, in the order of their due times."""

    by: Annotated[Literal["message"], says("`message`.", "message")]
    subject: (
        Annotated[
            str,
            says(
                "Only messages of these subjects: a name, or a pattern as in routes: `*`, `?`, `[a-z]`.",
                "orders.*",
                bytes_max=_TEXT_BYTES_MAX,
            ),
        ]
        | None
    ) = None
    from_ms: Annotated[
        int, says("Only messages that are due from here on, in milliseconds since 1970.", DUE_MS, ge=0, le=TIME_MS_MAX)
    ] = 0
    to_ms: Annotated[
        int, says("Only messages that are due before it, in milliseconds since 1970.", DUE_MS, ge=0, le=TIME_MS_MAX)
    ] = TIME_MS_MAX
    tag: Annotated[str, says("Only messages with this tag.", "paid", bytes_max=_TEXT_BYTES_MAX)] | None = None
    where: (
        Annotated[
            str,
            says(
                "Only messages whose properties fit this expression, as in `pull`.",
                "country = 'de'",
                bytes_max=_EXPRESSION_BYTES_MAX,
            ),
        ]
        | None
    ) = None
    latest_first: Annotated[bool, says("The latest due time comes first. Default: the earliest.", False)] = False
    bodies: Annotated[bool, says("With bodies and properties. Default false.", False)] = False
    count: Annotated[bool, says("Also how many messages there are (`matching`). Default false.", True)] = False
    places: Annotated[bool, says("With a `place` in each message. Default false.", False)] = False
    after: (
        Annotated[
            str,
            says(
                "The `next` of a reply, or the `place` of a message.",
                bytes_max=_PLACE_BYTES_MAX,
                expected="the `next` of a reply",
            ),
        ]
        | None
    ) = None
    max: Annotated[int, says("At most so many messages.", MESSAGES_AT_ONCE, ge=1, le=MESSAGES_AT_ONCE_MAX)] = (
        MESSAGES_AT_ONCE
    )


class PendingMessage(Reply, frozen=True):
    """A message without an outcome. ``properties`` and ``body`` are None unless they were asked for, or where damage hides
    them."""

    receipt: Annotated[str, says("The receipt of the message.", RECEIPT)]
    message_id: MessageId
    subject: Subject
    due_ms: DueMs
    accepted_us: Annotated[int, says("When it was accepted, in microseconds since 1970.", DUE_MS * 1000)]
    body_bytes: Annotated[int, says("Length of the body in bytes.", 14)]
    tag: Annotated[str, says("The tag of the message, if it has one.", "paid", left_out=True)] = ""
    expires_ms: Annotated[
        int, says("When it expires, in milliseconds since 1970, if it does.", DUE_MS, left_out=True)
    ] = 0
    properties: (
        Annotated[dict[str, str], says("The properties, if `bodies` asked for them.", {"country": "de"}, left_out=True)]
        | None
    ) = None
    body: Annotated[bytes, says("The body, if `bodies` asked for it.", left_out=True)] | None = None
    place: Annotated[str, says("The place behind it, if `places` asked for it.", left_out=True)] = ""


class PendingMessagesPage(Reply, frozen=True):
    """Some messages. It may be empty. The next page comes behind ``next``, and the last one has none.

    ``matching``: how many messages this page and those behind it have; or at least so many, if ``at_least``. None unless it
    was asked for. ``unreadable``: damaged places that may hide messages of this page."""

    messages: Annotated[list[PendingMessage], says("The messages.")]
    next: Annotated[str, says("Where the next page begins. The last page has none.")] | None
    matching: (
        Annotated[int, says("Messages of this page and of all behind it, if `count` asked for them.", 5, left_out=True)]
        | None
    ) = None
    at_least: Annotated[
        bool, says("The server stopped counting: there are at least `matching`.", False, left_out=True)
    ] = False
    unreadable: Annotated[int, says("Damaged places that may hide messages of this page.", 0, left_out=True)] = 0
