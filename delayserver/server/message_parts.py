"""Builds what ends or moves messages before their delivery, and says where they are: `operations/messages/`."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.operations.messages.cancellation import Cancellation
from delayserver.operations.messages.check_backs import CheckBacks, Pipeline
from delayserver.operations.messages.due_task import DueTask
from delayserver.operations.messages.locator import Locator
from delayserver.operations.messages.message_states import MessageStates
from delayserver.operations.messages.rescheduling import Rescheduling
from delayserver.operations.messages.schedule_firing import ScheduleFiring
from delayserver.operations.messages.schedule_records import ScheduleRecords
from delayserver.server.ground import Ground
from delayserver.server.receive_parts import ReceiveParts
from delayserver.server.state_parts import StateParts
from delayserver.server.upkeep_parts import UpkeepParts
from delayserver.state.memory.internal_groups import SCHEDULES, TIMERS


@dataclass(frozen=True, slots=True)
class MessageParts:
    """Decisions about single messages. `timers` takes the due timers of transactions, `schedule_timers` those of
    schedules."""

    locator: Locator
    cancellation: Cancellation
    rescheduling: Rescheduling
    check_backs: CheckBacks
    timers: DueTask
    states: MessageStates
    schedule_records: ScheduleRecords
    firing: ScheduleFiring
    schedule_timers: DueTask


def build_messages(ground: Ground, state: StateParts, upkeep: UpkeepParts, receive: ReceiveParts) -> MessageParts:
    """Cancels and reschedules go through the commit of `receive`."""
    files, runtime, window_ms = ground.files, ground.runtime, ground.settings.storage.window_ms
    commit, decided, residency, windows = receive.commit, state.decided, state.residency, state.windows
    locator = Locator(files.schedule, files.days, window_ms, runtime)
    cancellation = Cancellation(commit, state.positions, locator, decided, residency, windows, runtime)
    rescheduling = Rescheduling(cancellation, locator, receive.intake, runtime)
    pipeline = Pipeline(commit, decided, upkeep.kept_room, locator)
    check_backs = CheckBacks(
        ground.opened.directory.server_id, ground.names, cancellation, rescheduling, pipeline, runtime
    )
    records = ScheduleRecords(
        ground.names, locator, receive.intake, ground.settings.message.delay_ms_max, runtime.clock
    )
    firing = ScheduleFiring(records, state.schedules, cancellation, pipeline, decided.holds)
    return MessageParts(
        locator=locator,
        cancellation=cancellation,
        rescheduling=rescheduling,
        check_backs=check_backs,
        timers=DueTask(state.due[TIMERS], check_backs),
        states=MessageStates(cancellation, decided, files, residency, windows, runtime),
        schedule_records=records,
        firing=firing,
        schedule_timers=DueTask(state.due[SCHEDULES], firing),
    )
