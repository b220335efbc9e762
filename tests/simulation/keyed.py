"""Delayed messages with order keys in the workload: a producer that sends them ahead of time and late, and a consumer at
each broker that has them.

The books know when each message was accepted, and where each broker has it. Of two messages of a key at one broker, the one
with the lower (due time, sequence) has the lower position, if it was accepted in time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import trio

from tests.simulation.client import Client
from tests.simulation.damage import Damage
from tests.simulation.failures import SimulationFailure
from tests.simulation.host import Host
from tests.simulation.settings import nodes_of_route, shares_nodes
from tests.simulation.workload import Act, Workload

EMBEDDED, REMOTE, GROUP = "keyed", "remote.keyed", "keeper"
KEYS = ("a", "a", "b", "")
MESSAGES_MAX = 200
DELAYS_MS = (-5_000, 0, 5, 40, 300, 1_500, 20_000, 400_000, 5_000_000)
# A message that is accepted less than this before a later one of its key is due may come behind that one.
AHEAD_US = 5_000
# A reload is taken over within this, also beside a crash.
RELOAD_US = 5_000_000
TURNS_MAX = 400


@dataclass(slots=True)
class Ahead:
    """One message, and what is known of it."""

    token: int
    subject: str
    key: str
    due_ms: int
    steps: int
    """How often the clock had been stepped when it was sent."""
    sequence: int = 0
    """0 while it is not known."""
    accepted_us: int = 0
    """When it was accepted, by the server: a consumer is told so. 0 before."""
    refused: bool = False
    arrived: bool = False
    positions: dict[str, int] = field(default_factory=dict)
    """By broker. None of one that may have got it twice."""
    dispatched_us: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Its place among those of its key."""
        return self.due_ms, self.sequence


class KeyedAhead(Workload):
    """The clients and their books."""

    def __init__(
        self,
        producer: Client,
        consumers: list[tuple[Client, str]],
        host: Host,
        damage: Damage,
        chance: Random,
        note: Callable[..., None],
    ) -> None:
        """`consumers`: clients of the brokers, each with the subject that it pulls."""
        super().__init__(host, chance, note)
        self._producer = producer
        self._consumers = consumers
        self._subjects = sorted({subject for _client, subject in consumers})
        self._damage = damage
        self.messages: dict[int, Ahead] = {}
        # Whether two groups of a route have had the same nodes: between what each of them hands to a node is no order.
        self._shared_nodes = False
        # When a reload may have given the messages of REMOTE other nodes: spans of wall time, from look to look.
        self._rerouted_us: list[tuple[int, int]] = []
        self._route: list[set[str]] = []
        self._looked_us = 0

    def start(self, nursery: trio.Nursery) -> None:
        """Send and consume until the end is near."""
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        while not self.ending:
            if not self._host.open.is_set():
                await self._producer.sleep(0.5)
                continue
            settings = (self._host.settings, self._host.file)
            self._shared_nodes |= any(shares_nodes(each, REMOTE) for each in settings)
            self._look_at_the_route()
            await self._guarded(self._producer, self._send)
            for client, subject in self._consumers:
                await self._guarded(client, partial(self._consume, client, subject))
            await self._producer.sleep(self._chance.choice([0.01, 0.2, 2.0]))
        self._ended.set()

    async def _guarded(self, client: Client, act: Act) -> Any:
        """Without a pause: the next client goes on at once."""
        with client.noted(self._note):
            return await act()

    def _look_at_the_route(self) -> None:
        route, now_us = nodes_of_route(self._host.file, REMOTE), self._host.clock.now_us()
        if route != self._route:
            self._rerouted_us.append((self._looked_us, now_us + RELOAD_US))
        self._route, self._looked_us = route, now_us

    async def _send(self) -> int:
        chance, clock = self._chance, self._host.clock
        if chance.random() < 0.7:
            return await self._send_about(clock.now_ms() + chance.choice(DELAYS_MS))
        # Some are due soon, and earlier ones of their keys are accepted just in time: these may wait for their sync then.
        base_ms = clock.now_ms() + 60
        sent = await self._send_about(base_ms)
        await self._producer.sleep(max(base_ms - chance.choice([6, 8, 12, 25]) - clock.now_ms(), 0) / 1000)
        return sent + await self._send_about(base_ms - 1)

    async def _send_about(self, base_ms: int) -> int:
        """Sends a group of messages that are due at a time or soon after it."""
        if len(self.messages) >= MESSAGES_MAX:
            return 0
        chance, clock = self._chance, self._host.clock
        group: list[Ahead] = []
        for _ in range(chance.choice([1, 2, 6, 12])):
            token = len(self.messages) + 1
            due_ms = max(base_ms + chance.choice([0, 1, 7, 60, 3_000]), 1)
            subject, key = chance.choice(self._subjects), chance.choice(KEYS)
            self.messages[token] = Ahead(token, subject, key, due_ms, clock.step_count)
            group.append(self.messages[token])
        rows: list[dict[str, Any]] = []
        for message in group:
            rows.append({"subject": message.subject, "body": b"k%d." % message.token, "due_ms": message.due_ms})
            if message.key:
                rows[-1]["order_key"] = message.key
        self._note("keyed", "send", tokens=[message.token for message in group])
        results = (await self._producer.request("send", {"messages": rows}))["results"]
        for message, result in zip(group, results, strict=True):
            message.refused = "error" in result
            if not message.refused:
                message.sequence = result["sequence"]
        return len(group)

    async def _consume(self, client: Client, subject: str) -> int:
        names = {"subject": subject, "group": GROUP}
        count = self._chance.choice([1, 4, 1000])
        rows = (await client.request("pull", names | {"max_messages": count, "wait_ms": 0}))["messages"]
        for row in rows:
            self._arrived(client.name, row)
        if rows and (self.ending or self._chance.random() < 0.9):
            packed = struct.pack(f"<{len(rows)}q", *[row["delivery"] for row in rows])
            await client.request("ack", names | {"count": len(rows), "deliveries": packed})
        return len(rows)

    def _arrived(self, broker: str, row: dict[str, Any]) -> None:
        message = self.messages.get(int(row["body"][1:-1]))
        # A redelivery of a message without a key is a record of its own, and so is a redispatch. They have no position in
        # the subject, and may be the first attempt: a hand-out whose reply was not sent is none.
        own = row["attempt"] == 1 and row["position"] >= 0
        if message is None or (row.get("order_key") or "") != message.key or (own and row["due_ms"] != message.due_ms):
            raise SimulationFailure(f"a message arrived that no client sent so: {row!r}")
        self._note("keyed", "arrived", token=message.token, broker=broker, position=row["position"])
        message.arrived = True
        if row["due_ms"] != message.due_ms:
            return
        if own:
            message.sequence = message.sequence or row["sequence"]
            message.accepted_us = row["accepted_us"]
        first = not message.positions
        message.positions[broker], message.dispatched_us = row["position"], row["dispatched_us"]
        if message.key and first and row["attempt"] == 1:
            self._judge(broker, message, row["dispatched_us"])

    def _judge(self, broker: str, message: Ahead, dispatched_us: int) -> None:
        """No other message of its key may stand on the wrong side of it."""
        for other in self.messages.values():
            if (other.subject, other.key) != (message.subject, message.key) or list(other.positions) != [broker]:
                continue
            if other is message or (other.positions[broker] < message.positions[broker]) == (
                other.order < message.order
            ):
                continue
            earlier, later = sorted((message, other), key=lambda each: each.order)
            if message.subject == REMOTE and (self._shared_nodes or self._was_rerouted(earlier)):
                continue
            if self._was_in_time(earlier, later) and not self._damaged(earlier) and not self._damaged(later):
                self._note("keyed", "FAILURE", earlier=str(earlier), later=str(later), dispatched_us=dispatched_us)
                raise SimulationFailure(f"k{later.token} of key {later.key} was handed over before k{earlier.token}")

    def _was_rerouted(self, earlier: Ahead) -> bool:
        """Whether a reload gave its key other nodes while an attempt with it may have run, which then failed."""
        spans = self._rerouted_us
        return any(earlier.due_ms * 1000 <= end and begin <= earlier.dispatched_us for begin, end in spans)

    def _was_in_time(self, earlier: Ahead, later: Ahead) -> bool:
        """Whether a message was accepted before a later one of its key could be handed over, by a clock that ran evenly. The
        server says when: it may not count from a later moment, such as that of its answer."""
        accepted = earlier.accepted_us and earlier.accepted_us <= later.due_ms * 1000 - AHEAD_US
        return bool(accepted) and earlier.steps == later.steps == self._host.clock.step_count

    def _damaged(self, message: Ahead) -> bool:
        sequences = (
            {message.sequence} if message.sequence else {each for flip in self._damage.flips for each in flip.sequences}
        )
        return bool(self._damage.explains(sequences, [message.due_ms]))

    def due_times_ms(self) -> list[int]:
        """When the messages are due that the server may have."""
        return [message.due_ms for message in self.messages.values() if not message.refused]

    def rows_hit(self) -> int:
        """Messages that damage may have hit, so that they may have any outcome or none."""
        return sum(not message.refused and self._damaged(message) for message in self.messages.values())

    def range_of(self, name: str) -> tuple[int, int]:
        """What these messages add to a count of the status, at least and at most, when no request is under way."""
        possible = [message for message in self.messages.values() if not message.refused]
        sound = [message for message in possible if message.sequence and not self._damaged(message)]
        if name == "accepted":
            return len(sound), len(possible)
        if name == "delivered":
            return sum(message.arrived for message in sound), len(possible)
        return (0, len(possible)) if name == "pending" else (0, 0)

    async def settle(self, leap: Callable[[float], None]) -> None:
        """Take what is left: all that was answered must have arrived."""
        await self._end()
        for _ in range(TURNS_MAX):
            missing = [
                message
                for message in self.messages.values()
                if message.sequence and not message.arrived and not self._damaged(message)
            ]
            # A group that a node kept no more for may have lost any message.
            if not missing or any(client.out_of_range for client, _subject in self._consumers):
                return
            came = 0
            for client, subject in self._consumers:
                came += await self._guarded(client, partial(self._consume, client, subject)) or 0
            if not came:
                ahead_s = min(message.due_ms for message in missing) / 1000 - self._host.clock.now_us() / 1e6
                leap(max(ahead_s, 25 if ahead_s < -1 else 0.1))
                await self._producer.sleep(0.7)
        raise SimulationFailure(f"k{missing[0].token} was accepted, and never arrived: {missing[0]}")
