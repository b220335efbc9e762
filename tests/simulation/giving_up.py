"""A consumer group that fails, has a policy, and gives messages up; and the books that judge its dead letters.

It shares no code with the server, and nothing with the books of the other groups. It pulls one subject from the broker of
the server. Messages are recognised by their tokens.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio

from tests.simulation.client import Client, Lost
from tests.simulation.damage import POLICIES, PROGRESS
from tests.simulation.failures import SimulationFailure
from tests.simulation.host import Host
from tests.simulation.model import ACCEPTED, NODE_KEEPS_US, Identity, Model
from tests.simulation.workload import Workload

SUBJECT, GROUP = "orders", "dying"
NAMES = {"subject": SUBJECT, "group": GROUP}
# Nacks and resends ask for no longer delay, and no policy for longer pauses.
DELAY_MS_MAX = 60_000
# Letters that no group takes go after a week: those of messages that came last before this need not be there any more.
KEPT_US = 6 * 86_400 * 1_000_000
# Turns without a message, each with time for a lease, a pause or a resend, until nothing can come any more.
QUIET_TURNS = 8
TURNS_MAX = 600


@dataclass(slots=True)
class Fate:
    """What became of one message in this group. `life`: the broker's life at its first delivery."""

    life: int
    limited: bool
    """Whether the group had a policy for certain at its first delivery."""
    deliveries: int = 0
    resends: int = 0
    """Requests that sent it again, or may have."""
    positions: set[int] = field(default_factory=set)
    """Of its letters, over all lives."""
    acked: bool = False
    done: bool = False
    """Acked or dropped, or it may be: it need not be a letter at the end."""
    letter_life: int = 0
    """The life in which a letter of it was listed, which was not sent again; 0 if there is none."""
    first_us: int = 0
    first_uptime_us: int = 0
    last_us: int = 0
    last_uptime_us: int = 0


class GivingUp(Workload):
    """The group and its books."""

    def __init__(
        self,
        client: Client,
        model: Model,
        host: Host,
        chance: Random,
        note: Callable[..., None],
    ) -> None:
        super().__init__(host, chance, note)
        self._client = client
        self._model = model
        self._fates: dict[int, Fate] = {}
        # All numbers of attempts that a policy may have had.
        self._asked: list[int] = []
        self._has_policy = False
        self._registered_us = 0
        self._unheard = False
        """Whether the answer of a pull was lost: what it leased may become letters that this group never saw."""
        # Positions of letters that were sent again or dropped, and the life in which that was answered.
        self._gone: dict[int, int] = {}
        self.given_up = 0
        self.resent = 0

    def start(self, nursery: trio.Nursery) -> None:
        """Fail until the end is near."""
        self._begin(nursery, self._client, self._act)

    async def _act(self) -> None:
        kind = self._chance.random()
        if not self._has_policy or kind < 0.05:
            await self._set_policy(self._chance.choice([1, 2, 2, 3, 4]))
        elif kind < 0.80:
            await self._turn(self._chance.choice([0, 200, 3000]))
            await self._client.sleep(self._chance.random())
        elif kind < 0.92:
            await self._list()
        elif kind < 0.97:
            await self._resend()
        else:
            await self._drop()

    # -- requests

    async def _set_policy(self, attempts: int) -> None:
        pauses = self._chance.choice([{"first_ms": 0}, {"first_ms": 100, "factor": 1}, {"first_level": 1}, {}])
        fields: dict[str, Any] = {
            "attempts": attempts,
            "cap_ms": None,
            "first_ms": None,
            "factor": None,
            "first_level": None,
        } | pauses
        if "first_level" not in pauses:
            fields["cap_ms"] = self._chance.choice([None, 30_000])
        self._asked.append(attempts)
        self._note(self._client.name, "policy", **fields)
        await self._client.request("policy", NAMES | {"set": fields})
        self._has_policy = True

    async def _turn(self, wait_ms: int) -> int:
        """One pull; most of what comes fails. Returns how many messages came."""
        life = self._host.lives
        count = self._chance.choice([1, 5, 1000])
        try:
            reply = await self._client.request("pull", NAMES | {"max_messages": count, "wait_ms": wait_ms})
        except Lost:
            self._unheard = True
            raise
        messages = reply["messages"]
        if not messages:
            return 0
        self._registered_us = self._registered_us or self._host.clock.now_us()
        tokens = [token for message in messages if (token := token_of(message["body"]))]
        self._note(self._client.name, "pulled", tokens=tokens, attempts=[message["attempt"] for message in messages])
        for token in tokens:
            self._delivered(token, life)
        kind = self._chance.random()
        deliveries = [message["delivery"] for message in messages]
        if kind < 0.1 and not self.ending:
            self._note(self._client.name, "forgets", tokens=tokens)
        elif kind < 0.2 and not self.ending:
            await self._ack(tokens, deliveries)
        else:
            await self._nack(tokens, deliveries)
        return len(messages)

    async def _ack(self, tokens: list[int], deliveries: list[int]) -> None:
        for token in tokens:
            self._fates[token].done = True
        reply = await self._client.request("ack", NAMES | packed(deliveries))
        self._note(self._client.name, "acked", tokens=tokens, unknown=reply["unknown"])
        for token in tokens:
            fate = self._fates[token]
            # A message that has a letter already died before, or twice: its ack was of another copy of it.
            fate.acked |= reply["unknown"] == 0 and not fate.letter_life

    async def _nack(self, tokens: list[int], deliveries: list[int]) -> None:
        arguments = NAMES | packed(deliveries) | {"reason": f"no {len(tokens)}"}
        delay_ms = 0 if self.ending else self._chance.choice([None, 0, 0, 100, 5_000])
        if delay_ms is not None:
            arguments["delay_ms"] = delay_ms
        reply = await self._client.request("nack", arguments)
        self._note(self._client.name, "nacked", tokens=tokens, dead=reply.get("dead_lettered", 0))

    async def _list(self) -> dict[int, int]:
        """Look at all letters; returns their tokens by position."""
        life = self._host.lives
        found: dict[int, int] = {}
        after: int | None = -1
        while after is not None:
            count = self._chance.choice([3, 256])
            arguments: dict[str, Any] = NAMES | {"action": "list", "bodies": True, "after": after, "max": count}
            reply = await self._client.request("dead_letters", arguments)
            for letter in reply["letters"]:
                token = token_of(letter["body"])
                if not token:
                    continue
                found[letter["position"]] = token
                self._listed(token, letter, life)
            after = reply["next"]
        self._note(self._client.name, "letters", tokens=list(found.values()))
        return found

    async def _resend(self) -> None:
        life = self._host.lives
        letters = await self._list()
        if not letters:
            return
        chosen = self._chance.sample(sorted(letters), self._chance.randrange(1, min(len(letters), 8) + 1))
        tokens = [letters[position] for position in chosen]
        for token in tokens:
            fate = self._fates[token]
            fate.resends += 1
            fate.letter_life = 0
        arguments: dict[str, Any] = NAMES | {"action": "resend", "positions": chosen}
        if self._chance.random() < 0.5:
            arguments["rate"] = self._chance.choice([1, 20, 1000])
        self._note(self._client.name, "resend", tokens=tokens)
        reply = await self._client.request("dead_letters", arguments)
        self.resent += reply["resent"]
        if reply["resent"] == len(chosen):
            self._gone |= dict.fromkeys(chosen, life)
        self._note(self._client.name, "resent", count=reply["resent"], left=reply["left"])

    async def _drop(self) -> None:
        life = self._host.lives
        letters = await self._list()
        if not letters:
            return
        position = self._chance.choice(sorted(letters))
        self._fates[letters[position]].done = True
        reply = await self._client.request("dead_letters", NAMES | {"action": "drop", "positions": [position]})
        if reply["dropped"]:
            self._gone[position] = life
        self._note(self._client.name, "dropped", token=letters[position], count=reply["dropped"])

    # -- the books

    def _identity(self, token: int) -> Identity:
        return self._model.identity(self._model.rows[token])

    def _may_come_again(self, token: int) -> bool:
        return self._model.may_come_again(self._model.rows[token])

    def _delivered(self, token: int, life: int) -> None:
        fate = self._fates.setdefault(token, Fate(life, self._has_policy))
        fate.deliveries += 1
        fate.last_us, fate.last_uptime_us = self._host.clock.now_us(), self._host.clock.monotonic_us()
        if fate.deliveries == 1:
            fate.first_us, fate.first_uptime_us = fate.last_us, fate.last_uptime_us
        if self._identity(token).redispatched or self._host.lives != fate.life:
            return  # a crash may bring it once more, and a redispatch any number of times
        # By a redispatch without an answer yet. Or the node forgot it, and a server without its outcome hands it over again.
        again = self._may_come_again(token)
        again |= max(fate.last_us - fate.first_us, fate.last_uptime_us - fate.first_uptime_us) > NODE_KEEPS_US
        if fate.letter_life == life and not again:
            self._fail(token, "it is a dead letter, and was handed out again")
        if fate.acked and not fate.resends:
            self._fail(token, "it was acked, and was handed out again")
        if fate.limited and fate.deliveries > max(self._asked) * (1 + fate.resends) and not again:
            self._fail(token, f"{fate.deliveries} deliveries, with policies of {sorted(set(self._asked))} attempts")

    def _listed(self, token: int, letter: dict[str, Any], life: int) -> None:
        fate = self._fates.setdefault(token, Fate(life, self._has_policy))
        fate.positions.add(letter["position"])
        self.given_up += 1
        if letter["attempts"] < min(self._asked):
            self._fail(token, f"given up after {letter['attempts']} attempts, and {min(self._asked)} was the least")
        if letter["reason"] not in ("nacked", "ack_timeout") or letter["sequence"] <= 0:
            self._fail(token, f"a letter without a cause or an origin: {letter['reason']} {letter['sequence']}")
        if self._gone.get(letter["position"]) == life:
            self._fail(token, f"the letter at {letter['position']} was sent again or dropped, and is still there")
        crashes = self._host.lives - fate.life
        if len(fate.positions) > 1 + fate.resends + crashes and not self._may_come_again(token):
            self._fail(token, f"letters at {sorted(fate.positions)} after {fate.resends} resends and {crashes} crashes")
        if fate.acked and not (fate.resends or crashes or self._may_come_again(token)):
            self._fail(token, "it was acked, and is a dead letter")
        if not fate.letter_life and life == self._host.lives and not fate.resends:
            fate.letter_life = life

    # -- the end

    async def settle(self, leap: Callable[[float], None]) -> None:
        """Fail what is left until all of it is given up, and compare."""
        await self._end()
        self._has_policy = False
        while not self._has_policy:
            await self._guarded(self._client, lambda: self._set_policy(1))
        quiet = 0
        for _ in range(TURNS_MAX):
            came = await self._guarded(self._client, lambda: self._turn(200))
            quiet = quiet + 1 if came == 0 else 0
            if quiet >= QUIET_TURNS:
                break
            if not came:
                leap(25)
                await self._client.sleep(0.7)
        else:
            raise SimulationFailure("the group that gives up still gets messages")
        letters = set((await self._list()).values())
        limits = self._host.settings.broker
        if self._client.out_of_range or limits.lag_bytes_max:  # the group may have lost any message, or any letter
            return
        kept_us = min(KEPT_US, limits.lag_ms_max * 1000) if limits.lag_ms_max else KEPT_US
        for token, fate in self._fates.items():
            old = self._age_us(fate.last_us, fate.last_uptime_us) > kept_us
            # For the time that a clock which was ahead showed.
            waits = fate.last_us > self._host.clock.now_us()
            identity = self._identity(token)
            elsewhere = fate.done or fate.resends or old or waits or self._may_come_again(token) or identity.may_expire
            if token not in letters and not elsewhere:
                self._fail(token, "it was handed out, is not acked, and is no dead letter", waits=True)
        for identity in self._model.identities.values():
            self._check_seen(identity, kept_us)

    def _age_us(self, wall_us: int, uptime_us: int) -> int:
        """A clock that was ahead for a moment dates nothing: what was stored then ages from its return on."""
        clock = self._host.clock
        return max(clock.peak_us - wall_us, clock.monotonic_us() - uptime_us)

    def _check_seen(self, identity: Identity, kept_us: int) -> None:
        """What the other groups got since this one exists, it got too."""
        copies = [copy for copy in identity.copies if copy.state == ACCEPTED]
        if not copies or copies[0].subject != SUBJECT or not self._registered_us:
            return
        seen = identity.seen_us > self._registered_us and not identity.may_expire
        if seen and self._unheard:
            uptime_us = min([handed.uptime_us for handed in identity.arrived.values()], default=0)
            seen = self._age_us(identity.seen_us, uptime_us) <= kept_us
        if seen and not any(copy.token in self._fates for copy in identity.copies):
            self._fail(copies[0].token, "the group that gives up never got it")

    def _fail(self, token: int, what: str, *, waits: bool = False) -> None:
        """`waits`: it may be that a redelivery is held back."""
        damage = self._model.damage
        flips = [flip for flip in damage.flips if flip.path in (POLICIES, PROGRESS)]
        if flips := flips or (damage.of_outcomes if waits else []):
            # The group may have gone by the defaults, or a start may have forgotten its acks.
            damage.excused.append((flips, f"group {GROUP}: {what}"))
            return
        self._note("giving up", "FAILURE", token=token, fate=str(self._fates.get(token)))
        self._model.fail(f"group {GROUP}: {what}", self._model.rows[token], again=True)


def token_of(body: bytes) -> int:
    """The token of a message of the producers; 0 of another one."""
    return int(body[1 : body.index(b".")]) if body[:1] == b"m" and body[1:2].isdigit() else 0


def packed(deliveries: list[int]) -> dict[str, Any]:
    """Deliveries as arguments."""
    return {"count": len(deliveries), "deliveries": struct.pack(f"<{len(deliveries)}q", *deliveries)}
