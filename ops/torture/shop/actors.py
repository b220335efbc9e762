"""The people of the shop, each a loop that goes on for the whole day: through refusals, restarts and lost connections."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from delayserver.client import AsyncClient, DelayServerError, Delivery, Listener, Message, Outcome, Retry
from ops.torture.shop.ledger import Ledger

ROW_SUBJECTS: Final = 1500
COLUMN_SUBJECTS: Final = 3000
NEWS_SUBJECTS: Final = 200
POISON_SUBJECTS: Final = 8
TILL: Final = "till"
POST: Final = "post"
TAGS: Final = (None, "gold", "new", "returning")
TRIES: Final = 3
# Messages by their number: which fail once, which come back later without having failed, and which fail for ever.
FAILS_ONCE: Final = 53
COMES_BACK: Final = 97
POISON: Final = 40
RECEIPTS_KEPT: Final = 200


def now_ms() -> int:
    """The wall clock, which the server on this machine goes by too."""
    return time.time_ns() // 1_000_000


def number_of(body: bytes) -> int:
    """The number in a body."""
    return int(body.partition(b" ")[0])


class Shop:
    """All actors of a day. Each `async` method is one actor; `run` starts them and ends them at `closing`."""

    def __init__(self, client: AsyncClient, ledger: Ledger, chance: random.Random, rate: float) -> None:
        self._client = client
        self._ledger = ledger
        self._chance = chance
        # Of all pauses of senders: 1.0 sends some 250 messages a second.
        self._pause = 1.0 / rate
        self._closing = trio.Event()
        self._receipts: deque[tuple[int, str]] = deque(maxlen=RECEIPTS_KEPT)
        self._visit = 0
        # Messages that were put off once. A second time would count as no attempt either.
        self._put_off: set[int] = set()
        # Visitors whose group may still be there. Such a group would hold the messages of all from then on.
        self._staying: deque[tuple[str, str]] = deque()

    async def run(self) -> None:
        """The day. Returns a while after `close`, when the senders have stopped; consumers then go on until cancelled."""
        await self._set_policies()
        senders = [self._customer, self._customer, self._campaign, self._editor, self._regret, self._visitor]
        async with trio.open_nursery() as nursery:
            for step in senders:
                nursery.start_soon(self._loop, step)

    def close(self) -> None:
        """No sender begins anything new."""
        self._closing.set()

    async def consume(self) -> None:
        """The till, the post and the clerk of dead letters, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            nursery.start_soon(self._for_ever, self._clerk)

    async def _loop(self, step: Callable[[], Awaitable[None]]) -> None:
        while not self._closing.is_set():
            await self._once(step)

    async def _for_ever(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._once(step)

    async def _once(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except DelayServerError as error:
            self._ledger.counts[f"error {error.name}"] += 1
            await trio.sleep(0.2)

    async def _set_policies(self) -> None:
        for number in range(POISON_SUBJECTS):
            await self._client.set_policy(f"shop.poison.{number}", TILL, attempts=TRIES, first_ms=200, cap_ms=400)

    # -- senders

    async def _customer(self) -> None:
        """A few orders in rows, with all that a row may have."""
        chance, rows = self._chance, []
        for _ in range(chance.randint(1, 20)):
            number, due_ms = self._ledger.number(), now_ms() + chance.randint(0, 8000)
            poison = number % POISON == 0
            subject = f"shop.poison.{number % POISON_SUBJECTS}" if poison else f"shop.{chance.randrange(ROW_SUBJECTS)}"
            expires_ms = due_ms + chance.randint(1, 60_000) if not poison and chance.random() < 0.05 else None
            rows.append(
                Message(
                    subject,
                    b"%d order" % number + b"." * chance.randint(0, 400),
                    due_ms,
                    message_id=f"order-{number}",
                    properties={"customer": str(chance.randrange(10_000))} if chance.random() < 0.5 else None,
                    expires_ms=expires_ms,
                    tag=chance.choice(TAGS),
                    order_key=f"customer-{chance.randrange(500)}" if not poison and chance.random() < 0.3 else None,
                )
            )
            self._ledger.sending(number, due_ms, expires_ms)
        for row, result in zip(rows, await self._client.send_many(rows), strict=True):
            number = number_of(bytes(row.body, "ascii") if isinstance(row.body, str) else row.body)
            if isinstance(result, DelayServerError):
                self._ledger.refused(number)
                self._ledger.counts[f"refused {result.name}"] += 1
            else:
                self._ledger.accepted(number, result.due_ms)
                self._receipts.append((number, result.receipt))
        await trio.sleep(chance.uniform(0.0, 0.2) * self._pause)

    async def _campaign(self) -> None:
        """One message for each of thousands of subjects, in columns."""
        due_ms = now_ms() + self._chance.randint(500, 4000)
        numbers = [self._ledger.number() for _ in range(COLUMN_SUBJECTS)]
        for number in numbers:
            self._ledger.sending(number, due_ms)
        sent = await self._client.send_columns(
            [f"campaign.{index}" for index in range(COLUMN_SUBJECTS)],
            due_ms,
            [b"%d offer" % number for number in numbers],
            subject_index=list(range(COLUMN_SUBJECTS)),
            message_ids=[f"offer-{number}" for number in numbers],
        )
        refused = {row.index for row in sent.rejected}
        for index, number in enumerate(numbers):
            if index in refused:
                self._ledger.refused(number)
            else:
                self._ledger.accepted(number, due_ms)
        await self._rest(20.0 * self._pause)

    async def _editor(self) -> None:
        """News that are due at once and that hardly anybody reads."""
        rows = [
            Message(f"news.{self._chance.randrange(NEWS_SUBJECTS)}", b"0 news" + b"." * 200)
            for _ in range(self._chance.randint(1, 10))
        ]
        await self._client.publish_many(rows)
        await self._rest(self._chance.uniform(0.2, 0.8) * self._pause)

    async def _regret(self) -> None:
        """Cancels an order, or moves it."""
        await trio.sleep(0.1 * self._pause)
        if not self._receipts:
            return
        number, receipt = self._receipts.popleft()
        if self._chance.random() < 0.5:
            self._ledger.cancelling(number)
            result = await self._client.cancel(receipt)
            if result.outcome is Outcome.CANCELLED:
                self._ledger.cancelled(number)
            self._ledger.counts[f"cancel {result.outcome.label}"] += 1
            return
        due_ms = now_ms() + self._chance.randint(0, 3000)
        self._ledger.moving(number, due_ms)
        moved = await self._client.reschedule(receipt, due_ms=due_ms)
        if moved.due_ms is not None:
            self._ledger.accepted(number, due_ms)
        self._ledger.counts[f"move {moved.outcome.label}"] += 1

    async def _visitor(self) -> None:
        """A group that comes, reads a little and goes."""
        self._visit += 1
        chance, group = self._chance, f"visitor-{self._visit}"
        subject = f"news.{chance.randrange(NEWS_SUBJECTS)}"
        self._staying.append((subject, group))
        pulled = await self._client.pull(subject, group, 20, wait_s=0.2, start="earliest")
        if pulled:
            handed_back = 3 if chance.random() < 0.3 else 0
            if handed_back:
                await self._client.nack(subject, group, pulled[:handed_back])
            if pulled[handed_back:]:
                await self._client.ack(subject, group, pulled[handed_back:])
            await self._client.groups(subject)
            self._ledger.counts["visits"] += 1
        await self._go()
        await self._rest(0.5 * self._pause)

    async def _go(self) -> None:
        """Removes the groups of visitors, also of those whom a restart cut off. A pull of nothing made a group too."""
        while self._staying:
            try:
                await self._client.remove_group(*self._staying[0])
            except DelayServerError as error:
                if error.name != "group_unknown":
                    raise
            self._staying.popleft()

    async def _rest(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._closing.wait()

    # -- consumers

    async def _listen(self) -> None:
        listener = Listener(TILL, concurrency=40)

        @listener("shop.*")
        async def order(message: Delivery) -> None:
            await self._handle(message)

        @listener("campaign.*", group=POST)
        async def offer(message: Delivery) -> None:
            await self._handle(message)

        await listener.run(self._client, signals=())

    async def _handle(self, message: Delivery) -> None:
        number = number_of(message.body)
        self._ledger.arrived(number, now_ms())
        if number % 7 == 0:
            await trio.sleep(self._chance.uniform(0.0, 0.05))
        if ".poison." in message.subject:
            raise ValueError(f"nobody can handle {number}")
        if message.attempt == 1 and number % FAILS_ONCE == 0:
            raise KeyError(number)
        if number % COMES_BACK == 0 and number not in self._put_off:
            self._put_off.add(number)
            raise Retry(delay_ms=300)
        self._ledger.handled(number)

    async def _clerk(self) -> None:
        """Looks at the dead letters, and throws them away."""
        for number in range(POISON_SUBJECTS):
            subject = f"shop.poison.{number}"
            letters = await self._client.dead_letters(subject, TILL, 500, bodies=True)
            if letters:
                for letter in letters:
                    self._ledger.dead(number_of(letter.body or b""))
                await self._client.drop_dead_letters(subject, TILL, positions=[letter.position for letter in letters])
        await trio.sleep(2.0)
