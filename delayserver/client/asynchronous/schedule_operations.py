"""The operations of the asynchronous client on schedules.

`python -m ops.blocking_client` makes the blocking twin from this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeVar, Unpack

from delayserver.client.calls import schedule_calls
from delayserver.client.calls.core import Call
from delayserver.client.calls.schedule_calls import ScheduleTerms
from delayserver.protocol.schema.schedules import (
    LIST_MAX,
    NEXT_MAX,
    ChangedSchedule,
    Firing,
    Schedule,
    ScheduleRun,
    SchedulesPage,
)

T = TypeVar("T")


class AsyncScheduleOperations(ABC):
    """Requests about schedules."""

    @abstractmethod
    async def _run(self, call: Call[T], close_count: int | None = None) -> T:
        """The result of a call, after as many attempts as it needs."""

    async def put_schedule(
        self,
        name: str,
        subject: str,
        body: bytes | str = b"",
        *,
        properties: Mapping[str, str] | None = None,
        tag: str | None = None,
        order_key: str | None = None,
        template: bool = False,
        **terms: Unpack[ScheduleTerms],
    ) -> ChangedSchedule:
        """Make a schedule, or give it another definition; see `ScheduleTerms`. The same definition changes nothing.

        The server sends a message at each moment, exactly one: its id follows from name, generation and moment. It has the
        properties ``schedule`` and ``schedule_moment_ms`` besides its own. With ``template`` the server replaces
        ``${due_ms}``, ``${due}``, ``${name}`` and ``${run}`` in the body. A paused schedule stays paused.
        """
        call = schedule_calls.put_call(name, subject, body, properties, tag, order_key, template=template, terms=terms)
        return await self._run(call)

    async def schedule(self, name: str) -> Schedule:
        """A schedule. Raises `ScheduleUnknown`."""
        return await self._run(schedule_calls.show_call(name))

    async def schedules_page(self, after: str = "", max_schedules: int = LIST_MAX) -> SchedulesPage:
        """A page of the schedules, in the order of their names, behind the ``next`` of another page."""
        return await self._run(schedule_calls.list_call(after, max_schedules))

    async def schedules(self, max_schedules: int = 1_000) -> list[Schedule]:
        """The first schedules, in the order of their names, without bodies. A token of some subjects sees those of its
        subjects.
        """
        found: list[Schedule] = []
        after = ""
        while len(found) < max_schedules:
            page = await self.schedules_page(after)
            found += page.schedules
            if page.next is None:
                break
            after = page.next
        return found[:max_schedules]

    async def pause_schedule(self, name: str) -> ChangedSchedule:
        """Pause a schedule. Its moments until it is resumed never fire. Raises `ScheduleUnknown`."""
        return await self._run(schedule_calls.pause_call(name, paused=True))

    async def resume_schedule(self, name: str) -> ChangedSchedule:
        """Go on with a schedule, at the first moment from now on. Raises `ScheduleUnknown`."""
        return await self._run(schedule_calls.pause_call(name, paused=False))

    async def run_schedule(self, name: str) -> ScheduleRun:
        """Make a message of a schedule now, beside its moments. Raises `ScheduleUnknown`."""
        return await self._run(schedule_calls.run_call(name))

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule. The messages that it has made stay. Raises `ScheduleUnknown`."""
        await self._run(schedule_calls.delete_call(name))

    async def next_firings(self, name: str, count: int = 10) -> list[Firing]:
        """The next firings of a schedule, at most 1,000. Raises `ScheduleUnknown`."""
        page = await self._run(schedule_calls.next_call(name, min(count, NEXT_MAX)))
        return page.firings
