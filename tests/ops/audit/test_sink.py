"""Scheduling from Spark: what was sent arrives once, whatever Spark runs twice."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from delayserver.client import Client
from tests.ops.audit.needs_spark import require_pyspark

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]
require_pyspark()

from pyspark import TaskContext  # noqa: E402 - behind the check that Spark is there

import ops.audit.sink  # noqa: E402
from ops.audit.sink import send  # noqa: E402
from tests.ops.audit.server_process import ServerProcess  # noqa: E402
from tests.ports import free_port  # noqa: E402


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    made = [ServerProcess("serve", tmp_path / name, free_port()) for name in ("one", "two")]
    for server in made:
        server.start()
    yield made
    for server in made:
        server.stop()


def _status(servers: list[ServerProcess]) -> list[dict[str, Any]]:
    """The status of each server once it stays the same: a copy is recorded as one a moment after its ack."""
    found = []
    for server in servers:
        with server.client() as client:
            before: tuple[int, ...] = ()
            deadline_s = time.monotonic() + 30
            while True:
                status = client.status()
                counts = (status["accepted"], status["deduplicated"], status["storage"]["replay_lag_bytes"])
                if (counts == before and not counts[2]) or time.monotonic() > deadline_s:
                    break
                before = counts
                time.sleep(0.5)
            found.append(status)
    return found


def _send(frame: Any, servers: list[ServerProcess], **options: str) -> None:
    send(frame, [server.address for server in servers], **options)


def test_a_campaign_sent_twice_is_one_campaign(spark: Any, servers: list[ServerProcess]) -> None:
    due_ms = int(time.time() * 1000) + 3_600_000
    rows = spark.range(5000, numPartitions=4).selectExpr(
        "concat('news.', id % 3) as subject",
        "cast(concat('body ', id) as binary) as body",
        f"{due_ms} + id % 100 as due_ms",
        "map('row', cast(id as string)) as properties",
    )
    _send(rows, servers)
    first = _status(servers)
    assert sum([status["accepted"] for status in first]) == 5000
    assert all(status["accepted"] > 2000 for status in first), "both servers have their share"
    # Otherwise cut into partitions, as a task that runs again elsewhere may be.
    _send(rows.repartition(3), servers)
    for before, after in zip(first, _status(servers), strict=True):
        assert after["accepted"] == 2 * before["accepted"]
        assert after["deduplicated"] == before["accepted"]
        assert after["pending"] == before["accepted"]
    _send(rows, servers, campaign="second")
    assert sum([status["pending"] for status in _status(servers)]) == 10_000


def test_a_task_that_spark_runs_again_sends_nothing_twice(spark: Any, servers: list[ServerProcess]) -> None:
    due_ms, address = int(time.time() * 1000) + 3_600_000, servers[0].address

    def messages(batches: Iterator[Any]) -> Iterator[Any]:
        task = TaskContext.get()
        assert task is not None
        for number, batch in enumerate(batches):
            if number == 3 and task.attemptNumber() == 0:
                # What was handed on before is sent by a process that has to start first.
                with Client(address) as client:
                    deadline_s = time.monotonic() + 60
                    while client.status()["accepted"] < 100 and time.monotonic() < deadline_s:
                        time.sleep(0.1)
                raise RuntimeError("the first attempt of every task dies half way")
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    rows = spark.range(1600, numPartitions=2).selectExpr(
        "concat(id, repeat('x', 10000)) as body", f"{due_ms} as due_ms"
    )
    try:
        _send(rows.mapInArrow(messages, rows.schema), servers[:1], subject="news")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    status = _status(servers[:1])[0]
    assert status["deduplicated"] >= 100, "or no attempt had sent anything before it died"
    assert status["accepted"] - status["deduplicated"] == status["pending"] == 1600


def test_a_delivered_message_has_the_fields_of_its_row(spark: Any, servers: list[ServerProcess]) -> None:
    due = datetime.fromtimestamp(time.time() + 1.5, UTC)
    rows = spark.createDataFrame(
        [("hello", due, "given-id", {"a": "1"}), (None, due, None, None)],
        "body string, due timestamp, message_id string, properties map<string,string>",
    )
    _send(rows, servers[:1], subject="greetings")
    with servers[0].client() as client:
        found: list[Any] = []
        deadline_s = time.monotonic() + 30
        while len(found) < 2 and time.monotonic() < deadline_s:
            found += client.pull("greetings", "audit", 10, 1.0)
    by_body = {delivery.body: delivery for delivery in found}
    assert set(by_body) == {b"hello", b""}
    assert by_body[b"hello"].message_id == "given-id"
    assert by_body[b"hello"].properties == {"a": "1"}
    assert by_body[b""].due_ms == -(-int(due.timestamp() * 1_000_000) // 1000)


def test_a_refused_row_fails_the_job_or_is_left_out(spark: Any, servers: list[ServerProcess]) -> None:
    now_ms = int(time.time() * 1000)
    rows = spark.createDataFrame(
        [("a", now_ms + 3_600_000), ("b", now_ms + 4000 * 86_400_000)], "body string, due_ms long"
    )
    with pytest.raises(Exception, match=r"too_far|maximum delay"):
        _send(rows, servers[:1], subject="late")
    _send(rows, servers[:1], subject="late", rejected="skip")
    (status,) = _status(servers[:1])
    assert status["pending"] == 1


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        ("'x' as body, 1L as due_ms", {}, "no column subject"),
        ("'x' as body, 's' as subject", {}, "no column says when"),
        ("'x' as body, 's' as subject, 1L as due_ms, 2 as colour", {}, "unknown columns colour"),
    ],
)
def test_columns_that_make_no_message_are_refused_at_once(
    spark: Any, columns: str, options: dict[str, str], reason: str
) -> None:
    frame = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(Exception, match=reason):
        frame.write.format("delayserver").option("servers", "127.0.0.1:1").mode("append").save()


def test_spark_refuses_its_default_mode_with_the_words_that_readme_quotes(spark: Any) -> None:
    rows = spark.sql("select 's' as subject, 'x' as body, 1L as due_ms")
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE") as refused:
        rows.write.format("delayserver").option("servers", "127.0.0.1:1").save()
    words = " ".join((Path(ops.audit.sink.__file__).parent / "README.md").read_text().split())
    assert str(refused.value).partition(" SQLSTATE")[0] in words
    with pytest.raises(Exception, match="not taken back"):
        rows.write.format("delayserver").option("servers", "127.0.0.1:1").mode("overwrite").save()


def test_a_server_with_tls_and_tokens_gets_rows_of_a_job_that_has_a_token(spark: Any, tmp_path: Path) -> None:
    authority, trusted, pem = trustme.CA(), tmp_path / "ca.pem", tmp_path / "server.pem"
    authority.cert_pem.write_to_path(trusted)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    server = ServerProcess("serve", tmp_path / "data", free_port())
    server.start(f"tls.certificate={pem}", f"tls.key={pem}")
    tls = ssl.create_default_context(cafile=trusted)
    with Client(server.address, tls=tls) as client:
        token = client.token("admin").text
    rows = spark.createDataFrame([("a", int(time.time() * 1000) + 3_600_000)], "body string, due_ms long")
    with pytest.raises(Exception, match="asks for a token"):
        _send(rows, [server], subject="s", tls=str(trusted))
    _send(rows, [server], subject="s", tls=str(trusted), token=token)
    with Client(server.address, tls=tls, token=token) as client:
        assert client.status()["pending"] == 1
    server.stop()
