"""The short run of takeovers of every run of the tests, and proof that its judge of a former primary can say no."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ops.kafka.gate import Gate
from ops.kafka.nodes import KafkaNodes
from ops.torture import server
from ops.torture.cluster import KAFKA_PORTS, Member, ways_of
from ops.torture.harness import CONFIG, Plan
from ops.torture.record import Record
from ops.torture.takeovers import Deposed, Kind, Takeovers, longest_gap
from tests.forked import forking
from tests.ports import free_port


@pytest.mark.kafka
def test_takeovers_of_each_kind_under_load_keep_every_promise(
    one_node: KafkaNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forking(monkeypatch, server)
    plan = Plan(len(Kind), os.getpid(), str(tmp_path), run_s_max=0.3, stop_s=3.0)
    report = Takeovers(plan, one_node, ways_of(one_node.port + 3), lambda _: None).run()
    assert report.violations == []
    assert (report.passed, report.lost, report.early) == (True, 0, 0)
    assert {kind: times.count for kind, times in report.takeovers.items()} == dict.fromkeys(Kind, 1)
    assert report.accepted > 100
    assert report.arrived > 100


def test_a_former_primary_that_still_serves_is_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forking(monkeypatch, server)
    config = tmp_path / "delayserver.toml"
    config.write_text(CONFIG)
    serving = server.TorturedServer(str(tmp_path), str(config), str(tmp_path / "data"))
    serving.start()
    try:
        record = Record(lambda: time.time_ns() // 1000)
        with Gate(ways_of(free_port(KAFKA_PORTS))[0]) as gate:
            deposed = Deposed(record, Member("a", gate, serving))
            deposed.ask()
            deposed.judge()
    finally:
        serving.clean_up()
    assert sorted(record.violations) == [
        "a, which led no longer, acknowledged a message",
        "a, which led no longer, answered a pull with 0 messages",
    ]


def test_the_time_of_a_takeover_begins_with_the_last_answer_before_it() -> None:
    assert longest_gap([1.0, 2.0, 5.5, 6.0], begun=3.0) == 3.5
    assert longest_gap([1.0, 2.0, 2.5, 9.0, 9.5], begun=2.0) == 6.5
