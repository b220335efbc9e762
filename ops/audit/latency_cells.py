"""One pass over dispatch_log: every outcome row falls into a cell, and all figures of the report are sums over cells.

A cell is server, subject, broker group, due minute, outcome, internal or not, attempts and bucket of lateness. There are
far fewer cells than rows, whatever the figures are then grouped by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from delayserver.protocol.outcomes import Outcome
from ops.audit.capture import Captured
from ops.audit.histogram import bucket_of

MINUTE_MS = 60_000
# Whoever waits this long for a broker group, with attempts that failed or none possible, marks it as in trouble.
TROUBLE_US = 1_000_000
# Attempts beyond this are counted together: their number tells nothing more.
ATTEMPTS_MAX = 20
STAGES = ("load", "wheel", "queue", "handoff", "settle")
"""Where the time goes: until the row was in the wheel; until the wheel gave it out; until a worker of its broker group
took it from the queue (back-off is in here); until it was handed to the broker. These four add up to the lateness.
`settle` is the broker's answer, after the hand-off."""

_COLUMNS = (
    "server", "sequence", "due_ms", "accepted_us", "loaded_us", "released_us", "queued_us", "dispatched_us", "settled_us",
    "origin_sequence", "subject_code", "broker_group_code", "attempts", "redelivery", "outcome_code",
)  # fmt: skip
_KEYS = ("server", "subject_code", "broker_group_code", "minute_ms", "outcome_code", "internal", "attempts", "bucket")
# Neighbouring files share a task up to this size: starting one costs more than reading a small file.
PACK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """Due times [from_ms, to_ms) and the subjects of a report; None: all of them."""

    from_ms: int | None = None
    to_ms: int | None = None
    subjects: tuple[str, ...] = ()

    def options(self) -> dict[str, str]:
        """As options of our formats."""
        given = {"from": self.from_ms, "to": self.to_ms}
        options = {name: str(value) for name, value in given.items() if value is not None}
        return options | ({"subjects": ",".join(self.subjects)} if self.subjects else {})


def read_log(spark: SparkSession, captured: Captured, columns: tuple[str, ...], chosen: Range) -> DataFrame:
    """The rows of a captured log; corruption is passed over (`corrupt_ranges` reports it)."""
    options = chosen.options() | {
        "columns": ",".join(columns),
        "capture": captured.encode(),
        "corrupt": "skip",
        "pack_bytes": str(PACK_BYTES),
    }
    return spark.read.format(f"delay_{captured.log}").options(**options).load()


def corrupt_ranges(spark: SparkSession, captured: Iterable[Captured]) -> list[dict[str, object]]:
    """The corrupt report of captured logs: server_id, file, start, stop, detail. Reads checksums, moves no rows."""
    logs = list(captured)
    # A part says all of itself, so one read serves the files of all logs.
    together = Captured(logs[0].log, tuple([part for one in logs for part in one.parts]))
    options = {"corrupt": "report", "capture": together.encode(), "pack_bytes": str(PACK_BYTES)}
    rows = spark.read.format(f"delay_{together.log}").options(**options).load().collect()
    return [row.asDict() for row in sorted(rows, key=lambda row: (row.file, row.start))]


def latency_cells(spark: SparkSession, dispatch: Captured, chosen: Range, slo_us: int) -> DataFrame:
    """The cells, with count, early, within (the SLO), sums and maxima in microseconds."""
    rows = _measured(read_log(spark, dispatch, _COLUMNS, chosen))
    late, delivered = F.col("late_us"), F.col("delivered")
    sums = [F.sum(F.col(f"{stage}_us").cast("double")).alias(f"{stage}_sum_us") for stage in STAGES]
    maxima = [F.max(f"{stage}_us").alias(f"{stage}_max_us") for stage in STAGES]
    return rows.groupBy(*_KEYS).agg(
        F.count(F.lit(1)).alias("count"),
        F.sum((delivered & (late < 0)).cast("long")).alias("early"),
        F.sum((delivered & (late <= slo_us)).cast("long")).alias("within"),
        F.max(late).alias("max_us"),
        F.sum(late.cast("double")).alias("sum_us"),
        *sums,
        *maxima,
        F.sum((F.col("attempts") > 1).cast("long")).alias("retried"),
        F.min(F.when(F.col("trouble"), F.col("released_us"))).alias("trouble_from_us"),
        F.max(F.when(F.col("trouble"), F.col("dispatched_us"))).alias("trouble_to_us"),
        F.sum(F.col("trouble").cast("long")).alias("troubled"),
    )


def _measured(rows: DataFrame) -> DataFrame:
    """Times of each row. What was not delivered has none."""
    is_copy = F.col("outcome_code") == int(Outcome.DEDUPLICATED)
    internal = ((F.col("origin_sequence") != 0) | (F.col("redelivery") > 0)) & ~is_copy
    delivered = (F.col("outcome_code") == int(Outcome.DELIVERED)) & (F.col("dispatched_us") > 0)
    due_us = F.greatest(F.col("due_ms") * 1000, F.col("accepted_us"))
    rows = rows.withColumns(
        {"internal": internal, "delivered": delivered, "due_us": due_us, "minute_ms": _minute(F.col("due_ms"))}
    )
    in_wheel_us = F.greatest(F.col("due_us"), F.col("loaded_us"))
    stages = {
        "load": in_wheel_us - F.col("due_us"),
        "wheel": F.col("released_us") - in_wheel_us,
        "queue": F.col("queued_us") - F.col("released_us"),
        "handoff": F.col("dispatched_us") - F.col("queued_us"),
        "settle": F.col("settled_us") - F.col("dispatched_us"),
    }
    times = {f"{stage}_us": F.when(F.col("delivered"), time) for stage, time in stages.items()}
    late = F.when(F.col("delivered"), F.col("dispatched_us") - F.col("due_us"))
    rows = rows.withColumns(times | {"late_us": late})
    waited = (F.col("attempts") > 1) | (F.col("queue_us") >= TROUBLE_US)
    bucket = F.when(F.col("delivered"), bucket_of(F.col("late_us"))).otherwise(-1)
    attempts = F.least(F.col("attempts"), F.lit(ATTEMPTS_MAX))
    return rows.withColumns({"trouble": F.col("delivered") & waited, "bucket": bucket, "attempts": attempts})


def _minute(due_ms: Column) -> Column:
    return due_ms - F.pmod(due_ms, F.lit(MINUTE_MS))
