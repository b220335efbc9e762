"""Makes the Grafana dashboard, `ops/deploy/grafana/delayserver.json`: `python -m ops.deploy.dashboard`.

The JSON of a dashboard repeats itself a hundred times. Here each panel is one entry: a title, what it means, its queries.
A test fails when the file is not current.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PATH: Final = Path(__file__).parent / "grafana" / "delayserver.json"
WIDTH: Final = 24
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
OF: Final = 'job=~"$job", instance=~"$instance"'
GREEN, YELLOW, RED = "green", "yellow", "red"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and how its series are named."""

    expr: str
    legend: str = "{{instance}}"
    unit: str = ""  # where it differs from that of its panel
    heatmap: bool = False
    table: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `steps`: at which value which colour begins."""

    title: str
    says: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    steps: Sequence[tuple[float | None, str]] = ()
    options: dict[str, Any] = field(default_factory=dict)
    custom: dict[str, Any] = field(default_factory=dict)
    mappings: Sequence[dict[str, Any]] = ()


def _stat(title: str, says: str, expr: str, unit: str = "short", **more: Any) -> Panel:
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background" if more.get("steps") else "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "textMode": "auto",
    }
    return Panel(title, says, [Query(expr)], unit, "stat", 3, 4, options=options, **more)


def _rate(metric: str, by: str = "instance", extra: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{OF}{extra}}}[$__rate_interval]))"


def _quantile(share: float, metric: str, by: str, extra: str = "") -> str:
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket', f'{by}, le', extra)})"


def _value(metric: str, extra: str = "") -> str:
    return f"{metric}{{{OF}{extra}}}"


GROUP: Final = ', broker_group=~"$broker_group"'
YES_NO: Final = ({"type": "value", "options": {"0": {"text": "no", "index": 0}, "1": {"text": "yes", "index": 1}}},)
STACKED: Final = {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30}
TOP: Final = 20
"""Subjects and consumer groups in one panel. More lines say nothing to the eye."""

ROWS: Final[Sequence[tuple[str, Sequence[Panel]]]] = (
    (
        "Overview",
        (
            _stat(
                "Ready",
                "Whether the server serves all operations.",
                f"min({_value('delayserver_ready')})",
                steps=[(None, RED), (1, GREEN)],
                mappings=YES_NO,
            ),
            _stat("Accepted", "Messages a second.", f"sum({_rate('delayserver_messages_accepted_total')})", "cps"),
            _stat(
                "Delivered",
                "Messages a second.",
                f"sum({_rate('delayserver_messages_ended_total', extra=', outcome=' + chr(34) + 'delivered' + chr(34))})",
                "cps",
            ),
            _stat(
                "Pending",
                "Accepted messages that have no outcome yet.",
                f"sum({_value('delayserver_messages_pending')})",
            ),
            _stat(
                "Lateness, p99",
                "99 of 100 messages are handed over within this time after they are due.",
                f"max({_quantile(0.99, 'delayserver_lateness_seconds', 'instance, broker_group')})",
                "s",
                steps=[(None, GREEN), (0.1, YELLOW), (1, RED)],
            ),
            _stat(
                "Early",
                "Messages handed over before they were due, since the start. It must be 0.",
                f"sum({_value('delayserver_early_total')})",
                steps=[(None, GREEN), (1, RED)],
            ),
            _stat(
                "Disk free",
                "Free bytes of the disk with the data directory.",
                f"min({_value('delayserver_disk_free_bytes')})",
                "bytes",
                steps=[(None, RED), (1 << 30, YELLOW), (10 << 30, GREEN)],
            ),
            _stat("Up for", "Time since the start.", f"min({_value('delayserver_uptime_seconds')})", "s"),
            _stat(
                "Open circuits",
                "Nodes that count as down.",
                f"sum({_value('delayserver_node_circuit_open')})",
                steps=[(None, GREEN), (1, RED)],
            ),
            _stat(
                "Damage",
                "Findings of corruption, and files that the disk cannot read, since the start.",
                f"sum({_value('delayserver_corruptions')} + {_value('delayserver_unreadable_files')})",
                steps=[(None, GREEN), (1, RED)],
            ),
            _stat(
                "Disk nearly full",
                "Whether sends are refused because the disk is nearly full.",
                f"max({_value('delayserver_disk_low')})",
                steps=[(None, GREEN), (1, RED)],
                mappings=YES_NO,
            ),
            _stat(
                "Longest stall",
                "The longest time for which the event loop kept all clients waiting, of the last minute.",
                f"max({_value('delayserver_event_loop_longest_stall_seconds')})",
                "s",
                steps=[(None, GREEN), (0.1, YELLOW), (0.5, RED)],
            ),
            _stat(
                "Connections",
                "Open connections of the server's own protocol.",
                f"sum({_value('delayserver_connections')})",
            ),
            _stat("In memory", "Messages in memory that are not due yet.", f"sum({_value('delayserver_wheel_rows')})"),
            _stat(
                "Next due in",
                "Time until the next message in memory is due. Negative: it is overdue.",
                f"min({_value('delayserver_next_due_timestamp_seconds')} - {_value('delayserver_clock_timestamp_seconds')})",
                "s",
            ),
            _stat(
                "HTTP requests",
                "Requests a second at the gateway.",
                f"sum({_rate('delayserver_http_requests_total')})",
                "reqps",
            ),
        ),
    ),
    (
        "Lateness",
        (
            Panel(
                "Lateness, all messages",
                "How many messages a second were handed over how late. A dark band that climbs is a server that "
                "falls behind.",
                [
                    Query(
                        f"sum by (le) (rate(delayserver_lateness_seconds_bucket{{{OF}{GROUP}}}[$__rate_interval]))",
                        "{{le}}",
                        heatmap=True,
                    )
                ],
                "s",
                "heatmap",
                24,
                10,
                options={
                    "calculate": False,
                    "cellGap": 1,
                    "cellValues": {"unit": "cps"},
                    "color": {
                        "mode": "scheme",
                        "scheme": "Oranges",
                        "scale": "exponential",
                        "exponent": 0.5,
                        "steps": 64,
                        "fill": "dark-orange",
                        "reverse": False,
                    },
                    "filterValues": {"le": 1e-9},
                    "legend": {"show": True},
                    "rowsFrame": {"layout": "auto"},
                    "tooltip": {"mode": "single", "yHistogram": True},
                    "yAxis": {"axisPlacement": "left", "reverse": False, "unit": "s"},
                },
            ),
            Panel(
                "Lateness by broker group",
                "Time from the due time of a message to its hand-over: the median, and what 99 and 999 of a "
                "thousand do not exceed.",
                [
                    Query(
                        _quantile(share, "delayserver_lateness_seconds", "instance, broker_group", GROUP),
                        f"{name} {{{{broker_group}}}} {{{{instance}}}}",
                    )
                    for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
                ],
                "s",
                custom={"scaleDistribution": {"type": "log", "log": 10}},
            ),
            Panel(
                "Late by more than a second",
                "Share of the messages. The alert DelayserverLate begins at 1 %.",
                [
                    Query(
                        "1 - sum by (instance, broker_group) "
                        f'(rate(delayserver_lateness_seconds_bucket{{{OF}{GROUP}, le="1.0"}}'
                        "[$__rate_interval])) / (sum by (instance, broker_group) "
                        f"(rate(delayserver_lateness_seconds_count{{{OF}{GROUP}}}[$__rate_interval])) > 0)",
                        "{{broker_group}} {{instance}}",
                    )
                ],
                "percentunit",
                steps=[(None, GREEN), (0.01, RED)],
            ),
        ),
    ),
    (
        "Balance",
        (
            Panel(
                "Accepted and ended",
                "Messages a second: accepted, and by their outcome.",
                [
                    Query(_rate("delayserver_messages_accepted_total"), "accepted {{instance}}"),
                    Query(_rate("delayserver_messages_ended_total", "instance, outcome"), "{{outcome}} {{instance}}"),
                ],
                "cps",
            ),
            Panel(
                "Pending",
                "Accepted messages without an outcome.",
                [Query(_value("delayserver_messages_pending"))],
                custom={"fillOpacity": 20},
            ),
            Panel(
                "Balance",
                "accepted = the sum of all outcomes + pending, at every moment.",
                [
                    Query(f"sum({_value('delayserver_messages_accepted_total')})", "accepted"),
                    Query(f"sum by (outcome) ({_value('delayserver_messages_ended_total')})", "{{outcome}}"),
                    Query(f"sum({_value('delayserver_messages_pending')})", "pending"),
                ],
                kind="bargauge",
                options={
                    "displayMode": "basic",
                    "orientation": "horizontal",
                    "showUnfilled": True,
                    "valueMode": "text",
                    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                },
            ),
            Panel(
                "Refused requests",
                "Error replies a second, by their name in PROTOCOL.md.",
                [Query(_rate("delayserver_errors_total", "instance, error") + " > 0", "{{error}} {{instance}}")],
                "cps",
                custom=STACKED,
            ),
        ),
    ),
    (
        "Stages",
        (
            Panel(
                "Time of each stage, p99",
                "Of the batches of a stage, in the order of a message's journey: decode, commit_wait, sync, "
                "replay_lag, load, wheel, "
                "queue, hand_off, settle.",
                [Query(_quantile(0.99, "delayserver_stage_seconds", "stage"), "{{stage}}")],
                "s",
                custom={"scaleDistribution": {"type": "log", "log": 10}},
            ),
            Panel(
                "Time of each stage, mean",
                "Of the batches of a stage.",
                [
                    Query(
                        f"{_rate('delayserver_stage_seconds_sum', 'stage')} / "
                        f"({_rate('delayserver_stage_seconds_count', 'stage')} > 0)",
                        "{{stage}}",
                    )
                ],
                "s",
            ),
            Panel(
                "Batches of each stage",
                "Batches a second. Large batches are cheap for each message.",
                [Query(_rate("delayserver_stage_seconds_count", "stage"), "{{stage}}")],
                "cps",
            ),
            Panel(
                "Messages in a group commit",
                "Messages accepted for each group commit.",
                [
                    Query(
                        f"{_rate('delayserver_messages_accepted_total')} / ({_rate('delayserver_group_commits_total')} > 0)"
                    )
                ],
            ),
        ),
    ),
    (
        "Queues and memory",
        (
            Panel(
                "Queues against their bounds",
                "Fill of each bounded queue, table and cache. Beyond its bound requests are refused or wait.",
                [
                    Query(
                        f"{_value('delayserver_queue_used')} / ({_value('delayserver_queue_bound')} > 0)",
                        "{{queue}} {{broker_group}} {{instance}}",
                    )
                ],
                "percentunit",
                steps=[(None, GREEN), (0.8, RED)],
                custom={"axisSoftMax": 1},
            ),
            Panel(
                "Messages in memory",
                "Not due yet (wheel), due and waiting, in flight, and decided but not yet on disk.",
                [
                    Query(f"sum by (instance) ({_value('delayserver_wheel_rows')})", "wheel {{instance}}"),
                    Query(f"sum by (instance) ({_value('delayserver_broker_group_waiting')})", "waiting {{instance}}"),
                    Query(
                        f"sum by (instance) ({_value('delayserver_broker_group_in_flight')})", "in flight {{instance}}"
                    ),
                    Query(f"sum by (instance) ({_value('delayserver_outcomes_waiting')})", "outcomes {{instance}}"),
                ],
                custom=STACKED,
            ),
            Panel(
                "Loads and evictions",
                "Windows read into memory, and times that the far end of memory was dropped, a second.",
                [
                    Query(_rate("delayserver_wheel_loads_total"), "loads {{instance}}"),
                    Query(_rate("delayserver_wheel_evictions_total"), "evictions {{instance}}"),
                ],
                "cps",
                width=8,
            ),
            Panel(
                "Stalls of the event loop",
                "The longest of about the last minute. All clients waited for so long.",
                [Query(_value("delayserver_event_loop_longest_stall_seconds"))],
                "s",
                width=8,
            ),
            Panel(
                "Steps of the clock",
                "Steps of the wall clock in the range of the dashboard, and their last size.",
                [
                    Query(f"increase(delayserver_clock_steps_total{{{OF}}}[$__range])", "steps {{instance}}"),
                    Query(_value("delayserver_clock_step_last_seconds"), "last step {{instance}}", "s"),
                ],
                width=8,
            ),
        ),
    ),
    (
        "Disk",
        (
            Panel(
                "Free",
                "Free bytes of the disk with the data directory.",
                [Query(_value("delayserver_disk_free_bytes"))],
                "bytes",
                width=8,
            ),
            Panel(
                "Replay lag",
                "Bytes of message_log that are durable and not yet in the schedule. A restart replays them.",
                [Query(_value("delayserver_replay_lag_bytes"))],
                "bytes",
                width=8,
            ),
            Panel(
                "Sync of a group commit",
                "Write and sync of a group commit: the median, and what 99 of 100 do not exceed.",
                [
                    Query(
                        _quantile(share, "delayserver_stage_seconds", "instance", ', stage="sync"'),
                        f"{name} {{{{instance}}}}",
                    )
                    for name, share in (("p50", 0.5), ("p99", 0.99))
                ],
                "s",
                width=8,
            ),
            Panel(
                "Writes",
                "Group commits and checkpoints a second.",
                [
                    Query(_rate("delayserver_group_commits_total"), "group commits {{instance}}"),
                    Query(_rate("delayserver_checkpoints_total"), "checkpoints {{instance}}"),
                ],
                "cps",
                width=8,
            ),
            Panel(
                "Windows",
                "Minutes with messages that have no outcome, and open files.",
                [
                    Query(_value("delayserver_incomplete_windows"), "incomplete windows {{instance}}"),
                    Query(_value("delayserver_open_files"), "open files {{instance}}"),
                ],
                width=8,
            ),
            Panel(
                "Errors of the disk",
                "Operations that the disk refused, a second, and findings of damage.",
                [
                    Query(_rate("delayserver_disk_errors_total"), "refused {{instance}}", "cps"),
                    Query(
                        f"{_value('delayserver_corruptions')} + {_value('delayserver_unreadable_files')}",
                        "damage {{instance}}",
                    ),
                ],
                width=8,
            ),
        ),
    ),
    (
        "Broker groups",
        (
            Panel(
                "Waiting",
                "Due messages that wait for a broker group.",
                [Query(_value("delayserver_broker_group_waiting", GROUP), "{{broker_group}} {{instance}}")],
                width=8,
            ),
            Panel(
                "In flight",
                "Messages handed to nodes that are not settled.",
                [Query(_value("delayserver_broker_group_in_flight", GROUP), "{{broker_group}} {{instance}}")],
                width=8,
            ),
            Panel(
                "Delivered",
                "Messages a second.",
                [
                    Query(
                        _rate("delayserver_broker_group_delivered_total", "instance, broker_group", GROUP),
                        "{{broker_group}} {{instance}}",
                    )
                ],
                "cps",
                width=8,
            ),
            Panel(
                "What goes wrong",
                "Messages a second: in failed attempts, moved to a fallback group, dropped from memory, perhaps "
                "delivered twice.",
                [
                    Query(
                        _rate(f"delayserver_broker_group_{name}_total", "instance, broker_group", GROUP),
                        f"{says} {{{{broker_group}}}} {{{{instance}}}}",
                    )
                    for name, says in (
                        ("attempts_failed", "failed"),
                        ("failed_over", "failed over"),
                        ("dropped_from_memory", "dropped"),
                        ("duplicates_suppressed", "duplicates"),
                        ("maybe_delivered_twice", "maybe twice"),
                    )
                ],
                "cps",
            ),
            Panel(
                "Nodes",
                "State of each node: weight 0 is drained, an open circuit counts as down, a problem needs an operator.",
                [
                    Query(_value("delayserver_node_circuit_open", GROUP), table=True),
                    Query(_value("delayserver_node_weight", GROUP), table=True),
                    Query(_value("delayserver_node_problem", GROUP), table=True),
                    Query(_value("delayserver_node_failures_total", GROUP), table=True),
                ],
                kind="table",
            ),
        ),
    ),
    (
        "Consumer groups and subjects",
        (
            Panel(
                f"Lag, the largest {TOP}",
                "Messages of a subject that a group has not acked.",
                [
                    Query(
                        f"topk({TOP}, {_value('delayserver_consumer_group_lag')})",
                        "{{consumer_group}} of {{subject}} {{instance}}",
                    )
                ],
            ),
            Panel(
                f"Age of the oldest message, the largest {TOP}",
                "How long ago the oldest message that is not acked was due.",
                [
                    Query(
                        f"topk({TOP}, time() - ({_value('delayserver_consumer_group_oldest_due_timestamp_seconds')} > 0))",
                        "{{consumer_group}} of {{subject}} {{instance}}",
                    )
                ],
                "s",
            ),
            Panel(
                "Leased and waiting for redelivery",
                f"Messages with a consumer, and those that come again; the largest {TOP}.",
                [
                    Query(
                        f"topk({TOP}, {_value('delayserver_consumer_group_leased')})",
                        "leased {{consumer_group}} of {{subject}}",
                    ),
                    Query(
                        f"topk({TOP}, {_value('delayserver_consumer_group_retrying')})",
                        "retrying {{consumer_group}} of {{subject}}",
                    ),
                ],
            ),
            Panel(
                "Consuming",
                "Messages a second at the embedded broker.",
                [
                    Query(_rate(f"delayserver_broker_{name}_total"), f"{name.replace('_', ' ')} {{{{instance}}}}")
                    for name in (
                        "delivered",
                        "published",
                        "pulled",
                        "acked",
                        "retried",
                        "dead_letters",
                        "expired",
                        "filtered",
                    )
                ],
                "cps",
            ),
            Panel(
                f"Pending by subject, the largest {TOP}",
                "Accepted messages without an outcome.",
                [Query(f"topk({TOP}, {_value('delayserver_subject_pending')})", "{{subject}} {{instance}}")],
            ),
            Panel(
                "Store of the broker",
                "Bytes of the message store, and of the cache.",
                [
                    Query(_value("delayserver_broker_store_bytes"), "store {{instance}}"),
                    Query(_value("delayserver_broker_cache_bytes"), "cache {{instance}}"),
                ],
                "bytes",
            ),
        ),
    ),
    (
        "HTTP and processes",
        (
            Panel(
                "Requests",
                "Requests a second at the gateway, by route and status.",
                [
                    Query(
                        _rate("delayserver_http_requests_total", "route, method, status"),
                        "{{method}} {{route}} {{status}}",
                    )
                ],
                "reqps",
                custom=STACKED,
            ),
            Panel(
                "Duration, p99",
                "From the head of a request to the end of its answer. Pulls and streams wait on purpose.",
                [
                    Query(
                        _quantile(0.99, "delayserver_http_request_duration_seconds", "route, method"),
                        "{{method}} {{route}}",
                    )
                ],
                "s",
                custom={"scaleDistribution": {"type": "log", "log": 10}},
            ),
            Panel(
                "In flight",
                "Requests under way, streams too.",
                [Query(_value("delayserver_http_requests_in_flight"))],
                width=8,
            ),
            Panel(
                "Processor",
                "Cores in use.",
                [
                    Query(
                        f"rate(delayserver_server_process_cpu_seconds_total{{{OF}}}[$__rate_interval])",
                        "server {{instance}}",
                    ),
                    Query(
                        f"rate(delayserver_http_process_cpu_seconds_total{{{OF}}}[$__rate_interval])",
                        "gateway {{instance}}",
                    ),
                ],
                width=8,
            ),
            Panel(
                "Memory",
                "Resident memory.",
                [
                    Query(_value("delayserver_server_process_resident_memory_bytes"), "server {{instance}}"),
                    Query(_value("delayserver_http_process_resident_memory_bytes"), "gateway {{instance}}"),
                ],
                "bytes",
                width=8,
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "title": "delayserver",
        "uid": "delayserver",
        "description": "Delay-message service: lateness, balance, stages, queues, disk, broker groups, "
        "consumer groups, HTTP.",
        "tags": ["delayserver"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(_variables())},
        "annotations": {
            "list": [
                _annotations("Alerts", 'ALERTS{alertname=~"Delayserver.*", alertstate="firing"}', "{{alertname}}"),
                _annotations("Starts", f"{_value('delayserver_uptime_seconds')} < 60", "start of {{instance}}"),
            ]
        },
        "links": [],
        "panels": list(_placed()),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}
    for name, label, query in (
        ("job", "Job", "label_values(delayserver_up, job)"),
        ("instance", "Instance", 'label_values(delayserver_up{job=~"$job"}, instance)'),
        ("broker_group", "Broker group", f"label_values(delayserver_broker_group_waiting{{{OF}}}, broker_group)"),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }


def _annotations(name: str, expr: str, title: str) -> dict[str, Any]:
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "expr": expr,
        "titleFormat": title,
        "iconColor": RED,
        "step": "15s",
    }


def _placed() -> Iterator[dict[str, Any]]:
    """Rows and panels with their places: from left to right, then down."""
    number, y = 1, 0
    for title, panels in ROWS:
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": _place(0, y, WIDTH, 1),
        }
        number, y, x, height = number + 1, y + 1, 0, 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            yield _panel(number, panel, _place(x, y, panel.width, panel.height))
            number, x, height = number + 1, x + panel.width, max(height, panel.height)
        y += height


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [_target(name, query) for name, query in _named(panel)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
        "options": panel.options or _OPTIONS.get(panel.kind, {}),
    }
    if panel.kind == "table":
        made["transformations"] = _TABLE
    return made


def _target(name: str, query: Query) -> dict[str, Any]:
    how = "heatmap" if query.heatmap else "table" if query.table else "time_series"
    return {
        "refId": name,
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": how,
        "range": not query.table,
        "instant": query.table,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"value": value, "color": colour} for value, colour in panel.steps or [(None, GREEN)]]
    shown: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.mappings:
        shown["mappings"] = list(panel.mappings)
    if panel.kind == "timeseries":
        lines = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": False}
        shown["custom"] = lines | panel.custom
        if panel.steps:
            shown["custom"]["thresholdsStyle"] = {"mode": "dashed"}
    return shown


def _overrides(panel: Panel) -> Iterator[dict[str, Any]]:
    """The units of queries that have one of their own."""
    for name, query in _named(panel):
        if query.unit:
            properties = [{"id": "unit", "value": query.unit}]
            yield {"matcher": {"id": "byFrameRefID", "options": name}, "properties": properties}


def _named(panel: Panel) -> Iterator[tuple[str, Query]]:
    for index, query in enumerate(panel.queries):
        yield chr(ord("A") + index), query


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "table": {"showHeader": True, "sortBy": [{"displayName": "Circuit open", "desc": True}]},
}

# The four queries of the nodes, side by side in one row for each node.
_COLUMNS: Final = {
    "node": "Node",
    "broker_group 1": "Broker group",
    "instance 1": "Instance",
    "Value #A": "Circuit open",
    "Value #B": "Weight",
    "Value #C": "Problem",
    "Value #D": "Failures",
}
_TABLE: Final = [
    {"id": "joinByField", "options": {"byField": "node", "mode": "outer"}},
    {"id": "organize", "options": {"includeByName": dict.fromkeys(_COLUMNS, True), "renameByName": _COLUMNS}},
]


def text() -> str:
    """The content of the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
