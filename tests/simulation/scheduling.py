"""Schedules in the workload: an operator who makes, pauses, runs and deletes them, a consumer, and their books.

The books share no code with the server. They know the moments of a schedule by its start and interval. A firing is
recognised by its id. Each id belongs to one message, whatever the crashes and the steps of the clock. No moment of a
schedule that nobody paused or deleted may be missing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import trio

from delayserver.protocol.errors import DelayServerError
from tests.simulation.client import Client
from tests.simulation.clocks import SimulatedTime
from tests.simulation.failures import SimulationFailure
from tests.simulation.host import Host
from tests.simulation.workload import Workload

SUBJECT, GROUP = "ticks", "ticker"
EVERY_MS = (1_000, 7_000, 60_000, 3_600_000)
TIMES = 200
"""A schedule ends after so many firings, so that a leap of days makes no endless list."""
SCHEDULES_MAX = 8


@dataclass(slots=True)
class Ticks:
    """A schedule, with all that is known of it."""

    name: str
    start_ms: int
    every_ms: int
    made: bool | None = None
    """None if the books do not know."""
    touched: bool = False
    """Somebody asked to pause or delete it."""
    ended_ms: int | None = None
    """The latest time that the clock had shown when it was answered that it is deleted."""
    runs: int = 0
    sequences: dict[str, int] = field(default_factory=dict)
    moments: set[int] = field(default_factory=set)


class Scheduling(Workload):
    """The operator, the consumer and the books."""

    def __init__(
        self, clients: list[Client], host: Host, time: SimulatedTime, chance: Random, note: Callable[..., None]
    ) -> None:
        super().__init__(host, chance, note)
        self._operator, self._consumer = clients
        self._time = time
        self._schedules: dict[str, Ticks] = {}
        self._run_times: list[int] = []
        self.judged = 0

    def start(self, nursery: trio.Nursery) -> None:
        """Change schedules and consume until the end is near."""
        self._begin(nursery, self._operator, self._manage)
        self._begin(nursery, self._consumer, self._turn)

    @property
    def _peak_ms(self) -> int:
        """The latest time that the clock has shown."""
        return self._host.clock.peak_us // 1000

    # -- the operator

    async def _manage(self) -> None:
        await self._operator.sleep(self._chance.choice([0.2, 1.0, 5.0]))
        kind, mine = self._chance.random(), [each for each in self._schedules.values() if each.ended_ms is None]
        if kind < 0.35 or not mine:
            if len(self._schedules) < SCHEDULES_MAX:
                await self._put()
            return
        ticks = self._chance.choice(mine)
        if kind < 0.55:
            await self._run(ticks)
        elif kind < 0.75:
            await self._touch(ticks, self._chance.choice(["pause", "resume"]))
        elif kind < 0.85:
            await self._delete(ticks)
        else:
            await self._show(ticks)

    async def _ask(self, action: str, ticks: Ticks, **rest: Any) -> dict[str, Any]:
        self._note("scheduling", action, name=ticks.name)
        return await self._operator.request("schedule", {"action": action, "name": ticks.name} | rest)

    async def _put(self) -> None:
        start_ms = self._host.clock.now_ms() + self._chance.choice([500, 3_000, 60_000])
        ticks = Ticks(f"t{len(self._schedules) + 1}", start_ms, self._chance.choice(EVERY_MS))
        self._schedules[ticks.name] = ticks
        terms = {"every_ms": ticks.every_ms, "start_ms": start_ms, "times": TIMES}
        try:
            await self._ask(
                "put", ticks, subject=SUBJECT, body=b"t", misfire="all", catch_up_ms=366 * 86_400_000, **terms
            )
        except DelayServerError as error:
            ticks.made = None if error.name in ("storage_failed", "internal_error") else False
            raise
        ticks.made = True

    async def _run(self, ticks: Ticks) -> None:
        ticks.runs += 1
        self._run_times.append(self._host.clock.now_ms())
        try:
            reply = await self._ask("run", ticks)
        except DelayServerError as error:
            if error.name == "schedule_unknown":
                self._must_be_gone(ticks)
            raise
        self._run_times.append(reply["due_ms"])

    async def _touch(self, ticks: Ticks, action: str) -> None:
        ticks.touched = True
        try:
            await self._ask(action, ticks)
        except DelayServerError as error:
            if error.name == "schedule_unknown":
                self._must_be_gone(ticks)
            raise

    async def _delete(self, ticks: Ticks) -> None:
        ticks.touched = True
        try:
            await self._ask("delete", ticks)
        except DelayServerError as error:
            if error.name == "schedule_unknown":
                ticks.ended_ms = self._peak_ms
            raise
        ticks.ended_ms = self._peak_ms

    async def _show(self, ticks: Ticks) -> None:
        try:
            shown = await self._ask("show", ticks)
        except DelayServerError as error:
            if error.name == "schedule_unknown":
                self._must_be_gone(ticks)
            raise
        if ticks.made is False:
            self._fail("shown, and its making was refused", ticks)
        if not ticks.touched and shown["state"] == "paused":
            self._fail("shown as paused, and nobody paused it", ticks)

    def _must_be_gone(self, ticks: Ticks) -> None:
        if ticks.made and not ticks.touched:
            self._fail("unknown, and it was made", ticks)

    # -- the consumer

    async def _turn(self) -> int:
        pull = {"subject": SUBJECT, "group": GROUP, "max_messages": 100, "wait_ms": 0 if self.ending else 2_000}
        messages = (await self._consumer.request("pull", pull))["messages"]
        for message in messages:
            self._arrived(message)
        if messages:
            deliveries = [message["delivery"] for message in messages]
            packed = struct.pack(f"<{len(deliveries)}q", *deliveries)
            await self._consumer.request(
                "ack", {"subject": SUBJECT, "group": GROUP, "count": len(deliveries), "deliveries": packed}
            )
        return len(messages)

    def _arrived(self, message: dict[str, Any]) -> None:
        name, _, which = message["message_id"].split(":")
        ticks, moment_ms = self._schedules.get(name), int(message["properties"]["schedule_moment_ms"])
        if ticks is None or ticks.made is False:
            raise SimulationFailure(f"a firing of {name}, which nobody made")
        redelivered = message["attempt"] > 1  # it may be a record of its own, also of a redispatch
        sequence = ticks.sequences.setdefault(which, 0 if redelivered else message["sequence"])
        if not sequence and not redelivered:
            ticks.sequences[which] = sequence = message["sequence"]
        if not redelivered and sequence != message["sequence"]:
            self._fail(f"{which} fired as {sequence} and as {message['sequence']}", ticks)
        if moment_ms > self._peak_ms:
            self._fail(f"fired for {moment_ms}, which the clock has not shown", ticks)
        if which.startswith("run-"):
            if not ticks.runs:
                self._fail("ran, and nobody asked for it", ticks)
            return
        if (moment_ms - ticks.start_ms) % ticks.every_ms or moment_ms < ticks.start_ms:
            self._fail(f"fired for {moment_ms}, which is no moment", ticks)
        if ticks.ended_ms is not None and moment_ms > ticks.ended_ms:
            self._fail(f"fired for {moment_ms}, and it was deleted at {ticks.ended_ms}", ticks)
        ticks.moments.add(moment_ms)

    def _fail(self, what: str, ticks: Ticks) -> None:
        self._note("scheduling", "FAILURE", promise=what, schedule=repr(ticks)[:300])
        raise SimulationFailure(f"the schedule {ticks.name}: {what}")

    # -- the balance

    def _possible(self, ticks: Ticks) -> int:
        if ticks.made is False:
            return 0
        latest_ms = self._peak_ms if ticks.ended_ms is None else ticks.ended_ms
        return min(max((latest_ms - ticks.start_ms) // ticks.every_ms + 1, 0), TIMES) + ticks.runs

    def range_of(self, name: str) -> tuple[int, int]:
        """What firings add to a count of the status, at least and at most."""
        possible = sum(map(self._possible, self._schedules.values()))
        if name in ("accepted", "delivered"):
            return sum(len(each.sequences) for each in self._schedules.values()), possible
        return (0, possible) if name == "pending" else (0, 0)

    def due_times_ms(self) -> list[int]:
        """When firings may be due: one for each window is enough."""
        window_ms = self._host.settings.storage.window_ms
        times = [
            moment_ms
            for each in self._schedules.values()
            for moment_ms in range(
                each.start_ms,
                min(self._peak_ms, each.start_ms + TIMES * each.every_ms) + 1,
                max(each.every_ms, window_ms),
            )
        ]
        return times + self._run_times

    def timers_ahead_ms(self) -> int:
        """How far ahead of the clock a timer may be: that of a schedule that is paused or has ended is as far as can be."""
        return self._host.settings.message.delay_ms_max if self._schedules else 0

    # -- the end

    async def settle(self, leap: Callable[[float], None]) -> None:
        """Take all firings, judge, and delete all schedules."""
        await self._end()
        # A clock that was ahead has decided moments that come only now.
        for _ in range(20):
            await self._time.sleep(2)
            if not await self._drained():
                break
        for ticks in self._schedules.values():
            if ticks.made and not ticks.touched:
                self._judge(ticks)
        for ticks in self._schedules.values():
            if ticks.ended_ms is None and ticks.made is not False:
                await self._gone(ticks)
        await self._time.sleep(2)
        await self._drained()
        self._note("scheduling", "ends", judged=self.judged, of=len(self._schedules))

    async def _drained(self) -> int:
        """How many firings came."""
        count = 0
        while found := await self._guarded(self._consumer, self._turn) or 0:
            count += found
        return count

    async def _gone(self, ticks: Ticks) -> None:
        while ticks.ended_ms is None:
            await self._guarded(self._operator, partial(self._delete, ticks))

    def _judge(self, ticks: Ticks) -> None:
        self.judged += 1
        # What was due a moment ago may be on its way.
        until_ms = self._host.clock.now_ms() - 3_000
        expected = [*range(ticks.start_ms, until_ms + 1, ticks.every_ms)][:TIMES]
        runs = sum(which.startswith("run-") for which in ticks.sequences)
        if ticks.runs:  # each run counts as a firing, also one without an answer
            expected = expected[: max(TIMES - ticks.runs, 0)]
        missing = [moment_ms for moment_ms in expected if moment_ms not in ticks.moments]
        if missing:
            self._fail(
                f"{len(missing)} of {len(expected)} moments are lost, the first is {missing[0]}; {runs} runs", ticks
            )
