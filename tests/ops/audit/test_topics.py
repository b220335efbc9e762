"""The topic of a cluster as the audit reads it: on real Kafka with real members, in this process and with Spark."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ops.audit.needs_spark import require_pyspark

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.filterwarnings("default")]
require_pyspark()

from delayserver.client import Client  # noqa: E402 - behind the check that Spark is there
from ops.audit.audit import Audit  # noqa: E402
from ops.audit.capture import DISPATCH_LOG, MESSAGE_LOG  # noqa: E402
from ops.audit.completeness import CompletenessQuestion  # noqa: E402
from ops.audit.latency import LatencyQuestion  # noqa: E402
from ops.audit.log_frames import Range  # noqa: E402
from ops.audit.readers import read_part  # noqa: E402
from ops.audit.topic_reader import topic_parts  # noqa: E402
from ops.audit.topic_survey import begin, survey, take_survey  # noqa: E402
from ops.audit.topics import find_shards  # noqa: E402
from ops.kafka.nodes import KafkaNodes  # noqa: E402
from store.disk.filesystem import RealFileSystem  # noqa: E402
from store.shared.envelope import EnvelopeKind, unwrap  # noqa: E402
from tests.delayserver.cli.conftest import run  # noqa: E402
from tests.delayserver.kafka.following import UNHURRIED_S  # noqa: E402
from tests.delayserver.kafka.processes import SUBJECT, Cluster, running  # noqa: E402

HOUR_MS = 3_600_000
COPIES, CANCELLED, MOVED = 5, 3, 2
COUNTS = ("accepted", "delivered", "cancelled", "deduplicated", "pending", "expired", "dead_lettered")


@dataclass(slots=True)
class Life:
    """What happened: a cluster of two shards, of which the first has two members."""

    cluster: Cluster
    second: str
    expected: dict[str, int]

    @property
    def file(self) -> str:
        return str(self.cluster.members["a"].file)

    def balance(self, *sources: str) -> dict[str, Any]:
        done = run("report", "completeness", *sources, "--json")
        assert done.code == 0, (done.out[-2000:], done.err)
        found: dict[str, Any] = json.loads(done.out)
        return found

    def settled(self, *sources: str) -> None:
        """Wait until the outcomes of all messages are there."""
        for _ in range(UNHURRIED_S):
            found = self.balance(*sources)
            if {name: found[name] for name in COUNTS} == self.expected:
                return
        raise AssertionError((found, self.expected))


@pytest.fixture(scope="module")
def life(one_node: KafkaNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    with running(one_node, tmp_path_factory.mktemp("topics"), "abc", [0, 0, 1]) as cluster:
        cluster.send(30)
        now_ms = time.time_ns() // 1_000_000
        with Client(cluster.addresses) as client:
            for number in range(COPIES):
                for _ in range(2):
                    client.send("copied", "x", due_ms=now_ms + HOUR_MS, message_id=f"copy{number}")
            receipts = [client.send("gone", "x", delay_ms=HOUR_MS).receipt for _ in range(CANCELLED + MOVED)]
            client.cancel_many(receipts[:CANCELLED])
            for receipt in receipts[CANCELLED:]:
                client.reschedule(receipt, due_ms=now_ms + 2 * HOUR_MS)
        cluster.consumed("before")
        cluster.members["a"].signal(signal.SIGKILL)
        cluster.members["a"].end()
        while "b" not in (cluster.primary(), cluster.primary()):
            pass
        cluster.send(20)
        cluster.consumed("behind")
        expected = dict.fromkeys(COUNTS, 0) | {
            "accepted": 50 + 2 * COPIES + CANCELLED + 2 * MOVED,
            "delivered": 50,
            "cancelled": CANCELLED + MOVED,
            "deduplicated": COPIES,
            "pending": COPIES + MOVED,
        }
        found = Life(cluster, "b", expected)
        repeat_records(found, one_node)
        found.settled("--cluster", found.file)
        yield found


def repeat_records(life: Life, nodes: KafkaNodes) -> None:
    """Records of the deposed primary come behind the takeover once more."""
    from confluent_kafka import Producer

    shard = find_shards(life.file)[0]
    records = [record.data for record in shard.records(0, shard.bounds()[1])]
    old = [
        data for place, data in enumerate(records)
        if (found := unwrap(data, shard.identity, place).envelope).epoch == 1 and found.kind is EnvelopeKind.RECORDS
    ]  # fmt: skip
    producer = Producer({"bootstrap.servers": nodes.bootstrap})
    for data in old:
        producer.produce(shard.cluster.topic, data, partition=0)
    assert producer.flush(UNHURRIED_S) == 0


def test_each_message_of_a_topic_counts_once(life: Life) -> None:
    found = life.balance("--cluster", life.file)
    assert {name: found[name] for name in COUNTS} == life.expected
    assert found["balanced"] and not found["corrupt"]
    assert not any(found[name] for name in ("lost", "duplicated", "early", "orphaned", "overdue"))
    assert len(found["by_server"]) == 2
    assert [row["subject"] for row in found["by_subject"]] == ["copied", "gone", SUBJECT]


def test_a_topic_and_the_directories_of_members_say_the_same(life: Life) -> None:
    paths = [str(life.cluster.members[name].folder / name) for name in (life.second, "c")]
    life.settled(*paths)  # outcomes come into the files some time after they came into the log
    from_topic, from_files = life.balance("--cluster", life.file), life.balance(*paths)
    for name in (*COUNTS, "by_subject", "by_server", "maybe_twice", "internal"):
        assert from_topic[name] == from_files[name], name
    latencies = [
        json.loads(run("report", "latency", *each, "--json").out) for each in (["--cluster", life.file], paths)
    ]
    for name in ("count", "early", "lateness_ms", "stages_ms", "attempts"):
        assert latencies[0][name] == latencies[1][name], name
    # On a busy machine a primary may take itself over.
    shard = f"{find_shards(life.file)[0].server_id:012x}"
    first, second = (
        [each for each in found["takeovers"] if (each["server_id"], each["epoch"]) == (shard, 2)] for found in latencies
    )
    # Only the log has the notes of a hand-over: a directory knows none that took long.
    assert [each.pop("planned") for each in (*first, *second)] == [False, None]
    assert first == second and len(first) == 1


def test_spark_makes_the_same_reports_of_a_topic(spark: Any, life: Life) -> None:
    audits = [Audit(lambda: spark, RealFileSystem(), (), lambda _: None, small, life.file) for small in (0, 1 << 30)]
    latency, chosen = LatencyQuestion(Range()), CompletenessQuestion(Range(), time.time_ns() // 1_000_000)
    first, second = (audit.latency(latency, lambda report: report.to_map()) for audit in audits)
    assert first == second and first["count"] == 50
    first, second = (
        audit.completeness(chosen, broker_log=False, use=lambda report: report.to_map()) for audit in audits
    )
    assert first == second and first["accepted"] == life.expected["accepted"]


def test_spark_reads_the_rows_of_all_shards(spark: Any, life: Life) -> None:
    outcomes = spark.read.format("delay_dispatch_log").option("cluster", life.file).load().collect()
    assert max(Counter([(row["server_id"], row["sequence"]) for row in outcomes]).values()) == 1
    assert Counter([row["outcome"] for row in outcomes]) == {"delivered": 50, "cancelled": CANCELLED + MOVED}
    columns = "message_id,body,subject,cancel"
    rows = spark.read.format("delay_message_log").option("cluster", life.file).option("columns", columns).load()
    sent = [row for row in rows.collect() if not row["cancel"] and row["subject"] == SUBJECT]
    assert sorted([row["message_id"] for row in sent]) == sorted(life.cluster.sent)
    assert all(row["body"].decode() == row["message_id"] for row in sent)
    with pytest.raises(Exception, match="has no schedule_log"):
        spark.read.format("delay_schedule_log").option("cluster", life.file).load().collect()


def test_a_stream_of_a_topic_has_each_message_once(spark: Any, life: Life, tmp_path: Path) -> None:
    def follow() -> list[str]:
        frame = spark.readStream.format("delay_message_log").option("cluster", life.file)
        rows = frame.option("columns", "message_id,subject").option("subjects", SUBJECT).load()
        query = (
            rows.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(UNHURRIED_S)
        return sorted([row["message_id"] for row in spark.read.parquet(str(tmp_path / "rows")).collect()])

    assert follow() == sorted(life.cluster.sent)
    life.cluster.send(10, HOUR_MS)
    life.expected["accepted"] += 10
    life.expected["pending"] += 10
    assert follow() == sorted(life.cluster.sent)
    assert follow() == sorted(life.cluster.sent)


def test_pieces_of_a_log_have_its_rows(life: Life) -> None:
    shard = find_shards(life.file)[0]
    [whole] = survey(shard)
    stop = whole.places[-1].position
    pieces = take_survey(shard, whole.places[0], stop, 500)
    assert len(pieces.places) > 5
    for log in (DISPATCH_LOG, MESSAGE_LOG):
        rows = [
            [
                sequence
                for part in topic_parts(found, log)
                for chunk in read_part(part, lambda _: ["sequence"])
                for sequence in chunk.columns["sequence"].tolist()
            ]
            for found in (whole, pieces)
        ]
        assert sorted(rows[0]) == sorted(rows[1]) != []
    assert whole.names == pieces.names


def test_a_log_that_was_trimmed_begins_with_what_it_has(life: Life) -> None:
    shard = find_shards(life.file)[0]
    [whole] = survey(shard)
    stop = whole.places[-1].position
    claim = next(
        record.position for record in shard.records(0, stop)
        if (envelope := unwrap(record.data, shard.identity, record.position).envelope).kind is EnvelopeKind.CLAIM
        and envelope.epoch == 2
    )  # fmt: skip
    for first in (claim - 3, claim, claim + 1):
        place = begin(shard, shard.records(first, stop), first)
        assert place.position == first
        found = take_survey(shard, place, stop, 1 << 30)
        assert not found.damages and found.first_sequence > whole.first_sequence
        assert found.places[-1] == whole.places[-1]
        assert all(name.startswith("#") or (kind, name) in whole.names for kind, name in found.names)
