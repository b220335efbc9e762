"""A broker alone on a fake disk, with segments and blocks so small that a few hundred messages fill several."""

from __future__ import annotations

import numpy as np

from delayserver.broker.limits import BrokerLimits
from delayserver.broker.service.broker import Broker
from store.records.batches import StoredBatch
from tests.fakes.disk import FakeDisk

NOW_US = 1_900_000_000_000_000
SERVER, SUBJECT, GROUP = 7, 1, 9
HOUR_US = 3_600_000_000
LIMITS = BrokerLimits(segment_bytes=4096, queue_segment_bytes=4096, queue_runs_max=4, cache_bytes_max=4096)


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


def open_broker(disk: FakeDisk, limits: BrokerLimits = LIMITS, now_us: int = NOW_US) -> Broker:
    """Open or create the broker of the disk."""
    return Broker.open(disk, "/data/broker", SERVER, now_us, limits)


def drain(broker: Broker, group: int = GROUP, now_us: int = NOW_US, subject: int = SUBJECT) -> list[int]:
    """Pull and ack everything; the sequences in order."""
    found: list[int] = []
    while (pulled := broker.pull(subject, group, 7, 1 << 20, now_us, now_us)) is not None:
        assert len(pulled), "what is handed out has messages"
        found += pulled.batch.sequence.tolist()
        assert broker.ack(subject, group, pulled.delivery, now_us).unknown == 0
    return found
