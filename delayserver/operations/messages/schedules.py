"""The operation `schedule`: makes, shows, changes and deletes schedules.

A change replaces the timer of the schedule by another one, as a reschedule replaces a message. Changes and firings take
turns, and a change ends behind its replay. So the next one finds the timer that it has made.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any, Final

import msgpack
import msgspec
import numpy as np

from delayserver.names.name_desk import NameDesk
from delayserver.operations.access.access import Access
from delayserver.operations.messages.cancellation import CANCELLED, Cancellation
from delayserver.operations.messages.locator import Located
from delayserver.operations.messages.schedule_firing import ScheduleFiring
from delayserver.operations.messages.schedule_records import NextTimer, Replaced, ScheduleRecords
from delayserver.operations.messages.schedule_rules import (
    SCHEDULE,
    SCHEDULE_MOMENT,
    check_template,
    read_rules,
    rules_of,
)
from delayserver.operations.sending.admission import Admission
from delayserver.protocol.errors import (
    InvalidArgument,
    MessageDamaged,
    MessageTooLarge,
    SchedulesFull,
    ScheduleUnknown,
)
from delayserver.protocol.receipts import format_receipt
from delayserver.protocol.schema.schedules import (
    BODY_BYTES_MAX,
    ChangedSchedule,
    Definition,
    DeletedSchedule,
    DeleteSchedule,
    Firing,
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
from delayserver.protocol.schema.structs import arguments_of
from delayserver.receive.group_commit import GroupCommit
from delayserver.receive.intake import Intake
from delayserver.recurring.clock_changes import Moment
from delayserver.runtime.fair_turns import Work
from delayserver.runtime.runtime import Runtime
from delayserver.state.memory.schedule_timers import ScheduleTimerPlace, ScheduleTimers
from delayserver.state.positions.positions import Positions
from store.records.batches import CancelBatch, MessageBatch
from store.records.schedule_timer import SCHEDULES_SUBJECT, ScheduleTimer
from store.tables.names import SCHEDULING

SCHEDULES_MAX: Final = 100_000
"""Each takes some 400 bytes of memory, and of each checkpoint its name."""

_LATEST_MS: Final = 253_370_764_800_000
"""A moment for a check of the properties: no moment has more digits."""


class _Known(msgspec.Struct, frozen=True):
    """A schedule as its timer has it."""

    place: ScheduleTimerPlace
    timer: ScheduleTimer
    generation: int


class ScheduleChanges:
    """Replaces and ends timers. The caller has the turn, and keeps it until a commit has ended. It may leave before the
    replay: until then the timer is held."""

    def __init__(
        self,
        records: ScheduleRecords,
        timers: ScheduleTimers,
        cancellation: Cancellation,
        commit: GroupCommit,
        positions: Positions,
    ) -> None:
        self.records = records
        self.timers = timers
        self._cancellation = cancellation
        self._commit = commit
        self._positions = positions

    async def replayed(self) -> None:
        """Returns when memory has the timers of all that is durable."""
        await self._positions.replayed.reached(self._positions.durable.value)

    async def make(self, following: NextTimer) -> None:
        """Commits the first timer of a schedule. Raises the named error of the commit."""
        await self._commit.commit(self.records.batch([following], None))
        await self.replayed()

    async def replace(self, known: ScheduleTimerPlace, following: NextTimer, generation: int | None) -> int:
        """Commits what takes the place of a timer. `generation`: None for another definition. Returns the sequence of its
        first row. Raises the named error of the commit."""
        sequence, due_ms = np.array([known.sequence]), np.array([known.due_ms])
        origin = None if generation is None else np.array([generation])
        batch = self.records.batch([following], Replaced(sequence, due_ms, origin))
        return await self._end(known, batch)

    async def delete(self, known: ScheduleTimerPlace, generation: int, now_us: int) -> None:
        """Commits the end of a timer. Raises the named error of the commit."""
        cancel = CancelBatch.filled(
            1,
            sequence=known.sequence,
            due_ms=known.due_ms,
            requested_us=now_us,
            subject=self.records.subject,
            origin_sequence=generation,
        )
        await self._end(known, cancel)

    async def _end(self, known: ScheduleTimerPlace, batch: MessageBatch | CancelBatch) -> int:
        sequence, due_ms = np.array([known.sequence], np.int64), np.array([known.due_ms], np.int64)
        yes, no = np.ones(1, np.bool_), np.zeros(1, np.bool_)
        # As a transaction, which is ended also where an attempt may have been made: an attempt with a timer is a turn of the
        # firing, and this is another one.
        located = Located(yes, sequence, np.array([self.records.subject], np.uint32), no, yes.copy())
        answer = await self._cancellation.decide(located, sequence, due_ms)
        if int(answer[0]) != CANCELLED:
            raise MessageDamaged("what became of the timer of the schedule cannot be read")
        committed = await self._cancellation.commit_held(batch, sequence, due_ms)
        await self.replayed()
        return committed.first_sequence


class Schedules:
    """Answers requests."""

    def __init__(
        self,
        admission: Admission,
        intake: Intake,
        names: NameDesk,
        changes: ScheduleChanges,
        firing: ScheduleFiring,
        of_server: tuple[str, bool],
        runtime: Runtime,
    ) -> None:
        """`of_server`: its id, and whether it is a member of a cluster."""
        self._admission = admission
        self._intake = intake
        self._names = names
        self._changes = changes
        self._records, self._timers = changes.records, changes.timers
        self._turn = firing.turn
        self._server_id, self._in_cluster = of_server
        self._clock = runtime.clock
        self._workers = runtime.workers

    # -- changes

    async def put(self, asked: PutSchedule, _work: Work, access: Access) -> ChangedSchedule:
        """Makes a schedule, or gives it another definition. Raises InvalidArgument, the errors of a send, SchedulesFull."""
        self._admission.require()
        if self._in_cluster:
            raise InvalidArgument(
                "a cluster has no schedules yet: an older member would deliver their timers as messages"
            )
        _check_name(asked.name)
        definition = _definition_of(asked)
        async with self._turn:
            known = await self._known_or_none(asked.name)
            if known is not None:
                access.require(_subject_of(known.timer))
                if known.timer.definition == definition:
                    return _changed(known, changed=False)
            elif len(self._timers) >= SCHEDULES_MAX:
                raise SchedulesFull(f"this server has {SCHEDULES_MAX:,} schedules; delete some that have ended")
            following = self._following(asked, definition, known)
            self._names.intern(SCHEDULING, [SCHEDULES_SUBJECT])
            if known is None:
                await self._changes.make(following)
            else:
                await self._changes.replace(known.place, following, None)
            return _changed(await self._known(asked.name), changed=True)

    def _following(self, asked: PutSchedule, definition: bytes, known: _Known | None) -> NextTimer:
        """The first timer of a definition. It never fires at a moment up to the last one that was decided before."""
        now_ms = self._clock.now_ms()
        rules = read_rules(asked, asked.name, now_ms)
        timer = ScheduleTimer(
            name=asked.name,
            definition=definition,
            row=self._row(asked),
            after_ms=max(
                now_ms if asked.start_ms is None else now_ms - 1, 0 if known is None else known.timer.after_ms
            ),
            changed_ms=now_ms,
            paused=known is not None and known.timer.paused,
        )
        first = next(rules.coming(timer), None)
        if first is None:
            raise InvalidArgument("nothing would fire: from now on no moment fits")
        return self._records.armed(timer, rules, None if timer.paused else first[0])

    def _row(self, asked: PutSchedule) -> tuple[int, bytes, bytes, int, bytes]:
        """What each message has, checked as a message of a send. Raises the errors of one."""
        given = {"subject": asked.subject, "body": asked.body, "tag": asked.tag, "order_key": asked.order_key}
        own = {SCHEDULE: asked.name, SCHEDULE_MOMENT: str(_LATEST_MS)}
        properties = asked.properties
        with_own = properties | own if type(properties) is dict else own if properties is None else properties
        rows, rejections = self._intake.rows([{**given, "properties": with_own, "delay_ms": 0}])
        if rejections:
            raise rejections[0].error
        _, subject, _, _, _, body, tag, order_key = rows[0]
        if len(body) > BODY_BYTES_MAX:
            raise MessageTooLarge(f"body has {len(body)} bytes; that of a schedule has at most {BODY_BYTES_MAX}")
        if asked.template:
            check_template(body)
        return subject, body, self._intake.properties(properties), tag, order_key

    async def pause(self, asked: PauseSchedule, _work: Work, access: Access) -> ChangedSchedule:
        """Pauses a schedule. Raises ScheduleUnknown."""
        return await self._switch(asked.name, access, paused=True)

    async def resume(self, asked: ResumeSchedule, _work: Work, access: Access) -> ChangedSchedule:
        """Goes on with a schedule at the first moment from now on. Raises ScheduleUnknown."""
        return await self._switch(asked.name, access, paused=False)

    async def _switch(self, name: str, access: Access, *, paused: bool) -> ChangedSchedule:
        self._admission.require()
        async with self._turn:
            known = await self._known(name, access)
            if known.timer.paused == paused:
                return _changed(known, changed=False)
            after_ms = known.timer.after_ms if paused else max(known.timer.after_ms, self._clock.now_ms() - 1)
            timer = msgspec.structs.replace(known.timer, paused=paused, after_ms=after_ms)
            rules = rules_of(timer)
            first = None if paused else next(rules.coming(timer), None)
            following = self._records.armed(timer, rules, None if first is None else first[0])
            await self._changes.replace(known.place, following, known.generation)
            return _changed(await self._known(name), changed=True)

    async def run(self, asked: RunSchedule, _work: Work, access: Access) -> ScheduleRun:
        """Makes a message of a schedule that is due now. Raises ScheduleUnknown."""
        self._admission.require()
        async with self._turn:
            known = await self._known(asked.name, access)
            now_ms = self._clock.now_ms()
            fired = known.timer.fired + 1
            timer = msgspec.structs.replace(known.timer, fired=fired)
            row = rules_of(timer).row(timer, known.generation, Moment(now_ms, 0), now_ms, fired)
            following = NextTimer(timer, max(known.place.due_ms, now_ms), [row])
            sequence = await self._changes.replace(known.place, following, known.generation)
            return ScheduleRun(asked.name, format_receipt(self._server_id, now_ms, sequence), row[3].decode(), now_ms)

    async def delete(self, asked: DeleteSchedule, _work: Work, access: Access) -> DeletedSchedule:
        """Deletes a schedule. Raises ScheduleUnknown."""
        async with self._turn:
            known = await self._known(asked.name, access)
            await self._changes.delete(known.place, known.generation, self._clock.now_us())
            return DeletedSchedule(asked.name)

    # -- looks

    async def show(self, asked: ShowSchedule, _work: Work, access: Access) -> Schedule:
        """A schedule with its body. Raises ScheduleUnknown."""
        return _shown(await self._known(asked.name, access))

    async def page(self, asked: ListSchedules, work: Work, access: Access) -> SchedulesPage:
        """Some schedules, without bodies."""
        await self._changes.replayed()
        places = self._timers.behind(asked.after, asked.max)
        found: list[Schedule] = []
        for _name, place in places:
            await work.items()
            known = await self._read(place)
            if known is not None and access.may(_subject_of(known.timer)):
                found.append(_shown(known, bodies=False))
        return SchedulesPage(found, places[-1][0] if len(places) == asked.max else None)

    async def coming(self, asked: NextFirings, _work: Work, access: Access) -> FiringsPage:
        """The next firings of a schedule. Raises ScheduleUnknown."""
        known = await self._known(asked.name, access)
        if known.timer.paused:
            return FiringsPage([])
        moments = islice(rules_of(known.timer).coming(known.timer), asked.count)
        return FiringsPage([Firing(due_ms, moment.ms) for moment, due_ms in moments])

    # -- the timers

    async def _known(self, name: str, access: Access | None = None) -> _Known:
        """A schedule as it is behind all that was accepted. Raises ScheduleUnknown, MessageDamaged, Forbidden."""
        known = await self._known_or_none(name)
        if known is None:
            raise ScheduleUnknown(f"there is no schedule {name!r}")
        if access is not None:
            access.require(_subject_of(known.timer))
        return known

    async def _known_or_none(self, name: str) -> _Known | None:
        await self._changes.replayed()
        for _ in range(3):
            place = self._timers.get(name)
            if place is None:
                return None
            known = await self._read(place)
            if known is not None:
                return known
            await self._changes.replayed()  # it may have fired during the read, and its window may be gone
        raise MessageDamaged("the part of the schedule file that holds the timer of the schedule is damaged")

    async def _read(self, place: ScheduleTimerPlace) -> _Known | None:
        found = await self._workers.run(partial(self._records.read, place))
        return None if found is None else _Known(place, *found)


def _check_name(name: str) -> None:
    if not name.isprintable() or "/" in name:
        raise InvalidArgument("the name of a schedule is printable and has no /")


def _definition_of(asked: PutSchedule) -> bytes:
    """The bytes of a definition: two that are equal have the same. Raises InvalidArgument."""
    own = {field: getattr(asked, field) for field in Definition.__struct_fields__}
    properties = own["properties"]
    if type(properties) is dict and all(type(key) is str for key in properties):
        own["properties"] = dict(sorted(properties.items()))
    try:
        packed: bytes = msgpack.packb(arguments_of(Definition(**own)))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"the definition has a value of no type of the wire: {error}") from None
    return packed


def _map_of(timer: ScheduleTimer) -> dict[str, Any]:
    definition: dict[str, Any] = msgpack.unpackb(timer.definition)
    return definition


def _subject_of(timer: ScheduleTimer) -> str:
    subject: str = _map_of(timer)["subject"]
    return subject


def _shown(known: _Known, *, bodies: bool = True) -> Schedule:
    return Schedule(**_fields(known, bodies=bodies))


def _changed(known: _Known, *, changed: bool) -> ChangedSchedule:
    return ChangedSchedule(**_fields(known, bodies=False), changed=changed)


def _fields(known: _Known, *, bodies: bool) -> dict[str, Any]:
    timer = known.timer
    definition = _map_of(timer)
    if not bodies:
        definition.pop("body", None)
    first = None if timer.paused else next(rules_of(timer).coming(timer), None)
    state = "paused" if timer.paused else "ended" if first is None else "active"
    next_ms = 0 if first is None else known.place.due_ms if timer.moment_ms else first[1]
    return {
        "name": timer.name,
        "generation": known.generation,
        "state": state,
        "next_ms": next_ms,
        "fired": timer.fired,
        "changed_ms": timer.changed_ms,
        "definition": definition,
    }
