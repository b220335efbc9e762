"""Writes the Grafana dashboard: `python -m ops.deploy.dashboard FILE`. Without FILE it goes to standard output.

`delayserver/protocol/figures.py` says which panel draws a figure as it is: the query, its unit and its legend follow from
the figure. `ROWS` places the panels, and has the queries that combine figures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from delayserver.protocol.figure_fields import PREFIX, Field, Figure, figures
from delayserver.protocol.figures import Figures

WIDTH: Final = 24
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
OF: Final = 'job=~"$job", instance=~"$instance"'
GROUP: Final = ', broker_group=~"$broker_group"'
GREEN, YELLOW, RED = "green", "yellow", "red"
TOP: Final = 20
"""Subjects and consumer groups in one panel. More lines say nothing to the eye."""

FIGURES: Final = {figure.name: (line, figure, labels) for line, figure, labels in figures(Figures)}
OWN: Final = ("up", "http_", "server_process_")
"""How the names of metrics begin that the gateway adds."""


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and how its series are named."""

    expr: str
    legend: str = "{{instance}}"
    unit: str = ""  # where it differs from that of its panel
    heatmap: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. Without queries it draws the figures that name it. `steps`: at which value which colour begins."""

    title: str
    says: str = ""
    queries: Sequence[Query] = ()
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    steps: Sequence[tuple[float | None, str]] = ()
    options: dict[str, Any] = field(default_factory=dict)
    custom: dict[str, Any] = field(default_factory=dict)
    mappings: Sequence[dict[str, Any]] = ()


# -- queries


def _metric(name: str, part: str = "") -> str:
    """The full name of a metric. `part`: which samples of a histogram."""
    if name.startswith(OWN):
        return f"{PREFIX}{name}{part}"
    return FIGURES[name][1].metric + part


def _value(name: str, extra: str = "") -> str:
    return f"{_metric(name)}{{{OF}{extra}}}"


def _rate(name: str, by: str = "instance", extra: str = "", part: str = "") -> str:
    return f"sum by ({by}) (rate({_metric(name, part)}{{{OF}{extra}}}[$__rate_interval]))"


def _quantile(share: float, name: str, by: str, extra: str = "") -> str:
    return f"histogram_quantile({share}, {_rate(name, f'{by}, le', extra, '_bucket')})"


def _drawn(place: str, kind: str) -> Iterator[tuple[Figure, Query]]:
    """The figures that name a panel, with their queries."""
    found = [each for each in FIGURES.values() if each[1].panel == place]
    for line, figure, labels in found:
        extra = GROUP if "broker_group" in labels else ""
        counts = figure.kind == "counter" and kind != "table"
        expr = _rate(figure.name, ", ".join(("instance", *labels)), extra) if counts else _value(figure.name, extra)
        if "subject" in labels:
            expr = f"topk({TOP}, {expr})"
        words = [line.name.replace("_", " ")] if len(found) > 1 and not figure.where else []
        legend = " ".join([*words, *[f"{{{{{label}}}}}" for label in (*labels, "instance")]])
        if kind == "table":  # the heading of its column
            legend = figure.name.removeprefix("node_").replace("_", " ").capitalize()
        yield figure, Query(expr, legend, "cps" if counts else _unit(line, figure))


def _unit(line: Field, figure: Figure) -> str:
    if line.name.endswith("_bytes"):
        return "bytes"
    return "s" if figure.name.endswith("_seconds") else "short"


# -- panels


def _stat(title: str, says: str, expr: str, unit: str = "short", **more: Any) -> Panel:
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background" if more.get("steps") else "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "textMode": "auto",
    }
    return Panel(title, says, [Query(expr)], unit, "stat", 3, 4, options=options, **more)


YES_NO: Final = ({"type": "value", "options": {"0": {"text": "no", "index": 0}, "1": {"text": "yes", "index": 1}}},)
STACKED: Final = {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30}
LOGARITHMIC: Final = {"scaleDistribution": {"type": "log", "log": 10}}
NONE_IS_WELL: Final = [(None, GREEN), (1, RED)]
HEATMAP: Final = {
    "calculate": False,
    "cellGap": 1,
    "cellValues": {"unit": "cps"},
    "color": {
        "mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64, "fill": "dark-orange",
        "reverse": False,
    },
    "filterValues": {"le": 1e-9},
    "legend": {"show": True},
    "rowsFrame": {"layout": "auto"},
    "tooltip": {"mode": "single", "yHistogram": True},
    "yAxis": {"axisPlacement": "left", "reverse": False, "unit": "s"},
}  # fmt: skip
BARS: Final = {
    "displayMode": "basic",
    "orientation": "horizontal",
    "showUnfilled": True,
    "valueMode": "text",
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
}

DAMAGE: Final = f"{_value('corruptions')} + {_value('unreadable_files')}"
BY_GROUP: Final = "instance, broker_group"
LATE: Final = "lateness_seconds"
STAGE: Final = "stage_seconds"

# fmt: off
ROWS: Final[dict[str, Sequence[Panel]]] = {
    "Overview": (
        _stat("Ready", "Whether the server serves all operations, or follows as a standby.",
              # A standby is as it must be.
              f"min({_value('ready')} == 1 or on (job, instance) {_value('member_leads')} == bool 0 or {_value('ready')})",
              steps=[(None, RED), (1, GREEN)], mappings=YES_NO),
        _stat("Accepted", "Messages a second.", f"sum({_rate('messages_accepted')})", "cps"),
        _stat("Delivered", "Messages a second.",
              f"sum({_rate('messages_ended', extra=', outcome=' + chr(34) + 'delivered' + chr(34))})", "cps"),
        _stat("Pending", "Accepted messages that have no outcome yet.", f"sum({_value('messages_pending')})"),
        _stat("Lateness, p99", "99 of 100 messages are handed over within this time after they are due.",
              f"max({_quantile(0.99, LATE, BY_GROUP)})", "s", steps=[(None, GREEN), (0.1, YELLOW), (1, RED)]),
        _stat("Early", "Messages handed over before they were due, since the start. It must be 0.",
              f"sum({_value('early')})", steps=NONE_IS_WELL),
        _stat("Disk free", "Free bytes of the disk with the data directory.", f"min({_value('disk_free_bytes')})", "bytes",
              steps=[(None, RED), (1 << 30, YELLOW), (10 << 30, GREEN)]),
        _stat("Up for", "Time since the start.", f"min({_value('uptime_seconds')})", "s"),
        _stat("Open circuits", "Nodes that count as down.", f"sum({_value('node_circuit_open')})", steps=NONE_IS_WELL),
        _stat("Damage", "Findings of corruption, and files that the disk cannot read, since the start.",
              f"sum({DAMAGE})", steps=NONE_IS_WELL),
        _stat("Disk nearly full", "Whether sends are refused because the disk is nearly full.",
              f"max({_value('disk_low')})", steps=NONE_IS_WELL, mappings=YES_NO),
        _stat("Longest stall", "The longest time for which the event loop kept all clients waiting, of the last minute.",
              f"max({_value('event_loop_longest_stall_seconds')})", "s",
              steps=[(None, GREEN), (0.1, YELLOW), (0.5, RED)]),
        _stat("Connections", "Open connections of the server's own protocol.", f"sum({_value('connections')})"),
        _stat("In memory", "Messages in memory that are not due yet.", f"sum({_value('wheel_rows')})"),
        _stat("Next due in", "Time until the next message in memory is due. Negative: it is overdue.",
              f"min({_value('next_due_timestamp_seconds')} - {_value('clock_timestamp_seconds')})", "s"),
        _stat("HTTP requests", "Requests a second at the gateway.", f"sum({_rate('http_requests_total')})", "reqps"),
    ),
    "Lateness": (
        Panel("Lateness, all messages",
              "How many messages a second were handed over how late. A dark band that climbs is a server that falls behind.",
              [Query(_rate(LATE, "le", GROUP, "_bucket"), "{{le}}", heatmap=True)],
              "s", "heatmap", 24, 10, options=HEATMAP),
        Panel("Lateness by broker group",
              "Time from the due time of a message to its hand-over: the median, and what 99 and 999 of a thousand do not "
              "exceed.",
              [Query(_quantile(share, LATE, BY_GROUP, GROUP), f"{name} {{{{broker_group}}}} {{{{instance}}}}")
               for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))], "s", custom=LOGARITHMIC),
        Panel("Late by more than a second", "Share of the messages. The alert DelayserverLate begins at 1 %.",
              [Query(f"1 - {_rate(LATE, BY_GROUP, GROUP + ', le=' + chr(34) + '1.0' + chr(34), '_bucket')} / "
                     f"({_rate(LATE, BY_GROUP, GROUP, '_count')} > 0)", "{{broker_group}} {{instance}}")],
              "percentunit", steps=[(None, GREEN), (0.01, RED)]),
    ),
    "Balance": (
        Panel("Accepted and ended", "Messages a second: accepted, and by their outcome."),
        Panel("Pending", custom={"fillOpacity": 20}),
        Panel("Balance", "accepted = the sum of all outcomes + pending, at every moment.",
              [Query(f"sum({_value('messages_accepted')})", "accepted"),
               Query(f"sum by (outcome) ({_value('messages_ended')})", "{{outcome}}"),
               Query(f"sum({_value('messages_pending')})", "pending")], kind="bargauge", options=BARS),
        Panel("Refused requests", "Error replies a second, by their name in PROTOCOL.md.",
              [Query(_rate("errors", "instance, error") + " > 0", "{{error}} {{instance}}")], "cps", custom=STACKED),
    ),
    "Stages": (
        Panel("Time of each stage, p99",
              "Of the batches of a stage, in the order of a message's journey: decode, commit_wait, sync, replay_lag, load, "
              "wheel, queue, hand_off, settle.",
              [Query(_quantile(0.99, STAGE, "stage"), "{{stage}}")], "s", custom=LOGARITHMIC),
        Panel("Time of each stage, mean", "Of the batches of a stage.",
              [Query(f"{_rate(STAGE, 'stage', part='_sum')} / ({_rate(STAGE, 'stage', part='_count')} > 0)",
                     "{{stage}}")], "s"),
        Panel("Batches of each stage", "Batches a second. Large batches are cheap for each message.",
              [Query(_rate(STAGE, "stage", part="_count"), "{{stage}}")], "cps"),
        Panel("Messages in a group commit", "Messages accepted for each group commit.",
              [Query(f"{_rate('messages_accepted')} / ({_rate('group_commits')} > 0)")]),
    ),
    "Queues and memory": (
        Panel("Queues against their bounds",
              "Fill of each bounded queue, table and cache. Beyond its bound requests are refused or wait.",
              [Query(f"{_value('queue_used')} / ({_value('queue_bound')} > 0)",
                     "{{queue}} {{broker_group}} {{instance}}")],
              "percentunit", steps=[(None, GREEN), (0.8, RED)], custom={"axisSoftMax": 1}),
        Panel("Messages in memory", "Not due yet (wheel), due and waiting, in flight, and decided but not yet on disk.",
              [Query(f"sum by (instance) ({_value(name)})", f"{says} {{{{instance}}}}")
               for name, says in (("wheel_rows", "wheel"), ("broker_group_waiting", "waiting"),
                                  ("broker_group_in_flight", "in flight"), ("outcomes_waiting", "outcomes"))],
              custom=STACKED),
        Panel("Loads and evictions",
              "Windows read into memory, and times that the far end of memory was dropped, a second.", width=8),
        Panel("Stalls of the event loop", "The longest of about the last minute. All clients waited for so long.", width=8),
        Panel("Steps of the clock", "Steps of the wall clock in the range of the dashboard, and their last size.",
              [Query(f"increase({_value('clock_steps')}[$__range])", "steps {{instance}}"),
               Query(_value("clock_step_last_seconds"), "last step {{instance}}", "s")], width=8),
    ),
    "Disk": (
        Panel("Free", width=8),
        Panel("Replay lag", "Bytes of message_log that are durable and not yet in the schedule. A restart replays them.",
              width=8),
        Panel("Sync of a group commit", "Write and sync of a group commit: the median, and what 99 of 100 do not exceed.",
              [Query(_quantile(share, STAGE, "instance", ', stage="sync"'), f"{name} {{{{instance}}}}")
               for name, share in (("p50", 0.5), ("p99", 0.99))], "s", width=8),
        Panel("Writes", "Group commits and checkpoints a second.", width=8),
        Panel("Windows", "Minutes with messages that have no outcome, and open files.", width=8),
        Panel("Errors of the disk", "Operations that the disk refused, a second, and findings of damage.",
              [Query(_rate("disk_errors"), "refused {{instance}}", "cps"), Query(DAMAGE, "damage {{instance}}")], width=8),
    ),
    "Broker groups": (
        Panel("Waiting", width=8),
        Panel("In flight", width=8),
        Panel("Delivered", "Messages a second.", width=8),
        Panel("What goes wrong",
              "Messages a second: in failed attempts, moved to a fallback group, dropped from memory, perhaps delivered "
              "twice."),
        Panel("Nodes",
              "State of each node: weight 0 is drained, an open circuit counts as down, a problem needs an operator.",
              kind="table"),
    ),
    "Consumer groups and subjects": (
        Panel("Lag", "Messages of a subject that a group has not acked."),
        Panel("Age of the oldest message", "How long ago the oldest message that is not acked was due.",
              [Query(f"topk({TOP}, time() - ({_value('consumer_group_oldest_due_timestamp_seconds')} > 0))",
                     "{{consumer_group}} of {{subject}} {{instance}}")], "s"),
        Panel("Leased and waiting for redelivery", "Messages with a consumer, and those that come again."),
        Panel("Consuming", "Messages a second at the embedded broker."),
        Panel("Pending by subject", "Accepted messages without an outcome."),
        Panel("Store of the broker", "Bytes of the message store, and of the cache."),
    ),
    "Cluster": (
        Panel("Primaries", "1 for the member that leads its shard. Each shard must have one.", width=8),
        Panel("Epoch", "The leadership of which each member has read last. Each step is a takeover or a switch.", width=8),
        Panel("Takeovers", "Changes of the leadership of each shard in the range of the dashboard.",
              [Query(f"max by (job, shard) ({_value('member_epoch')}) - "
                     f"max by (job, shard) ({_value('member_epoch')} offset $__range)", "shard {{shard}}")],
              width=8),
        Panel("Lag in records", "Records of the log that a member has not applied.", width=8),
        Panel("Compared", "Up to this position each standby was found to have decided as the primary.", width=8),
        Panel("Lag in time", "How far each member is behind the log.", width=8),
        Panel("Lease of the primary",
              "How long the primary may serve without another beat, and the age of the last beat that came back.", width=8),
        Panel("On their way", "Records of the primary that the log has not given back yet, and their bytes.", width=8),
        Panel("Fronts", "Members that each one does not reach, those that do not reach it, and hand-overs.", width=8),
        Panel("Looks without an answer", "Looks at the log that got no answer, a second, as each member saw it.", width=8),
        Panel("Copies", "Copies of the log: all, those that are in sync, and those that must have a record.", width=8),
        Panel("Kept in the log", "Positions that the log has. `delayserver cluster trim` removes old ones.", width=8),
        Panel("Age of the last backup", "Of the newest backup of each shard, whichever member made it.",
              [Query(f"time() - max by (job, shard) ({_value('last_backup_timestamp_seconds')} * "
                     f"on (job, instance) group_left (shard) ({_value('member_epoch')} >= bool 0))", "shard {{shard}}")],
              "s", width=8),
        Panel("Clocks apart", "The largest difference between the clocks of a shard's members.",
              [Query("max by (job, shard) (" + (apart := (
                         f"({_value('clock_timestamp_seconds')} - timestamp({_value('clock_timestamp_seconds')})) * "
                         f"on (job, instance) group_right () ({_value('member_epoch')} >= bool 0)"))
                     + f") - min by (job, shard) ({apart})", "shard {{shard}}")], "s", width=8),
    ),
    "HTTP and processes": (
        Panel("Requests", "Requests a second at the gateway, by route and status.",
              [Query(_rate("http_requests_total", "route, method, status"), "{{method}} {{route}} {{status}}")],
              "reqps", custom=STACKED),
        Panel("Duration, p99", "From the head of a request to the end of its answer. Pulls and streams wait on purpose.",
              [Query(_quantile(0.99, "http_request_duration_seconds", "route, method"), "{{method}} {{route}}")],
              "s", custom=LOGARITHMIC),
        Panel("In flight", "Requests under way, streams too.", [Query(_value("http_requests_in_flight"))], width=8),
        Panel("Processor", "Cores in use.",
              [Query(f"rate({_value(f'{process}_process_cpu_seconds_total')}[$__rate_interval])", f"{says} {{{{instance}}}}")
               for process, says in (("server", "server"), ("http", "gateway"))], width=8),
        Panel("Memory", "Resident memory.",
              [Query(_value(f"{process}_process_resident_memory_bytes"), f"{says} {{{{instance}}}}")
               for process, says in (("server", "server"), ("http", "gateway"))], "bytes", width=8),
    ),
}
# fmt: on


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
                _annotations("Starts", f"{_value('uptime_seconds')} < 60", "start of {{instance}}"),
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
        ("broker_group", "Broker group", f"label_values({_value('broker_group_waiting')}, broker_group)"),
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
    for title, panels in ROWS.items():
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
            yield _panel(number, filled(title, panel), _place(x, y, panel.width, panel.height))
            number, x, height = number + 1, x + panel.width, max(height, panel.height)
        y += height


def filled(row: str, panel: Panel) -> Panel:
    """The panel with the queries of the figures that name it."""
    if panel.queries:
        return panel
    found = list(_drawn(f"{row}/{panel.title}", panel.kind))
    queries = [query for _, query in found]
    return replace(panel, says=panel.says or found[0][0].help, queries=queries, unit=queries[0].unit)


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": _title(panel),
        "description": panel.says,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [_target(name, query, panel.kind == "table") for name, query in _named(panel)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
        "options": panel.options or _OPTIONS.get(panel.kind, {}),
    }
    if panel.kind == "table":
        made["transformations"] = _side_by_side(panel)
    return made


def _title(panel: Panel) -> str:
    return panel.title + (f", the largest {TOP}" if panel.queries[0].expr.startswith("topk(") else "")


def _target(name: str, query: Query, table: bool) -> dict[str, Any]:
    how = "heatmap" if query.heatmap else "table" if table else "time_series"
    return {
        "refId": name,
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": how,
        "range": not table,
        "instant": table,
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
        if query.unit not in ("", panel.unit):
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

# The columns of a table that all its queries have.
_COMMON: Final = {"node": "Node", "broker_group 1": "Broker group", "instance 1": "Instance"}


def _side_by_side(panel: Panel) -> list[dict[str, Any]]:
    """The queries of a table in one row for each node."""
    columns = _COMMON | {f"Value #{name}": query.legend for name, query in _named(panel)}
    return [
        {"id": "joinByField", "options": {"byField": "node", "mode": "outer"}},
        {"id": "organize", "options": {"includeByName": dict.fromkeys(columns, True), "renameByName": columns}},
    ]


def text() -> str:
    """The dashboard as JSON, for an import into Grafana."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") if sys.argv[1:] else sys.stdout as out:
        out.write(text())
