"""An operator beside the consumers of `ordering.py`: lists the order keys that wait for a failed message, skips such
messages and ends their pauses.

The text of a skip is its number, and the dead letters repeat it. So the books know which messages a skip took, also where
its answer was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import trio

from delayserver.protocol.errors import DelayServerError
from tests.simulation.client import Client
from tests.simulation.failures import SimulationFailure
from tests.simulation.host import Host
from tests.simulation.ordering import NAMES, Keyed, Ordering
from tests.simulation.workload import Workload

STATES = ("paused", "ready", "leased")
SKIPPED = "skipped"
# The server has done nothing then.
NOTHING_DONE = ("group_unknown", "policy_invalid")
# With `wait` a key is held until its message is acked or skipped.
POLICIES = ({"attempts": 1}, {"attempts": 2}, {"attempts": 8}, {"attempts": 4, "failed_key": "skip"})


def drawn_policy(chance: Random) -> dict[str, Any]:
    """The policy of a group whose keys wait."""
    pauses = {"first_ms": chance.choice([0, 100, 5_000, 60_000]), "cap_ms": 60_000}
    return {"failed_key": "wait"} | chance.choice(POLICIES) | pauses


@dataclass(slots=True)
class Skip:
    """One request: the tokens of the messages that it may take, and how many it took by its answer; None without one."""

    tokens: frozenset[int]
    took: int | None = None


class Skipping(Workload):
    """The operator and its books. The books of the messages are those of the consumers."""

    def __init__(self, client: Client, books: Ordering, host: Host, chance: Random, note: Callable[..., None]) -> None:
        super().__init__(host, chance, note)
        self._client = client
        self._books = books
        self.chance = chance
        # Set by the next answer to a skip.
        self.answered = trio.Event()
        self._skips: list[Skip] = []

    def start(self, nursery: trio.Nursery) -> None:
        """Operate until the end is near."""
        self._begin(nursery, self._client, self._act)

    def _was_refused(self, error: DelayServerError) -> None:
        if error.name == "invalid_argument":
            raise SimulationFailure(f"a request about waiting keys is refused: {error}") from error

    async def _act(self) -> None:
        await self._client.sleep(self.chance.choice([0.02, 0.3, 2.0]))
        heads = await self._list()
        kind = self.chance.random()
        if kind < 0.45 and heads:
            await self._skip(heads)
        elif kind < 0.7 and heads:
            await self._retry(heads)
        elif kind < 0.85:
            await self._look()

    # -- requests

    async def _list(self) -> list[Keyed]:
        """The first unfinished messages of the keys that wait."""
        books, life = self._books, self._host.lives
        over = {token for token, message in books.messages.items() if message.is_over}
        failed = [message for message in books.messages.values() if message.failed_life == life]
        heads: list[Keyed] = []
        after: int | None = -1
        while after is not None:
            arguments = NAMES | {"action": "list", "after": after, "max": self.chance.choice([1, 2, 256])}
            reply = await self._client.request("waiting_keys", arguments)
            page = [self._listed(row, over) for row in reply["keys"]]
            if reply["unreadable"] or reply["left"] < len(page) or len({each.key for each in page}) < len(page):
                raise SimulationFailure(f"a page of waiting keys does not add up: {reply}")
            heads += page
            after = reply["next"]
        self._note(self._client.name, "waiting keys", tokens=[message.token for message in heads])
        for earlier, later in pairwise(heads):
            if earlier.position >= later.position:
                books.fail(later, f"it is listed behind o{earlier.token} at {earlier.position}")
        if books.keys_wait and life == self._host.lives:
            for message in failed:
                if message not in heads and not books.may_be_over(message):
                    books.fail(message, "it failed and is the first of its key, and its key is not listed")
        return heads

    def _listed(self, row: dict[str, Any], over: set[int]) -> Keyed:
        """`over`: the tokens of messages that were done when the list was asked for."""
        books = self._books
        message = books.messages.get(int(row["message_id"][1:]))
        if message is None or row["order_key"] != message.key or message.position not in (-1, row["position"]):
            raise SimulationFailure(f"a message is listed that no client published so: {row} {message}")
        message.position = row["position"]
        if message.token in over:
            books.fail(message, "it was done, and its key waits for it")
        if (other := books.unfinished_before(message)) is not None:
            books.fail(message, f"its key waits for it, before o{other.token} at {other.position}")
        # A pull of each consumer may be under way.
        if not 1 <= row["attempts"] <= message.deliveries + books.lost + books.consumers:
            books.fail(message, f"it is listed with {row['attempts']} attempts")
        behind = sum(each.key == message.key for each in books.messages.values()) - 1
        if (
            row["state"] not in STATES
            or (row["next_ms"] is None) != (row["state"] == "ready")
            or row["behind"] > behind
        ):
            books.fail(message, f"it is listed wrongly: {row}")
        return message

    def _chosen(self, heads: list[Keyed]) -> list[Keyed] | None:
        """Some of them, now and then also a message behind one. None: the first ones, whichever they are."""
        chance = self.chance
        if chance.random() < 0.15:
            return None
        chosen = chance.sample(heads, chance.choice([1, 1, min(len(heads), 3)]))
        if chance.random() < 0.15:
            first = chosen[0]
            behind = [each for each in self._books.messages.values() if each.key == first.key]
            chosen += [each for each in behind if each.stored and each.position > first.position][:1]
        return chosen

    async def _skip(self, heads: list[Keyed]) -> None:
        chosen = self._chosen(heads)
        arguments: dict[str, Any] = {"reason": f"{len(self._skips)}"}
        if chosen is None:
            wanted = [each for each in self._books.messages.values() if each.key and not each.is_over]
            arguments["max"] = count_max = self.chance.choice([1, 2])
        else:
            wanted, count_max = chosen, len(chosen)
            arguments["positions"] = [message.position for message in chosen]
        number, skip = len(self._skips), Skip(frozenset([message.token for message in wanted]))
        self._skips.append(skip)
        for message in wanted:
            message.asks.add(number)
        self._note(self._client.name, "skip", number=number, tokens=sorted(skip.tokens))
        try:
            reply = await self._client.request("waiting_keys", NAMES | {"action": "skip"} | arguments)
        except DelayServerError as error:
            if error.name in NOTHING_DONE:
                skip.took = 0
                self._resolve(number, set())
            raise
        skip.took = reply["skipped"]
        answered, self.answered = self.answered, trio.Event()
        answered.set()
        self._note(self._client.name, "skipped", number=number, count=skip.took)
        if not 0 <= skip.took <= count_max:
            raise SimulationFailure(f"{skip.took} messages are skipped, and {count_max} were named")
        if skip.took == 0:
            self._resolve(number, set())
        elif skip.took == len(wanted):
            self._resolve(number, set(skip.tokens))
        else:
            await self._look()

    def _resolve(self, number: int, took: set[int]) -> None:
        """The messages that a skip took are known."""
        for token in self._skips[number].tokens:
            message = self._books.messages[token]
            message.asks.discard(number)
            if token not in took:
                continue
            message.skipped = True
            self._books.judge_ends(message)
            if (other := self._books.unfinished_before(message)) is not None:
                self._books.fail(message, f"it is skipped before o{other.token} at {other.position}")

    async def _retry(self, heads: list[Keyed]) -> None:
        chosen = self._chosen(heads)
        arguments: dict[str, Any] = {} if chosen is None else {"positions": [message.position for message in chosen]}
        reply = await self._client.request("waiting_keys", NAMES | {"action": "retry"} | arguments)
        self._note(self._client.name, "retried", of=arguments.get("positions"), count=reply["retried"])
        if chosen is not None and reply["retried"] > len(chosen):
            raise SimulationFailure(f"{reply['retried']} pauses are ended, and {len(chosen)} were named")

    # -- dead letters

    async def _look(self) -> None:
        """Look at all letters: each skip that was answered took as many as it says, and none twice."""
        books, life = self._books, self._host.lives
        answered = [number for number, skip in enumerate(self._skips) if skip.took is not None]
        found: list[tuple[int, int]] = []
        seen: list[Keyed] = []
        after: int | None = -1
        while after is not None:
            count = self.chance.choice([3, 256])
            arguments: dict[str, Any] = {"action": "list", "bodies": True, "after": after, "max": count}
            reply = await self._client.request("dead_letters", NAMES | arguments)
            for letter in reply["letters"]:
                message = books.messages[int(letter["body"][1:-1])]
                seen.append(message)
                if letter["reason"] == SKIPPED:
                    found.append((int(letter["text"]), message.token))
                elif message.key and books.keys_wait:
                    books.fail(message, f"its key waits, and it is given up: {letter['reason']}")
                if letter["attempts"] < 1:
                    books.fail(message, f"a letter after {letter['attempts']} attempts")
            after = reply["next"]
        self._note(self._client.name, "letters", skips=found)
        self._judge_letters(found, answered)
        if life == self._host.lives:
            for message in seen:
                message.letter_life = life

    def _judge_letters(self, found: list[tuple[int, int]], answered: list[int]) -> None:
        """`found`: the number of a skip and the token of its message, of each letter. `answered`: the skips whose answers
        came before the letters were asked for."""
        books = self._books
        for number, token in found:
            if token not in self._skips[number].tokens:
                books.fail(books.messages[token], f"skip {number} took it, and did not name it")
        for (number, token), count in Counter(found).items():
            if count > 1:
                books.fail(books.messages[token], f"skip {number} made {count} letters of it")
        for token, count in Counter(token for _, token in found).items():
            unsure = sum(skip.took is None and token in skip.tokens for skip in self._skips)
            if count > 1 + min(unsure, self._host.lives - 1):
                books.fail(books.messages[token], f"{count} letters of it, and {unsure} skips without an answer")
        for number in answered:
            took = {token for of, token in found if of == number}
            old = any(books.is_old(books.messages[token]) for token in self._skips[number].tokens)
            if len(took) != self._skips[number].took and not old:
                raise SimulationFailure(f"skip {number} took {self._skips[number].took}, and its letters are of {took}")
            if not old:
                self._resolve(number, took)

    # -- the end

    async def settle(self, leap: Callable[[float], None]) -> None:
        """Skip nothing more, and look at what the skips did."""
        await self._end()
        while not await self._guarded(self._client, self._look_at_the_end):
            pass
        certain = sum(message.skipped for message in self._books.messages.values())
        self._note("skipping", "ends", skips=len(self._skips), certain=certain)

    async def _look_at_the_end(self) -> bool:
        try:
            await self._look()
        except DelayServerError as error:
            if error.name not in NOTHING_DONE:
                raise
        return True
