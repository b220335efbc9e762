"""The embedded broker at work: the node that groups deliver to, the operations of consumers, and redelivery.

Nacks and ack timeouts go back through the delay pipeline: internal records, committed to message_log like messages, due
for one consumer group. Only when they are durable the old delivery is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import msgpack
import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.broker.broker import Broker
from delayserver.broker.commit import BrokerCommit
from delayserver.broker.pulled import PulledBatch
from delayserver.broker.pulls import PullService
from delayserver.broker.retries import RetryBatch
from delayserver.broker_node import DeliveryError
from delayserver.clock import Clock
from delayserver.connection import Connection
from delayserver.delivery_request import NOT_TAKEN, read_delivery
from delayserver.group_commit import GroupCommit
from delayserver.intake import Intake
from delayserver.protocol.arguments import bounded, server_number
from delayserver.protocol.columns import I64, U32, pack_column, unpack_column, unpack_count
from delayserver.protocol.errors import DelayServerError, DiskFull, InvalidArgument, StorageFailed
from delayserver.protocol.frames import Request, encode_bulk_reply, encode_reply
from delayserver.protocol.outcomes import DeliverOutcome
from delayserver.protocol.receipts import derived_message_id
from delayserver.settings import BrokerSettings
from delayserver.turns import LARGE_ROWS, Turns
from store.batches import StoredBatch
from store.columns import constant_column, ragged_offsets
from store.errors import DiskFullError, StoreError
from store.names import CONSUMER_GROUP, Names

# Ended leases that become internal records in one step.
EXPIRED_AT_ONCE = 4096

# Servers whose newest connection is remembered.
SERVERS_MAX = 1024


class EmbeddedNode:
    """The broker of this process as a node of a group."""

    address = "embedded"

    def __init__(self, broker: Broker, commit: BrokerCommit, pulls: PullService, clock: Clock, server_id: int) -> None:
        self._broker = broker
        self._commit = commit
        self._pulls = pulls
        self._clock = clock
        self._server_id = server_id

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> NDArray[np.uint8]:
        """Consumers may see a message before the sync; `delivered` is said only after it."""
        try:
            delivered = self._broker.deliver(batch, uncertain, self._clock.now_us())
            if delivered.no_room:
                raise DeliveryError("the broker's disk is full", known=True)
            self._pulls.arrived(delivered.arrived, len(batch))
            await self._commit.stored(delivered.end)
        except DiskFullError as error:
            raise DeliveryError(str(error), known=False) from error
        return delivered.outcome

    async def windows_complete(self, windows_ms: Callable[[], list[int]]) -> None:
        self._broker.window_complete(self._server_id, windows_ms())


class BrokerService:
    """Operations of consumers and of other servers on the broker of this process."""

    def __init__(
        self,
        broker: Broker,
        commit: BrokerCommit,
        pulls: PullService,
        names: Names,
        intake: Intake,
        pipeline: GroupCommit,
        settings: BrokerSettings,
        turns: Turns,
        clock: Clock,
    ) -> None:
        self.broker = broker
        self._turns = turns
        self.commit = commit
        self.pulls = pulls
        self._names = names
        self._intake = intake
        self._pipeline = pipeline
        self._settings = settings
        self._clock = clock
        self._leases = trio.Event()
        # The newest connection over which each server has delivered.
        self._newest: dict[int, int] = {}

    async def run(self) -> None:
        """Commit, serve waiting pulls, end leases; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.commit.run)
            nursery.start_soon(self.commit.run_upkeep)
            nursery.start_soon(self.pulls.run)
            nursery.start_soon(self._end_leases)

    # -- pull

    async def pull(self, connection: Connection, request: Request) -> dict[str, Any] | None:
        """The operation `pull`; messages are answered where they are handed out, the rest here."""
        arguments = request.arguments
        subject, group = self._subject_and_group(arguments)
        ack = arguments.get("ack")
        if ack is not None:
            if type(ack) is not dict:
                raise InvalidArgument("ack must be a map of count and deliveries")
            await self._turn_for(ack)
            self._ack(subject, group, ack)
            # The reply does not wait for it: a crash in between hands those messages out again.
            self.commit.soon()

        def answer(pulled: PulledBatch) -> None:
            self._leases.set()
            connection.reply(encode_bulk_reply(request.id, self._reply(arguments, pulled)))
            answered.append(True)

        answered: list[bool] = []
        await self.pulls.pull(
            subject,
            group,
            bounded(arguments, "max_messages", 1, self._settings.pull_messages_max, 1),
            bounded(arguments, "max_bytes", 1, 1 << 62, 8 << 20),
            bounded(arguments, "wait_ms", 0, self._settings.wait_ms_max, 0),
            bounded(arguments, "ack_timeout_ms", 1, 86_400_000, self._settings.ack_timeout_ms),
            answer,
        )
        return None if answered else self._reply(arguments, None)

    def _reply(self, arguments: dict[str, Any], pulled: PulledBatch | None) -> dict[str, Any]:
        if arguments.get("columns"):
            return self._as_columns(arguments["subject"], pulled)
        return {"messages": self._as_rows(arguments["subject"], pulled) if pulled is not None else []}

    def _as_columns(self, subject: str, pulled: PulledBatch | None) -> dict[str, Any]:
        if pulled is None:
            pulled = PulledBatch(StoredBatch.filled(0), np.empty(0, np.int64), np.empty(0, np.uint32))
        batch = pulled.batch
        servers, index = _server_ids(batch)
        return {
            "count": len(batch),
            "subject": subject,
            "server_ids": servers,
            "server_index": pack_column(index, U32),
            "sequence": pack_column(batch.sequence),
            "due_ms": pack_column(batch.due_ms),
            "accepted_us": pack_column(batch.accepted_us),
            "dispatched_us": pack_column(batch.dispatched_us),
            "attempt": pack_column(pulled.attempt, U32),
            "message_ids": batch.ids,
            "message_id_length": pack_column(batch.ids_length),
            "properties": batch.properties,
            "properties_length": pack_column(batch.properties_length),
            "bodies": batch.bodies,
            "body_length": pack_column(batch.bodies_length),
            "delivery": pack_column(pulled.delivery),
        }

    def _as_rows(self, subject: str, pulled: PulledBatch) -> list[dict[str, Any]]:
        batch = pulled.batch
        servers, index = _server_ids(batch)
        ids = _rows(batch.ids, batch.ids_length)
        properties = _rows(batch.properties, batch.properties_length)
        bodies = _rows(batch.bodies, batch.bodies_length)
        origin = np.where(batch.origin_sequence != 0, batch.origin_sequence, batch.sequence).tolist()
        columns = [
            column.tolist()
            for column in (batch.sequence, batch.due_ms, batch.accepted_us, batch.dispatched_us, pulled.attempt, index)
        ]
        return [
            {
                "message_id": ids[row].decode() if ids[row] else derived_message_id(servers[server], origin[row]),
                "subject": subject,
                "sequence": sequence,
                "server_id": servers[server],
                "due_ms": due_ms,
                "accepted_us": accepted_us,
                "dispatched_us": dispatched_us,
                "attempt": attempt,
                "body": bodies[row],
                "properties": msgpack.unpackb(properties[row]) if properties[row] else {},
                "delivery": delivery,
            }
            for row, (sequence, due_ms, accepted_us, dispatched_us, attempt, server, delivery) in enumerate(
                zip(*columns, pulled.delivery.tolist(), strict=True)
            )
        ]

    # -- ack and nack

    async def ack(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """The operation `ack`; durable before it is answered."""
        subject, group = self._subject_and_group(request.arguments)
        await self._turn_for(request.arguments)
        acked, unknown = self._ack(subject, group, request.arguments)
        await self._durable()
        return {"acked": acked, "unknown": unknown}

    async def _turn_for(self, ack: dict[str, Any]) -> None:
        count = ack.get("count")
        if type(count) is int and count > LARGE_ROWS:
            await self._turns.take()

    def _ack(self, subject: int, group: int, arguments: dict[str, Any]) -> tuple[int, int]:
        acked = self.broker.ack(subject, group, _deliveries(arguments), self._clock.now_us())
        self.pulls.acked(subject, group)
        return acked.acked, acked.unknown

    async def nack(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """The operation `nack`; the redelivery is durable before it is answered."""
        arguments = request.arguments
        subject, group = self._subject_and_group(arguments)
        deliveries = _deliveries(arguments)
        delay_ms = bounded(arguments, "delay_ms", 0, 30 * 86_400_000, 0)
        clock = self._clock
        batch = self.broker.nack(subject, group, deliveries, delay_ms, clock.now_us(), clock.monotonic_us())
        await self._retry(batch)
        return {"nacked": len(deliveries) - batch.unknown, "unknown": batch.unknown}

    async def _retry(self, batch: RetryBatch) -> None:
        """Send internal records through the pipeline, then settle the deliveries they stand for."""
        if batch.messages is not None:
            try:
                await self._pipeline.commit(batch.messages)
            except DelayServerError:
                self.broker.abandon_retry(batch, self._clock.monotonic_us())
                raise
        self.broker.settle_retry(batch)
        self.pulls.acked(batch.subject, batch.group)
        await self._durable()

    async def _end_leases(self) -> None:
        while True:
            deadline_us = self.broker.next_lease_deadline_us()
            if deadline_us is None:
                self._leases = trio.Event()
                await self._leases.wait()
                continue
            wait_us = deadline_us - self._clock.monotonic_us()
            if wait_us > 0:
                self._leases = trio.Event()
                with trio.move_on_after(wait_us / 1_000_000):
                    await self._leases.wait()
                    await self._clock.sleep_ms(10)  # pulls come in bursts; leases last for seconds
                continue
            now_us, lease_us = self._clock.now_us(), self._clock.monotonic_us()
            for batch in self.broker.expired_leases(now_us, lease_us, EXPIRED_AT_ONCE):
                try:
                    await self._retry(batch)
                except DelayServerError:
                    await self._clock.sleep_ms(1000)  # refused for now; the deliveries stay leased

    async def _durable(self) -> None:
        try:
            await self.commit.durable()
        except DiskFullError as error:
            raise DiskFull(str(error), retry_after_ms=1000) from error
        except StoreError as error:
            raise StorageFailed(str(error)) from error

    # -- deliver

    def deliver(self, connection: Connection, request: Request) -> Awaitable[dict[str, Any]]:
        """The operation `deliver` of another server: stored at once, in the order of the requests, answered when durable."""
        batch, uncertain = read_delivery(request.arguments, self._intake)
        self._admit(connection, int(batch.server_id[0]))
        outcome = np.full(len(batch), int(DeliverOutcome.REFUSED), np.uint8)
        taken = np.flatnonzero((batch.subject != NOT_TAKEN) & (batch.target_group != NOT_TAKEN))
        if not len(taken):
            return self._delivered(outcome, self.broker.synced_offset)
        if len(taken) < len(outcome):
            batch = batch.take(taken)
        try:
            delivered = self.broker.deliver(batch, uncertain, self._clock.now_us())
        except DiskFullError as error:
            raise DiskFull(str(error), retry_after_ms=1000) from error
        except StoreError as error:  # as where the deliveries are this server's own: it ends, and a restart recovers
            failed = StorageFailed(str(error))
            self._intake.on_storage_failed(failed)
            raise failed from error
        if delivered.no_room:
            raise DiskFull("there is no room for any of it", retry_after_ms=1000)
        self.pulls.arrived(delivered.arrived, len(batch))
        outcome[taken] = delivered.outcome
        return self._delivered(outcome, delivered.end)

    async def _delivered(self, outcome: NDArray[np.uint8], end: int) -> dict[str, Any]:
        try:
            await self.commit.stored(end)
        except StoreError as error:
            # Also for want of space: it is stored, seen by consumers and may yet be synced, so nobody may call it refused.
            raise StorageFailed(str(error)) from error
        return {"outcome": pack_column(outcome)}

    def _admit(self, connection: Connection, server_id: int) -> None:
        """Refuse what comes late: a server has one connection, and has given up what it sent over an older one. It may
        have sent that again since, as uncertain, so nobody would look for a duplicate of it any more."""
        newest = self._newest.pop(server_id, 0)
        self._newest[server_id] = max(newest, connection.number)
        if len(self._newest) > SERVERS_MAX:
            del self._newest[next(iter(self._newest))]
        if connection.number < newest:
            raise InvalidArgument(
                "this server delivers over a newer connection; what comes over an older one is too late"
            )

    def window_complete(self, connection: Connection, request: Request) -> None:
        """The operation `window_complete` of another server, at once: what it delivers behind it belongs to a window that
        was opened again."""
        windows = request.arguments.get("window_ms")
        if type(windows) is not list or not all(type(window) is int for window in windows):
            raise InvalidArgument("window_ms must be a list of integers")
        server_id = server_number(request.arguments.get("server_id"))
        self._admit(connection, server_id)
        self.broker.window_complete(server_id, windows)
        connection.reply(encode_reply(request.id, {}))

    def _subject_and_group(self, arguments: dict[str, Any]) -> tuple[int, int]:
        subject = self._intake.subject(arguments.get("subject"))
        group = arguments.get("group")
        code = self._names.code(CONSUMER_GROUP, group) if type(group) is str else 0
        if not code:
            code = int(self._intake.intern(CONSUMER_GROUP, [self._intake.check_subject(group, "group")])[0])
        return subject, code


def _deliveries(arguments: dict[str, Any]) -> NDArray[np.int64]:
    count = unpack_count(arguments.get("count"), 1 << 20)
    return unpack_column(arguments.get("deliveries"), count, I64, "deliveries")


def _server_ids(batch: StoredBatch) -> tuple[list[str], NDArray[np.uint32]]:
    server_id = batch.server_id
    if len(server_id) and bool((server_id == server_id[0]).all()):  # nearly always, and a tenth of the cost
        return [f"{int(server_id[0]):012x}"], constant_column(0, len(server_id), U32)
    numbers, index = np.unique(server_id, return_inverse=True)
    return [f"{number:012x}" for number in numbers.tolist()], index.astype(np.uint32)


def _rows(blob: memoryview, lengths: NDArray[np.uint32]) -> list[bytes]:
    data = bytes(blob)
    return [data[start:end] for start, end in pairwise(ragged_offsets(lengths).tolist())]
