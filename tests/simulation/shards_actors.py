"""Producers and consumers of a cluster of several shards, and the books of its messages.

A message belongs to one shard, whose server id its receipt begins with. Sequences of two shards may be the same. So the
books have them with the number of the shard in front.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from delayserver.client.calls.core import Call
from delayserver.client.calls.send_calls import SendColumns, send_columns_call
from delayserver.client.values.messages import ColumnsSent
from delayserver.protocol.errors import DelayServerError, InDoubt
from delayserver.protocol.receipts import DIGITS
from tests.simulation.actors import SUBJECTS, Consumer, judge_lookup, named
from tests.simulation.client import Lost
from tests.simulation.cluster_world import OneShard, ShardModel, ShardProducer
from tests.simulation.failures import SimulationFailure
from tests.simulation.filters import properties_of, tag_of
from tests.simulation.members import Shard, ShardClock
from tests.simulation.model import Asked, Model, Sending, Sent
from tests.simulation.network import Network
from tests.simulation.shards_client import ShardsClient

SEQUENCE_BITS = 48
# The lives of two shards never compare as equal.
LIVES_MAX = 1_000_000
# Errors of a shard that serves nothing for now.
AWAY = (InDoubt.error, "not_primary", "not_ready", "log_unavailable", "shutting_down", "queue_full")


class ShardPlace(Shard):
    """One of several shards, for consumers and books that know one server."""

    def __init__(self, number: int, shard: OneShard, clock: ShardClock, network: Network, note: Any) -> None:
        self.number = number
        super().__init__(shard.members, clock, network, shard.epochs, note)
        self.name = f"shard-{number}"

    @property
    def lives(self) -> int:
        """As of a `Shard`, and different from those of the other shards."""
        return self.number * LIVES_MAX + super().lives

    @lives.setter
    def lives(self, _count: int) -> None:
        """Nobody counts them."""


class ShardsModel(ShardModel):
    """The books of all shards."""

    # The shards by their server ids.
    places: dict[str, ShardPlace]
    # The server ids of shards of which all who may choose one know by now that they take no new messages.
    refusing: Callable[[], set[str]]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._refusing: dict[int, set[str]] = {}

    def asking_to_send(self, rows: list[Sent]) -> Sending:
        refusing = self.refusing()
        self._refusing |= {row.token: refusing for row in rows}
        # Each shard retires its windows by itself, and nobody knows yet which one gets a message.
        sending = super().asking_to_send(rows)
        sending.retired.clear()
        return sending

    def accepted(self, row: Sent, sequence: int, receipt: str, due_ms: int, sending: Sending) -> None:
        server_id = receipt[:DIGITS]
        if server_id not in self.places:
            self.fail(f"its receipt {receipt} is of no shard", row)
        copies = [copy for copy in self.identity(row).copies if copy.receipt]
        if any(copy.receipt[:DIGITS] != server_id for copy in copies):
            self.fail(f"accepted by shard {server_id}, its copies by others: {[copy.receipt for copy in copies]}", row)
        if server_id in self._refusing[row.token] and not copies:
            self.fail(f"accepted by shard {server_id}, which takes no new messages", row)
        number = self.places[server_id].number
        super().accepted(row, number << SEQUENCE_BITS | sequence, receipt, due_ms, sending)

    def arrived(self, group: str, place: str, fields: dict[str, object], **named: Any) -> Sent | None:
        number, sequence = self.places[str(fields["server_id"])].number, fields["sequence"]
        assert isinstance(sequence, int)
        row = super().arrived(group, place, fields | {"sequence": number << SEQUENCE_BITS | sequence}, **named)
        if row is not None:
            identity = self.identity(row)
            places = {hands.partition("@")[2] for hands in identity.arrived}
            owners = {copy.receipt[:DIGITS] for copy in identity.copies if copy.receipt}
            if places != {place} or owners - {fields["server_id"]}:
                self.fail(f"one message, accepted by shards {sorted(owners)} and handed out by {sorted(places)}", row)
        return row

    def of_shard(self, number: int) -> set[int]:
        """The sequences of this shard that were answered."""
        mask = (1 << SEQUENCE_BITS) - 1
        return {sequence & mask for sequence in self.sequences if sequence >> SEQUENCE_BITS == number}


class ShardsProducer(ShardProducer):
    """A producer that is a client of all shards."""

    _client: ShardsClient
    _model: ShardsModel

    async def _send_columns(self) -> None:
        times: list[int] = []
        rows = [self._new_row(times) for _ in range(self._chance.choice([1, 3, self._rows_max]))]
        self._note(self._client.name, "send columns", tokens=[row.token for row in rows])
        self.rows += rows
        sending = self._model.asking_to_send(rows)
        try:
            sent = await self._client.library.carry_out(replace(_columns_call(rows), repeatable=False))
        except DelayServerError as error:
            for row in rows:
                self._settle_refused(row, _name_of(error), None)
            self._client.fail(error)
        bad = {each.index: _name_of(each.error) for each in sent.rejected}
        for index, name in bad.items():
            self._settle_refused(rows[index], name, sending)
        good = [row for index, row in enumerate(rows) if index not in bad]
        for row, receipt in zip(good, sent.receipts(), strict=True):
            assert row.due_ms is not None
            self._model.accepted(row, int(receipt[-DIGITS:], 16), receipt, row.due_ms, sending)
        self._note(self._client.name, "sent", sequences=[row.sequence for row in rows], refused=bad)

    async def _cancel(self) -> None:
        """Each row has an answer, or an error of its shard."""
        rows = self._some(self._chance.choice([1, 1, 3]))
        if not rows:
            return
        self._note(self._client.name, "cancel", tokens=[row.token for row in rows])
        identities = [self._model.identity(row) for row in rows]
        for identity in identities:
            identity.cancels_open += 1
        arguments, repeated = named(self._model, rows, self._chance), self._client.library.repeated
        repeated.clear()
        try:
            reply = await self._client.request("cancel", arguments)
        except Lost:
            for identity in identities:
                identity.maybe_cancelled = True
            raise
        finally:
            for identity in identities:
                identity.cancels_open -= 1
        results = reply["results"]
        self._note(self._client.name, "cancel answered", results=[_said(result) for result in results])
        (names,) = arguments.values()
        for row, name, identity, result in zip(rows, names, identities, results, strict=True):
            if "error" not in result:
                peak_ms = self._clock.peak_us // 1000
                # Where an answer was lost, the library asked again: then its own cancel may have been first.
                identity.maybe_cancelled |= name in repeated and result["outcome"] == "already_cancelled"
                self._model.cancel_answered(row, result["outcome"], peak_ms, self._clock.now_us())
            elif result["error"] not in AWAY:
                self._model.fail(f"a cancel of an own message answered {result}", row)
            elif result["error"] == InDoubt.error:
                identity.maybe_cancelled = True

    async def _look_up(self) -> None:
        rows = self._some(self._chance.choice([1, 3, 10]))
        if rows:
            arguments = named(self._model, rows, self._chance)
            await look_up_at_shards(self._client, self._model, self._clock, rows, arguments)

    async def _status(self) -> None:
        """A sum over all shards is complete, or an error that names one."""
        asked = self._model.asking()
        if not await self._has_pending(asked):
            # A message on its way to its bucket was counted neither here nor there.
            await self._client.sleep(1.0)
            if not await self._has_pending(asked):
                raise SimulationFailure("a sum over shards lacks pending messages")

    async def _has_pending(self, asked: Asked) -> bool:
        try:
            pending = await self._client.library.count_pending()
        except DelayServerError as error:
            if self._client.library.map_version and not error.message.startswith("shard "):
                raise SimulationFailure(f"a sum over shards fails, and does not say where: {error!r}") from error
            self._client.fail(error)
        peak_ms = self._clock.peak_us // 1000
        certain = sum(
            not each.cancel_possible and min(copy.due_ms or 0 for copy in each.copies) > peak_ms
            for each in asked.certain
        )
        self._note(self._client.name, "pending", count=pending, certain=certain)
        return pending >= certain

    async def _route(self) -> None:
        """The members of all shards that the client knows."""
        route = await self._client.library.route(subject=self._chance.choice(SUBJECTS))
        members = {address for node in route.nodes for address in node.address.split(",")}
        if not members or not members <= self._brokers[SUBJECTS[0]]:
            raise SimulationFailure(f"routed to {members}, the members are {self._brokers[SUBJECTS[0]]}")


async def look_up_at_shards(
    client: ShardsClient, model: Model, clock: ShardClock, rows: Sequence[Sent], arguments: dict[str, Any] | None = None
) -> None:
    """Ask for rows that were accepted, and let the model judge the answers of the shards that answer."""
    arguments = arguments or {"receipts": [row.receipt for row in rows]}
    reply = await client.request("lookup", arguments)
    answers = [(row, result) for row, result in zip(rows, reply["results"], strict=True) if _answers(result)]
    judge_lookup(model, clock, answers, by_name="messages" in arguments)


class ShardsConsumer(Consumer):
    """Pulls one subject from all shards. What a pull brings is of one of them."""

    _model: ShardsModel
    _lives: dict[str, int]

    async def turn(self) -> int:
        self._lives = {server_id: place.lives for server_id, place in self._model.places.items()}
        return await super().turn()

    def _arrived(self, message: dict[str, Any], asked_us: tuple[int, int], life: int, steps: int) -> Sent | None:
        self._host = self._model.places[message["server_id"]]
        return super()._arrived(message, asked_us, self._lives.get(message["server_id"], 0), steps)


def _columns_call(rows: Sequence[Sent]) -> Call[ColumnsSent]:
    subjects = sorted({row.subject for row in rows})
    columns = SendColumns(
        subjects=subjects,
        bodies=[row.body for row in rows],
        due_ms=[row.due_ms or 0 for row in rows],
        subject_index=[subjects.index(row.subject) for row in rows],
        message_ids=[row.message_id or "" for row in rows],
        properties=[properties_of(row.kind) for row in rows],
        expires_ms=[row.expires_ms for row in rows],
        tags=[tag_of(row.kind) for row in rows],
    )
    return send_columns_call(columns)


def _answers(result: dict[str, Any]) -> bool:
    """Whether its shard has answered."""
    return result.get("error") not in AWAY


def _said(result: dict[str, Any]) -> object:
    return result.get("outcome", result.get("error"))


def _name_of(error: DelayServerError) -> str:
    return InDoubt.error if isinstance(error, InDoubt) else error.name
