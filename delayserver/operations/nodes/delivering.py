"""The operations of other servers on the broker of this process: `deliver` and `window_complete`."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.actions.delivered_batch import Delivered
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.names.name_desk import NameDesk
from delayserver.operations.nodes.servers import Peer, Servers
from delayserver.protocol.columns import Ragged
from delayserver.protocol.errors import DiskFull, InvalidArgument, NotDue, StorageFailed
from delayserver.protocol.outcomes import DeliverOutcome
from delayserver.receive.group_commit import GroupCommit
from delayserver.runtime.clock import Clock
from store.errors import DiskFullError, StoreError, UnreadableError
from store.records.batches import I64, U8, U32, U64, StoredBatch
from store.records.message_rows import order_key_columns
from store.tables.names import CONSUMER_GROUP, SUBJECT, TAG

# The code of a name in a delivery that this node refuses.
NOT_TAKEN = 0xFFFF_FFFF
# Sequences have 48 bits: a receipt has twelve hex digits, and a key of the broker's store has no room for more.
SEQUENCE_MAX = (1 << 48) - 1


@dataclass(frozen=True, slots=True)
class NameColumn:
    """The names of n messages: the list `names`, and for each message its `index` into the list, u32[n]."""

    names: list[str]
    index: U32


@dataclass(frozen=True, slots=True)
class HandOver:
    """n messages of one window of a server as columns, n at least 1. `redelivery` u32[n] is packed as in the store.
    `uncertain`: the node may already have some of the messages."""

    server_id: int
    window_ms: int
    uncertain: bool
    sequence: I64
    due_ms: I64
    accepted_us: I64
    dispatched_us: I64
    expires_ms: I64
    origin_sequence: I64
    redelivery: U32
    subjects: NameColumn
    target_groups: NameColumn
    """Index 0 means no particular group; the names count from 1."""
    ids: Ragged
    properties: Ragged
    bodies: Ragged
    tags: NameColumn | None = None
    """Index 0 means no tag; the names count from 1. None: no message has one."""
    order_keys: Ragged | None = None
    """None: no message has one."""

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True, slots=True)
class HandOverAnswer:
    """Durable `DeliverOutcome` codes, u8[n]. `contested`: another process also claims the server id."""

    outcome: U8
    contested: bool


class Delivering:
    """Takes deliveries of other servers to this node."""

    def __init__(
        self,
        broker: LocalBroker,
        servers: Servers,
        names: NameDesk,
        pipeline: GroupCommit,
        clock_ahead_ms_max: int,
        clock: Clock,
    ) -> None:
        """`pipeline` ends the server if the store fails. A message due more than `clock_ahead_ms_max` from now is
        refused, because one of the two clocks is wrong."""
        self._broker = broker
        self._servers = servers
        self._names = names
        self._pipeline = pipeline
        self._clock_ahead_ms_max = clock_ahead_ms_max
        self._clock = clock

    def deliver(self, peer: Peer, delivery: HandOver) -> Awaitable[HandOverAnswer]:
        """Stores a delivery at once, in the order of the calls; an uncertain one when its window's keys are in memory.
        The awaitable returns when it is durable.

        Raises ServerNotProven, InvalidArgument and NotDue before any name is stored; also Superseded,
        DuplicateServerId, DiskFull, StorageFailed."""
        self._servers.check(peer)
        _check_sequences(delivery)
        self._check_due(delivery.due_ms)
        batch = self._batch(delivery)
        contested = self._servers.admit(peer, delivery.server_id)
        outcome = np.full(len(batch), int(DeliverOutcome.REFUSED), np.uint8)
        mask = (batch.subject != NOT_TAKEN) & (batch.target_group != NOT_TAKEN)
        if delivery.tags is not None:
            mask &= batch.tag != NOT_TAKEN
        if delivery.order_keys is not None and not mask.all():
            mask &= ~_behind_refused(batch.order_hash, mask)
        taken = np.flatnonzero(mask)
        if not len(taken):
            return self._durable(HandOverAnswer(outcome, contested), self._broker.core.state.files.store.synced)
        if len(taken) < len(outcome):
            batch = batch.take(taken)
        stored = HandOverAnswer(outcome, contested)
        if delivery.uncertain:
            return self._uncertain(peer, delivery.server_id, batch, taken, stored)
        with self._refusals():
            delivered = self._broker.deliver(batch)
        return self._answer(delivered, taken, stored)

    async def _uncertain(
        self, peer: Peer, server_id: int, batch: StoredBatch, taken: NDArray[np.intp], stored: HandOverAnswer
    ) -> HandOverAnswer:
        with self._refusals():
            # A newer process of the server may have come while the disk was read.
            admit = partial(self._servers.admit, peer, server_id)
            delivered = await self._broker.deliver_uncertain(batch, admit)
        return await self._answer(delivered, taken, stored)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Errors of the broker as errors of the protocol."""
        try:
            yield
        except DiskFullError as error:
            raise DiskFull(str(error), retry_after_ms=1000) from error
        except UnreadableError:  # of what was stored before: nothing is stored now, and the disk may read it later
            raise
        except StoreError as error:  # the server ends, as after a failure of its own deliveries; a restart recovers
            failed = StorageFailed(str(error))
            self._pipeline.refuse_from_now(failed)
            raise failed from error

    def _answer(
        self, delivered: Delivered, taken: NDArray[np.intp], stored: HandOverAnswer
    ) -> Awaitable[HandOverAnswer]:
        if delivered.no_room:
            raise DiskFull("there is no room for any of it", retry_after_ms=1000)
        stored.outcome[taken] = delivered.outcome
        return self._durable(stored, delivered.end)

    async def _durable(self, stored: HandOverAnswer, end: int) -> HandOverAnswer:
        try:
            await self._broker.commit.wait_stored(end)
        except StoreError as error:
            # Also on a full disk: consumers can see the messages and they may yet be synced, so they are not refused.
            raise StorageFailed(str(error)) from error
        return stored

    def window_complete(self, peer: Peer, server_id: int, windows_ms: list[int]) -> None:
        """Forgets the keys of these windows at once. A later delivery of such a window means that it was opened again.

        Raises ServerNotProven, InvalidArgument, Superseded, DuplicateServerId."""
        self._servers.admit(peer, server_id)
        self._broker.core.arrivals.window_complete(server_id, windows_ms)

    # -- checking

    def _check_due(self, due_ms: I64) -> None:
        """Raises InvalidArgument for a due time before 1970, and NotDue for one too far ahead of this node's clock."""
        if int(due_ms.min()) < 0:
            raise InvalidArgument(f"due_ms must be a time in milliseconds since 1970, not {int(due_ms.min())}")
        maximum = self._clock_ahead_ms_max
        ahead_ms = int(due_ms.max()) - self._clock.now_ms()
        if ahead_ms > maximum:
            raise NotDue(
                f"due_ms lies {ahead_ms} ms ahead of this node's clock, and {maximum} ms are allowed: "
                "set the clock that is wrong",
                retry_after_ms=min(ahead_ms - maximum, 60_000),
            )

    def _batch(self, delivery: HandOver) -> StoredBatch:
        """The messages with the codes of this node."""
        rare: dict[str, Any] = {}
        if delivery.tags is not None:
            rare["tag"] = self._codes_or_none(TAG, delivery.tags)
        if delivery.order_keys is not None and len(delivery.order_keys.blob):
            rare |= order_key_columns(delivery.order_keys.blob, delivery.order_keys.lengths)
        return StoredBatch.filled(
            len(delivery),
            sequence=delivery.sequence,
            due_ms=delivery.due_ms,
            accepted_us=delivery.accepted_us,
            dispatched_us=delivery.dispatched_us,
            expires_ms=delivery.expires_ms,
            origin_sequence=delivery.origin_sequence,
            server_id=delivery.server_id,
            window_ms=delivery.window_ms,
            subject=self._codes(SUBJECT, delivery.subjects.names)[delivery.subjects.index],
            target_group=self._codes_or_none(CONSUMER_GROUP, delivery.target_groups),
            redelivery=delivery.redelivery,
            ids_length=delivery.ids.lengths,
            properties_length=delivery.properties.lengths,
            bodies_length=delivery.bodies.lengths,
            ids=delivery.ids.blob,
            properties=delivery.properties.blob,
            bodies=delivery.bodies.blob,
            **rare,
        )

    def _codes_or_none(self, kind: int, column: NameColumn) -> U32:
        """The code of each message's name, u32[n], 0 for none."""
        codes: U32 = np.concatenate([np.zeros(1, np.uint32), self._codes(kind, column.names)])[column.index]
        return codes

    def _codes(self, kind: int, names: list[str]) -> U32:
        """Codes u32[n]. NOT_TAKEN for a name that is invalid or has no room, so that the others are stored without it."""
        codes = self._names.fitting(kind, names)
        return np.where(codes == 0, np.uint32(NOT_TAKEN), codes)


def _behind_refused(order_hash: U64, taken: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """True for the rows that stand behind a row of their order key which is not taken, bool[n]."""
    behind = np.zeros(len(taken), bool)
    refused = np.flatnonzero(~taken & (order_hash != 0))
    hashes, firsts = np.unique(order_hash[refused], return_index=True)
    for key, first in zip(hashes.tolist(), refused[firsts].tolist(), strict=True):
        behind[first:] |= order_hash[first:] == key
    return behind


def _check_sequences(delivery: HandOver) -> None:
    for name, column, lowest in (
        ("sequence", delivery.sequence, 1),
        ("origin_sequence", delivery.origin_sequence, 0),
    ):
        low, high = int(column.min()), int(column.max())
        if low < lowest or high > SEQUENCE_MAX:
            bad = low if low < lowest else high
            raise InvalidArgument(f"{name} must be from {lowest} to 2^48 - 1, not {bad}")
