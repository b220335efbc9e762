"""Transactions in the workload: a producer that prepares and changes its mind, a consumer, and one that answers check-backs.

The books are apart from those of the model, since a transaction and its visible message share a body. Damage may keep a
transaction from its end, but no answer may contradict another one, unless damage took the record of that end. What nobody
answered may have happened or not; what was answered, seen or told must agree for ever.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio

from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.receipts import parse_receipt
from tests.simulation.client import Client, Lost
from tests.simulation.failures import SimulationFailure
from tests.simulation.host import Host
from tests.simulation.model import Model
from tests.simulation.settings import ACK_TIMEOUT_MS

SUBJECT, GROUP = "deals", "dealer"
CHECKS = f"{GROUP}.check"
COMMITTED, ROLLED_BACK = "committed", "rolled_back"
CHECK_AFTER_MS = (1_000, 1_000, 20_000, 600_000)
CHECKS_MAX = (0, 1, 1, 3)
# A reply of these says for certain that nothing happened.
_IN_DOUBT = ("storage_failed", "internal_error", "in_doubt")
_POSITION = (1 << 48) - 1
# Answers of a lookup about records that cannot be read, and about those of which nothing is left.
DAMAGED = ("message_damaged", "unknown")


@dataclass(slots=True)
class Deal:
    """One transaction, with all that is known of it."""

    token: int
    body: bytes
    due_ms: int
    message_id: str
    check_after_ms: int
    checks_max: int
    policy: str
    begun_ms: int
    apart_ms: int
    """How far behind the clock of the books the one may have been that counted when it began."""
    steps: int
    accepted: int = 0
    unknown: int = 0
    receipts: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    """Ends that somebody asked for, answered or not."""
    ended: str = ""
    new_receipt: str = ""
    gone: bool = False
    """Its record is retired: it has ended, and no answer says how."""
    seen: int = 0
    checks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Where the queue has each check-back: position, and the life of the server that handed it out."""


class Books:
    """The deals, the verdict on every event, and what they add to the balance."""

    def __init__(self, model: Model, host: Host, note: Callable[..., None]) -> None:
        self._model = model
        self._host = host
        self._note = note
        self.deals: dict[int, Deal] = {}

    def fail(self, what: str, deal: Deal) -> None:
        """The verdict."""
        self._note("deals", "FAILURE", promise=what, deal=repr(deal))
        raise SimulationFailure(f"{what}: {deal}")

    def of_body(self, body: bytes) -> Deal:
        """The deal that a message is of."""
        deal = self.deals.get(int(body[1:].split(b".")[0]) if body.startswith(b"d") else 0)
        if deal is None or deal.body != body:
            raise SimulationFailure(f"a message of {SUBJECT} with the body {body[:40]!r}, which no client prepared")
        return deal

    def ends(self, deal: Deal, how: str, by: str) -> None:
        """It ended so, for certain. `by` names the source."""
        if deal.ended and deal.ended != how and not self._is_hit(deal):
            self.fail(f"{by} says {how}, and it was {deal.ended}", deal)
        if how not in deal.asked and how != self._by_policy(deal):
            self.fail(f"{by} says {how}, and no client asked for that", deal)
        if how not in deal.asked and not deal.ended and self._host.clock.step_count == deal.steps:
            passed_ms = self._host.clock.now_ms() - deal.begun_ms + deal.apart_ms
            if passed_ms < deal.check_after_ms * (deal.checks_max + 1):
                self.fail(f"its policy decided after {passed_ms} ms", deal)
        deal.ended = how

    def _by_policy(self, deal: Deal) -> str:
        return COMMITTED if deal.policy == "commit" else ROLLED_BACK

    def arrived(self, message: dict[str, Any]) -> None:
        """A consumer got a visible message."""
        deal = self.of_body(message["body"])
        if message["message_id"] != deal.message_id or message["properties"] != {"token": str(deal.token)}:
            self.fail(f"arrived as {message['message_id']} with {message['properties']}", deal)
        self.ends(deal, COMMITTED, "a consumer that got it")
        deal.seen += 1

    def asked_about(self, message: dict[str, Any], life: int) -> Deal:
        """A check-back came."""
        deal = self.of_body(message["body"])
        properties = message["properties"]
        if properties["transaction"] not in deal.receipts and not deal.unknown:
            self.fail(f"asked about {properties['transaction']}, its receipts are {deal.receipts}", deal)
        if (properties["transaction_subject"], properties["token"]) != (SUBJECT, str(deal.token)):
            self.fail(f"asked about with {properties}", deal)
        check, position = int(properties["transaction_check"]), message["delivery"] & _POSITION
        if not 1 <= check <= deal.checks_max:
            self.fail(f"check-back {check} of {deal.checks_max}", deal)
        if message["delivery"] >> 62 & 1:
            return deal  # a redelivery of one that came before
        before = deal.checks.setdefault(check, (position, life))
        if before[0] != position and before[1] == life:
            self.fail(f"check-back {check} stands in the queue at {before[0]} and at {position}", deal)
        deal.checks[check] = position, life
        return deal

    def answered(self, deal: Deal, asked: str, row: dict[str, Any]) -> None:
        """A commit or a rollback was answered."""
        if row.get("error") == "transaction_ended":
            how = row["outcome"]
            if how == asked:
                self.fail(f"refused as {how}, which is what was asked for", deal)
            if how == "retired":
                deal.gone = True
            elif how in (COMMITTED, ROLLED_BACK):
                self.ends(deal, how, "a refusal")
            else:
                self.fail(f"refused as {how}", deal)
            return
        if "error" in row:
            if row["error"] == "transaction_unknown" and not self.damaged:
                self.fail("the server does not know a transaction that it accepted", deal)
            return
        if row["outcome"] != asked:
            self.fail(f"asked to be {asked}, answered {row['outcome']}", deal)
        self.ends(deal, asked, "an answer")
        if asked == COMMITTED:
            if deal.new_receipt not in ("", row["new_receipt"]):
                self.fail(f"committed as {row['new_receipt']}, and before as {deal.new_receipt}", deal)
            deal.new_receipt = row["new_receipt"]

    def looked_up(self, deal: Deal, outcome: str, *, over: bool) -> None:
        """An answer of lookup. `over`: the deal had ended before the question went out. What another connection told
        meanwhile does not count: a slow network may bring this answer, which is older, behind it."""
        if outcome == "retired":
            deal.gone = True
        elif outcome == "prepared":
            if over and not self._is_hit(deal):
                self.fail("looked up as prepared, and it had ended", deal)
        elif outcome in (COMMITTED, ROLLED_BACK):
            self.ends(deal, outcome, "a lookup")
        elif outcome in DAMAGED and self.damaged:
            deal.gone = True
        elif outcome != "deduplicated" or deal.accepted + deal.unknown < 2:
            self.fail(f"looked up as {outcome}", deal)

    def take_sequence(self, deal: Deal, sequence: int) -> None:
        """A sequence is given once."""
        if sequence in self._model.sequences:
            self.fail(f"sequence {sequence} was given twice", deal)
        self._model.sequences.add(sequence)

    # -- damage

    @property
    def damaged(self) -> bool:
        """Whether bits flipped or files were cut: the records of a transaction may be lost, and its outcome. What is still
        told of it must agree all the same."""
        return bool(self._model.damage.flips)

    def _is_hit(self, deal: Deal) -> bool:
        """Whether damage may have hit the record of its outcome."""
        sequences = {parse_receipt(receipt).sequence for receipt in deal.receipts}
        return bool(self._model.damage.explains(sequences, [deal.due_ms]))

    def rows_hit(self) -> int:
        """Rows that damage may have hit: of each transaction itself, its visible message, and what is sent again."""
        return sum(deal.accepted + deal.unknown + 1 for deal in self.deals.values()) if self.damaged else 0

    # -- the balance

    def due_times_ms(self) -> list[int]:
        """When transactions are due, and when the timers of their check-backs are if all goes well."""
        return [
            due_ms
            for deal in self.deals.values()
            for due_ms in (
                deal.due_ms,
                *[deal.begun_ms + deal.check_after_ms * count for count in range(1, deal.checks_max + 2)],
            )
        ]

    def timers_ahead_ms(self) -> int:
        """How far ahead of the clock the next check-back of a transaction may be."""
        return max([deal.check_after_ms for deal in self.deals.values()], default=0)

    def range_of(self, name: str) -> tuple[int, int]:
        """What the deals add to a count of the status, at least and at most, when no request is under way. After damage the
        counts may lack any of them."""
        least = most = 0
        for deal in self.deals.values():
            low, high = self._range_of(deal, name)
            least, most = least + low, most + high
        return 0 if self.damaged else least, most

    def _range_of(self, deal: Deal, name: str) -> tuple[int, int]:
        rows, possible = deal.accepted, deal.accepted + deal.unknown
        maybe = {deal.ended} if deal.ended else {COMMITTED, ROLLED_BACK}
        visible = (int(deal.ended == COMMITTED), int(COMMITTED in maybe and possible > 0))
        if name == "accepted":
            return rows + visible[0], possible + visible[1]
        if name == "cancelled":
            return visible
        if name == "delivered":
            return int(deal.seen > 0), visible[1]
        if name == "rolled_back":
            return int(deal.ended == ROLLED_BACK), int(ROLLED_BACK in maybe and possible > 0)
        if name == "deduplicated":
            return max(rows - 1, 0), max(possible - 1, 0)
        return (0, possible + visible[1]) if name == "pending" else (0, 0)

    @property
    def waiting(self) -> list[Deal]:
        """Committed, and no consumer has seen it."""
        return [deal for deal in self.deals.values() if deal.ended == COMMITTED and not deal.seen]

    @property
    def open(self) -> list[Deal]:
        """Accepted, and no answer says how it ended."""
        return [deal for deal in self.deals.values() if deal.accepted and not deal.ended and not deal.gone]


class Dealer:
    """All three clients. Each has a connection of its own."""

    def __init__(
        self, clients: list[Client], host: Host, books: Books, chance: Random, note: Callable[..., None]
    ) -> None:
        self._producer, self._consumer, self._answerer = clients
        self._host = host
        self.books = books
        self._chance = chance
        self._note = note
        self._next_token = 1
        self.careful = False

    @property
    def _let_go(self) -> bool:
        """Whether the node kept no more for the group, so that it may have lost any message."""
        return bool(self._consumer.out_of_range or self._answerer.out_of_range)

    async def act(self) -> None:
        """Some requests of the producer."""
        for _ in range(self._chance.randrange(1, 5)):
            if not self._host.alive:
                return
            with self._producer.noted(self._note):
                await self._act()
            await self._producer.sleep(self._chance.choice([0.0, 0.01, 0.3]))

    async def _act(self) -> None:
        kind, deals = self._chance.random(), list(self.books.deals.values())[-30:]
        known = [deal for deal in deals if deal.receipts]
        if kind < 0.45 or not known:
            await self._prepare([self._new_deal() for _ in range(self._chance.choice([1, 1, 3]))])
        elif kind < 0.52:
            await self._prepare([self._chance.choice(known)])  # a client that retries
        elif kind < 0.72:
            await self._end(self._producer, self._some(known), COMMITTED)
        elif kind < 0.84:
            await self._end(self._producer, self._some(known), ROLLED_BACK)
        else:
            await self._look_up(self._some(known))

    def _some(self, deals: list[Deal]) -> list[Deal]:
        return self._chance.sample(deals, min(len(deals), self._chance.choice([1, 1, 3])))

    def _new_deal(self) -> Deal:
        chance, clock = self._chance, self._host.clock
        token = self._next_token
        self._next_token += 1
        deal = Deal(
            token,
            b"d%d." % token + b"." * chance.choice([0, 20, 2_000]),
            clock.now_ms() + chance.choice([0, 0, 1_000, 90_000]),
            f"deal-{token}",
            chance.choice(CHECK_AFTER_MS),
            chance.choice(CHECKS_MAX),
            chance.choice(["rollback", "rollback", "commit"]),
            clock.now_ms(),
            clock.now_ms() - clock.lowest_us // 1000,
            clock.step_count,
        )
        self.books.deals[token] = deal
        return deal

    async def _prepare(self, deals: list[Deal]) -> None:
        """Deals of one request have the terms of the first one."""
        first = deals[0]
        if len(deals) > 1:
            for deal in deals:
                deal.check_after_ms, deal.checks_max, deal.policy = first.check_after_ms, first.checks_max, first.policy
        for deal in deals:
            deal.unknown += 1
        self._note("dealer", "prepare", tokens=[deal.token for deal in deals])
        arguments = {
            "group": GROUP,
            "check_after_ms": first.check_after_ms,
            "checks_max": first.checks_max,
            "policy": first.policy,
            "messages": [
                {
                    "subject": SUBJECT,
                    "body": deal.body,
                    "due_ms": deal.due_ms,
                    "message_id": deal.message_id,
                    "properties": {"token": str(deal.token)},
                }
                for deal in deals
            ],
        }
        try:
            rows = (await self._producer.request("prepare", arguments))["results"]
        except (Lost, DelayServerError) as error:
            if not (error.sent if isinstance(error, Lost) else error.name in _IN_DOUBT):
                self._not_prepared(deals)
            raise
        for deal, row in zip(deals, rows, strict=True):
            if "error" in row:
                self._not_prepared([deal])
                continue
            if row["receipt"] not in deal.receipts:  # a check-back may come before the reply
                deal.unknown -= 1
                deal.accepted += 1
                deal.receipts.append(row["receipt"])
            self.books.take_sequence(deal, row["sequence"])

    def _not_prepared(self, deals: list[Deal]) -> None:
        for deal in deals:
            deal.unknown -= 1

    async def _end(self, client: Client, deals: list[Deal], how: str) -> None:
        for deal in deals:
            deal.asked.add(how)
        operation = "commit" if how == COMMITTED else "rollback"
        self._note("dealer", operation, tokens=[deal.token for deal in deals])
        receipts = [self._chance.choice(deal.receipts) for deal in deals]
        rows = (await client.request(operation, {"receipts": receipts}))["results"]
        self._note("dealer", "answered", rows=[row.get("outcome") or row["error"] for row in rows])
        for deal, row in zip(deals, rows, strict=True):
            self.books.answered(deal, how, row)

    async def _look_up(self, deals: list[Deal]) -> None:
        receipts = [self._chance.choice(deal.receipts) for deal in deals]
        over = [bool(deal.ended) or deal.gone for deal in deals]
        rows = (await self._producer.request("lookup", {"receipts": receipts}))["results"]
        for deal, row, was_over in zip(deals, rows, over, strict=True):
            self.books.looked_up(deal, row.get("outcome") or row["error"], over=was_over)

    # -- the other two

    async def consume(self) -> None:
        """Pulls what is visible, until cancelled."""
        await self._run(self._consumer, SUBJECT, self._take)

    async def answer(self) -> None:
        """Answers check-backs, wrongly, late or not at all, until cancelled."""
        await self._run(self._answerer, CHECKS, self._answer)

    async def _run(self, client: Client, subject: str, handle: Callable[[dict[str, Any], int], Any]) -> None:
        while True:
            if not self._host.open.is_set():
                await self._host.open.wait()
            try:
                life = self._host.lives
                pull = {"subject": subject, "group": GROUP, "max_messages": 100, "wait_ms": 3_000}
                messages = (await client.request("pull", pull))["messages"]
                for message in messages:
                    await handle(message, life)
                if messages and (self.careful or self._chance.random() < 0.9):
                    deliveries = [message["delivery"] for message in messages]
                    packed = struct.pack(f"<{len(deliveries)}q", *deliveries)
                    ack = {"subject": subject, "group": GROUP, "count": len(deliveries), "deliveries": packed}
                    await client.request("ack", ack)
                await client.sleep(self._chance.random() * 0.5)
            except Lost:
                await client.sleep(0.3)
            except DelayServerError as error:
                self._note("dealer", "refused", error=error.name)
                await client.sleep(0.5)

    async def _take(self, message: dict[str, Any], _life: int) -> None:
        self.books.arrived(message)

    async def _answer(self, message: dict[str, Any], life: int) -> None:
        deal = self.books.asked_about(message, life)
        self._note("dealer", "asked", token=deal.token, check=message["properties"]["transaction_check"])
        receipt = message["properties"]["transaction"]
        if receipt not in deal.receipts:
            # The answer to its prepare did not come: this is how a producer hears of it.
            deal.receipts.append(receipt)
            deal.accepted += 1
            deal.unknown -= 1
        if self._chance.random() < 0.6:
            await self._end(self._answerer, [deal], self._chance.choice([COMMITTED, ROLLED_BACK]))

    # -- the end

    async def finish(self, leap: Callable[[float], None]) -> None:
        """Let time pass until each transaction has ended and each committed one has arrived."""
        clock = self._host.clock
        # A timer that was made while the clock was ahead comes due when that time has come.
        leap((clock.peak_us - clock.now_us()) / 1e6)
        for _ in range(max(CHECKS_MAX) + 3):
            leap(max(CHECK_AFTER_MS) / 1000 + 1)
            await self._producer.sleep(1.5)
        for _ in range(20):
            await self._ask_open()
            if not self.books.open and (self._let_go or not self.books.waiting):
                return
            leap(ACK_TIMEOUT_MS / 1000 + 5)
            await self._producer.sleep(1.5)
        for what, deals in (
            ("it never ends", self.books.open),
            ("committed, and it does not arrive", self.books.waiting),
        ):
            if deals and not self.books.damaged and not (self._let_go and what != "it never ends"):
                self.books.fail(what, deals[0])

    async def _ask_open(self) -> None:
        deals = self.books.open
        for begin in range(0, len(deals), 100):
            try:
                await self._look_up(deals[begin : begin + 100])
            except (Lost, DelayServerError) as error:
                self._note("dealer", "no answer", why=str(error))
                await trio.lowlevel.checkpoint()
