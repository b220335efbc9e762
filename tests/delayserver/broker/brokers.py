"""A broker alone on a fake disk, with segments and blocks so small that a few hundred messages fill several."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from delayserver.broker.actions.dead_queue import Claim, StoredLetters
from delayserver.broker.actions.delivered_batch import Delivered
from delayserver.broker.actions.group_backlog import GroupRow
from delayserver.broker.actions.retries import RetryBatch
from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.pulled_batch import PulledBatch
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.queues.queue import StoredRun
from delayserver.broker.reads import Steps, having_read, read_at_once
from delayserver.broker.service.broker import Broker
from store.records.batches import StoredBatch
from tests.fakes.disk import FakeDisk

NOW_US = 1_900_000_000_000_000
SERVER, SUBJECT, GROUP = 7, 1, 9
HOUR_US = 3_600_000_000
LIMITS = BrokerLimits(segment_bytes=4096, queue_segment_bytes=4096, queue_runs_max=4, cache_bytes_max=4096)


T = TypeVar("T")


class DirectBroker(Broker):
    """A `Broker` with calls that read the disk in the step that asks, for tests of everything else."""

    def at_once(self, ask: Callable[[], T]) -> T:
        """The result of a call; the reads that it needs run here."""
        return read_at_once(self.state.files.reads, having_read(ask))

    def in_one_step(self, call: Steps[T]) -> T:
        """The result of a call that is carried out in steps; the reads that it needs run here."""
        return read_at_once(self.state.files.reads, call)

    def deliver(self, batch: StoredBatch, uncertain: bool, now_us: int) -> Delivered:
        if uncertain:
            return self.in_one_step(self.arrivals.deliver_uncertain(batch, now_us))
        return self.arrivals.deliver(batch, now_us)

    def pull(self, subject: int, group: int, *rest: Any) -> PulledBatch | None:
        return self.at_once(partial(self.consuming.pull, (subject, group), *rest))

    def nack(self, subject: int, group: int, *rest: Any) -> RetryBatch:
        return self.in_one_step(self.retries.nack((subject, group), *rest))

    def expired_leases(self, *moment: int) -> list[RetryBatch]:
        return [self.in_one_step(call) for call in self.retries.take_expired(*moment)]

    def end_leases_of(self, *arguments: Any) -> RetryBatch | None:
        call = self.retries.end_leases_of(*arguments)
        return None if call is None else self.in_one_step(call)

    def read_dead(self, *arguments: Any) -> StoredLetters:
        return self.at_once(partial(self.dead_queue.read, *arguments))

    def claim_dead(self, *arguments: Any) -> Claim:
        return self.at_once(partial(self.dead_queue.claim, *arguments))

    def group_row(self, key: GroupKey) -> GroupRow | None:
        return self.at_once(partial(self.group_rows.row, key))


def record_place(broker: DirectBroker, position: int) -> tuple[StoredRun, str, int]:
    """The run of the subject's queue that has a position, with the file of its record and the record's offset in it."""
    run = broker.at_once(lambda: broker.state.messages.run_at((SUBJECT, 0), position))
    base, segment = broker.state.files.store.log.locate(run.store_offset)
    return run, segment.path, run.store_offset - base


def messages(first: int, count: int, window_ms: int = 60_000, subject: int = SUBJECT) -> StoredBatch:
    """`count` messages with sequences from `first` on."""
    return StoredBatch.filled(
        count,
        sequence=np.arange(first, first + count),
        server_id=SERVER,
        window_ms=window_ms,
        subject=subject,
        bodies_length=50,
        bodies=bytes(50 * count),
    )


def open_broker(disk: FakeDisk, limits: BrokerLimits = LIMITS, now_us: int = NOW_US) -> DirectBroker:
    """Open or create the broker of the disk."""
    return DirectBroker.open(disk, "/data/broker", SERVER, now_us, limits)


def drain(broker: DirectBroker, group: int = GROUP, now_us: int = NOW_US, subject: int = SUBJECT) -> list[int]:
    """Pull and ack everything; the sequences in order."""
    found: list[int] = []
    while (pulled := broker.pull(subject, group, 7, 1 << 20, now_us, now_us)) is not None:
        assert len(pulled), "what is handed out has messages"
        found += pulled.batch.sequence.tolist()
        assert broker.consuming.ack((subject, group), pulled.delivery).unknown == 0
    return found
