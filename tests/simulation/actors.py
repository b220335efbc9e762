"""The workload: producers that send, cancel, reschedule and look up; consumers that pull, ack, nack and forget."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import msgpack
import trio

from delayserver.client.calls.pull_calls import ack_call
from delayserver.protocol.errors import DelayServerError
from tests.simulation.client import Client, Lost
from tests.simulation.clocks import WallClock
from tests.simulation.failures import SimulationFailure
from tests.simulation.filters import properties_of, tag_of, with_kind
from tests.simulation.host import Host
from tests.simulation.model import ACCEPTED, Identity, Model, Sending, Sent
from tests.simulation.settings import ACK_TIMEOUT_MS, DELAY_MS_MAX, HOUR_MS
from tests.simulation.timeliness import LATE_US_MAX, Timeliness

SUBJECTS = ("orders", "bills.late", "remote.mail")
REMOTE_SUBJECTS = ("remote.mail",)
# The rows of one request fall due around so many times: a window costs the server far more than a row, and with a window
# for each row a seed would hold fewer windows with many.
TIMES_AT_ONCE = 5
# Any other error says for certain that nothing happened.
REFUSED_FOR_CERTAIN_NOT = ("storage_failed", "internal_error", "in_doubt")
# Messages of the producers that have an expiry.
EXPIRING_SHARE = 0.08


def pick_delay_ms(chance: Random) -> int:
    """From past due to weeks."""
    kind = chance.random()
    if kind < 0.08:
        return -chance.randrange(300_000)
    if kind < 0.40:
        return chance.randrange(5_000)
    if kind < 0.60:
        return chance.randrange(5_000, 180_000)
    if kind < 0.75:
        return chance.randrange(180_000, 3 * HOUR_MS)
    if kind < 0.88:
        return chance.randrange(3 * HOUR_MS, 40 * HOUR_MS)
    if kind < 0.99:
        return chance.randrange(24 * HOUR_MS, DELAY_MS_MAX - HOUR_MS)
    return DELAY_MS_MAX + HOUR_MS  # refused


class Producer:
    """Sends and changes its mind."""

    def __init__(
        self,
        client: Client,
        model: Model,
        clock: Any,
        chance: Random,
        note: Callable[..., None],
        rows_max: int,
        brokers: dict[str, set[str]],
    ) -> None:
        """`brokers`: the addresses that the consumers of each subject pull from."""
        self._brokers = brokers
        self._client = client
        self._model = model
        self._clock = clock
        self._chance = chance
        self._note = note
        self._rows_max = rows_max
        self.rows: list[Sent] = []
        self.busy = trio.Event()

    async def act(self) -> None:
        """One request."""
        kind = self._chance.random()
        with self._client.noted(self._note):
            if kind < 0.55 or not self.rows:
                await (self._send_rows([]) if self._chance.random() < 0.6 else self._send_columns())
            elif kind < 0.70:
                await self._cancel()
            elif kind < 0.80:
                await self._reschedule()
            elif kind < 0.93:
                await self._look_up()
            elif kind < 0.97:
                await self._status()
            elif kind < 0.985:
                await self._route()
            else:
                await self._redispatch()

    async def send_within(self, due_ms: list[int]) -> None:
        """Send messages that are due at some of these times, or a moment later."""
        with self._client.noted(self._note):
            await self._send_rows(list(due_ms), len(due_ms))

    # -- send

    def _new_row(self, times: list[int]) -> Sent:
        """`times`: the due times drawn for this request so far; takes one of them, or adds to them."""
        chance, model = self._chance, self._model
        now_ms = self._clock.now_ms()
        if self.rows and chance.random() < 0.12:
            twin = chance.choice(self.rows)
            if twin.message_id is not None and not twin.rescheduled:
                # The same id, subject and due time again: a client that retries.
                return model.new_row(twin.subject, twin.due_ms, twin.message_id, twin.expires_ms)
        subject = chance.choice(SUBJECTS)
        if len(times) < TIMES_AT_ONCE:
            times.append(max(now_ms + pick_delay_ms(chance), 1))
            due_ms = times[-1]
        else:
            due_ms = chance.choice(times) + chance.choice([0, 1, chance.randrange(3_000)])
        if self.rows and chance.random() < 0.15:
            due_ms = chance.choice(self.rows).due_ms or due_ms
        message_id = f"id-{chance.randrange(10**6)}" if chance.random() < 0.5 else None
        expires_ms = 0
        if chance.random() < EXPIRING_SHARE:
            expires_ms = max(due_ms + chance.choice([-1000, 0, 1, 2_000, 25_000, 600_000]), 1)
        padding = chance.choice([0, 10, 300, 3000]) if chance.random() < 0.5 else 0
        return model.new_row(subject, due_ms, message_id, expires_ms, padding)

    async def _send_rows(self, times: list[int], count: int = 0) -> None:
        """`times`: due times to choose from; made here where there are few. `count`: how many rows, 0: drawn."""
        count = count or self._chance.choice([1, 1, 2, 5, self._rows_max])
        rows = [self._new_row(times) for _ in range(count)]
        messages = []
        asked_ms, steps = self._clock.now_ms(), self._clock.step_count
        for row in rows:
            message = map_of(row)
            if row.message_id is None and self._chance.random() < 0.3:
                del message["due_ms"]
                message["delay_ms"] = max(row.due_ms - self._clock.now_ms(), 0)
                row.due_ms = None
            messages.append(message)
        self._note(self._client.name, "send", tokens=[row.token for row in rows])
        self.rows += rows
        sending = self._model.asking_to_send(rows)
        results = await self._ask(rows, {"messages": messages})
        for row, message, result in zip(rows, messages, results["results"], strict=True):
            if "error" in result:
                self._note(self._client.name, "row refused", token=row.token, error=result["error"])
                self._settle_refused(row, result["error"], sending)
            else:
                delayed = row.due_ms is None
                self._model.accepted(row, result["sequence"], result["receipt"], result["due_ms"], sending)
                if delayed and self._clock.step_count == steps:
                    self._check_delay(row, message["delay_ms"], asked_ms)
                if row.message_id is None:
                    row.derived_id = result["message_id"]
                elif result["message_id"] != row.message_id:
                    self._model.fail(f"accepted with the id {result['message_id']}", row)
        self._note(self._client.name, "sent", sequences=[row.sequence for row in rows])

    def _check_delay(self, row: Sent, delay_ms: int, asked_ms: int) -> None:
        """It counts from a moment between the request and its answer."""
        assert row.due_ms is not None
        if not asked_ms + delay_ms <= row.due_ms <= self._clock.now_ms() + delay_ms + 1:
            self._model.fail(f"asked at {asked_ms} for a delay of {delay_ms} ms, due {row.due_ms}", row)

    async def _ask(self, rows: list[Sent], arguments: dict[str, Any]) -> dict[str, Any]:
        """Send; an error of the whole request refuses all rows, unless the server does not know itself."""
        try:
            return await self._client.request("send", arguments)
        except DelayServerError as error:
            for row in rows:
                self._settle_refused(row, error.name, None)
            raise
        except Lost as error:
            if not error.sent:
                for row in rows:
                    self._model.refused(row)
            raise

    def _settle_refused(self, row: Sent, error: str, sending: Sending | None) -> None:
        if error == "too_old":
            if sending is None:
                self._model.fail("a whole request was refused as too old", row)
            else:
                self._model.too_old(row, sending)
        if error not in REFUSED_FOR_CERTAIN_NOT:
            self._model.refused(row)

    async def _send_columns(self) -> None:
        times: list[int] = []
        rows = [self._new_row(times) for _ in range(self._chance.choice([1, 3, self._rows_max]))]
        arguments = columns_of(rows)
        self._note(self._client.name, "send columns", tokens=[row.token for row in rows])
        self.rows += rows
        sending = self._model.asking_to_send(rows)
        reply = await self._ask(rows, arguments)
        bad = {item[0]: item[1] for item in reply["rejected"]}
        for index, error in bad.items():
            self._settle_refused(rows[index], error, sending)
        good = [row for index, row in enumerate(rows) if index not in bad]
        assert reply["accepted"] == len(good)
        for sequence, row in enumerate(good, reply["first_sequence"]):
            assert row.due_ms is not None
            receipt = f"{self._server_id(reply)}-{row.due_ms:012x}-{sequence:012x}"
            self._model.accepted(row, sequence, receipt, row.due_ms, sending)
        self._note(self._client.name, "sent", sequences=[row.sequence for row in rows], refused=bad)

    def _server_id(self, _reply: dict[str, Any]) -> str:
        return self._model.server_id

    # -- what else is asked of a message

    def _some(self, count: int) -> list[Sent]:
        known = [row for row in self.rows[-60:] if row.state == ACCEPTED]
        if not known:
            return []
        return self._chance.sample(known, min(count, len(known)))

    async def _cancel(self) -> None:
        rows = self._some(self._chance.choice([1, 1, 3]))
        if not rows:
            return
        self._note(self._client.name, "cancel", tokens=[row.token for row in rows])
        identities = [self._model.identity(row) for row in rows]
        for identity in identities:
            identity.cancels_open += 1
        try:
            outcomes = await self._ask_cancel(rows)
        except (Lost, DelayServerError) as error:
            if (isinstance(error, Lost) and error.sent) or (
                isinstance(error, DelayServerError) and (error.name in REFUSED_FOR_CERTAIN_NOT)
            ):
                for identity in identities:
                    identity.maybe_cancelled = True
            raise
        finally:
            for identity in identities:
                identity.cancels_open -= 1
        self._note(self._client.name, "cancel answered", outcomes=outcomes)
        for row, outcome in zip(rows, outcomes, strict=True):
            self._model.cancel_answered(row, outcome, self._clock.peak_us // 1000, self._clock.now_us())

    def _outcome(self, result: dict[str, Any]) -> str:
        """What became of one item of a cancel. Where a bit hit the message that its id names, it is not known."""
        if result.get("error") == "message_damaged" and self._model.damage.flips:
            return "too_late"
        outcome: str = result["outcome"]
        return outcome

    async def _ask_cancel(self, rows: list[Sent]) -> list[str]:
        if self._chance.random() < 0.6:
            reply = await self._client.request("cancel", named(self._model, rows, self._chance))
            return [self._outcome(result) for result in reply["results"]]
        count = len(rows)
        reply = await self._client.request(
            "cancel",
            {
                "count": count,
                "sequence": struct.pack(f"<{count}q", *[row.sequence for row in rows]),
                "due_ms": struct.pack(f"<{count}q", *[row.due_ms or 0 for row in rows]),
            },
        )
        outcome = reply["outcome"]
        if isinstance(outcome, list):
            codes = list(range(outcome[0], outcome[0] + count))
        else:
            codes = [outcome] * count if isinstance(outcome, int) else list(outcome)
        return [OUTCOMES[code] for code in codes]

    async def _reschedule(self) -> None:
        pairs = [self._to_move(old) for old in self._some(self._chance.choice([1, 1, 2, 5]))]
        if not pairs:
            return
        identities = [self._model.identity(old) for old, _, _ in pairs]
        for identity in identities:
            identity.cancels_open += 1
        sending = self._model.asking_to_send([new for _, new, _ in pairs])
        try:
            reply = await self._client.request("reschedule", {"items": [item for _, _, item in pairs]})
        except (Lost, DelayServerError) as error:
            in_doubt = error.sent if isinstance(error, Lost) else error.name in REFUSED_FOR_CERTAIN_NOT
            for identity, (_, new, _) in zip(identities, pairs, strict=True):
                self._not_moved(identity, new, in_doubt)
            raise
        finally:
            for identity in identities:
                identity.cancels_open -= 1
        results = reply["results"]
        self._note(
            self._client.name, "reschedule answered", results=[row.get("outcome", row.get("error")) for row in results]
        )
        for identity, (old, new, _), result in zip(identities, pairs, results, strict=True):
            if "error" in result:
                if result["error"] == "too_old":
                    self._model.too_old(new, sending)
                self._not_moved(identity, new, result["error"] in REFUSED_FOR_CERTAIN_NOT)
                continue
            if result["outcome"] == "cancelled":
                self._model.accepted(new, result["sequence"], result["new_receipt"], result["due_ms"], sending)
                self.rows.append(new)
            else:
                self._model.refused(new)
            self._model.cancel_answered(old, result["outcome"], self._clock.peak_us // 1000, self._clock.now_us())

    def _to_move(self, old: Sent) -> tuple[Sent, Sent, dict[str, Any]]:
        """A message, the one that shall take its place, and the item of the request that says so."""
        due_ms = max(self._clock.now_ms() + pick_delay_ms(self._chance), 1)
        new = self._model.new_row(old.subject, due_ms, old.message_id, 0, rescheduled=True, kind=old.kind)
        self._note(self._client.name, "reschedule", token=old.token, new=new.token, due_ms=due_ms)
        item = {"receipt": old.receipt, "due_ms": due_ms, "body": new.body, "expires_ms": 0}
        message_id = self._model.by_id(old)
        if message_id and self._chance.random() < 0.4:
            del item["receipt"]
            item |= {"subject": old.subject, "message_id": message_id, "message_due_ms": old.due_ms}
        return old, new, item

    def _not_moved(self, identity: Identity, new: Sent, in_doubt: bool) -> None:
        if in_doubt:
            identity.maybe_cancelled = True
        else:
            self._model.refused(new)

    async def _look_up(self) -> None:
        rows = self._some(self._chance.choice([1, 3, 10]))
        if rows:
            await look_up(self._client, self._model, self._clock, rows, named(self._model, rows, self._chance))

    async def _status(self) -> None:
        asked = self._model.asking()
        status = await self._client.request("status", {})
        self._model.check_status(status, asked, self._clock.peak_us // 1000)

    async def _route(self) -> None:
        subject = self._chance.choice(SUBJECTS)
        reply = await self._client.request("route", {"subject": subject})
        addresses = {node["address"] for node in reply["nodes"]}
        if not addresses or not addresses <= self._brokers[subject]:
            raise SimulationFailure(f"{subject} is routed to {reply}, its brokers are {self._brokers[subject]}")

    async def _redispatch(self) -> None:
        """As an operator does whose broker lost something; half of them only look."""
        from_ms = self._clock.now_ms() - int(10 ** (3 + self._chance.random() * 4))
        arguments = {"from_ms": from_ms, "to_ms": self._clock.now_ms(), "dry_run": self._chance.random() < 0.5}
        self._note(self._client.name, "redispatch", **arguments)
        if not arguments["dry_run"]:
            self._model.redispatches(from_ms, arguments["to_ms"])
        reply = await self._client.request("redispatch", arguments)
        self._note(self._client.name, "redispatched", **reply)
        if not arguments["dry_run"]:
            self._model.redispatched(from_ms, arguments["to_ms"])


OUTCOMES = [
    "unknown",
    "pending",
    "in_flight",
    "retrying",
    "delivered",
    "cancelled",
    "expired",
    "deduplicated",
    "dead_lettered",
    "retired",
    "already_cancelled",
    "too_late",
    "rolled_back",
    "prepared",
    "committed",
]


def map_of(row: Sent) -> dict[str, Any]:
    """The row of a `send`."""
    message: dict[str, Any] = {"subject": row.subject, "body": row.body, "due_ms": row.due_ms}
    if row.message_id is not None:
        message["message_id"] = row.message_id
    if row.expires_ms:
        message["expires_ms"] = row.expires_ms
    return with_kind(message, row.kind)


def columns_of(rows: list[Sent]) -> dict[str, Any]:
    """The arguments of a `send` in columns."""
    subjects = sorted({row.subject for row in rows})
    count = len(rows)
    ids = [(row.message_id or "").encode() for row in rows]
    arguments: dict[str, Any] = {
        "count": count,
        "subjects": subjects,
        "subject_index": struct.pack(f"<{count}I", *[subjects.index(row.subject) for row in rows]),
        "due_ms": struct.pack(f"<{count}q", *[row.due_ms or 0 for row in rows]),
        "bodies": b"".join(row.body for row in rows),
        "body_length": struct.pack(f"<{count}I", *[len(row.body) for row in rows]),
        "message_ids": b"".join(ids),
        "message_id_length": struct.pack(f"<{count}I", *map(len, ids)),
        "expires_ms": struct.pack(f"<{count}q", *[row.expires_ms for row in rows]),
    }
    tags = [tag_of(row.kind) for row in rows]
    properties = [msgpack.packb(properties_of(row.kind)) if properties_of(row.kind) else b"" for row in rows]
    arguments |= {
        "tags": ["a", "b"],
        "tag_index": struct.pack(f"<{count}I", *[0 if tag is None else 1 + "ab".index(tag) for tag in tags]),
        "properties": b"".join(properties),
        "properties_length": struct.pack(f"<{count}I", *map(len, properties)),
    }
    return arguments


def named(model: Model, rows: list[Sent], chance: Random) -> dict[str, Any]:
    """Arguments that name messages: by receipts, or by ids where each has one that names it alone."""
    ids = [model.by_id(row) for row in rows]
    if not all(ids) or chance.random() < 0.5:
        return {"receipts": [row.receipt for row in rows]}
    messages = zip(rows, ids, strict=True)
    return {"messages": [{"subject": row.subject, "message_id": id_, "due_ms": row.due_ms} for row, id_ in messages]}


async def look_up(
    client: Client, model: Model, clock: Any, rows: list[Sent], arguments: dict[str, Any] | None = None
) -> None:
    """Ask for rows that were accepted, and let the model judge the answers."""
    reply = await client.request("lookup", arguments or {"receipts": [row.receipt for row in rows]})
    by_name = arguments is not None and "messages" in arguments
    judge_lookup(model, clock, zip(rows, reply["results"], strict=True), by_name=by_name)


def judge_lookup(model: Model, clock: Any, answers: Iterable[tuple[Sent, dict[str, Any]]], *, by_name: bool) -> None:
    """Let the model judge what a lookup said of each of these rows. `by_name`: they were asked for by their ids."""
    for row, result in answers:
        if "error" in result:
            # Damage may hide a newer message with the name of a cancelled one.
            hides_newer = by_name and model.identity(row).cancel_possible and bool(model.damage.flips)
            if result["error"] != "message_damaged" or not hides_newer:
                model.fail(f"lookup of an own message answered {result}", row)
            continue
        model.looked_up(row, result["outcome"], clock.peak_us // 1000, clock.now_us())
        if result["outcome"] != "retired":
            model.described(row, result, clock.peak_us)


# Of the pulls that bring messages, how many search for one of them.
FINDS_SHARE = 0.05
# And how many list the subjects of the node.
LISTS_SHARE = 0.05
# Of the consumers of a seed, how many ack nothing while it lasts.
NEVER_ACKS_SHARE = 0.15


class Consumer:
    """Pulls one subject for one consumer group."""

    def __init__(
        self,
        client: Client,
        model: Model,
        host: Host,
        server_clock: WallClock,
        chance: Random,
        note: Callable[..., None],
        subject: str,
        group: str,
        timely: Timeliness,
        looks: Callable[[], None],
    ) -> None:
        """`host` is the broker it pulls from; `server_clock` says what was early. `looks` is called at
        every pull that brought something: a moment as good as any to look at memory."""
        self._timely = timely
        self._looks = looks
        self._server_clock = server_clock
        self._client = client
        self._model = model
        self._host = host
        self._chance = chance
        self._note = note
        self._subject = subject
        self._group = group
        self.careful = False
        # A consumer of its kind acks nothing before the end.
        self._never_acks = chance.random() < NEVER_ACKS_SHARE

    async def run(self) -> None:
        """Pull until cancelled."""
        out_of_range = 0
        while True:
            if not self._host.open.is_set():
                await self._host.open.wait()
            try:
                await self.turn()
            except Lost:
                await self._client.sleep(0.3)
            except DelayServerError as error:
                self._note(self._client.name, "refused", error=error.name)
                await self._client.sleep(0.5)
            if self._client.out_of_range != out_of_range:
                out_of_range = self._client.out_of_range
                self._model.group_was_let_go(self._group, self._subject)

    async def turn(self) -> int:
        """One pull and what becomes of it; returns how many messages came."""
        clock, life = self._host.clock, self._host.lives
        asked_us, steps, began_us = clock.now_us(), clock.step_count, clock.monotonic_us()
        lowest_us = clock.lowest_us
        reply = await self._client.request(
            "pull",
            {
                "subject": self._subject,
                "group": self._group,
                "max_messages": self._chance.choice([1, 5, 1000]),
                "wait_ms": 20_000 if self.careful else self._chance.choice([0, 200, 3000, 3000]),
            }
            | self._model.filter_of(self._group),
        )
        messages = reply["messages"]
        if not messages:
            if not self.careful:
                await self._client.sleep(0.05 + self._chance.random() * 0.5)
            return 0
        self._note(
            self._client.name,
            "pulled",
            rows=" ".join(
                f"{message['body'][1:12].split(b'.')[0].decode()}@{describe(message['delivery'])}"
                for message in messages
            ),
        )
        rows = [self._arrived(message, (asked_us, lowest_us), life, steps) for message in messages]
        self._looks()
        if self._chance.random() < FINDS_SHARE:
            await self._find(messages[0], rows[0], life)
        if self._chance.random() < LISTS_SHARE:
            await self._list_subjects(rows[0])
        unknown = await self._answer(rows, [message["delivery"] for message in messages])
        leased = clock.monotonic_us() - began_us < ACK_TIMEOUT_MS * 1000 and self._host.lives == life
        some = next((row for row in rows if row is not None), None)
        # A group that lags may lose what it has leased.
        if unknown and leased and some is not None and not self._host.may_let_go:
            self._model.fail(f"{unknown} deliveries are unknown while they are leased", some)
        return len(rows)

    def _arrived(self, message: dict[str, Any], asked_us: tuple[int, int], life: int, steps: int) -> Sent | None:
        """`asked_us`: the latest and the earliest time that the broker may have shown when it was asked."""
        clock, by = self._host.clock, self._server_clock
        retry = bool(message["delivery"] >> 62 & 1)
        row = self._model.arrived(
            self._group,
            self._host.name,
            message | {"retry": retry},
            wall_us=clock.now_us(),
            # A redelivery is dispatched by the broker that keeps it.
            peak_us=max(clock.peak_us, by.peak_us) if retry else by.peak_us,
            lives=(life, self._host.lives),
            asked_us=asked_us[1],
            until_us=asked_us[0] + ACK_TIMEOUT_MS * 1000,
            steps=(steps, clock.step_count),
        )
        if row is not None and not retry and row.state == ACCEPTED:
            due_ms, accepted_us, dispatched_us = message["due_ms"], message["accepted_us"], message["dispatched_us"]
            late_us = self._timely.lateness_us(self._subject, due_ms, accepted_us, dispatched_us)
            if late_us is not None and late_us > LATE_US_MAX:
                self._model.fail(f"dispatched {late_us / 1e6:.3f} s late in a world that was well", row)
        return row

    async def _find(self, message: dict[str, Any], row: Sent | None, life: int) -> None:
        """Search for a message by its id. While it is leased to this consumer, the broker has it. A redelivery may outlive
        the message that it repeats."""
        reply = await self._client.request("find", {"message_id": message["message_id"], "subject": self._subject})
        same = ("message_id", "subject", "server_id", "due_ms", "body", "expires_ms")
        found = any(all(each[name] == message[name] for name in same) for each in reply["messages"])
        self._note(self._client.name, "finds", id=message["message_id"], messages=len(reply["messages"]), found=found)
        if row is None or found or message["position"] < 0 or self._host.lives != life:
            return
        self._model.fail("a leased message is not found by its id", row)

    async def _list_subjects(self, row: Sent | None) -> None:
        """List the subjects of the node in small pages. It knows those of its messages, and names each once."""
        pattern, after, more = self._subject[: self._chance.randint(0, 3)] + "*", 0, True
        names: list[str] = []
        while more:
            arguments = {"pattern": pattern, "after": after, "max": self._chance.randint(1, 3)}
            reply = await self._client.request("subjects", arguments)
            names += reply["subjects"]
            after, more = reply["next"], reply["more"]
        self._note(self._client.name, "lists", pattern=pattern, subjects=names)
        if row is not None and self._subject not in names:
            self._model.fail("the subject of a message that was handed out is not listed", row)
        if row is not None and len(set(names)) < len(names):
            self._model.fail("a subject is listed twice", row)

    async def _answer(self, handed: list[Sent | None], deliveries: list[int]) -> int:
        """Returns how many of them the broker did not know."""
        kind = 1.0 if self.careful else self._chance.random()
        rows = [row for row in handed if row is not None]
        if kind < 0.04 or (self._never_acks and not self.careful and kind < 0.8):
            self._note(self._client.name, "forgets", tokens=[row.token for row in rows])
            return 0
        # Numbers of deliveries of several shards do not fit a column: the library takes them apart.
        arguments = ack_call(self._subject, self._group, deliveries).arguments
        if kind < 0.10 or (self._never_acks and not self.careful):
            self._model.nacked(self._group, self._host.name, rows)
            delay_ms = self._chance.choice([None, 0, 100, 5_000, 60_000])
            if delay_ms is not None:
                arguments["delay_ms"] = delay_ms
            self._note(self._client.name, "nacks", tokens=[row.token for row in rows])
            return int((await self._client.request("nack", arguments))["unknown"])
        reply = await self._client.request("ack", arguments)
        self._note(self._client.name, "acked", rows=len(deliveries), unknown=reply["unknown"])
        if reply["unknown"] == 0:
            self._model.acked(self._group, self._host.name, rows)
        return int(reply["unknown"])


def describe(delivery: int) -> str:
    """A delivery id for people: queue, epoch of the broker, position."""
    return f"{'r' if delivery >> 62 & 1 else 'm'}{delivery >> 44 & 0x3FFFF}.{delivery & (1 << 44) - 1}"
