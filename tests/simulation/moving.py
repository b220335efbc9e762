"""A consumer group that seeks, is removed and made anew, a reader without a group, and a broadcast group; and their books.

It shares no code with the server, and nothing with the books of the other groups. A position is recognised by the body
that stands there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any

import trio

from delayserver.protocol.errors import DelayServerError
from tests.simulation.client import Client
from tests.simulation.damage import Damage
from tests.simulation.failures import SimulationFailure
from tests.simulation.host import Host
from tests.simulation.settings import ACK_TIMEOUT_MS
from tests.simulation.workload import Workload

SUBJECT, GROUP, HEARD = "bills.late", "moving", "heard"
NAMES = {"subject": SUBJECT, "group": GROUP}
TURNS_MAX = 400
# Pulls without a message until the group counts as done.
EMPTY_MAX = 20


class Moving(Workload):
    """The group, the reader, the broadcast group and their books.

    `_next` is where the group goes on. While it is `_loose`, an answer was lost: it goes on there or later, and may pass
    over what comes again as a redelivery.
    """

    def __init__(
        self, clients: list[Client], host: Host, damage: Damage, chance: Random, note: Callable[..., None]
    ) -> None:
        """`clients`: one for the group and the reader, one for the broadcast group."""
        super().__init__(host, chance, note)
        self._client, self._listener = clients
        self._damage = damage
        # What stands at a position: its body, and whether it may expire. Below `_certain` it is durable.
        self._known: dict[int, tuple[bytes, bool]] = {}
        self._certain = 0
        self._first = 0
        self._life = 0
        self._next = 0
        self._loose = True
        # Whether it exists; if not, whether that is certain: the answer to its removal may have been lost.
        self._exists = False
        self._gone = True
        # Deliveries of before the last seek.
        self._before: list[int] = []
        self._heard: int | None = None
        self.seeks = 0

    def start(self, nursery: trio.Nursery) -> None:
        """Move about until the end is near."""
        self._begin(nursery, self._client, self._act)

    def _had_no_answer(self) -> None:
        self._heard = None

    async def _act(self) -> None:
        self._notice_crash()
        kind = self._chance.random()
        if not self._exists or kind < 0.40:
            await self._turn()
        elif kind < 0.60 or self._loose:
            await self._seek(self._chance.choice(["earliest", "latest", "position", "position", "time", "outside"]))
        elif kind < 0.78:
            await self._read()
        elif kind < 0.92:
            await self._listen()
        else:
            await self._remove()
        await self._client.sleep(self._chance.random() * 2)

    def _notice_crash(self) -> None:
        """What was not durable may be gone, and its positions may be given to other messages."""
        if self._host.lives != self._life:
            self._life = self._host.lives
            if self._damage.of_store:
                self._certain = 0  # at the end of the store damage counts as a torn end: the position is given again
            self._known = {place: body for place, body in self._known.items() if place < self._certain}
            self._before, self._heard, self._first = [], None, 0
            if self._damage.of_progress:
                self._loose, self._next = True, 0

    # -- the group

    async def _turn(self) -> bool:
        """One pull, acked at once; returns whether something came."""
        life, began_us = self._host.lives, self._host.clock.monotonic_us()
        start: dict[str, Any] = {}
        if not self._exists:
            bounds = await self._bounds()
            start = {"start": self._chance.choice(["earliest", "latest"])}
            place = bounds["first" if start["start"] == "earliest" else "end"]
            begins = place if self._gone else 0
            # Until the answer it is not known whether the group is made. The next pull would make it at the earliest.
            self._next, self._loose = 0, True
        exists, self._exists = self._exists, True
        loose, self._loose = self._loose, True
        arguments = {"max_messages": self._chance.choice([1, 3, 20]), "wait_ms": self._chance.choice([0, 500])}
        try:
            reply = await self._client.request("pull", NAMES | arguments | start)
        except DelayServerError as error:
            if error.name == "position_out_of_range":
                # The node kept no more for it: it goes on at the first message that is kept.
                if not loose and self._next > error.details["first"]:
                    raise SimulationFailure(f"{GROUP} is at {self._next}, and lost {error.details}") from error
                self._next, self._loose = error.details["first"], loose
            raise
        if not exists:
            self._next = begins
        rows = reply["messages"]
        self._note(self._client.name, "pulled", places=[row["position"] for row in rows], **start)
        if not rows:
            self._loose = loose
            return False
        mine = [row for row in rows if row["position"] >= 0]
        if mine and life == self._host.lives:
            await self._check(mine, loose=loose or not exists)
        deliveries = [row["delivery"] for row in rows]
        count = len(deliveries)
        self._loose = True
        reply = await self._client.request(
            "ack", NAMES | {"count": count, "deliveries": struct.pack(f"<{count}q", *deliveries)}
        )
        leased = self._host.clock.monotonic_us() - began_us < ACK_TIMEOUT_MS * 1000 and life == self._host.lives
        if leased and reply["unknown"] and not await self._passed(mine):
            raise SimulationFailure(f"{reply['unknown']} of {count} deliveries of {GROUP} are unknown while leased")
        if leased and mine:
            self._loose, self._next = loose, max(self._next, mine[-1]["position"] + 1)
            self._certain = max(self._certain, self._next)
        self._before += deliveries
        return True

    async def _check(self, rows: list[dict[str, Any]], *, loose: bool) -> None:
        """The group gets position after position, each message as it stands there."""
        expected = self._next
        for row in rows:
            place = row["position"]
            self._stands(row)
            if place < expected:
                # What came to nobody because an answer was lost may come as if for the first time.
                if row["attempt"] == 1 and not loose:
                    raise SimulationFailure(f"{GROUP} got position {place}, and was to go on at {expected}")
                continue  # its first delivery got lost on its way, and it comes again from its place
            if not loose and place > expected:
                await self._passed_over(GROUP, expected, place)
            expected = place + 1

    async def _passed_over(self, group: str, start: int, stop: int) -> None:
        """Only expired and retired messages may be passed over, and those that damage took."""
        if self._damage.of_store:
            return
        place, life = start, self._host.lives
        while place < stop:
            page = await self._client.request("read", {"subject": SUBJECT, "position": place, "max_messages": 100})
            if self._host.lives != life:
                return
            for row in page["messages"]:
                if row["position"] < stop and not row["expires_ms"]:
                    raise SimulationFailure(f"{group} passed over position {row['position']}, which does not expire")
            place = max(page["next"], place + 1)

    async def _seek(self, kind: str) -> None:
        bounds = await self._bounds()
        goal: dict[str, Any] = {"to": kind}
        if kind == "position":
            goal = {"position": self._chance.randint(bounds["first"], bounds["end"])}
        elif kind == "outside":
            goal = {"position": self._chance.choice([-1, bounds["end"] + 10_000])}
        elif kind == "time":
            goal = {"time_ms": max(self._host.clock.now_ms() - self._chance.randrange(1_000_000), 0)}
        self._note(self._client.name, "seeks", **goal)
        before, self._before = self._before, []
        was, self._next, self._loose = (self._next, self._loose), 0, True
        life = self._host.lives
        try:
            reply = await self._client.request("seek", NAMES | goal)
        except DelayServerError as error:
            if error.name == "position_out_of_range":
                # A position that was there may have been retired meanwhile, or lost in a crash.
                if kind not in ("outside", "position"):
                    raise SimulationFailure(f"a seek to {goal} is out of range: {error.details}") from error
                self._next, self._loose = was
            elif error.name == "group_unknown":
                self._exists, self._gone = False, True
            raise
        position = reply["position"]
        self._note(self._client.name, "sought", position=position, first=reply["first"], end=reply["end"])
        exact = {"earliest": bounds["first"], "latest": bounds["end"], "position": goal.get("position", -1)}
        wrong = kind == "outside" or not 0 <= position <= reply["end"] or position < exact.get(kind, 0)
        if wrong and life == self._host.lives:
            raise SimulationFailure(f"a seek to {goal} went to {position}, with {bounds}")
        self.seeks += 1
        self._next, self._loose = position, life != self._host.lives
        self._certain = max(self._certain, position)
        if before and self._chance.random() < 0.5:
            await self._ack_of_before(before[-50:])

    async def _ack_of_before(self, deliveries: list[int]) -> None:
        """What was leased before a seek is not known any more, also where the same positions are leased again."""
        life = self._host.lives
        held: list[int] = []
        if self._chance.random() < 0.7:
            self._loose = True
            rows = (await self._client.request("pull", NAMES | {"max_messages": 20}))["messages"]
            held = [row["delivery"] for row in rows]
        count = len(deliveries)
        packed = struct.pack(f"<{count}q", *deliveries)
        reply = await self._client.request("ack", NAMES | {"count": count, "deliveries": packed})
        if reply["acked"] and life == self._host.lives:
            raise SimulationFailure(f"{reply['acked']} deliveries from before a seek were acked")
        self._before = held

    async def _remove(self) -> None:
        self._exists, self._gone = False, False
        self._note(self._client.name, "removes")
        await self._client.request("remove_group", NAMES)
        life, self._gone = self._host.lives, True
        try:
            await self._client.request("group", NAMES)
        except DelayServerError as error:
            if error.name != "group_unknown":
                raise
        else:
            if life == self._host.lives:
                raise SimulationFailure("a group that was removed is shown")

    # -- reads without a group

    async def _passed(self, rows: list[dict[str, Any]]) -> bool:
        """Whether the bound on what a group may hold has taken some of these messages, also from under their leases."""
        if not self._host.may_let_go:
            return False
        first = (await self._bounds())["first"]
        return any(row["position"] < first for row in rows)

    async def _bounds(self) -> dict[str, int]:
        page = await self._client.request("read", {"subject": SUBJECT, "position": 0})
        return {"first": page["first"], "end": page["end"]}

    async def _read(self) -> None:
        bounds, life = await self._bounds(), self._host.lives
        position = self._chance.randint(bounds["first"] - 2, bounds["end"] + 2)
        page = await self._client.request("read", {"subject": SUBJECT, "position": position, "max_messages": 20})
        if life != self._host.lives:
            return
        first, end, status = page["first"], page["end"], page["status"]
        if not self._first <= first <= end or end < self._certain:
            raise SimulationFailure(
                f"{SUBJECT} has {first} to {end}, and had {self._first} to {self._certain} for certain"
            )
        self._first = first
        below = "too_small" if position < 0 else "retired"
        above = "nothing_yet" if position == end else "too_large"
        right = "found" if first <= position < end else below if position < first else above
        if status != right:
            raise SimulationFailure(f"position {position} of {first} to {end} is {status}")
        places = [row["position"] for row in page["messages"]]
        if places and not self._follow(position, [*places, page["next"]]):
            raise SimulationFailure(f"a read from {position} on gave {places} and goes on at {page['next']}")
        for row in page["messages"]:
            self._stands(row)

    def _follow(self, start: int, places: list[int]) -> bool:
        """Whether positions follow one another from `start` on. Those that damage took may be missing."""
        if self._damage.of_store:
            return places == sorted(set(places)) and all(place >= start for place in places)
        return places == list(range(start, start + len(places)))

    def _stands(self, row: dict[str, Any]) -> None:
        place, body = row["position"], (row["body"], bool(row["expires_ms"]))
        known = self._known.setdefault(place, body)
        if known != body:
            raise SimulationFailure(f"position {place} of {SUBJECT} has {body}, and had {known}")

    # -- the broadcast group

    async def _listen(self) -> None:
        life, expected, clock = self._host.lives, self._heard, self._host.clock
        self._heard = None
        asked_ms, steps = clock.now_ms(), clock.step_count
        try:
            arguments = {"subject": SUBJECT, "group": HEARD, "broadcast": True, "max_messages": 20, "wait_ms": 200}
            rows = (await self._listener.request("pull", arguments))["messages"]
        except DelayServerError as error:
            if error.name == "position_out_of_range":
                self._heard = error.details["first"]
            raise
        if life != self._host.lives:
            return
        stepped = steps != clock.step_count
        for row in rows:
            place = row["position"]
            if expected is not None and place < expected:
                raise SimulationFailure(f"{HEARD} got position {place}, and was to go on at {expected}")
            if row["expires_ms"] and asked_ms >= row["expires_ms"] and not stepped:
                raise SimulationFailure(f"{HEARD} got position {place} at {asked_ms}, expired at {row['expires_ms']}")
            if expected is not None and place > expected:
                await self._passed_over(HEARD, expected, place)
                if life != self._host.lives:
                    return
            self._stands(row)
            expected = place + 1
        self._heard = expected

    # -- the end

    async def settle(self, leap: Callable[[float], None]) -> None:
        """From the earliest message on, the group gets everything that is there."""
        await self._end()
        for _ in range(TURNS_MAX):
            if await self._guarded(self._client, self._all):
                return
            await self._client.sleep(1)
        raise SimulationFailure(f"{GROUP} was not done in {TURNS_MAX} tries")

    async def _all(self) -> bool:
        self._notice_crash()
        if not (await self._bounds())["end"]:
            return True  # the subject never had a message, so it has no groups either
        if not self._exists:
            await self._turn()
        self._before = []  # what a seek asks about them would lease messages
        await self._seek("earliest")
        end = (await self._bounds())["end"]
        empty = 0
        while self._next < end and empty < EMPTY_MAX:
            if await self._turn():
                empty = 0
            else:  # a read of the disk may take longer than a pull waits
                empty += 1
                await self._client.sleep(1)
        if self._next < end:
            await self._passed_over(GROUP, self._next, end)
        return True
