"""A broker alone on a fake disk, with segments and blocks so small that a few hundred messages fill several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from delayserver.broker.actions.dead_queue import Claim, Letters
from delayserver.broker.actions.delivering import Delivered
from delayserver.broker.actions.group_rows import GroupRow
from delayserver.broker.actions.retries import RetryBatch
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.limits import BrokerLimits
from delayserver.broker.pulled import PulledBatch
from delayserver.broker.queues.groups import GroupKey
from delayserver.broker.queues.queue import Run
from delayserver.broker.reads import having_read, read_at_once
from delayserver.broker.service.broker import Broker
from store.records.batches import StoredBatch
from tests.fakes.disk import FakeDisk

NOW_US = 1_900_000_000_000_000
SERVER, SUBJECT, GROUP = 7, 1, 9
HOUR_US = 3_600_000_000
LIMITS = BrokerLimits(segment_bytes=4096, queue_segment_bytes=4096, queue_runs_max=4, cache_bytes_max=4096)


T = TypeVar("T")


class DirectBroker(Broker):
    """A `Broker` that reads the disk in the step that asks, for tests of everything else."""

    def at_once(self, ask: Callable[[], T]) -> T:
        """The result of a call; the reads that it needs run here."""
        return read_at_once(self.reads, having_read(ask))

    def deliver(self, batch: StoredBatch, uncertain: bool, now_us: int) -> Delivered:  # type: ignore[override]
        if uncertain:
            return read_at_once(self.reads, self.deliver_uncertain(batch, now_us))
        return super().deliver(batch, now_us)

    def pull(self, *arguments: Any) -> PulledBatch | None:
        ask = super().pull
        return self.at_once(lambda: ask(*arguments))

    def nack(self, *arguments: Any) -> RetryBatch:  # type: ignore[override]
        return read_at_once(self.reads, super().nack(*arguments))

    def expired_leases(self, *arguments: Any) -> list[RetryBatch]:  # type: ignore[override]
        return [read_at_once(self.reads, call) for call in super().expired_leases(*arguments)]

    def end_leases_of(self, *arguments: Any) -> RetryBatch | None:  # type: ignore[override]
        call = super().end_leases_of(*arguments)
        return None if call is None else read_at_once(self.reads, call)

    def read_dead(self, *arguments: Any) -> Letters:
        ask = super().read_dead
        return self.at_once(lambda: ask(*arguments))

    def claim_dead(self, *arguments: Any) -> Claim:
        ask = super().claim_dead
        return self.at_once(lambda: ask(*arguments))

    def group_row(self, key: GroupKey) -> GroupRow | None:
        ask = super().group_row
        return self.at_once(lambda: ask(key))


def state_of(broker: Broker) -> BrokerState:
    """The queues, groups and files of a broker. A test looks here for the bounds of its memory, and for the places on disk
    that it damages: no operation and no figure shows them."""
    return broker._state


def record_place(broker: DirectBroker, position: int) -> tuple[Run, str, int]:
    """The run of the subject's queue that has a position, with the file of its record and the record's offset in it."""
    run = broker.at_once(lambda: state_of(broker).messages.run_at((SUBJECT, 0), position))
    base, segment = broker.store.log.locate(run.store_offset)
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
        assert broker.ack(subject, group, pulled.delivery, now_us).unknown == 0
    return found
