"""The rows of the bench with their names, measurements, units and floors, in the order of the table."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ops.bench.backing_up import measure_backup
from ops.bench.backlog import measure_backlog
from ops.bench.cancelling import measure_cancel
from ops.bench.clustering import (
    measure_bootstrap,
    measure_cluster,
    measure_following,
    measure_steady_cluster,
    measure_switch,
    measure_takeover,
)
from ops.bench.delivering import measure_steady, measure_thunder
from ops.bench.expiring import measure_cancel_beside_expiries
from ops.bench.fairness import measure_fairness
from ops.bench.figures import Figure, Options, Run, median_details, rounded
from ops.bench.filtering import measure_filter
from ops.bench.holding import measure_pending
from ops.bench.ingesting import measure_ingest, measure_spread, measure_sustained
from ops.bench.isolation import measure_isolation
from ops.bench.ordering import measure_ordered
from ops.bench.over_http import measure_beside_steady, measure_lines, measure_singles
from ops.bench.publishing import measure_publish
from ops.bench.pulling import measure_backlog_fairness, measure_consume, measure_idle_pulls
from ops.bench.pushing import measure_push
from ops.bench.restart import measure_restart
from ops.bench.scraping import measure_scrape
from ops.bench.subjects import measure_subjects
from ops.bench.to_kafka import measure_kafka
from ops.bench.watching import measure_watching
from ops.bench.with_tokens import measure_tokens


@dataclass(frozen=True, slots=True)
class Row:
    """One row. ``floor`` is the lowest good value; with ``lower`` the highest. ``floors``: upper bounds of
    details; ``least``: lower bounds of others."""

    name: str
    summary: str
    unit: str
    floor: float
    measure: Callable[[Options], Run]
    lower: bool = False
    floors: tuple[tuple[str, float], ...] = ()
    least: tuple[tuple[str, float], ...] = ()

    def figure(self, options: Options) -> Figure:
        """Measures the row ``options.runs`` times. Raises `WrongResult` at the first wrong run."""
        runs = [self.measure(options) for _ in range(options.runs)]
        values = tuple(rounded(run.value) for run in runs)
        value = rounded(statistics.median(values))
        details = median_details(runs)
        reached = value <= self.floor if self.lower else value >= self.floor
        reached = reached and all(details[name] <= most for name, most in self.floors)
        reached = reached and all(details[name] >= least for name, least in self.least)
        return Figure(self.name, value, self.unit, self.floor, reached, values, details)


STEADY_FLOORS: Final = (("p50_ms", 1.5), ("p999_ms", 15.0))

ROWS: Final = (
    Row("ingest-c8b1000", "8 connections, batches of 1,000, ingest alone", "msg/s", 800_000, measure_ingest(8, 1000)),
    Row("ingest-sustained", "the same, until the replayer has all of it", "msg/s", 400_000, measure_sustained),
    Row("backup-beside-ingest", "c8b1000 beside a backup against without", "ratio", 0.4, measure_backup),
    Row("ingest-c1b100", "1 connection, batches of 100", "msg/s", 140_000, measure_ingest(1, 100)),
    Row("ingest-c1b1", "1 connection, one message at a time", "msg/s", 5_000, measure_ingest(1, 1)),
    Row("ingest-c8b1", "8 connections, one at a time each", "msg/s", 13_000, measure_ingest(8, 1)),
    Row(
        "publish-c8b1000",
        "8 connections publish batches of 1,000, against sends",
        "ratio",
        0.8,
        measure_publish(8, 1000),
    ),
    Row("publish-c1b1", "1 connection publishes one at a time, against sends", "ratio", 1.0, measure_publish(1, 1)),
    Row(
        "ingest-spread",
        "due over one year against one hour",
        "ratio",
        0.6,
        measure_spread,
        floors=(("year_open_files_max", 512),),
    ),
    Row("steady-1000", "1,000 msg/s: p99 lateness", "ms", 6, measure_steady(1000), True, STEADY_FLOORS),
    Row("steady-10000", "10,000 msg/s: p99 lateness", "ms", 6, measure_steady(10_000), True, STEADY_FLOORS),
    Row("thunder-100k", "100,000 due in one second: the last one", "s", 0.3, measure_thunder(100_000), True),
    Row("thunder-1m", "1,000,000 due in one second: the last one", "s", 2.5, measure_thunder(1_000_000), True),
    Row("pending-10m", "10 M pending, due in a day: server RSS", "MB", 300, measure_pending, True),
    Row("restart-10m", "kill -9 with 10 M pending, until it serves", "s", 2, measure_restart, True),
    Row("cancel", "batches of 1,000 receipts", "msg/s", 200_000, measure_cancel),
    Row(
        "cancel-beside-expiries",
        "16 clients ask for messages of which 400,000 expire at once: the worst ping of another",
        "ms",
        100,
        measure_cancel_beside_expiries,
        True,
    ),
    Row("isolation", "p99 beside 1 M due at once against alone", "ratio", 2, measure_isolation, True),
    Row(
        "isolation-backlog",
        "p99 beside 1 M that wait for a slow node, sequences spread, against alone",
        "ratio",
        2,
        measure_backlog,
        True,
    ),
    Row(
        "fairness",
        "p99 round trip beside greedy clients against alone",
        "ratio",
        5,
        measure_fairness,
        True,
    ),
    Row("push-10000", "10,000 msg/s to the handler of a listener: p99", "ms", 3, measure_push(10_000), True),
    Row(
        "subjects-100k",
        "100,000 subjects: start after a clean stop",
        "s",
        1,
        measure_subjects,
        True,
        (("longest_wait_ms", 100.0), ("open_files", 64)),
    ),
    Row(
        "backlog-fairness",
        "p99 round trip beside 200 consumers of a backlog on a disk with reads of 100 ms, against alone",
        "ratio",
        2,
        measure_backlog_fairness,
        True,
    ),
    Row(
        "idle-pulls",
        "1,000 pulls that wait: processor time a second",
        "ms",
        2,
        measure_idle_pulls,
        True,
        (("grown_mb", 20.0),),
    ),
    Row("http-c8b1", "HTTP, one at a time on 8 connections, durable", "msg/s", 3_000, measure_singles),
    Row("http-ndjson", "HTTP, lines of JSON on 2 connections, durable", "msg/s", 60_000, measure_lines),
    Row(
        "http-beside-steady",
        "p99 at 10,000 msg/s beside 2,000 HTTP requests a second, against without",
        "ratio",
        1.5,
        measure_beside_steady,
        True,
    ),
    Row("console-idle", "ten open consoles: server and gateway", "% of a core", 3, measure_watching, True),
    Row(
        "consume-1m",
        "a warm backlog of 1 M, one consumer in batches of 1,000, with acks",
        "msg/s",
        500_000,
        measure_consume,
    ),
    Row(
        "filter-1in100",
        "a tag that matches 1 message in 100 passes over 1 M, against delivering all",
        "ratio",
        5,
        measure_filter,
    ),
    Row("ordered", "a backlog with 10,000 order keys, against one without keys", "ratio", 0.5, measure_ordered),
    Row(
        "metrics-1000",
        "a scrape of /metrics with 1,000 subjects",
        "ms",
        50,
        measure_scrape,
        True,
        floors=(("step_ms", 2),),
    ),
    Row("tokens", "sending and consuming with access tokens, against without", "ratio", 0.95, measure_tokens),
    Row(
        "target-kafka",
        "deliveries to a topic of Kafka, against the bare producer in Python",
        "ratio",
        0.7,
        measure_kafka,
        floors=(("late_ratio", 2.0),),
    ),
    Row(
        "cluster-c8b1000",
        "8 connections, batches of 1,000, a shard on three nodes of Kafka against one server",
        "ratio",
        0.25,
        measure_cluster(8, 1000),
        least=(("of_log", 0.5),),
    ),
    Row("cluster-c8b1", "the same, one at a time each", "ratio", 0.3, measure_cluster(8, 1)),
    Row(
        "cluster-c1b1",
        "the same, 1 connection",
        "ratio",
        0.2,
        measure_cluster(1, 1),
        floors=(("beyond_ms", 1.0),),
    ),
    Row(
        "cluster-takeover",
        "the primary is killed: until the next ack, the worst",
        "s",
        4,
        measure_takeover,
        True,
        floors=(("median_s", 2.5),),
    ),
    Row("cluster-switch", "the primary hands over: until the next ack, the worst", "s", 0.5, measure_switch, True),
    Row(
        "cluster-steady-2000",
        "p99 lateness of 2,000 msg/s at a shard, against that of one server and twice the log's",
        "ratio",
        1,
        measure_steady_cluster(2000),
        True,
    ),
    Row(
        "cluster-follow",
        "processor time of a standby, against its primary's, at full rate",
        "ratio",
        0.8,
        measure_following,
        True,
        floors=(("behind_s", 2.0),),
    ),
    Row(
        "cluster-bootstrap",
        "a new member reads the log, against the sends that wrote it",
        "ratio",
        1,
        measure_bootstrap,
    ),
)
BY_NAME: Final = {row.name: row for row in ROWS}
