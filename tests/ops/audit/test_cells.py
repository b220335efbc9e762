"""Cells without Spark: grouping is what a dictionary would count, and percentiles keep their stated error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.ops.audit.needs_spark import require_pyspark

require_pyspark()

from delayserver.protocol.outcomes import Outcome  # noqa: E402 - behind the check that Spark is there
from ops.audit.grouping import Table, concatenated  # noqa: E402
from ops.audit.histogram import Bucket, bound_us, buckets_of, points_of  # noqa: E402
from ops.audit.latency_cells import BY, MINUTE, OUTCOME, STAGE, SUBJECT, TROUBLE, WHOLE, CellCounter  # noqa: E402
from ops.audit.latency_totals import LatencyTotals  # noqa: E402
from store.records.shared_column import ATTEMPTS  # noqa: E402

WIDE = 1 << 61


@pytest.mark.parametrize("scale", [1, WIDE])
def test_grouping_equals_counting_in_a_dictionary(scale: int) -> None:
    chance = np.random.default_rng(7)
    a, b, value = (chance.integers(-3, 4, 500) for _ in range(3))
    a = a * (scale // 4)  # so wide that the keys cannot be multiplied
    table = Table({"a": a, "b": b * (scale // 4)}, {"sum": value}, {"max": value}, {"min": value}).grouped()
    expected: dict[tuple[int, int], list[int]] = {}
    for left, right, one in zip(a.tolist(), (b * (scale // 4)).tolist(), value.tolist(), strict=True):
        expected.setdefault((left, right), []).append(one)
    found = table.columns()
    rows = list(zip(*[found[name].tolist() for name in ("a", "b", "sum", "max", "min")], strict=True))
    assert rows == [(*key, sum(ones), max(ones), min(ones)) for key, ones in sorted(expected.items())]


def test_groups_of_parts_added_up_are_the_groups_of_the_whole() -> None:
    keys = np.arange(100) % 7
    whole = Table({"key": keys}, {"count": np.ones(100, np.int64)})
    halves = [whole.where(keys < 4).grouped(), whole.where(keys >= 3).grouped()]
    added = concatenated(halves).grouped().columns()
    single = whole.grouped().columns()
    assert added["key"].tolist() == single["key"].tolist()
    assert (added["count"] - single["count"]).tolist() == [0, 0, 0, int((keys == 3).sum()), 0, 0, 0]


def test_percentiles_are_never_below_and_at_most_one_per_cent_above() -> None:
    chance = np.random.default_rng(11)
    values = np.sort(
        np.concatenate([chance.integers(-5, 40, 400), (10 ** chance.uniform(0, 13, 5000)).astype(np.int64)])
    )
    buckets = buckets_of(values)
    assert (np.diff(buckets) >= 0).all()
    counted = [Bucket(bucket, int((buckets == bucket).sum()), bound_us(bucket)) for bucket in set(buckets.tolist())]
    for name, share in (("p50", 500), ("p90", 900), ("p99", 990), ("p999", 999)):
        exact = max(int(values[math.ceil(len(values) * share / 1000) - 1]), 0)
        assert exact <= points_of(counted)[name] <= exact * 1.01
    assert points_of([]) == {}


def _rows(**given: Any) -> dict[str, Any]:
    plain = {"due_ms": 60_000, "accepted_us": 1, "loaded_us": 1, "released_us": 60_000_000, "queued_us": 60_000_100,
             "dispatched_us": 60_000_300, "settled_us": 60_000_900, "origin_sequence": 0, "subject": 1, "broker_group": 2,
             "attempts": 1, "redelivery": 0, "outcome": int(Outcome.DELIVERED)}  # fmt: skip
    count = max([len(column) for column in given.values()])
    return {name: np.array(given.get(name, [value] * count), np.int64) for name, value in plain.items()}


def test_cells_count_each_row_once_by_each_thing_that_is_asked() -> None:
    counter = CellCounter(250, ("hour", "broker_group"))
    counter.add(
        _rows(subject=[1, 1, 2], due_ms=[60_000, 60_001, 120_000], dispatched_us=[60_000_300, 60_001_200, 120_000_200])
    )
    counter.add(_rows(subject=[2], redelivery=[1], attempts=[3]))
    counter.add(_rows(outcome=[int(Outcome.CANCELLED)], dispatched_us=[0]))
    cells = {kind: table.columns() for kind, table in counter.cells().items()}
    assert set(cells) == {WHOLE, MINUTE, SUBJECT, BY, OUTCOME, STAGE, TROUBLE}
    assert cells[WHOLE]["count"].sum() == 4 and cells[OUTCOME]["count"].sum() == 5
    for kind in (MINUTE, SUBJECT, BY):
        assert cells[kind]["count"].sum() == 3, "without the internal one"
        assert cells[kind]["within"].sum() == 2
    assert set(cells[MINUTE]["minute_ms"].tolist()) == {60_000, 120_000}
    assert set(cells[BY]["hour_ms"].tolist()) == {0} and set(cells[BY]["broker_group"].tolist()) == {2}
    assert [cells[TROUBLE][name].tolist() for name in ("count", "retried", "attempts_max")] == [[1], [1], [3]]


def test_cells_count_messages_with_unanswered_hand_overs_to_other_nodes_apart_from_attempts() -> None:
    counter = CellCounter(250, ())
    packed = ATTEMPTS.pack(np.array([1, 2, 1, 2]), np.array([0, 1, 255, 3]))
    counter.add(_rows(attempts=packed))
    counter.add(_rows(attempts=packed[1:2], redelivery=[1]))
    cells = {kind: table.columns() for kind, table in counter.cells().items()}
    outcome = cells[OUTCOME]
    assert outcome["attempts"].tolist() == [1, 2, 2], "the number alone"
    assert outcome["internal"].tolist() == [False, False, True]
    assert outcome["count"].tolist() == [2, 2, 1] and outcome["maybe_twice"].tolist() == [1, 2, 1]
    rows = [{name: column[row].item() for name, column in outcome.items()} for row in range(3)]
    assert LatencyTotals([], rows, [], [], []).attempts() == {
        "maybe_twice": 3, "by_count": {"1": 2, "2": 2}, "retried": 2,
    }  # fmt: skip
