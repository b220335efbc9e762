"""The report as one HTML page that works offline: findings first, then figures, charts and tables.

The attribute `data-figure` of a number is its path in the JSON, which the page contains.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from delayserver.config.units import format_duration
from ops.audit.audit import as_plain
from ops.audit.charts import draw_calendar, draw_distribution, draw_over_time, plotly_script
from ops.audit.latency_cells import ATTEMPTS_MAX
from ops.audit.states import COUNTS, PROBLEMS

# Rows of a table in the page; the JSON in the page has all rows.
ROWS_MAX = 500
_FIGURES = ("count", "early", "within", "lateness_ms")

_STYLE = """
:root { color-scheme: light; --ink: #1c2430; --quiet: #5b6675; --line: #dfe4ea; --good: #15803d; --bad: #b91c1c; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 16px; color: var(--ink); background: #fff;
       font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 32px 0 8px; }
p.quiet { color: var(--quiet); margin: 4px 0 16px; overflow-wrap: anywhere; }
ul.findings { list-style: none; padding: 0; margin: 0; }
ul.findings li { border-left: 4px solid var(--bad); background: #fef2f2; padding: 8px 12px; margin: 6px 0;
  overflow-wrap: anywhere; }
ul.findings li.good { border-color: var(--good); background: #f0fdf4; }
ul.findings li.note { border-color: #c2410c; background: #fff7ed; }
dl.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 8px; margin: 0; }
dl.figures div { border: 1px solid var(--line); border-radius: 6px; padding: 8px 12px; }
dl.figures dt { color: var(--quiet); font-size: .85rem; }
dl.figures dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: 6px 10px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
"""


@dataclass(frozen=True, slots=True)
class Pictured:
    """The latency figures, and the data of the charts: a series over time, and buckets."""

    latency: dict[str, Any]
    over: str
    series: list[dict[str, Any]]
    buckets: list[dict[str, int]]


def draw_page(pictured: Pictured, balance: Mapping[str, Any], about: str = "") -> str:
    """The whole page. `about` describes the audit in a line."""
    latency = pictured.latency
    by = [key for key in (latency["by"] or [{}])[0] if key not in _FIGURES]
    figures = json.dumps({"latency": latency, "completeness": balance}, default=as_plain)
    parts = [
        "<h1>Delay audit</h1>",
        f'<p class="quiet">{escape(about)}</p>',
        _findings(latency, balance),
        "<h2>Lateness</h2>",
        _headline(latency),
        *_pictures(pictured, balance),
        "<h2>Stages</h2>",
        _stages(latency),
        "<h2>Worst minutes</h2>",
        _by_table(latency["worst_minutes"]),
        "<h2>Fullest minutes</h2>",
        _by_table(latency["thundering_minutes"]),
        "<h2>Worst subjects</h2>",
        _by_table(latency["worst_subjects"]),
        f"<h2>By {escape(', '.join(by))}</h2>" if by else "",
        _by_table(latency["by"]) if by else "",
        "<h2>Completeness</h2>",
        _balance(balance),
        _subjects_balance(balance),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Keeps the browser from requesting an icon.
        '<link rel="icon" href="data:,">'
        f"<title>Delay audit</title><style>{_STYLE}</style><script>{plotly_script()}</script></head>\n<body>\n{body}\n"
        f'<script type="application/json" id="figures">{figures.replace("<", chr(92) + "u003c")}</script>\n</body></html>\n'
    )


def _findings(latency: Mapping[str, Any], balance: Mapping[str, Any]) -> str:
    found = [("", line) for line in _wrong(latency, balance)]
    found += [("note", line) for line in _notes(latency, balance)]
    if not any(kind == "" for kind, _ in found):
        found.insert(0, ("good", "Nothing is lost, duplicated, early, orphaned or unreadable; the balance adds up."))
    items = "".join([f'<li class="{kind}">{escape(line)}</li>' for kind, line in found])
    return f'<h2>What was wrong</h2><ul class="findings">{items}</ul>'


def _wrong(latency: Mapping[str, Any], balance: Mapping[str, Any]) -> Iterable[str]:
    if not balance["balanced"]:
        yield "The balance does not add up."
    for name in PROBLEMS:
        if balance.get(name):
            first = balance["evidence"][name][0]["receipt"] if balance["evidence"].get(name) else ""
            yield (
                f"{balance[name]:,} {name.replace('_', ' ')}, the first is {first}: "
                f"delayserver recover trace DIR --receipt {first}"
            )
    for row in [*latency["corrupt"], *balance["corrupt"]]:
        yield f"Corrupt: {row['file']} {row['start']} to {row['stop']}: {row['detail']}"


def _notes(latency: Mapping[str, Any], balance: Mapping[str, Any]) -> Iterable[str]:
    slo = latency["slo"]
    if slo["budget_used"] is not None and slo["budget_used"] > 1:
        yield (f"SLO missed: {slo['attained']:.4%} within {_ms(slo['target_ms'])}, the objective is {slo['objective']:.3%}; "
               f"{slo['budget_used']:.1f} times the error budget.")  # fmt: skip
    for outage in latency["outages"]:
        yield (f"Broker group {outage['broker_group']} was out from {outage['from']} for {_ms(outage['duration_ms'])}: "
               f"{outage['delayed']:,} deliveries waited, up to {_number(outage['attempts_max'])} attempts.")  # fmt: skip
    if balance["overdue"]:
        yield f"{balance['overdue']:,} pending messages are overdue."


def _headline(latency: Mapping[str, Any]) -> str:
    slo = latency["slo"]
    attained = "none" if slo["attained"] is None else f"{slo['attained']:.4%}"
    used = "none" if slo["budget_used"] is None else f"{slo['budget_used']:,.1%}"
    figures = [
        ("delivered", "latency.count", f"{latency['count']:,}"),
        ("early", "latency.early", f"{latency['early']:,}"),
    ]
    figures += [(name.replace("p999", "p99.9"), f"latency.lateness_ms.{name}", _ms(value))
                for name, value in latency["lateness_ms"].items()]  # fmt: skip
    figures.append((f"within {_ms(slo['target_ms'])}", "latency.slo.attained", attained))
    figures.append(("error budget used", "latency.slo.budget_used", used))
    figures.append(("retried", "latency.attempts.retried", f"{latency['attempts']['retried']:,}"))
    figures.append(("maybe delivered twice", "latency.attempts.maybe_twice", f"{latency['attempts']['maybe_twice']:,}"))
    return _figures(figures) + f'<p class="quiet">Percentiles are {escape(latency["percentile_error"])}.</p>'


def _figures(figures: Sequence[tuple[str, str, str]]) -> str:
    items = [
        f'<div><dt>{escape(name)}</dt><dd data-figure="{path}">{escape(text)}</dd></div>'
        for name, path, text in figures
    ]
    return f'<dl class="figures">{"".join(items)}</dl>'


def _pictures(pictured: Pictured, balance: Mapping[str, Any]) -> Iterable[str]:
    if pictured.buckets:
        yield "<h2>How late</h2>" + draw_distribution(pictured.buckets, pictured.latency["slo"]["target_ms"])
        yield f"<h2>By {pictured.over}</h2>" + draw_over_time(pictured.over, pictured.series)
    if balance["by_hour"]:
        yield "<h2>Due load</h2>" + draw_calendar(balance["by_hour"])
    else:
        yield '<p class="quiet">Nothing was due in this range.</p>'


def _stages(latency: Mapping[str, Any]) -> str:
    points = ("mean", "p50", "p99", "max")
    rows = [[name, *[_ms(stage[point]) for point in points]] for name, stage in latency["stages_ms"].items()]
    words = "load + wheel + queue + handoff = lateness, row by row; settle is the broker's answer after it."
    tries = ", ".join(
        [f"{count:,} with {_number(number)}" for number, count in latency["attempts"]["by_count"].items()]
    )
    attempts = f'<p class="quiet">Attempts: {escape(tries)}.</p>' if tries else ""
    return _table(["stage", *points], rows) + f'<p class="quiet">{escape(words)}</p>' + attempts


def _number(attempts: str | int) -> str:
    return f"{attempts} or more" if int(attempts) == ATTEMPTS_MAX else str(attempts)


def _by_table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return '<p class="quiet">No deliveries.</p>'
    keys = [key for key in rows[0] if key not in _FIGURES]
    points = list(rows[0]["lateness_ms"])
    table = []
    for row in rows[:ROWS_MAX]:
        counts = [f"{row['count']:,}", f"{row['early']:,}", f"{row['within'] / row['count']:.3%}"]
        times = [_ms(row["lateness_ms"][point]) for point in points]
        table.append([*[str(row[key]) for key in keys], *counts, *times])
    return _table(
        [*keys, "delivered", "early", "within SLO", *[point.replace("p999", "p99.9") for point in points]], table
    )


def _balance(balance: Mapping[str, Any]) -> str:
    names = [*COUNTS, *[name for name in PROBLEMS if name in balance], "overdue", "retired"]
    figures = [(name.replace("_", " "), f"completeness.{name}", f"{balance[name]:,}") for name in names]
    figures.append(("maybe delivered twice", "completeness.maybe_twice", f"{balance['maybe_twice']:,}"))
    if "broker" in balance:
        figures.append(("stored, not acked", "completeness.broker.unacked", f"{balance['broker']['unacked']:,}"))
    adds_up = "adds up" if balance["balanced"] else "does NOT add up"
    words = "accepted = delivered + cancelled + dead-lettered + expired + deduplicated + rolled back + pending"
    return _figures(figures) + f'<p class="quiet">{words}: {adds_up}. "Retired" is what the ledger speaks for.</p>'


def _subjects_balance(balance: Mapping[str, Any]) -> str:
    names = [*COUNTS, *PROBLEMS[:4]]
    rows = [[row["subject"], *[f"{row[name]:,}" for name in names]] for row in balance["by_subject"][:ROWS_MAX]]
    return _table(["subject", *[name.replace("_", " ") for name in names]], rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join([f"<th>{escape(text)}</th>" for text in heads])
    body = "".join([f"<tr>{''.join([f'<td>{escape(text)}</td>' for text in row])}</tr>" for row in rows])
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _ms(value: float | None) -> str:
    return "none" if value is None else format_duration(round(value, 3))
