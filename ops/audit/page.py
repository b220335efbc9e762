"""The report as one HTML page that works offline: findings first, then figures, charts and tables.

The attribute `data-figure` of a number is its path in the JSON, which the page contains.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from delayserver.config.units import format_duration
from ops.audit.audit import as_plain
from ops.audit.charts import draw_calendar, draw_distribution, draw_over_time
from ops.audit.latency_cells import ATTEMPTS_MAX
from ops.audit.states import COUNTS, PROBLEMS
from ops.audit.takeovers import HOW

# Rows of a table in the page; the JSON in the page has all rows.
ROWS_MAX = 500
_FIGURES = ("count", "early", "within", "lateness_ms")

_CONSOLE_STYLE = files("delayserver").joinpath("web/console/style.css").read_text()
# The colours and the letters of the console, light and dark: its first rule.
_COLOURS = _CONSOLE_STYLE[_CONSOLE_STYLE.index(":root {") : _CONSOLE_STYLE.index("}") + 1]
_STYLE = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 24px var(--side) 56px; color: var(--ink); background: var(--paper);
  font: 15px/1.5 var(--sans); font-variant-numeric: tabular-nums; overflow-wrap: break-word; }
h1 { font-size: 28px; letter-spacing: -.02em; margin: 0; }
h2 { font-size: 21px; font-weight: 650; letter-spacing: -.017em; margin: 40px 0 12px; }
p.quiet { color: var(--muted); margin: 6px 0 16px; overflow-wrap: anywhere; }
ul.findings { list-style: none; padding: 0; margin: 0; display: grid; gap: 8px; }
ul.findings li { border: 1px solid var(--line); border-left: 4px solid var(--bad); border-radius: 10px;
  background: var(--bad-wash); padding: 10px 16px; overflow-wrap: anywhere; }
ul.findings li.good { border-left-color: var(--delivered); background: var(--surface); }
ul.findings li.note { border-left-color: var(--warn); background: var(--warn-wash); }
dl.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 10px; margin: 0; }
dl.figures div, figure, .rows { background: var(--surface); border: 1px solid var(--line); border-radius: var(--round);
  box-shadow: var(--shadow); }
dl.figures div { padding: 12px 16px; }
dl.figures dt { color: var(--muted); font-size: 13.5px; }
dl.figures dd { margin: 0; font-size: 20px; font-weight: 550; letter-spacing: -.015em; }
figure { margin: 0; padding: 14px 18px; }
figcaption { color: var(--muted); font-size: 13.5px; }
.wide { overflow-x: auto; }
.chart svg { display: block; width: 100%; min-width: 640px; height: auto; }
.chart text { font: 13px var(--sans); fill: var(--muted); }
.rule { stroke: var(--line); fill: none; }
.rule.base { stroke: var(--strong-line); }
.curve { stroke: var(--delivered); stroke-width: 2.2; fill: none; stroke-linejoin: round; }
.quiet-curve { stroke: var(--strong-line); stroke-width: 1.5; fill: none; }
.mark { fill: var(--surface); stroke: var(--delivered); stroke-width: 2; }
.quiet-mark { fill: var(--surface); stroke: var(--strong-line); stroke-width: 1.5; }
.slo { stroke: var(--coming); stroke-width: 1.6; stroke-dasharray: 3 4; fill: none; }
.chart .slo-text { fill: var(--coming-text); font-weight: 600; }
.keys { margin: 0 0 4px; font-size: 13.5px; color: var(--muted); }
.key { display: inline-block; width: 16px; height: 3px; margin: 0 6px 3px 8px; background: var(--delivered); }
.key.quiet { background: var(--strong-line); }
.scale { display: flex; align-items: center; gap: 3px; }
.scale i { width: 12px; height: 12px; border-radius: 3px; }
.l0 { fill: var(--none); background: var(--none); } .l1 { fill: var(--h1); background: var(--h1); }
.l2 { fill: var(--h2); background: var(--h2); } .l3 { fill: var(--h3); background: var(--h3); }
.l4 { fill: var(--h4); background: var(--h4); } .l5 { fill: var(--h5); background: var(--h5); }
.rows { overflow: auto; max-height: 75vh; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: separate; border-spacing: 0; min-width: 100%; font-size: 14px; }
th, td { padding: 7px 14px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { position: sticky; top: 0; background: var(--surface); color: var(--muted); font-weight: 400; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
@media (max-width: 700px) { .chart svg { min-width: 760px; } .chart text { font-size: 15px; } }
@media print { .rows { max-height: none; overflow: visible; } }
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
        *_takeovers(latency["takeovers"]),
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
        f"<title>Delay audit</title><style>{_COLOURS}{_STYLE}</style></head>\n<body>\n<main>\n{body}\n</main>\n"
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
    takeovers = latency["takeovers"]
    if takeovers:
        longest = max(takeovers, key=lambda each: each["without_primary_ms"])
        yield (f"Takeovers: {len(takeovers):,}, at most {_ms(longest['without_primary_ms'])} without a primary; "
               f"{sum([each['delayed'] for each in takeovers]):,} messages waited for the next one.")  # fmt: skip
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


def _takeovers(takeovers: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """What each takeover of a shard cost, if there were any."""
    if not takeovers:
        return
    heads = [
        "shard",
        "epoch",
        "how",
        "last record before",
        "without primary",
        "to the first record",
        "waited",
        "maybe twice",
    ]
    rows = [
        [
            each["server_id"],
            str(each["epoch"]),
            HOW[each["planned"]],
            each["from"],
            _ms(each["without_primary_ms"]),
            _ms(each["first_record_ms"]),
            f"{each['delayed']:,}",
            f"{each['maybe_twice']:,}",
            *[_ms(each["lateness_ms"][point]) for point in ("p50", "p99", "max")],
        ]
        for each in takeovers[:ROWS_MAX]
    ]
    words = "Waited: due while no member led, and delivered by the next primary; then how late these were."
    yield "<h2>Takeovers</h2>" + _table([*heads, "p50", "p99", "max"], rows, len(takeovers))
    yield f'<p class="quiet">{escape(words)} Times are those of the clocks of the two primaries.</p>'


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
        [*keys, "delivered", "early", "within SLO", *[point.replace("p999", "p99.9") for point in points]],
        table,
        len(rows),
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
    return _table(["subject", *[name.replace("_", " ") for name in names]], rows, len(balance["by_subject"]))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], all_rows: int | None = None) -> str:
    head = "".join([f'<th scope="col">{escape(text)}</th>' for text in heads])
    body = "".join([f"<tr>{''.join([f'<td>{escape(text)}</td>' for text in row])}</tr>" for row in rows])
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    label = escape(f"Table by {heads[0]}: {len(rows):,} rows")
    left_out = (all_rows or 0) - len(rows)
    more = f'<p class="quiet">{left_out:,} more rows are in the JSON of this page.</p>' if left_out > 0 else ""
    return f'<div class="rows" tabindex="0" role="group" aria-label="{label}">{table}</div>{more}'


def _ms(value: float | None) -> str:
    return "none" if value is None else format_duration(round(value, 3))
