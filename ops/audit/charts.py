"""The three charts of the report, as HTML fragments for a page that contains plotly.js."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

HOUR_MS = 3_600_000
_HEIGHT = 340
_MARGIN = {"l": 56, "r": 16, "t": 16, "b": 48}
_BLUE, _RED = "#2563a8", "#c2410c"
# The tool bar would cover the chart on a phone; zooming works without it.
_CONFIG = {"responsive": True, "displayModeBar": False}
# A log axis has no zero, so zero is drawn at 0.5 µs.
_LEAST_MS = 0.0005
_DAYS_WHOLE = 31


def plotly_script() -> str:
    """The text of plotly.js, to include in the page."""
    text: str = get_plotlyjs()
    return text


def draw_distribution(buckets: Sequence[Mapping[str, int]], target_ms: float) -> str:
    """The cumulative share of deliveries by lateness, on a log axis."""
    total = sum([bucket["count"] for bucket in buckets])
    late_ms = [max(bucket["max_us"] / 1000, _LEAST_MS) for bucket in buckets]
    shares = [reached / total for reached in accumulate([bucket["count"] for bucket in buckets])]
    figure = go.Figure(go.Scatter(x=late_ms, y=shares, mode="lines+markers" if len(buckets) < 3 else "lines",
                                  line={"shape": "hv", "color": _BLUE}, name="deliveries"))  # fmt: skip
    figure.add_vline(x=target_ms, line={"color": _RED, "dash": "dot"})
    # On a log axis, plotly takes exponents as places of annotations, but not of lines.
    place = {"x": math.log10(target_ms), "y": 0.06, "yref": "paper", "xanchor": "left", "showarrow": False}
    figure.add_annotation(text=" SLO", font={"color": _RED}, **place)
    figure.update_xaxes(type="log", title="lateness, ms")
    figure.update_yaxes(title="share of deliveries", tickformat=".1%", range=[0, 1.02])
    return _fragment(figure, "distribution")


def draw_over_time(dimension: str, series: Sequence[Mapping[str, Any]]) -> str:
    """p50 and p99 by minute or hour of due time, in milliseconds on a log axis."""
    figure = go.Figure()
    for point, colour in (("p50", _BLUE), ("p99", _RED)):
        values = [max(row["lateness_ms"][point], _LEAST_MS) for row in series]
        figure.add_trace(go.Scatter(x=[row[dimension] for row in series], y=values, name=point,
                                    mode="lines+markers" if len(series) < 60 else "lines",
                                    line={"color": colour}))  # fmt: skip
    figure.update_yaxes(type="log", title="lateness, ms")
    # A date axis with few points would have labels with fractions of a second.
    figure.update_xaxes(title=f"due {dimension}, UTC", type="date" if len(series) > 3 else "category")
    figure.update_layout(legend={"orientation": "h", "y": 1.1})
    return _fragment(figure, "over-time")


def draw_calendar(load: Sequence[Mapping[str, Any]]) -> str:
    """Messages due, by day and hour of the day, UTC. If the days are within a month, also days without messages."""
    by_hour = {int(datetime.fromisoformat(row["hour"]).timestamp() * 1000): row["accepted"] for row in load}
    first, last = _day(min(by_hour)), _day(max(by_hour))
    days = [first + timedelta(days=index) for index in range((last - first).days + 1)]
    if len(days) > _DAYS_WHOLE:  # a few distant days must not make the other rows too thin
        days = sorted({_day(hour_ms) for hour_ms in by_hour})
    counts = [[by_hour.get(int(day.timestamp() * 1000) + hour * HOUR_MS) for hour in range(24)] for day in days]
    names = [day.strftime("%Y-%m-%d") for day in days]
    figure = go.Figure(go.Heatmap(z=counts, x=[f"{hour:02d}" for hour in range(24)], y=names, colorscale="Blues",
                                  colorbar={"title": "due", "thickness": 10},
                                  hovertemplate="%{y} %{x}:00 UTC: %{z:,} due<extra></extra>"))  # fmt: skip
    figure.update_xaxes(title="hour, UTC", type="category")
    figure.update_yaxes(type="category", autorange="reversed")
    return _fragment(figure, "calendar", height=max(220, min(900, 130 + 18 * len(days))))


def _day(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _fragment(figure: go.Figure, name: str, height: int = _HEIGHT) -> str:
    figure.update_layout(template="plotly_white", margin=_MARGIN, height=height, font={"size": 13})
    html: str = figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"chart-{name}", config=_CONFIG)
    return html
