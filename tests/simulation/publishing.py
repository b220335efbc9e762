"""Producers that publish, several requests at a time over one connection, and a consumer group that pulls what they stored.

Its books share no code with the server, and nothing with the books of sent messages. A message is recognised by its token.
What nobody answered stays `unknown`: it may be stored or not, but not twice.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import trio

from delayserver.protocol.errors import DelayServerError
from tests.simulation.client import Client, Lost
from tests.simulation.damage import Damage
from tests.simulation.failures import SimulationFailure
from tests.simulation.host import Host
from tests.simulation.workload import Workload

SUBJECT, GROUP = "published", "readers"
NAMES = {"subject": SUBJECT, "group": GROUP}
UNKNOWN, STORED, REFUSED = "unknown", "stored", "refused"
# Published without a reply, and read by a server that did not refuse it: it arrives, unless that server dies.
POSTED = "posted"
# An error of these does not say that nothing was stored.
_NOT_CERTAIN = ("storage_failed", "internal_error", "in_doubt")
# The pauses of a producer between its requests.
PAUSES_S = (0.01, 0.3, 2.0)
# Messages that no group takes go after a week.
KEPT_US = 6 * 86_400 * 1_000_000
TURNS_MAX = 300
# Filters that do not parse, with the place of the first fault.
BAD_FILTERS = (("n >", 3), ("(n = 1", 6), ("n = 1 AND", 9), ("n LIKE 5", 7), ("n @ 2", 2))


@dataclass(slots=True)
class Published:
    """One message: where the answer or the first pull says that it stands, -1 if neither has."""

    token: int
    body: bytes
    tag: str | None
    asked_us: int
    asked_uptime_us: int
    state: str = UNKNOWN
    position: int = -1
    arrived: bool = False
    acked: bool = False
    life: int = 0
    """The life of the broker in which it was found there."""
    posted_life: int = 0
    """The life of the broker that read it, of one that is posted."""


class Publishing(Workload):
    """The producers, the group and their books."""

    def __init__(
        self,
        producers: list[Client],
        consumer: Client,
        host: Host,
        damage: Damage,
        chance: Random,
        note: Callable[..., None],
        pauses_s: Sequence[float] = PAUSES_S,
        rest_s: float = 0.0,
    ) -> None:
        """Producers pause for one of `pauses_s` before they publish, and the group for up to `rest_s` before it pulls."""
        super().__init__(host, chance, note)
        self._pauses_s = pauses_s
        self._rest_s = rest_s
        self._producers = producers
        self._consumer = consumer
        self._damage = damage
        self._messages: dict[int, Published] = {}
        self._at: dict[int, int] = {}
        # Where the group goes on after the node kept no more for it, and when it was told, since the start.
        self._first = self._let_go_uptime_us = 0
        # The latest wall time at which a pull got no answer, and the time since the start then; and that of the last such.
        self._lost_us = self._lost_uptime_us = self._last_lost_uptime_us = 0

    def start(self, nursery: trio.Nursery) -> None:
        """Publish and consume until the end is near."""
        for client in self._producers:
            self._begin(nursery, client, partial(self._publish, client))
        self._begin(nursery, self._consumer, partial(self._consume, self._consumer))

    # -- producing

    async def _publish(self, client: Client) -> None:
        """Some requests at once over one connection."""
        await client.sleep(self._chance.choice(self._pauses_s))
        if self._chance.random() < 0.2:
            await self._post(client)
            return
        groups = [
            [self._new() for _ in range(self._chance.choice([1, 1, 2, 7]))]
            for _ in range(self._chance.choice([1, 2, 5]))
        ]
        requests = [self._rows(group) if self._chance.random() < 0.6 else self._columns(group) for group in groups]
        clock = self._host.clock
        now_ms, steps = clock.lowest_us // 1000, clock.step_count
        for request in requests:
            if self._chance.random() < 0.15:
                request["deadline_ms"] = max(now_ms + self._chance.choice([-5, 1, 40, 2_000]), 1)
        self._note(client.name, "publish", tokens=[[message.token for message in group] for group in groups])
        replies = await client.request_all("publish", requests)
        reached = -1
        for group, request, reply in zip(groups, requests, replies, strict=True):
            if reply is None:
                continue
            late = request.get("deadline_ms", now_ms + 1) <= now_ms and clock.step_count == steps
            if late and not isinstance(reply, DelayServerError):
                self._fail(group[0], "its deadline had passed when it was asked for, and it was stored")
            if isinstance(reply, DelayServerError):
                self._refused(group, reply)
                continue
            positions = _positions(reply, len(group))
            for message, position in zip(group, positions, strict=True):
                if isinstance(position, str):
                    self._refused_row(message, position)
                    continue
                if position <= reached:
                    self._fail(message, f"stored at {position}, and what its producer published before is at {reached}")
                reached = position
                self._stored(message, position)
        self._note(client.name, "published", positions=[message.position for group in groups for message in group])

    async def _post(self, client: Client) -> None:
        """Messages without a reply, some of which must be refused, and a ping that asks for how many were."""
        made, life = client.connections, self._host.lives
        group = [self._new() for _ in range(self._chance.choice([1, 2, 7]))]
        bad = self._chance.choice([0, 0, 1, 2])
        request = self._rows(group)
        request["messages"] += [{"subject": "", "body": b"p0."}] * bad
        self._note(client.name, "posts", tokens=[message.token for message in group], bad=bad)
        await client.post("publish", request)
        alone = client.connections == max(made, 1)
        told = client.one_way_refused
        await client.request("ping", {})
        if not alone or client.connections != max(made, 1) or self._host.lives != life:
            return  # another connection: the server may not have read it
        told = client.one_way_refused - told
        if told < bad:
            self._fail(group[0], f"{bad} messages beside it must be refused, and {told} were")
        if told > bad:
            return  # the books do not know which of them were refused
        for message in group:
            message.posted_life = life
            message.state = POSTED if message.state == UNKNOWN else message.state

    def _new(self) -> Published:
        token = len(self._messages) + 1
        padding = b"." * self._chance.choice([0, 0, 50, 3000])
        tag = self._chance.choice([None, "red", "blue"])
        clock = self._host.clock
        message = Published(token, b"p%d." % token + padding, tag, clock.now_us(), clock.monotonic_us())
        self._messages[token] = message
        return message

    def _rows(self, group: list[Published]) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        for message in group:
            rows.append({"subject": SUBJECT, "body": message.body})
            if message.tag is not None:
                rows[-1]["tag"] = message.tag
        return {"messages": rows}

    def _columns(self, group: list[Published]) -> dict[str, Any]:
        count = len(group)
        tags = sorted({message.tag for message in group if message.tag is not None})
        index = [0 if message.tag is None else 1 + tags.index(message.tag) for message in group]
        return {
            "count": count,
            "subject": SUBJECT,
            "bodies": b"".join(message.body for message in group),
            "body_length": struct.pack(f"<{count}I", *[len(message.body) for message in group]),
            "tags": tags,
            "tag_index": struct.pack(f"<{count}I", *index),
        }

    def _refused(self, group: list[Published], error: DelayServerError) -> None:
        for message in group:
            self._refused_row(message, error.name)

    def _refused_row(self, message: Published, error: str) -> None:
        if error in _NOT_CERTAIN:
            return
        if message.arrived:
            self._fail(message, f"refused as {error}, and it had arrived")
        message.state = REFUSED

    def _stored(self, message: Published, position: int) -> None:
        message.state = STORED
        self._place(message, position)

    # -- consuming

    async def _consume(self, client: Client) -> int:
        if self._rest_s and not self.ending:
            await client.sleep(self._chance.random() * self._rest_s)
        if not self.ending and self._chance.random() < 0.05:
            await self._pull_with_a_bad_filter(client)
        arguments = NAMES | {"max_messages": self._chance.choice([1, 5, 1000]), "wait_ms": 0 if self.ending else 3_000}
        try:
            messages = (await client.request("pull", arguments))["messages"]
        except DelayServerError as error:
            if error.name == "position_out_of_range":
                self._first = max(self._first, error.details["first"])
                self._let_go_uptime_us = self._host.clock.monotonic_us()
            raise
        except Lost:
            clock = self._host.clock
            self._last_lost_uptime_us = clock.monotonic_us()
            if clock.now_us() > self._lost_us:
                self._lost_us, self._lost_uptime_us = clock.now_us(), clock.monotonic_us()
            raise
        if not messages:
            return 0
        found = [self._arrived(message) for message in messages]
        self._note(client.name, "pulled", tokens=[message.token for message in found])
        if not self.ending and self._chance.random() < 0.1:
            return len(found)  # forgotten: they come again after their lease
        deliveries = [message["delivery"] for message in messages]
        packed = {"count": len(deliveries), "deliveries": struct.pack(f"<{len(deliveries)}q", *deliveries)}
        if not self.ending and self._chance.random() < 0.1:
            await client.request("nack", NAMES | packed | {"delay_ms": 0})
            return len(found)
        if (await client.request("ack", NAMES | packed))["unknown"] == 0:
            for message, row in zip(found, messages, strict=True):
                message.acked |= not row["delivery"] >> 62 & 1
        return len(found)

    async def _pull_with_a_bad_filter(self, client: Client) -> None:
        """The server says where the fault is, and the group keeps what it has."""
        text, offset = self._chance.choice(BAD_FILTERS)
        try:
            await client.request("pull", NAMES | {"where": text})
        except DelayServerError as error:
            if error.name == "filter_invalid" and error.details["offset"] != offset:
                raise SimulationFailure(f"the fault of {text!r} is at {offset}, and not: {error.details}") from error
            return
        raise SimulationFailure(f"a pull with the filter {text!r} was answered")

    def _arrived(self, row: dict[str, Any]) -> Published:
        body = row["body"]
        token = int(body[1 : body.index(b".")]) if body[:1] == b"p" and b"." in body else 0
        message = self._messages.get(token)
        if message is None or message.body != body or row.get("tag") != message.tag:
            raise SimulationFailure(f"a message arrived that no client published so: {body[:60]!r} {row.get('tag')}")
        if message.state == REFUSED:
            self._fail(message, "it was refused, and arrived")
        message.arrived = True
        if row["delivery"] >> 62 & 1:
            return message  # a redelivery stands in another queue
        if message.acked and not self._damage.of_progress:
            self._fail(message, "it was acked, and handed out again")
        self._place(message, row["delivery"] & (1 << 44) - 1)
        return message

    # -- the books

    def _place(self, message: Published, position: int) -> None:
        """It stands at one position, and nothing else stands there."""
        if message.position not in (-1, position):
            self._fail(message, f"it stands at {position} too")
        other = self._messages[self._at.setdefault(position, message.token)]
        if (
            self._damage.of_store and other is not message
        ):  # the last record is lost with its bits, and its position is free
            other = message
            self._at[position] = message.token
        if other is not message:
            if other.state != UNKNOWN or other.acked or other.life == self._host.lives:
                self._fail(message, f"position {position} is that of p{other.token}")
            # Nobody answered for it, and a consumer saw it before its sync. A crash took it, and its position is free.
            other.position = -1
            self._at[position] = message.token
        message.position, message.life = position, self._host.lives

    async def settle(self, leap: Callable[[float], None]) -> None:
        """Take what is left: all that was answered must have arrived."""
        await self._end()
        for _ in range(TURNS_MAX):
            missing = [message for message in self._messages.values() if self._is_missing(message)]
            if not missing:
                return
            if not await self._guarded(self._consumer, partial(self._consume, self._consumer)):
                leap(25)
                await self._consumer.sleep(0.7)
        self._fail(missing[0], "it was answered as stored, and never arrived")

    def _is_missing(self, message: Published) -> bool:
        clock = self._host.clock
        ages_us = (clock.peak_us - message.asked_us, clock.monotonic_us() - message.asked_uptime_us)
        old = max(ages_us) > KEPT_US
        posted = message.state == POSTED and message.posted_life == self._host.lives
        # A pull without an answer may have had it while the clock was ahead. Its redelivery is due by that clock.
        waits = self._lost_us > clock.now_us() and message.asked_uptime_us <= self._lost_uptime_us
        # Or its redelivery lies in a window of which nothing is delivered before a rebuild.
        waits |= bool(self._damage.of_outcomes) and message.asked_uptime_us <= self._last_lost_uptime_us
        # Of a message that was posted no answer says where it stands.
        let_go = (
            message.position < self._first
            if message.position >= 0
            else message.asked_uptime_us <= self._let_go_uptime_us
        )
        lost = old or waits or self._damage.of_store or let_go
        return (message.state == STORED or posted) and not message.arrived and not lost

    def _fail(self, message: Published, what: str) -> None:
        self._note("publishing", "FAILURE", promise=what, message=str(message)[:120])
        raise SimulationFailure(f"published p{message.token} ({message.state} at {message.position}): {what}")


def _positions(reply: dict[str, Any], count: int) -> list[int | str]:
    """Of all messages of a request; of a refused row the name of its error. In columns none may be refused."""
    if "results" in reply:
        return [result["position"] if "position" in result else result["error"] for result in reply["results"]]
    if reply["accepted"] != count:
        raise SimulationFailure(f"a publish was answered {reply}")
    position = reply["position"]
    if isinstance(position, int):
        return [position]
    if isinstance(position, list):
        return list(range(position[0], position[0] + count))
    return list(struct.unpack(f"<{count}q", position))
