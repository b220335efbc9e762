"""The work of the two commands: make the report, write, summarise."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delayserver.config.units import format_duration
from ops.audit.audit import Audit, as_plain
from ops.audit.completeness import CompletenessQuestion, CompletenessReport
from ops.audit.latency import LatencyQuestion, LatencyReport
from ops.audit.request import HTML, JSON, PARQUET, Request
from ops.audit.states import COUNTS, PROBLEMS
from ops.audit.takeovers import HOW


@dataclass(frozen=True, slots=True)
class Done:
    """A report that was made. `clean`: nothing in it is wrong. `lines`: its summary for people."""

    figures: dict[str, Any]
    clean: bool
    lines: list[str]


def run_latency(audit: Audit, request: Request) -> Done:
    """The latency figures; clean if nothing is early or corrupt."""
    if request.format == HTML:
        return _run_both(audit, request)

    def use(report: LatencyReport) -> dict[str, Any]:
        if request.format == PARQUET:
            write_table(report.table(request.by), str(request.out))
        audit.say("grouping deliveries by lateness")
        return report.to_map(listed=request.format != PARQUET)

    figures = audit.latency(_latency_question(request), use)
    _write_json(request, figures)
    return Done(figures, not figures["early"] and not figures["corrupt"], _latency_lines(figures))


def run_completeness(audit: Audit, request: Request) -> Done:
    """The balance; clean if it is whole."""
    if request.format == HTML:
        return _run_both(audit, request)

    def use(report: CompletenessReport) -> dict[str, Any]:
        if request.format == PARQUET:
            write_table(report.table(), str(request.out))
        return report.to_map()

    audit.say("joining the logs by sequence")
    figures = audit.completeness(_completeness_question(request), broker_log=request.broker_log, use=use)
    _write_json(request, figures)
    return Done(figures, is_whole(figures), _completeness_lines(figures))


def _run_both(audit: Audit, request: Request) -> Done:
    from ops.audit.page import Pictured, draw_page

    def picture(report: LatencyReport) -> Pictured:
        over, series = report.over_time()
        return Pictured(report.to_map(), over, series, report.distribution())

    audit.say("grouping deliveries by lateness")
    pictured = audit.latency(_latency_question(request), picture)
    audit.say("joining the logs by sequence")
    balance = audit.completeness(
        _completeness_question(request), broker_log=request.broker_log, use=lambda report: report.to_map()
    )
    Path(str(request.out)).write_text(draw_page(pictured, balance, _about(request)), encoding="utf-8")
    figures = {"latency": pictured.latency, "completeness": balance}
    return Done(figures, not pictured.latency["early"] and is_whole(balance), [])


def _about(request: Request) -> str:
    """The directories, range and time of the audit, in one line."""
    words = [", ".join(request.directories) or f"the topic of {request.cluster}"]
    words += [f"due from {_instant(request.from_ms)}"] if request.from_ms is not None else []
    words += [f"due before {_instant(request.to_ms)}"] if request.to_ms is not None else []
    words += [f"subjects {', '.join(request.subjects)}"] if request.subjects else []
    return "; ".join([*words, f"made {_instant(time.time() * 1000)}"])


def _instant(ms: float) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def is_whole(balance: Mapping[str, Any]) -> bool:
    """True if the balance adds up and no message is lost, duplicated, early, orphaned or unreadable."""
    return balance["balanced"] and not balance["corrupt"] and not any(balance.get(name, 0) for name in PROBLEMS)


def _latency_question(request: Request) -> LatencyQuestion:
    return LatencyQuestion(request.chosen(), request.by, request.slo_ms, request.objective)


def _completeness_question(request: Request) -> CompletenessQuestion:
    return CompletenessQuestion(request.chosen(), int(time.time() * 1000))


def write_table(table: pa.Table, out: str) -> None:
    """Writes a table to a .parquet file. A folder of that name, as Spark writes it, gives way."""
    if Path(out).is_dir():
        shutil.rmtree(out)
    pq.write_table(table, out)


def _write_json(request: Request, figures: Mapping[str, Any]) -> None:
    """Writes the figures to a .json file, if the request names one."""
    if request.format == JSON:
        text = json.dumps(figures, indent=2, ensure_ascii=False, default=as_plain)
        Path(str(request.out)).write_text(text + "\n", encoding="utf-8")


def _ms(value: float | None) -> str:
    return "-" if value is None else format_duration(round(value, 3))


def _latency_lines(figures: Mapping[str, Any]) -> list[str]:
    slo, late = figures["slo"], figures["lateness_ms"]
    attained = "-" if slo["attained"] is None else f"{slo['attained']:.4%}"
    used = "-" if slo["budget_used"] is None else f"{slo['budget_used']:.1%}"
    lines = [
        f"delivered      {figures['count']:,}",
        f"early          {figures['early']:,}",
        f"maybe twice    {figures['attempts']['maybe_twice']:,}",
        f"lateness       {'  '.join([f'{name} {_ms(value)}' for name, value in late.items()])}",
        f"SLO            {attained} within {_ms(slo['target_ms'])} (objective {slo['objective']:.3%}), budget used {used}",
    ]
    lines += [
        f"  {name:<12} mean {_ms(stage['mean'])}  p50 {_ms(stage['p50'])}  p99 {_ms(stage['p99'])}  max {_ms(stage['max'])}"
        for name, stage in figures["stages_ms"].items()
    ]
    for outage in figures["outages"]:
        lines.append(
            f"outage         {outage['broker_group']} {outage['from']} for {_ms(outage['duration_ms'])}, "
            f"{outage['delayed']:,} delayed"
        )
    for each in figures["takeovers"]:
        lines.append(
            f"takeover       {each['server_id']} epoch {each['epoch']} {each['from']} {HOW[each['planned']]}, "
            f"without a primary for {_ms(each['without_primary_ms'])}, {each['delayed']:,} delayed, "
            f"at most {_ms(each['lateness_ms']['max'])}, {each['maybe_twice']:,} maybe twice"
        )
    for row in figures["by"][:20]:
        name = " ".join([str(row[key]) for key in row if key not in ("count", "early", "within", "lateness_ms")])
        late = row["lateness_ms"]
        lines.append(
            f"  {name:<30} {row['count']:>12,}  p50 {_ms(late['p50'])}  p99 {_ms(late['p99'])}  max {_ms(late['max'])}"
        )
    return lines + _corrupt_lines(figures)


def _completeness_lines(figures: Mapping[str, Any]) -> list[str]:
    names = [*COUNTS, *[name for name in PROBLEMS if name in figures], "overdue", "maybe_twice", "retired"]
    lines = [f"{name:<14} {figures[name]:,}" for name in names]
    lines.append("balanced       " + ("yes" if figures["balanced"] else "NO"))
    if "broker" in figures:
        lines.append(f"unacked        {figures['broker']['unacked']:,} of {figures['broker']['stored']:,} stored")
    for problem, found in figures["evidence"].items():
        lines += [f"  {problem:<12} {one['receipt']}  {one['subject']}  {one['outcome']}" for one in found]
    return lines + _corrupt_lines(figures)


def _corrupt_lines(figures: Mapping[str, Any]) -> list[str]:
    return [f"CORRUPT        {row['file']} {row['start']}-{row['stop']}: {row['detail']}" for row in figures["corrupt"]]
