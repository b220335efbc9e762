"""A group whose books count the attempts of each message exactly, and whose consumers die in every way.

Its consumers forget messages, cancel pulls, lose connections, snooze, extend leases and seek. The books share no code
with the server. A message is recognised by its token. Its `attempt` must be the count of the books, and one more.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import trio

from delayserver.protocol.errors import DelayServerError
from tests.simulation.client import Client, Lost
from tests.simulation.clocks import SimulatedTime
from tests.simulation.failures import SimulationFailure
from tests.simulation.host import Host
from tests.simulation.workload import Workload

SUBJECT, GROUP = "counted", "counters"
NAMES = {"subject": SUBJECT, "group": GROUP}
MESSAGES_MAX = 60
# A loss of power forgets the hand-outs of the last 0.1 s, and of the sync after it. Timers of a host end up to 0.25 s late.
FORGOTTEN_S = 1.0
# How long a lease may go on after its end: the timers of the host are coarse, and some ends wait for reads or for a commit.
NOTICED_US = 2_000_000
# Longer than any seed: such a lease ends with its connection or with the process.
LONG_MS = 86_400_000
# Messages that no group takes go after a week.
KEPT_US = 6 * 86_400 * 1_000_000
TURNS_MAX = 300


@dataclass(slots=True)
class Counted:
    """One message. `low` and `high` bound the hand-outs that count, and are equal unless an answer was lost."""

    token: int
    asked_us: int
    asked_uptime_us: int
    stored: bool = False
    position: int = 0
    low: int = 0
    high: int = 0
    hand_outs: list[tuple[float, int]] = field(default_factory=list)
    """Of this life of the broker: when each was known here, and `low` before it."""
    stamp: int = 0
    """Deliveries and seeks so far."""
    asking: int = 0
    """Answers and extensions under way. A late one, of an earlier delivery, ends the present lease."""
    delivery: int = 0
    leased_from_us: int = 0
    """The lease ends no earlier than this, by the time since the start; 0 if it may have ended."""
    leased_to_us: int = 0
    """The lease has ended by then, in `SimulatedTime.worked_s`; 0 if the books do not know."""
    capacities: int = 0
    """How often the disk had filled up, or had got room, when the lease began."""
    forked: bool = False
    """A crash may have left two copies, the one in its place and the redelivery. Each counts for itself."""
    acked: bool = False
    maybe_over: bool = False
    """Acked or given up, or perhaps: it need not arrive any more."""
    crossed: int = 0
    """The pull that was under way when its last answer or extension ended: it may have been handed out before that."""
    crossed_high: int = 0
    """`high` before that answer."""
    handing_back: int = 0
    """Requests under way that hand an earlier delivery back. A late one hands back the present one."""
    blurred: int = 0
    """So many requests to hand it back crossed its last hand-out: `low` is its attempt without those."""


class Counting(Workload):
    """The producer, two consumers of one group, and the books."""

    def __init__(
        self,
        clients: list[Client],
        host: Host,
        time: SimulatedTime,
        chance: Random,
        note: Callable[..., None],
    ) -> None:
        super().__init__(host, chance, note)
        self._producer, *self._consumers = clients
        self._time = time
        self._messages: dict[int, Counted] = {}
        # One pull at a time: of two replies under way nobody knows which the broker gave first.
        self._pulling = trio.Lock()
        self._pulls = 0
        self._attempts_max = chance.choice([0, 0, 2, 3, 4])
        self._policy_set = not self._attempts_max
        # The sequence of redeliveries is one of the pipeline, where a crash makes copies and counts what had no answer.
        self._in_place = host.settings.broker.redelivery_bytes_max == 0
        self._ends_seen = 0
        self._letters: set[int] = set()
        self.exact = 0

    def start(self, nursery: trio.Nursery) -> None:
        """Publish and consume until the end is near."""
        self._begin(nursery, self._producer, partial(self._publish, self._producer))
        for client in self._consumers:
            self._begin(nursery, client, partial(self._turn, client))

    async def _publish(self, client: Client) -> None:
        await client.sleep(self._chance.choice([0.3, 2.0, 10.0]))
        if len(self._messages) >= MESSAGES_MAX:
            return
        clock = self._host.clock
        group = []
        for _ in range(self._chance.choice([1, 2, 5])):
            message = Counted(len(self._messages) + 1, clock.now_us(), clock.monotonic_us())
            self._messages[message.token] = message
            group.append(message)
        rows = [{"subject": SUBJECT, "body": b"c%d." % message.token} for message in group]
        reply = await client.request("publish", {"messages": rows})
        for message, result in zip(group, reply["results"], strict=True):
            message.stored, message.position = "position" in result, result.get("position", 0)

    # -- one turn of a consumer

    async def _turn(self, client: Client) -> int:
        """A pull, and what becomes of its messages. Returns how many came."""
        chance = self._chance
        if not self._policy_set:
            pauses = chance.choice([{"first_ms": 0}, {"first_ms": 100, "factor": 1}, {}])
            await client.request("policy", NAMES | {"set": {"attempts": self._attempts_max, **pauses}})
            self._policy_set = True
        # A redelivery on its way through the pipeline can come behind a seek: there the books would know nothing.
        if not self.ending and self._in_place and chance.random() < 0.03:
            await self._seek(client)
        arguments: dict[str, Any] = NAMES | {"max_messages": chance.choice([1, 4, 100])}
        # A long lease must end with its connection.
        if chance.random() < 0.4:
            lease_ms, outlive_ms = LONG_MS, chance.choice([0, 300, 5_000])
            arguments["outlive_ms"] = outlive_ms
        else:
            lease_ms = chance.choice([300, 2_000, 20_000])
        arguments["ack_timeout_ms"] = lease_ms
        arguments["wait_ms"] = 0 if self.ending else chance.choice([0, 300, 3_000])
        async with self._pulling:
            self._pulls += 1
            found = await self._pull(client, arguments, lease_ms)
        if not found:
            return 0
        if self.ending:
            await self._answer(client, found, "ack")
            return len(found)
        kind = chance.random()
        if kind < 0.25:
            owned = "outlive_ms" in arguments
            await self._alone(found, lambda: self._extend(client, found, owned=owned))
        if chance.random() < 0.2:
            await client.sleep(chance.choice([0.1, 0.5, 3.0]))
        kind = chance.random()
        if kind < 0.15:
            self._note(client.name, "dies", tokens=_tokens(found))
            self._close(client, found)
        elif kind < 0.25:
            self._note(client.name, "forgets", tokens=_tokens(found))
            if "outlive_ms" in arguments:
                self._close(client, found)  # no other end comes
        elif kind < 0.50:
            await self._answer(client, found, "ack")
        elif kind < 0.75:
            await self._answer(client, found, "nack")
        elif kind < 0.90:
            await self._answer(client, found, "snooze")
        else:
            await self._answer(client, found, "unseen")
        return len(found)

    def _close(self, client: Client, found: list[Counted]) -> None:
        for message in found:
            message.leased_from_us = message.leased_to_us = 0
        client.close()

    async def _pull(self, client: Client, arguments: dict[str, Any], lease_ms: int) -> list[Counted]:
        """One pull; some are cancelled at about the time at which messages come."""
        asked_us, life, ends = self._host.clock.monotonic_us(), self._host.lives, len(self._host.endings)
        capacities = self._host.disk.capacity_changes
        scope = trio.CancelScope()
        cancels = not self.ending and self._chance.random() < 0.12
        delay_s = self._chance.choice([0.0, 0.0005, 0.002, 0.02, 0.3]) * self._chance.random()
        timer = self._time.at(self._time.now_s + delay_s, scope.cancel) if cancels else None
        rows = None
        try:
            with scope:
                rows = (await client.request("pull", arguments))["messages"]
        except DelayServerError:
            raise
        except Lost as lost:
            if lost.sent:
                self._unheard()
            raise
        finally:
            if timer is not None:
                timer.action = None
        self._look_at_ends()
        if rows is None:
            self._note(client.name, "cancels its pull")
            self._unheard()
            return []
        before = {message.token: message.low for message in self._messages.values()}
        found = [self._arrived(row, life) for row in rows]
        ended = self._host.endings[ends:]
        for message in found:
            message.leased_from_us = asked_us + lease_ms * 1000
            message.leased_to_us = self._worked_us() + lease_ms * 1000
            message.capacities = capacities
            if any(math.isfinite(end.sure_s) for end in ended):  # the disk may have forgotten it before the reply came
                message.low = min(before[message.token], message.low - 1)
            if ended or message.crossed == self._pulls:  # what happened meanwhile may have changed this lease
                message.leased_from_us = message.leased_to_us = 0
        if found:
            self._note(client.name, "pulled counted", rows=[(message.token, message.low) for message in found])
        return found

    def _worked_us(self) -> int:
        return round(self._time.worked_s * 1_000_000)

    def _unheard(self) -> None:
        """A pull had no answer: it may have handed out each message once."""
        self._look_at_ends()
        for message in self._messages.values():
            message.high += 1
            message.leased_from_us = message.leased_to_us = 0
            # Its last attempt may have been this one.
            message.maybe_over |= bool(self._attempts_max) and message.high >= self._attempts_max

    async def _seek(self, client: Client) -> None:
        """Back to the earliest message: all counts begin again."""
        async with self._pulling:
            messages = list(self._messages.values())
            for message in messages:
                message.low, message.acked, message.forked = 0, False, True
                message.stamp += 1
                message.leased_from_us = message.leased_to_us = 0
            life = self._host.lives
            self._note(client.name, "seeks to the earliest")
            reply = await client.request("seek", NAMES | {"to": "earliest"})
            self._look_at_ends()
            for message in messages:
                # What was asked meanwhile was about deliveries of before, or of behind: the books do not know.
                message.stamp += 1
                message.acked = False
                if message.position < reply["first"]:
                    message.maybe_over = True  # the store has removed it, after all had acked it
                elif life == self._host.lives and message.stored:
                    message.low, message.high, message.forked, message.maybe_over = 0, 0, False, False
                    message.hand_outs.clear()

    async def _alone(self, found: list[Counted], act: Callable[[], Any]) -> None:
        """Ask something about deliveries; whoever asks about the same messages at this time learns nothing."""
        for message in found:
            message.asking += 1
            message.stamp += message.asking > 1
        high = [message.high for message in found]
        try:
            await act()
        finally:
            for message, before in zip(found, high, strict=True):
                message.asking -= 1
                message.stamp += 1
                if self._pulling.locked():
                    message.crossed, message.crossed_high = self._pulls, max(before, message.high)

    async def _answer(self, client: Client, found: list[Counted], how: str) -> None:
        """`how`: ack, nack, snooze or unseen."""
        await self._alone(found, lambda: self._ask(client, found, how))

    async def _extend(self, client: Client, found: list[Counted], *, owned: bool) -> None:
        """Let the leases go on, or end soon, or ask for it after their end."""
        chance, clock = self._chance, self._host.clock
        if chance.random() < 0.3 and not owned:
            await client.sleep(chance.choice([1.5, 3.5]))
        self._look_at_ends()
        stamps = [message.stamp for message in found]
        asked_us, life = clock.monotonic_us(), self._host.lives
        disk = self._host.disk
        # Where a full disk takes no redelivery, the message stays with its consumer.
        had_room = disk.capacity_bytes is None and all(each.capacities == disk.capacity_changes for each in found)
        over = [each for each in found if had_room and 0 < each.leased_to_us < self._worked_us() - NOTICED_US]
        until_us = min(message.leased_from_us for message in found)
        lease_ms = chance.choice([200, 3_000, 60_000])
        arguments = NAMES | _packed(found) | {"ack_timeout_ms": lease_ms}
        if owned:
            arguments["outlive_ms"] = chance.choice([0, 300])
        made = client.connections
        for message in found:
            message.leased_from_us, message.leased_to_us = 0, 0
        reply = await client.request("extend", arguments)
        now_us = clock.monotonic_us()
        self._note(
            client.name, "extends", tokens=_tokens(found), ms=lease_ms, unknown=reply["unknown"], over=_tokens(over)
        )
        if self._look_at_ends() or life != self._host.lives or stamps != [message.stamp for message in found]:
            return
        if client.connections != made or any(message.asking > 1 for message in found):
            return
        if len(over) == len(found) and reply["extended"]:
            self._fail(over[0], "its lease had ended, and was extended")
        sure = not self._host.may_let_go and not any(message.forked for message in found)
        if now_us < until_us and reply["unknown"] and sure:
            self._fail(found[0], f"{reply['unknown']} of its batch are leased, and could not be extended")
        if reply["unknown"]:
            return
        for message in found:
            message.leased_from_us = asked_us + lease_ms * 1000
            message.leased_to_us = self._worked_us() + lease_ms * 1000

    async def _ask(self, client: Client, found: list[Counted], how: str) -> None:
        """`how`: ack, nack, snooze or unseen."""
        self._look_at_ends()
        life, asked_us = self._host.lives, self._host.clock.monotonic_us()
        # A group that lags may lose what it has leased.
        leased = not self._host.may_let_go
        leased &= all(message.leased_from_us > asked_us and not message.forked for message in found)
        until_us = min(message.leased_from_us for message in found)
        made = client.connections
        counts = how == "nack"
        stamps = [message.stamp for message in found]
        before = [message.low for message in found]
        self._note(client.name, how, tokens=_tokens(found))
        for message in found:
            message.leased_from_us = message.leased_to_us = 0
            if how == "ack":
                message.maybe_over = True
            elif how != "nack":
                message.low = max(message.low - 1, 0)
        arguments = NAMES | _packed(found)
        if how == "ack":
            reply = await client.request("ack", arguments)
        else:
            delay_ms = self._chance.choice([None, 0, 100, 5_000])
            extra: dict[str, Any] = {} if delay_ms is None else {"delay_ms": delay_ms}
            last = [bool(self._attempts_max) and message.high >= self._attempts_max for message in found]
            for message, is_last in zip(found, last, strict=True):
                message.maybe_over |= is_last
                message.handing_back += not counts
            try:
                reply = await client.request("nack", arguments | extra | ({} if counts else {how: True}))
            finally:
                for message in found:
                    message.handing_back -= not counts
        self._look_at_ends()
        # Nobody else had them meanwhile.
        mine = life == self._host.lives and stamps == [message.stamp for message in found]
        mine &= all(message.asking == 1 for message in found)
        leased &= mine and client.connections == made and self._host.clock.monotonic_us() < until_us
        if leased and reply["unknown"]:
            self._fail(found[0], f"{reply['unknown']} deliveries are unknown while they are leased")
        if reply["unknown"] or not mine:
            return
        if how == "ack":
            for message in found:
                message.acked = not message.forked
            return
        dead = reply.get("dead_lettered", 0)
        self._note(client.name, "answered", how=how, dead=dead)
        if not counts:
            if dead:
                self._fail(found[0], f"{dead} messages that were handed back are given up")
            for message, low in zip(found, before, strict=True):
                message.high = max(low + message.blurred - 1, 0)
                # A fork's other copy may be further.
                if message.forked:
                    message.high = low
        elif self._pulling.locked():
            # The last attempt of each may be under way, and have failed with this answer.
            for message in found:
                message.maybe_over |= bool(self._attempts_max) and message.high + 1 >= self._attempts_max
        elif not any(message.forked for message in found):
            # Where a hand-out was forgotten, only the delivery itself said which it was: `low` is its attempt.
            due = sum([bool(self._attempts_max) and low >= self._attempts_max for low in before])
            unsure = sum([message.blurred > 0 for message in found])
            if not due <= dead <= due + unsure:
                self._fail(found[0], f"{dead} of its batch are given up, and {due} had their last attempt")
            if dead == len(found):
                for message in found:
                    message.acked = True

    # -- the books

    def _look_at_ends(self) -> bool:
        """Take note of the lives that have ended: what their hand-outs were, and which of them the disk may forget."""
        ends = self._host.endings[self._ends_seen :]
        if not ends:
            return False
        self._ends_seen = len(self._host.endings)
        for message in self._messages.values():
            message.leased_from_us = message.leased_to_us = 0
            for end in ends:
                for when_s, low in message.hand_outs:
                    if when_s >= end.sure_s - FORGOTTEN_S:
                        message.low = min(message.low, low)
            message.hand_outs.clear()
            if not self._in_place:
                message.forked = True
        return True

    def _arrived(self, row: dict[str, Any], life: int) -> Counted:
        body = row["body"]
        message = self._messages.get(int(body[1:-1]))
        if message is None:
            raise SimulationFailure(f"a message arrived that no client published so: {body!r}")
        attempt = row["attempt"]
        low, high = message.low + 1, message.high + 1
        retry = bool(row["delivery"] >> 62 & 1)
        crossed = message.crossed == self._pulls
        if crossed:  # it was handed out before what was asked last, or behind it
            high = max(high, message.crossed_high + 1)
        if message.forked:
            low, high = 1, max(high, attempt)
        if not low <= attempt <= high:
            self._fail(message, f"attempt {attempt}, and the books say {low}" + (f" to {high}" if high > low else ""))
        if self._attempts_max and attempt > self._attempts_max and not message.forked:
            self._fail(message, f"attempt {attempt}, with a policy of {self._attempts_max} attempts")
        if message.acked and not message.forked and not crossed:
            self._fail(message, "it was acked or given up, and was handed out again")
        leased = message.leased_from_us > self._host.clock.monotonic_us() and not message.forked
        if leased and life == self._host.lives:
            self._fail(message, "it is leased, and was handed out again")
        self.exact += low == high
        message.hand_outs.append((self._time.worked_s, message.low))
        message.low = message.high = attempt
        message.blurred = crossed + message.handing_back
        message.low = max(attempt - message.blurred, 0)  # this attempt may be the one that is handed back
        message.delivery = row["delivery"]
        message.stamp += 1
        message.forked &= retry or not self._in_place
        return message

    async def _list(self) -> None:
        """Look at the letters: each was given up after its last attempt, and not before."""
        after: int | None = -1
        while after is not None:
            arguments: dict[str, Any] = NAMES | {"action": "list", "bodies": True, "after": after, "max": 256}
            reply = await self._consumers[0].request("dead_letters", arguments)
            for letter in reply["letters"]:
                message = self._messages[int(letter["body"][1:-1])]
                self._letters.add(message.token)
                if letter["attempts"] != self._attempts_max and not message.forked:
                    self._fail(message, f"given up after {letter['attempts']} attempts, and not {self._attempts_max}")
            after = reply["next"]

    # -- the end

    async def settle(self, leap: Callable[[float], None]) -> None:
        """Take what is left: what nobody acked arrives, or is a letter."""
        await self._end()
        consumer = self._consumers[0]
        for client in self._consumers:
            client.close()
        if self._host.clock.peak_us > self._host.clock.now_us():
            leap((self._host.clock.peak_us - self._host.clock.now_us()) / 1e6)  # pauses from a clock that was ahead
        for _ in range(TURNS_MAX):
            if self._attempts_max and self._policy_set:
                await self._guarded(consumer, self._list)
            missing = [message for message in self._messages.values() if self._is_missing(message)]
            if not missing:
                break
            if not await self._guarded(consumer, partial(self._turn, consumer)):
                leap(25)
                await consumer.sleep(0.7)
        else:
            self._fail(missing[0], "it was stored and never acked, and does not arrive")
        self._note("counting", "ends", exact=self.exact, letters=len(self._letters))

    def _is_missing(self, message: Counted) -> bool:
        over = message.acked or message.maybe_over or message.token in self._letters
        clock = self._host.clock
        age_us = max(clock.peak_us - message.asked_us, clock.monotonic_us() - message.asked_uptime_us)
        return message.stored and not over and age_us <= KEPT_US

    def _fail(self, message: Counted, what: str) -> None:
        self._note("counting", "FAILURE", message=str(message))
        raise SimulationFailure(f"counted c{message.token}: {what}")


def _tokens(found: list[Counted]) -> list[int]:
    return [message.token for message in found]


def _packed(found: list[Counted]) -> dict[str, Any]:
    """The present deliveries of messages as arguments."""
    return {"count": len(found), "deliveries": struct.pack(f"<{len(found)}q", *[message.delivery for message in found])}
