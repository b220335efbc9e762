"""Rows that Spark schedules, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.ops.audit.needs_spark import require_pyspark

require_pyspark()

import pyarrow as pa  # noqa: E402 - behind the check that Spark is there

from delayserver.client import Client  # noqa: E402
from delayserver.protocol.limits import Limits  # noqa: E402
from ops.audit.message_rows import rows_of  # noqa: E402
from ops.audit.sending import Sender, Sent  # noqa: E402
from tests.delayserver.client.fake_server import FakeServer  # noqa: E402


def test_a_due_time_of_spark_without_a_zone_is_refused() -> None:
    naive = datetime(2027, 3, 3, 9, 0)  # noqa: DTZ001
    body = pa.array([b""])
    plain = pa.RecordBatch.from_arrays([body, pa.array([naive], pa.timestamp("us"))], names=["body", "due"])
    with pytest.raises(ValueError, match="zone"):
        rows_of(plain, "a", "")
    zoned = pa.array([naive.replace(tzinfo=UTC)], pa.timestamp("us", "Europe/Berlin"))
    rows = rows_of(pa.RecordBatch.from_arrays([body, zoned], names=["body", "due"]), "a", "")
    assert rows.due_ms.tolist() == [1_804_064_400_000]


def test_rows_of_spark_with_large_properties_fit_into_frames() -> None:
    with FakeServer(limits=Limits(frame_bytes_max=10_000)) as server:
        columns = {
            "due_ms": pa.array(range(20), pa.int64()),
            "properties": pa.array([[("p", "x" * 1000)]] * 20, pa.map_(pa.string(), pa.string())),
        }
        rows = rows_of(pa.RecordBatch.from_pydict(columns), "a", "")
        with Sender(Client(server.address), fail=True) as sender:
            sender.send(rows)
            assert sender.flush() == Sent(20, 0)
        assert [stored.due_ms for stored in server.messages] == list(range(20))
