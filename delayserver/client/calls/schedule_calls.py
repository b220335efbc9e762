"""Calls about schedules. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TypedDict

from delayserver.client.calls.core import Call, described_call
from delayserver.client.values.timing import Instant, Span, instant_ms, span_ms
from delayserver.protocol.operation_names import SCHEDULE
from delayserver.protocol.schema.schedules import (
    NEXT_MAX,
    ChangedSchedule,
    DeletedSchedule,
    DeleteSchedule,
    FiringsPage,
    ListSchedules,
    NextFirings,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    RunSchedule,
    Schedule,
    ScheduleRun,
    SchedulesPage,
    ShowSchedule,
)


class ScheduleTerms(TypedDict, total=False):
    """When a schedule fires, and how: see `PutSchedule`. Exactly one of ``cron``, ``every`` and ``at`` says when."""

    cron: str
    every: timedelta | Span
    at: str
    zone: str
    gap: str
    overlap: str
    start: Instant
    end: Instant
    times: int
    days_out: Sequence[str]
    jitter: timedelta | Span
    misfire: str
    catch_up: timedelta | Span


def put_call(
    name: str,
    subject: str,
    body: bytes | str,
    properties: Mapping[str, str] | None,
    tag: str | None,
    order_key: str | None,
    *,
    template: bool,
    terms: ScheduleTerms,
) -> Call[ChangedSchedule]:
    """Make a schedule, or give it another definition. Repeatable: the same definition changes nothing."""
    every, start, end = terms.get("every"), terms.get("start"), terms.get("end")
    asked = PutSchedule(
        name=name,
        subject=subject,
        body=body,
        properties=None if properties is None else dict(properties),
        tag=tag,
        order_key=order_key,
        template=template,
        cron=terms.get("cron"),
        every_ms=None if every is None else span_ms(every),
        at=terms.get("at"),
        zone=terms.get("zone", "UTC"),
        gap=terms.get("gap"),
        overlap=terms.get("overlap"),
        start_ms=None if start is None else instant_ms(start),
        end_ms=None if end is None else instant_ms(end),
        times=terms.get("times"),
        days_out=tuple(terms.get("days_out", ())),
        jitter_ms=span_ms(terms.get("jitter", 0)),
        misfire=terms.get("misfire", "latest"),
        catch_up_ms=span_ms(terms.get("catch_up", timedelta(days=1))),
    )
    return described_call(SCHEDULE, asked, ChangedSchedule)


def show_call(name: str) -> Call[Schedule]:
    """A schedule."""
    return described_call(SCHEDULE, ShowSchedule(name=name), Schedule)


def list_call(after: str, schedules_max: int) -> Call[SchedulesPage]:
    """A page of schedules."""
    return described_call(SCHEDULE, ListSchedules(after=after, max=schedules_max), SchedulesPage)


def pause_call(name: str, *, paused: bool) -> Call[ChangedSchedule]:
    """Pause a schedule, or go on with it. Repeatable."""
    asked = PauseSchedule(name=name) if paused else ResumeSchedule(name=name)
    return described_call(SCHEDULE, asked, ChangedSchedule)


def run_call(name: str) -> Call[ScheduleRun]:
    """Make a message of a schedule now. A second call makes a second one."""
    return described_call(SCHEDULE, RunSchedule(name=name), ScheduleRun, repeatable=False)


def delete_call(name: str) -> Call[DeletedSchedule]:
    """Delete a schedule. Not repeatable: the second answer is that there is none."""
    return described_call(SCHEDULE, DeleteSchedule(name=name), DeletedSchedule, repeatable=False)


def next_call(name: str, count: int) -> Call[FiringsPage]:
    """The next firings of a schedule."""
    return described_call(SCHEDULE, NextFirings(name=name, count=min(count, NEXT_MAX)), FiringsPage)
