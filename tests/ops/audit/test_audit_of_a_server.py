"""Both reports over the files of real processes: every number equals what the clients counted for themselves."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click import ClickException

from tests.ops.audit.needs_spark import require_pyspark

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]
require_pyspark()

from delayserver.config.units import format_duration  # noqa: E402
from delayserver.protocol.receipts import parse_receipt  # noqa: E402
from ops.audit.audit import Audit  # noqa: E402 - behind the check that Spark is there
from ops.audit.command import report  # noqa: E402
from ops.audit.completeness import CompletenessQuestion  # noqa: E402
from ops.audit.latency import LatencyQuestion, LatencyReport, instant  # noqa: E402
from ops.audit.latency_cells import ATTEMPTS_MAX  # noqa: E402
from ops.audit.log_frames import Range  # noqa: E402
from store.disk.filesystem import RealFileSystem  # noqa: E402
from tests.ops.audit.browser import Browser  # noqa: E402
from tests.ops.audit.plain_rows import OutcomeRow, StoreRecord, outcome_rows, store_records  # noqa: E402
from tests.ops.audit.story import HOUR_MS, Seen, Story  # noqa: E402

ENDS = ("delivered", "cancelled", "dead_lettered", "expired", "deduplicated", "rolled_back")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return Story(tmp_path_factory.mktemp("story")).run()


@pytest.fixture(scope="module")
def balance(spark: Any, seen: Seen) -> dict[str, Any]:
    audit = Audit(lambda: spark, RealFileSystem(), seen.directories, lambda _line: None)
    # An hour later, so that all that is pending and due would be overdue: prepared transactions are not.
    question = CompletenessQuestion(Range(), int(time.time() * 1000) + HOUR_MS)
    return audit.completeness(question, broker_log=True, use=lambda made: made.to_map())


@pytest.fixture(scope="module")
def lateness(spark: Any, seen: Seen) -> dict[str, Any]:
    return _lateness(spark, seen, Range())


def _lateness(spark: Any, seen: Seen, chosen: Range) -> dict[str, Any]:
    audit = Audit(lambda: spark, RealFileSystem(), seen.directories[:1], lambda _line: None)
    question = LatencyQuestion(chosen, by=("subject", "hour"), slo_ms=100)

    def use(made: LatencyReport) -> dict[str, Any]:
        return made.to_map() | {"series": made.over_time(), "buckets": made.distribution()}

    return audit.latency(question, use)


def _same(one: Any, other: Any) -> bool:
    """Whether two reports say the same; sums of doubles may differ in their last digits."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other or (isinstance(one, float) and one == pytest.approx(other, rel=1e-9)))


@pytest.mark.parametrize("by", [("subject", "hour"), ("server_id", "broker_group", "minute"), ("hour",), ()])
def test_a_report_without_spark_has_the_same_figures(spark: Any, seen: Seen, by: tuple[str, ...]) -> None:
    def use(made: LatencyReport) -> dict[str, Any]:
        return made.to_map() | {"series": made.over_time(), "buckets": made.distribution()}

    question = LatencyQuestion(Range(), by=by, slo_ms=2)
    audits = [
        Audit(lambda: spark, RealFileSystem(), seen.directories, lambda _line: None, size) for size in (0, 1 << 40)
    ]
    with_spark, without = [audit.latency(question, use) for audit in audits]
    assert with_spark["count"] > 0 and with_spark["worst_minutes"]
    assert _same(without, with_spark)


def test_the_balance_agrees_with_the_counts_of_clients(seen: Seen, balance: dict[str, Any]) -> None:
    assert balance["accepted"] == seen.accepted.total()
    assert {end: balance[end] for end in ENDS} == {end: seen.total(end) for end in ENDS}
    assert balance["pending"] == seen.pending()
    assert balance["balanced"]


def test_every_subject_and_hour_balances(seen: Seen, balance: dict[str, Any]) -> None:
    by_subject: Counter[str] = Counter()
    by_hour: Counter[str] = Counter()
    for (subject, hour_ms), count in seen.accepted.items():
        by_subject[subject] += count
        by_hour[instant(hour_ms)] += count
    assert {row["subject"]: row["accepted"] for row in balance["by_subject"]} == by_subject
    assert {row["hour"]: row["accepted"] for row in balance["by_hour"]} == by_hour
    for row in balance["by_subject"]:
        ends = {end: sum([n for (name, _, kind), n in seen.ends.items() if (name, kind) == (row["subject"], end)])
                for end in ENDS}  # fmt: skip
        assert {end: row[end] for end in ENDS} == ends, row["subject"]
        assert row["pending"] == row["accepted"] - sum(ends.values())
    for row in balance["by_hour"]:
        ended = sum([n for (_, due, _), n in seen.ends.items() if instant(due) == row["hour"]])
        assert row["pending"] == row["accepted"] - ended
        for end in ENDS:
            known = sum([n for (_, due, kind), n in seen.ends.items() if (instant(due), kind) == (row["hour"], end)])
            assert row[end] == known, (row["hour"], end)


def test_nothing_is_wrong_after_a_kill(balance: dict[str, Any]) -> None:
    wrong = ("lost", "duplicated", "early", "orphaned", "not_stored", "overdue")
    assert {name: balance[name] for name in wrong} == dict.fromkeys(wrong, 0)
    assert balance["evidence"] == {name: [] for name in wrong[:5]}
    assert balance["corrupt"] == []


def test_redeliveries_stand_outside_the_balance(seen: Seen, balance: dict[str, Any], lateness: dict[str, Any]) -> None:
    assert seen.redeliveries
    assert balance["internal"] == {"accepted": len(seen.redeliveries) + seen.timers, "pending": seen.timers}
    assert lateness["all_deliveries"]["count"] == len(seen.deliveries) + len(seen.redeliveries)


def test_unacked_counts_the_messages_that_clients_did_not_ack(seen: Seen, balance: dict[str, Any]) -> None:
    broker = balance["broker"]
    assert broker["stored"] == len(seen.deliveries) + len(seen.redeliveries)
    assert broker["unacked"] == seen.unacked
    assert [queue["subject"] for queue in broker["queues"] if queue["unacked"]] == ["quiet"]


def test_the_lateness_of_a_report_is_that_of_the_deliveries(seen: Seen, lateness: dict[str, Any]) -> None:
    exact_us = seen.lateness_us(seen.deliveries)
    assert lateness["count"] == len(exact_us)
    assert lateness["early"] == sum([late < 0 for late in exact_us]) == 0
    _assert_percentiles(lateness["lateness_ms"], exact_us)
    within = sum([late <= 100_000 for late in exact_us])
    assert lateness["slo"]["attained"] == within / len(exact_us)
    assert lateness["slo"]["missed"] == len(exact_us) - within
    assert lateness["slo"]["budget_used"] == pytest.approx((len(exact_us) - within) / (len(exact_us) * 0.001))
    assert lateness["mean_ms"] == pytest.approx(sum(exact_us) / len(exact_us) / 1000)
    everything_us = seen.lateness_us(seen.deliveries + seen.redeliveries)
    _assert_percentiles(lateness["all_deliveries"]["lateness_ms"], everything_us)
    assert lateness["outcomes"] == {end: seen.total(end) for end in ENDS}


def _assert_percentiles(found_ms: dict[str, float], exact_us: list[int]) -> None:
    """Never below the exact value, at most 1 % above; the maximum is exact."""
    assert found_ms["max"] == exact_us[-1] / 1000
    for name, thousandths in (("p50", 500), ("p90", 900), ("p99", 990), ("p999", 999)):
        rank = -(-len(exact_us) * thousandths // 1000)
        exact_ms = exact_us[rank - 1] / 1000
        assert exact_ms <= found_ms[name] <= exact_ms * 1.01 + 0.001, name


def test_each_subject_has_its_own_figures(seen: Seen, lateness: dict[str, Any]) -> None:
    groups: dict[tuple[str, str], list[Any]] = {}
    for delivery in seen.deliveries:
        hour_ms = delivery.due_ms - delivery.due_ms % 3_600_000
        groups.setdefault((delivery.subject, instant(hour_ms)), []).append(delivery)
    assert {(row["subject"], row["hour"]): row["count"] for row in lateness["by"]} == {
        key: len(deliveries) for key, deliveries in groups.items()
    }
    for row in lateness["by"]:
        _assert_percentiles(row["lateness_ms"], seen.lateness_us(groups[row["subject"], row["hour"]]))


def _by(deliveries: list[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for delivery in deliveries:
        groups.setdefault(key(delivery), []).append(delivery)
    return groups


def _minute(delivery: Any) -> str:
    return instant(delivery.due_ms - delivery.due_ms % 60_000)


def test_the_worst_and_the_fullest_are_those_that_clients_saw(seen: Seen, lateness: dict[str, Any]) -> None:
    minutes = _by(seen.deliveries, _minute)
    subjects = _by(seen.deliveries, lambda delivery: delivery.subject)
    assert len(minutes) <= 10 and len(subjects) <= 10, "short enough that the worst ten are all"
    for name, groups in (("minute", minutes), ("subject", subjects)):
        rows = lateness[f"worst_{name}s"]
        assert {row[name] for row in rows} == set(groups)
        p99s_ms = [row["lateness_ms"]["p99"] for row in rows]
        assert p99s_ms == sorted(p99s_ms, reverse=True)
        for row in rows:
            assert row["count"] == len(groups[row[name]])
            _assert_percentiles(row["lateness_ms"], seen.lateness_us(groups[row[name]]))
    fullest = sorted([(-len(found), minute) for minute, found in minutes.items()])
    assert [(-row["count"], row["minute"]) for row in lateness["thundering_minutes"]] == fullest


def test_the_series_of_the_pictures_agree_with_the_deliveries_to_clients(seen: Seen, lateness: dict[str, Any]) -> None:
    over, series = lateness["series"]
    minutes = _by(seen.deliveries, _minute)
    assert over == "minute"
    assert {row["minute"]: row["count"] for row in series} == {minute: len(found) for minute, found in minutes.items()}
    exact_us = seen.lateness_us(seen.deliveries)
    reached = 0
    for bucket in lateness["buckets"]:
        reached += bucket["count"]
        assert reached == sum([late <= bucket["max_us"] for late in exact_us])
    assert reached == len(exact_us)


@pytest.fixture(scope="module")
def rows(seen: Seen) -> list[OutcomeRow]:
    """The rows of messages that were delivered, read by the store alone; they are those that clients saw."""
    found = [row for row in outcome_rows(seen.directories[0]) if row.delivered and not row.internal]
    saw = sorted([(d.sequence, d.accepted_us, d.dispatched_us) for d in seen.deliveries])
    assert sorted([(row.sequence, row.accepted_us, row.dispatched_us) for row in found]) == saw
    return found


def test_the_lateness_of_each_stage_is_that_of_its_rows(rows: list[OutcomeRow], lateness: dict[str, Any]) -> None:
    stages = lateness["stages_ms"]
    exact_us = [row.stages_us() for row in rows]
    assert set(stages) == set(exact_us[0])
    for stage, found in stages.items():
        times_us = sorted([one[stage] for one in exact_us])
        assert found["mean"] == pytest.approx(sum(times_us) / len(times_us) / 1000)
        assert found["max"] == times_us[-1] / 1000
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            exact_ms = times_us[math.ceil(len(times_us) * share) - 1] / 1000
            assert exact_ms <= found[name] <= exact_ms * 1.01, (stage, name)
    assert sum([stages[name]["mean"] for name in ("load", "wheel", "queue", "handoff")]) == pytest.approx(
        lateness["mean_ms"]
    )


def test_attempts_and_the_outage_are_seen(seen: Seen, rows: list[OutcomeRow], lateness: dict[str, Any]) -> None:
    # Of `remote.a` clients asked how many attempts each took; nothing else was ever without a broker.
    counts: Counter[str] = Counter({"1": len(seen.deliveries) - seen.attempts.total()})
    for attempts, count in seen.attempts.items():
        counts[str(min(attempts, ATTEMPTS_MAX))] += count
    assert lateness["attempts"]["by_count"] == counts
    retried = sum([n for attempts, n in seen.attempts.items() if attempts > 1])
    assert lateness["attempts"]["retried"] == retried > 0
    (outage,) = [one for one in lateness["outages"] if one["broker_group"] == "remote"]
    assert lateness["outages"] == [outage]
    assert outage["retried"] == retried
    assert outage["attempts_max"] == min(max(seen.attempts), ATTEMPTS_MAX)
    remote = {d.sequence: d for d in seen.deliveries if d.subject == "remote.a"}
    waited = [row for row in rows if row.sequence in remote and (row.attempts > 1 or row.stages_us()["queue"] >= 1e6)]
    assert outage["delayed"] == len(waited)
    begin, end = [datetime.fromisoformat(outage[name]).timestamp() for name in ("from", "to")]
    assert end == pytest.approx(max([remote[row.sequence].dispatched_us for row in waited]) / 1e6, abs=0.002)
    assert begin == pytest.approx(min([row.released_us for row in waited]) / 1e6, abs=0.002)
    assert outage["duration_ms"] / 1000 == pytest.approx(end - begin, abs=0.002)
    assert seen.down_s[0] < begin < seen.down_s[1] < end, "it began while the node was down, and ended when it was back"


def test_the_server_and_the_audit_agree(spark: Any, seen: Seen, balance: dict[str, Any]) -> None:
    names = ("accepted", *ENDS, "pending", "early")
    assert {name: balance[name] for name in names} == {name: seen.status[name] for name in names}
    # The server's histogram begins with its process; its second life delivered what was due from then on.
    second = _lateness(spark, seen, Range(from_ms=seen.second_life_ms))["all_deliveries"]
    assert second["lateness_ms"]["max"] == seen.status["lateness_ms"]["max"]
    for name in ("p50", "p90", "p99", "p999"):
        assert second["lateness_ms"][name] == pytest.approx(seen.status["lateness_ms"][name], rel=0.03, abs=0.002)


def _copies(seen: Seen, folder: Path) -> tuple[str, ...]:
    return tuple([shutil.copytree(path, folder / str(index)).as_posix() for index, path in enumerate(seen.directories)])


def _broker_balance(spark: Any, directories: tuple[str, ...]) -> dict[str, Any]:
    audit = Audit(lambda: spark, RealFileSystem(), directories, lambda _line: None)
    # An hour later, so that all that is pending and due would be overdue: prepared transactions are not.
    question = CompletenessQuestion(Range(), int(time.time() * 1000) + HOUR_MS)
    return audit.completeness(question, broker_log=True, use=lambda made: made.to_map())


@pytest.mark.parametrize("whole_segment", [False, True])
def test_messages_that_a_broker_lost_are_named(
    spark: Any, seen: Seen, balance: dict[str, Any], tmp_path: Path, whole_segment: bool
) -> None:
    copies = _copies(seen, tmp_path)
    records = store_records(copies[0])
    last = [one for one in records if one.path == records[-1].path]
    count = len(last) + 1 if whole_segment else 2
    kept, lost = records[:-count], records[-count:]
    _cut(lost, kept[-1].path)
    found = _broker_balance(spark, copies)
    keys = {key for one in lost for key in one.keys} - {key for one in kept for key in one.keys}
    messages = sorted([sequence for _, sequence in keys])
    assert messages
    assert found["not_stored"] == len(messages)
    assert [row["sequence"] for row in found["evidence"]["not_stored"]] == messages[:100]
    seen_too = {(delivery.due_ms, delivery.sequence) for delivery in seen.deliveries + seen.redeliveries}
    for row in found["evidence"]["not_stored"]:
        receipt = parse_receipt(row["receipt"])
        assert (receipt.due_ms, receipt.sequence) in seen_too, "clients had it, and the store has it no more"
    assert found["broker"]["stored"] == balance["broker"]["stored"] - sum([len(one.keys) for one in lost])
    assert [found[name] for name in ("accepted", *ENDS)] == [balance[name] for name in ("accepted", *ENDS)]


def _cut(lost: list[StoreRecord], end: str) -> None:
    """Take the last records from a store whose last segment is then `end`."""
    for record in reversed(lost):
        if record.path == end:
            os.truncate(record.path, record.offset)
        else:
            Path(record.path).unlink(missing_ok=True)


def test_messages_that_retention_removed_are_not_called_lost(
    spark: Any, seen: Seen, balance: dict[str, Any], tmp_path: Path
) -> None:
    copies = _copies(seen, tmp_path)
    records = store_records(copies[0])
    gone = [one for one in records if one.path == records[0].path]
    assert len(gone) < len(records), "the store has several segments"
    Path(records[0].path).unlink()
    found = _broker_balance(spark, copies)
    assert found["not_stored"] == 0
    assert found["broker"]["checked_from_us"] > min([delivery.dispatched_us for delivery in seen.deliveries])
    assert found["broker"]["stored"] == balance["broker"]["stored"] - sum([len(one.keys) for one in gone])
    assert found["broker"]["unacked"] == balance["broker"]["unacked"], "what is gone was acked"


def test_the_commands_write_the_figures_of_the_reports(
    spark: Any, seen: Seen, lateness: dict[str, Any], balance: dict[str, Any], tmp_path: Path
) -> None:
    files = {name: tmp_path / f"{name}.json" for name in ("latency", "completeness")}
    for name, path in files.items():
        assert report.main([name, *seen.directories[:1], "--out", str(path)], standalone_mode=False) == 0
    written = json.loads(files["latency"].read_text())
    assert {name: written[name] for name in ("count", "early", "lateness_ms")} == {
        name: lateness[name] for name in ("count", "early", "lateness_ms")
    }
    written = json.loads(files["completeness"].read_text())
    assert {name: written[name] for name in ("accepted", *ENDS, "pending")} == {
        name: balance[name] for name in ("accepted", *ENDS, "pending")
    }
    table = tmp_path / "hours.parquet"
    assert report.main(["completeness", *seen.directories[:1], "--out", str(table)], standalone_mode=False) == 0
    assert spark.read.parquet(str(table)).groupBy().sum("accepted").first()[0] == seen.accepted.total()


def test_a_table_takes_more_groups_than_a_list(
    spark: Any, seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.audit.latency.BY_ROWS_MAX", 1)
    command = ["latency", *seen.directories[:1], "--by", "subject,minute", "--out"]
    with pytest.raises(ClickException, match="write a table with --out"):
        report.main([*command, str(tmp_path / "list.json")], standalone_mode=False)
    table = tmp_path / "table.parquet"
    assert report.main([*command, str(table)], standalone_mode=False) == 0
    assert spark.read.parquet(str(table)).count() > 1


@pytest.fixture(scope="module")
def page(spark: Any, seen: Seen, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert report.main(["latency", *seen.directories, "--broker-log", "--out", str(path)], standalone_mode=False) == 0
    return path


def test_the_page_renders_offline_with_the_numbers_of_the_json(
    page: Path, lateness: dict[str, Any], balance: dict[str, Any]
) -> None:
    shown = Browser().open(page)
    assert shown.console == []
    assert shown.charts == 3, "distribution, over time, calendar"
    carried = json.loads(shown.script("figures"))
    assert {name: carried["completeness"][name] for name in ("accepted", "pending", *ENDS)} == {
        name: balance[name] for name in ("accepted", "pending", *ENDS)
    }
    assert carried["latency"]["lateness_ms"] == lateness["lateness_ms"]
    for path in (
        *[f"completeness.{name}" for name in ("accepted", "pending", *ENDS, "lost", "duplicated", "early", "orphaned")],
        "completeness.broker.unacked",
        "latency.count",
        "latency.early",
        "latency.attempts.retried",
    ):
        value: Any = carried
        for name in path.split("."):
            value = value[name]
        assert shown.figure(path) == f"{value:,}", path
    assert shown.figure("latency.slo.budget_used") == f"{carried['latency']['slo']['budget_used']:,.1%}"
    for row in carried["latency"]["worst_minutes"]:
        assert f"<td>{row['minute']}</td><td>{row['count']:,}</td>" in shown.dom
    for name, stage in carried["latency"]["stages_ms"].items():
        times = [format_duration(round(stage[point], 3)) for point in ("mean", "p50", "p99", "max")]
        assert "".join([f"<td>{text}</td>" for text in (name, *times)]) in shown.dom
    for point, value_ms in carried["latency"]["lateness_ms"].items():
        assert shown.figure(f"latency.lateness_ms.{point}") == format_duration(round(value_ms, 3))
    assert shown.figure("latency.slo.attained") == f"{carried['latency']['slo']['attained']:.4%}"


def test_the_page_fits_a_phone(page: Path) -> None:
    assert Browser(width=390, height=844).width_needed(page) <= 390
