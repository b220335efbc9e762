"""The row `target-kafka` end to end on a real Kafka, as small as it goes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from ops.bench import server_process, to_kafka
from ops.bench.figures import Options
from ops.kafka.nodes import KafkaNodes
from tests.forked import forking

pytestmark = pytest.mark.kafka


def test_deliveries_to_a_topic_are_counted_there_and_compared_with_the_bare_producer(
    one_node: KafkaNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_kafka.Topic(one_node.bootstrap, to_kafka.WARM_UP).make()
    monkeypatch.setattr(to_kafka, "running_kafka", lambda _directory: nullcontext(one_node.bootstrap))
    forking(monkeypatch, server_process)
    monkeypatch.setattr(to_kafka, "TURNS", 1)
    monkeypatch.setattr(to_kafka, "DELAY_MS", 300)
    run = to_kafka.measure_kafka(Options(runs=1, seconds=0.3, messages=500, data_dir=str(tmp_path)))
    assert run.value == pytest.approx(run.details["target_rate"] / run.details["bare_rate"], rel=0.01)
    assert 0 < run.details["p50_ms"] <= run.details["p99_ms"]
    assert run.details["late_ratio"] == pytest.approx(run.details["p99_ms"] / run.details["bare_p99_ms"], rel=0.01)
