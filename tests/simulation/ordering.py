"""Messages with order keys in the workload: a producer that publishes them, and two consumers of one group.

The books know the order in which messages stand in their queue. A consumer may get a message only if the answer to an ack of
each earlier one of its key was asked for, or if the earlier one came before it in the same reply. In some seeds an operator
skips messages (`skipping.py`). Then the books are exact: an acked or skipped message never comes again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NoReturn

import trio

from delayserver.protocol.errors import DelayServerError
from tests.simulation.client import Client
from tests.simulation.damage import Damage
from tests.simulation.failures import SimulationFailure
from tests.simulation.host import Host
from tests.simulation.workload import Workload

SUBJECT, GROUP = "ordered", "workers"
NAMES = {"subject": SUBJECT, "group": GROUP}
KEYS = ("a", "b", "c", "")
MESSAGES_MAX = 150
# Messages that no group takes go after a week.
KEPT_US = 6 * 86_400 * 1_000_000
TURNS_MAX = 400


@dataclass(slots=True)
class Keyed:
    """One message that was answered as stored, or that arrived: its key and its position, -1 while it is not known."""

    token: int
    key: str
    asked_us: int
    asked_uptime_us: int
    position: int = -1
    stored: bool = False
    arrived: bool = False
    settled: bool = False
    """An ack of it was sent, with an answer or without."""
    deliveries: int = 0
    """Pulls that brought it."""
    acked: bool = False
    """An answer said so."""
    failed_life: int = 0
    """The life in which it certainly failed, as the first unfinished message of its key; 0 if there is none."""
    asks: set[int] = field(default_factory=set)
    """Skips that may have taken it."""
    skipped: bool = False
    """An answer said so."""
    letter_life: int = 0
    """The life in which it was last seen as a dead letter; 0 if it was not."""

    @property
    def is_over(self) -> bool:
        """Whether an answer said that it is done, so that it never comes again."""
        return self.acked or self.skipped


class Ordering(Workload):
    """The clients and their books."""

    def __init__(
        self,
        producer: Client,
        consumers: list[Client],
        host: Host,
        damage: Damage,
        chance: Random,
        note: Callable[..., None],
        policy: dict[str, Any] | None = None,
        *,
        exact: bool = False,
    ) -> None:
        """`policy`: what the group asks for before its first pull. Its `failed_key` says what a key does after the last
        attempt of its message. `exact`: an operator skips messages, so more of them fail. The books need files that lose
        nothing then, and a broker that lets go of nothing."""
        super().__init__(host, chance, note)
        self._producer = producer
        self._consumers = consumers
        self._damage = damage
        self.messages: dict[int, Keyed] = {}
        self._policy = policy
        self._asked = False
        self._exact = exact
        # Where the group goes on after the node kept no more for it.
        self._first = 0
        # A pull without an answer may have been the one that was told so.
        self._first_unsure = False
        # Requests without an answer: each may have been a delivery of each message.
        self.lost = 0

    @property
    def keys_wait(self) -> bool:
        """Whether keys wait for failed messages without end."""
        return self._policy is not None and self._policy["failed_key"] == "wait"

    @property
    def consumers(self) -> int:
        """How many pull."""
        return len(self._consumers)

    def start(self, nursery: trio.Nursery) -> None:
        """Publish and consume until the end is near."""
        self._begin(nursery, self._producer, partial(self._publish, self._producer))
        for client in self._consumers:
            self._begin(nursery, client, partial(self._consume, client))

    def _had_no_answer(self) -> None:
        self.lost += 1
        self._first_unsure |= self._host.may_let_go

    def _was_refused(self, error: DelayServerError) -> None:
        if error.name == "position_out_of_range":
            self._first = max(self._first, error.details["first"])

    async def _publish(self, client: Client) -> None:
        await client.sleep(self._chance.choice([0.01, 0.3, 5.0]))
        if len(self.messages) >= MESSAGES_MAX:
            return
        group = [self._new() for _ in range(self._chance.choice([1, 1, 4, 10]))]
        rows: list[dict[str, Any]] = []
        for message in group:
            rows.append({"subject": SUBJECT, "body": b"o%d." % message.token})
            if message.key:
                rows[-1]["order_key"] = message.key
            if self._exact:
                rows[-1]["message_id"] = f"o{message.token}"
        self._note(client.name, "publish in order", tokens=[message.token for message in group])
        results = (await client.request("publish", {"messages": rows}))["results"]
        for message, result in zip(group, results, strict=True):
            if "position" in result:
                message.position, message.stored = result["position"], True

    def _new(self) -> Keyed:
        clock = self._host.clock
        token = len(self.messages) + 1
        message = Keyed(token, self._chance.choice(KEYS), clock.now_us(), clock.monotonic_us())
        self.messages[token] = message
        return message

    async def _consume(self, client: Client) -> int:
        chance = self._chance
        if self._policy is not None and not self._asked:
            await client.request("policy", NAMES | {"set": self._policy})
            self._asked = True
        lives = self._host.lives
        arguments = NAMES | {"max_messages": chance.choice([1, 3, 100]), "wait_ms": 0 if self.ending else 3_000}
        owned = self._exact and chance.random() < 0.5
        if owned:
            arguments["outlive_ms"] = chance.choice([0, 2_000])
        over = {token for token, message in self.messages.items() if message.is_over or message.letter_life == lives}
        rows = (await client.request("pull", arguments))["messages"]
        if not rows:
            return 0
        if self._first_unsure:
            await self._look_for_first(client)
        found = self._arrived(rows)
        if self._exact:
            self._judge_again(found, over, lives)
        if self._overtakes(found) and self._host.may_let_go:
            # A pull that waited may bring what comes behind lost messages before the group is told of them.
            await self._look_for_first(client)
        for message, other in self._overtakes(found):
            self._note("ordering", "FAILURE", other=str(other))
            self.fail(message, f"it overtook o{other.token} at {other.position} of its key")
        self._note(client.name, "pulled in order", tokens=[message.token for message in found])
        deliveries = [row["delivery"] for row in rows]
        if self.ending:
            await self._ack(client, found, deliveries)
            return len(found)
        kind = chance.random()
        if kind < 0.1:  # a consumer that dies
            if owned:
                client.close()
            await client.sleep(chance.choice([0, 30]))
        elif kind < (0.6 if self._exact else 0.25):
            cut = chance.randrange(len(found))
            await self._ack(client, found[:cut], deliveries[:cut])
            stop = chance.choice([cut + 1, len(found)])
            packed = {"count": stop - cut, "deliveries": _packed(deliveries[cut:stop])}
            given: dict[str, Any] = NAMES | packed | {"delay_ms": chance.choice([0, 100, 5_000])}
            counts = not self._exact or chance.random() < 0.8
            if not counts:
                given[chance.choice(["unseen", "snooze"])] = True
            nacked = await client.request("nack", given)
            dead = nacked.get("dead_lettered", 0)
            if counts and nacked["nacked"] == stop - cut and not dead and lives == self._host.lives:
                self._failed(found, cut, stop, lives)
            if stop < len(found) and nacked["nacked"] == 1:
                await self._ack_behind(client, found[cut], list(zip(found, deliveries, strict=True))[stop:], lives)
        else:
            await client.sleep(chance.choice([0, 0, 0.2]))
            await self._ack(client, found, deliveries)
        return len(found)

    def _judge_again(self, found: list[Keyed], over: set[int], lives: int) -> None:
        """Messages came with a pull that was asked for when those of `over` were done. Without a key, a crash may leave a
        message and its redelivery."""
        for message in found:
            if message.token in over and message.key and (message.is_over or lives == self._host.lives):
                self.fail(message, "it was done, and was handed out again")

    def _failed(self, found: list[Keyed], cut: int, stop: int, life: int) -> None:
        """Those at [cut, stop) were leased, and are nacked. Of each key only the first one failed."""
        if any(message.key and not message.acked for message in found[:cut]):
            return
        firsts: dict[str, Keyed] = {}
        for message in found[cut:stop]:
            firsts.setdefault(message.key, message)
        for key, message in firsts.items():
            message.failed_life = life if key else 0

    async def _look_for_first(self, client: Client) -> None:
        page = await client.request("read", {"subject": SUBJECT, "position": 0})
        self._first, self._first_unsure = max(self._first, page["first"]), False

    async def _ack_behind(self, client: Client, failed: Keyed, rest: list[tuple[Keyed, int]], lives: int) -> None:
        """Ack what came behind a nacked message. The node has taken back those of its key, so it must refuse their acks.

        A new process does not know that. Without an answer it is not known whether it was a new one."""
        taken_back = [(message, delivery) for message, delivery in rest if message.key == failed.key and failed.key]
        others = [each for each in rest if each not in taken_back]
        await self._ack(client, [message for message, _ in others], [delivery for _, delivery in others])
        if not taken_back:
            return
        packed = {"count": len(taken_back), "deliveries": _packed([delivery for _, delivery in taken_back])}
        acked = len(taken_back)
        try:
            acked = (await client.request("ack", NAMES | packed))["acked"]
            if acked and self._host.lives == lives:
                raise SimulationFailure(f"{acked} acks counted behind o{failed.token}, which was nacked before")
        finally:
            for message, _ in taken_back if acked else ():
                message.settled = True

    async def _ack(self, client: Client, found: list[Keyed], deliveries: list[int]) -> None:
        if not deliveries:
            return
        for message in found:
            message.settled = True
        skipped = sum(message.skipped for message in found)
        reply = await client.request("ack", NAMES | {"count": len(deliveries), "deliveries": _packed(deliveries)})
        if reply["acked"] > len(found) - skipped:
            self.fail(
                found[0], f"{reply['acked']} of its batch of {len(found)} are acked, and {skipped} were skipped before"
            )
        if reply["acked"] == len(found):
            for message in found:
                message.acked = True
                self.judge_ends(message)

    def judge_ends(self, message: Keyed) -> None:
        """A message has one end."""
        if message.acked and message.skipped:
            self.fail(message, "it is acked, and it is skipped")

    def _arrived(self, rows: list[dict[str, Any]]) -> list[Keyed]:
        found: list[Keyed] = []
        for row in rows:
            body = row["body"]
            message = self.messages.get(int(body[1:-1]))
            if message is None or (row.get("order_key") or "") != message.key:
                raise SimulationFailure(
                    f"a message arrived that no client published so: {body!r} {row.get('order_key')}"
                )
            message.arrived, message.position = True, row["position"]
            message.deliveries += 1
            found.append(message)
        return found

    def _overtakes(self, found: list[Keyed]) -> list[tuple[Keyed, Keyed]]:
        """Messages that came, each with an earlier one of its key that is unfinished. One that nobody answered for may be
        lost in a crash, and any one in damage."""
        if self._damage.of_store:
            return []
        return [
            (message, other)
            for place, message in enumerate(found)
            if message.key
            for other in self.messages.values()
            if other.key == message.key and other.stored and other.position < message.position
            if not self._is_over(other, found[:place])
        ]

    def _is_over(self, message: Keyed, before: list[Keyed]) -> bool:
        """Whether later messages of its key may come: the ones `before` came in the same reply."""
        return message in before or self.may_be_over(message)

    def may_be_over(self, message: Keyed) -> bool:
        """Whether it may be done."""
        over = message.settled or message.position < self._first or message.skipped or bool(message.asks)
        return over or self._may_be_given_up(message) or self.is_old(message)

    def unfinished_before(self, message: Keyed) -> Keyed | None:
        """An earlier message of its key that is certainly unfinished."""
        for other in self.messages.values():
            earlier = other.key == message.key and other.stored and other.position < message.position
            if earlier and not self.may_be_over(other):
                return other
        return None

    async def settle(self, leap: Callable[[float], None]) -> None:
        """Take what is left: all that was answered must have arrived."""
        await self._end()
        consumer = self._consumers[0]
        for _ in range(TURNS_MAX):
            missing = [message for message in self.messages.values() if self._is_missing(message)]
            if not missing:
                return
            if not await self._guarded(consumer, partial(self._consume, consumer)):
                leap(25)
                await consumer.sleep(0.7)
        self.fail(missing[0], "it was stored, and never arrived, or never again after it had failed")

    def _is_missing(self, message: Keyed) -> bool:
        if self._exact and message.key and not (self._may_be_given_up(message) or self.is_old(message)):
            is_letter = message.letter_life == self._host.lives
            return message.stored and not (message.settled or message.skipped or is_letter)
        over = message.arrived or self.is_old(message) or self._may_be_given_up(message) or self._damage.of_store
        over = over or 0 <= message.position < self._first
        return message.stored and not over

    def _may_be_given_up(self, message: Keyed) -> bool:
        """Whether it may have had its last attempt, after which its key goes on. A crash counts as an attempt too."""
        if self._policy is None or (message.key and self._policy["failed_key"] == "wait"):
            return False
        deliveries: int = message.deliveries + self.lost + self._host.lives - 1
        return deliveries >= int(self._policy["attempts"])

    def is_old(self, message: Keyed) -> bool:
        """Whether retention may have removed it."""
        clock = self._host.clock
        return max(clock.peak_us - message.asked_us, clock.monotonic_us() - message.asked_uptime_us) > KEPT_US

    def fail(self, message: Keyed, what: str) -> NoReturn:
        """A promise is broken."""
        self._note("ordering", "FAILURE", message=str(message))
        raise SimulationFailure(f"ordered o{message.token} at {message.position}: {what}")


def _packed(deliveries: list[int]) -> bytes:
    return struct.pack(f"<{len(deliveries)}q", *deliveries)
