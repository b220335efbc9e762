"""Kafka keeps what every engine of a shared log keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ops.kafka.nodes import KafkaNodes
from tests.delayserver.kafka.following import new_engine
from tests.delayserver.shared_log.conformance import PROOFS, LogPlace, Proof

pytestmark = pytest.mark.kafka


@pytest.fixture
async def place(kafka: KafkaNodes, monkeypatch: pytest.MonkeyPatch) -> LogPlace:
    """A topic of its own, with two shards."""
    from delayserver.kafka import topic

    engine = await new_engine(kafka)
    # The suite asks again where an answer is late. It waits to the end where none comes.
    monkeypatch.setattr(topic, "ANSWER_MS_MAX", 2_000)

    @asynccontextmanager
    async def stalled() -> AsyncIterator[None]:
        kafka.pause(1)
        try:
            yield
        finally:
            kafka.resume(1)

    return LogPlace(engine, shard=1, missing=2, stalled=stalled)


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.__name__)
async def test_the_log_on_kafka(proof: Proof, place: LogPlace) -> None:
    await proof(place)
