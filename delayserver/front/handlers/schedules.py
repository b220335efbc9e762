"""`schedule`."""

from __future__ import annotations

from delayserver.front.connection import SlowHandler
from delayserver.front.handlers.described import described, for_client
from delayserver.operations.messages.schedules import Schedules
from delayserver.protocol.schema.schedules import (
    DeleteSchedule,
    ListSchedules,
    NextFirings,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    RunSchedule,
    ShowSchedule,
)


def schedule_acts(schedules: Schedules) -> SlowHandler:
    """The handler of the operation."""
    return described(
        {
            PutSchedule: for_client(schedules.put),
            ShowSchedule: for_client(schedules.show),
            ListSchedules: for_client(schedules.page),
            PauseSchedule: for_client(schedules.pause),
            ResumeSchedule: for_client(schedules.resume),
            RunSchedule: for_client(schedules.run),
            DeleteSchedule: for_client(schedules.delete),
            NextFirings: for_client(schedules.coming),
        }
    )
