"""The operation `schedule`: messages that the server makes again and again, at the moments of a rule."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from delayserver.protocol.schema.structs import Reply, Request, says
from delayserver.protocol.schema.words import DUE_MS, TIME_MS_MAX, MessageId, Subject

NAME_BYTES_MAX: Final = 128
"""With generation and moment the name is the id of a firing, which has at most 255 bytes."""
BODY_BYTES_MAX: Final = 65_536
"""A timer holds the body, and is written anew at each firing. More belongs to a store that the message names."""
LIST_MAX: Final = 1_024
NEXT_MAX: Final = 1_000
YEAR_MS: Final = 366 * 86_400_000

Name: TypeAlias = Annotated[
    str, says("The name of the schedule.", "daily-report", min_length=1, bytes_max=NAME_BYTES_MAX)
]
Zone: TypeAlias = Annotated[str, says("The zone of wall times, a name of the IANA list.", "Europe/Berlin")]
TimeMs: TypeAlias = Annotated[int, says("A time in milliseconds since 1970.", DUE_MS, ge=0, le=TIME_MS_MAX)]


class Definition(Request, frozen=True):
    """When a schedule fires, and what it sends. Exactly one of ``cron``, ``every_ms`` and ``at`` says when."""

    subject: Subject
    # The server checks body and properties as those of a send.
    body: Annotated[
        Any, says("The body of each message: bytes or text.", "report", expected="bytes or text", written="bytes")
    ] = b""
    properties: (
        Annotated[Any, says("Its properties.", {"kind": "daily"}, expected="a map of texts", written="{text: text}")]
        | None
    ) = None
    tag: Annotated[str, says("Its tag.", "daily")] | None = None
    order_key: Annotated[str, says("Its order key.", "customer-7")] | None = None
    template: Annotated[
        bool,
        says("Whether `${due_ms}`, `${due}`, `${name}` and `${run}` in the body are replaced at each firing.", True),
    ] = False
    cron: (
        Annotated[str, says("A cron expression of five or six fields, or a word such as `@daily`.", "0 9 * * 1-5")]
        | None
    ) = None
    every_ms: (
        Annotated[int, says("The interval, counted from the start.", 5_400_000, ge=1_000, le=100 * YEAR_MS)] | None
    ) = None
    at: Annotated[str, says("Once, at this wall time of the zone.", "2027-03-28T09:00")] | None = None
    zone: Zone = "UTC"
    gap: Annotated[str, says("What becomes of a wall time that the clock leaves out.", "later")] | None = None
    overlap: Annotated[str, says("What becomes of a wall time that the clock shows twice.", "earlier")] | None = None
    start_ms: (
        Annotated[
            int, says("Nothing fires before. Without it, when the schedule was made.", DUE_MS, ge=0, le=TIME_MS_MAX)
        ]
        | None
    ) = None
    end_ms: Annotated[int, says("Nothing fires then or later.", DUE_MS, ge=0, le=TIME_MS_MAX)] | None = None
    times: Annotated[int, says("It ends after so many firings.", 100, ge=1, le=1 << 53)] | None = None
    days_out: Annotated[
        tuple[str, ...],
        says(
            "Days on which nothing fires: dates, days of each year, days of the week.",
            ["12-25", "sun"],
            expected="a list of days",
        ),
    ] = ()
    jitter_ms: Annotated[
        int,
        says("Each firing is late by up to so much. How much follows from name and moment.", 5_000, ge=0, le=3_600_000),
    ] = 0
    misfire: Annotated[
        str, says("Which moments fire that were missed by more than a minute: `all`, `latest` or `none`.", "latest")
    ] = "latest"
    catch_up_ms: Annotated[int, says("Missed moments that are older never fire.", 86_400_000, ge=0, le=YEAR_MS)] = (
        86_400_000
    )


class PutSchedule(Definition, frozen=True, kw_only=True, tag_field="action", tag="put"):
    """Makes a schedule, or gives it another definition."""

    name: Name


class ShowSchedule(Request, frozen=True, tag_field="action", tag="show"):
    """Shows a schedule."""

    name: Name


class ListSchedules(Request, frozen=True, tag_field="action", tag="list"):
    """Some schedules, in the order of their names."""

    after: Annotated[str, says("The `next` of the reply before.", "daily-report", bytes_max=NAME_BYTES_MAX)] = ""
    max: Annotated[int, says("At most so many schedules.", 100, ge=1, le=LIST_MAX)] = LIST_MAX


class PauseSchedule(Request, frozen=True, tag_field="action", tag="pause"):
    """Pauses a schedule: what comes until it is resumed never fires."""

    name: Name


class ResumeSchedule(Request, frozen=True, tag_field="action", tag="resume"):
    """Goes on with a schedule, at the first moment from now on."""

    name: Name


class RunSchedule(Request, frozen=True, tag_field="action", tag="run"):
    """Makes a message of a schedule now, beside its moments. One that is paused or has ended runs too."""

    name: Name


class DeleteSchedule(Request, frozen=True, tag_field="action", tag="delete"):
    """Deletes a schedule. Messages that it has made stay."""

    name: Name


class NextFirings(Request, frozen=True, tag_field="action", tag="next"):
    """The next firings of a schedule, as it stands now."""

    name: Name
    count: Annotated[int, says("At most so many firings.", 10, ge=1, le=NEXT_MAX)] = 10


class Schedule(Reply, frozen=True):
    """A schedule."""

    name: Name
    generation: Annotated[
        int, says("The number of its definition. Another definition of this name has a higher one.", 46)
    ]
    state: Annotated[str, says("`active`, `paused` or `ended`: no moment comes any more.", "active")]
    next_ms: Annotated[int, says("When it fires next, in milliseconds since 1970; 0 if it is not active.", DUE_MS)]
    fired: Annotated[int, says("How many messages it has made.", 7)]
    changed_ms: Annotated[int, says("When it got its definition, in milliseconds since 1970.", DUE_MS)]
    definition: Annotated[
        dict[str, Any], says("Its definition, as it was given. A list has no bodies.", {"cron": "0 9 * * 1-5"})
    ]


class ChangedSchedule(Schedule, frozen=True):
    """A schedule after a request."""

    changed: Annotated[bool, says("Whether the request has changed it.", True)]


class SchedulesPage(Reply, frozen=True):
    """Some schedules. The next page comes behind ``next``, and the last one has none."""

    schedules: Annotated[list[Schedule], says("The schedules that are open to the client.")]
    next: Annotated[str, says("From where to ask for more. The last page has none.", "daily-report")] | None


class ScheduleRun(Reply, frozen=True):
    """The message that a schedule has made now."""

    name: Name
    receipt: Annotated[str, says("Its receipt.", "5f3a9c0d2b71-01a3185c5000-00000000002e")]
    message_id: MessageId
    due_ms: Annotated[int, says("When it is due, in milliseconds since 1970: now.", DUE_MS)]


class DeletedSchedule(Reply, frozen=True):
    """A schedule that is gone."""

    name: Name


class Firing(Reply, frozen=True):
    """A firing that comes."""

    due_ms: Annotated[int, says("When its message is due, in milliseconds since 1970.", DUE_MS)]
    moment_ms: Annotated[int, says("The moment of the rule. The jitter comes after it.", DUE_MS)]


class FiringsPage(Reply, frozen=True):
    """The next firings. Those of a schedule that is paused or has ended are none."""

    firings: Annotated[list[Firing], says("The firings.")]
