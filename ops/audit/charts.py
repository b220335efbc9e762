"""The three charts of the report, as SVG in HTML. Their colours are variables of the page, so they follow light and dark."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import accumulate, pairwise
from typing import Any, Final

from delayserver.config.units import format_duration

HOUR_MS = 3_600_000
# A log axis has no zero, so zero is drawn at 0.5 µs.
_LEAST_MS = 0.0005
_DAYS_WHOLE = 31
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 1040, 84, 40, 16, 44
# Each nine takes the same height. No more than these: a log has fewer than 10^9 deliveries behind a nine that matters.
_NINES_MAX: Final = 9
_SHARES: Final = (0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999, 0.9999999, 0.99999999)
# Points of a line that are drawn: more than two a pixel show nothing.
_POINTS_MAX: Final = 2_000
_LEVELS: Final = 5


def draw_distribution(buckets: Sequence[Mapping[str, int]], target_ms: float) -> str:
    """The share of deliveries that were at most so late. Both axes are logarithmic: each nine takes the same height."""
    counts = list(accumulate([bucket["count"] for bucket in buckets]))
    total = counts[-1]
    late_ms = [max(bucket["max_us"] / 1000, _LEAST_MS) for bucket in buckets]
    frame = _Frame(380, min(*late_ms, target_ms), max(*late_ms, target_ms))
    nines = min(max(math.ceil(math.log10(total)), 2), _NINES_MAX)

    def y(reached: int) -> float:
        # All of them are one step above the last nine that the number of deliveries can have.
        missing = (total - reached) / total
        return frame.y((nines + 0.5 if not missing else min(-math.log10(missing), nines + 0.5)) / (nines + 0.5))

    def of_share(share: float) -> float:
        return frame.y(-math.log10(1 - share) / (nines + 0.5))

    shares = [share for share in _SHARES if -math.log10(1 - share) <= nines + 1e-9]
    parts = [frame.rule(frame.y(0), "0 %", base=True), *[frame.rule(of_share(each), _share(each)) for each in shares]]
    parts += [frame.rule(frame.y(1), "100 %"), *frame.decades()]
    slo_x = frame.x(target_ms)
    parts.append(f'<path class="slo" d="M{slo_x:.1f} {frame.top}V{frame.base}"/>')
    end = slo_x > _WIDTH - 160
    parts.append(
        _text(
            slo_x + (-6 if end else 6), frame.base - 8, f"SLO {_ms(target_ms)}", "end" if end else "start", "slo-text"
        )
    )
    steps = [f"M{frame.x(late_ms[0]):.1f} {frame.y(0):.1f}"]
    for at, reached in zip(late_ms, counts, strict=True):
        steps.append(f"H{frame.x(at):.1f}V{y(reached):.1f}")
    parts.append(f'<path class="curve" d="{"".join(steps)}"/>')
    told = []
    for share in shares:
        place = min(bisect_left(counts, share * total), len(counts) - 1)
        told.append(f"{_share(share)} at most {_ms(late_ms[place])}")
        parts.append(_dot(frame.x(late_ms[place]), of_share(share), "mark", told[-1]))
    told.append(f"all at most {_ms(late_ms[-1])}")
    parts.append(_dot(frame.x(late_ms[-1]), frame.y(1), "mark", told[-1]))
    parts.append(_text((_LEFT + _WIDTH) / 2, 380 - 6, "lateness", "middle"))
    return _figure("distribution", 380, parts, f"Share of deliveries by lateness: {', '.join(told)}.")


def draw_over_time(dimension: str, series: Sequence[Mapping[str, Any]]) -> str:
    """p50 and p99 by minute or hour of due time, on a log axis."""
    rows = sorted(series, key=lambda row: str(row[dimension]))
    names = [str(row[dimension]) for row in rows]
    at = _places(names)
    values = {point: [max(row["lateness_ms"][point], _LEAST_MS) for row in rows] for point in ("p50", "p99")}
    everything = [*values["p50"], *values["p99"]]
    height, low, high = 320, math.floor(math.log10(min(everything))), math.ceil(math.log10(max(everything)))
    high = max(high, low + 1)
    frame = _Frame(height, 1, 10)

    def x(place: float) -> float:
        return _LEFT + place * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return frame.y((math.log10(value) - low) / (high - low))

    parts = [frame.rule(y(10.0**power), _ms(10.0**power), base=power == low) for power in range(low, high + 1)]
    for point, kind in (("p50", "quiet-curve"), ("p99", "curve")):
        points = _thinned([(x(place), y(value)) for place, value in zip(at, values[point], strict=True)])
        drawn = "L".join([f"{left:.1f} {top:.1f}" for left, top in points])
        parts.append(f'<path class="{kind}" d="M{drawn}"/>')
    if len(rows) <= 120:
        for point, kind in (("p50", "quiet-mark"), ("p99", "mark")):
            for place, value, name in zip(at, values[point], names, strict=True):
                parts.append(_dot(x(place), y(value), kind, f"{name}: {point} {_ms(value)}"))
    ends = [(at[place], names[place]) for place in sorted({0, len(names) // 2, len(names) - 1})]
    for place, name in ends:
        anchor = "start" if place < 0.1 else "end" if place > 0.9 else "middle"
        if len(ends) == 1:
            anchor = "middle"
        parts.append(_text(x(place), height - 22, name.replace("+00:00", "").replace("T", " "), anchor))
    parts.append(_text((_LEFT + _WIDTH) / 2, height - 6, f"due {dimension}, UTC", "middle"))
    worst = max(range(len(rows)), key=values["p99"].__getitem__)
    summary = f"The worst p99 is {_ms(values['p99'][worst])}, of {names[worst]}."
    keys = '<p class="keys"><i class="key quiet"></i>p50 <i class="key"></i>p99</p>'
    return _figure("over-time", height, parts, summary, keys)


def draw_calendar(load: Sequence[Mapping[str, Any]]) -> str:
    """Messages due, by day and hour of the day, UTC. If the days are within a month, also days without messages."""
    by_hour = {int(datetime.fromisoformat(row["hour"]).timestamp() * 1000): int(row["accepted"]) for row in load}
    first, last = _day(min(by_hour)), _day(max(by_hour))
    days = [first + timedelta(days=index) for index in range((last - first).days + 1)]
    if len(days) > _DAYS_WHOLE:  # A few distant days do not make the picture long.
        days = sorted({_day(hour_ms) for hour_ms in by_hour})
    most, busiest = max((count, hour_ms) for hour_ms, count in by_hour.items())
    step_x, step_y = (_WIDTH - _LEFT - _RIGHT) / 24, 18
    height = 24 + step_y * len(days) + 10
    parts = [_text(_LEFT + hour * step_x + step_x / 2, 14, f"{hour:02d}", "middle") for hour in range(24)]
    levels: list[list[str]] = [[] for _ in range(_LEVELS + 1)]
    for row, day in enumerate(days):
        top = 24 + row * step_y
        parts.append(
            _text(_LEFT - 8, top + 12, day.strftime("%Y-%m-%d") if len(days) < 400 else day.strftime("%y-%m-%d"), "end")
        )
        for hour in range(24):
            count = by_hour.get(int(day.timestamp() * 1000) + hour * HOUR_MS, 0)
            level = math.ceil(math.log1p(count) / math.log1p(most) * _LEVELS) if count else 0
            left = _LEFT + hour * step_x
            box = f"M{left:.1f} {top}h{step_x - 3:.1f}v{step_y - 3}h-{step_x - 3:.1f}z"
            # A day of a month that fits has texts to point at. Thousands of them would make the page heavy.
            if len(days) <= _DAYS_WHOLE and count:
                title = f"{day:%Y-%m-%d} {hour:02d}:00 UTC: {count:,} due"
                parts.append(f'<path class="l{level}" d="{box}"><title>{title}</title></path>')
            else:
                levels[level].append(box)
    parts += [f'<path class="l{level}" d="{"".join(boxes)}"/>' for level, boxes in enumerate(levels) if boxes]
    moment = datetime.fromtimestamp(busiest / 1000, UTC)
    summary = f"{sum(by_hour.values()):,} messages due, most in the hour of {moment:%Y-%m-%d %H:00} UTC: {most:,}."
    scale = "".join([f'<i class="l{level}"></i>' for level in range(_LEVELS + 1)])
    return _figure("calendar", height, parts, summary, f'<p class="keys scale">fewer {scale} more</p>')


class _Frame:
    """The room of a chart whose horizontal axis is logarithmic, from a time in milliseconds to another one."""

    def __init__(self, height: int, low_ms: float, high_ms: float) -> None:
        self.top, self.base = _TOP, height - _BOTTOM
        self._low = math.floor(math.log10(low_ms))
        self._high = max(math.ceil(math.log10(high_ms)), self._low + 1)

    def x(self, ms: float) -> float:
        """Where a time is."""
        share = (math.log10(ms) - self._low) / (self._high - self._low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, share: float) -> float:
        """The place of a share of the height, 0 at the base."""
        return self.base - share * (self.base - self.top)

    def rule(self, y: float, text: str, *, base: bool = False) -> str:
        """A line across with its text."""
        kind = "rule base" if base else "rule"
        line = f'<path class="{kind}" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
        return line + _text(_LEFT - 8, y + 4, text, "end")

    def decades(self) -> Iterable[str]:
        """Lines and texts at each power of ten."""
        for power in range(self._low, self._high + 1):
            x = self.x(10.0**power)
            yield f'<path class="rule" d="M{x:.1f} {self.top}V{self.base}"/>'
            yield _text(x, self.base + 17, _ms(10.0**power), "middle")


def _places(names: Sequence[str]) -> list[float]:
    """The place of each time between the first and the last one, 0 to 1; a single one is in the middle."""
    moments = [datetime.fromisoformat(name).timestamp() for name in names]
    span = moments[-1] - moments[0]
    return [(moment - moments[0]) / span if span else 0.5 for moment in moments]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most some thousand points. Of neighbours the highest and the lowest one stay, so that no peak is lost."""
    if len(points) <= _POINTS_MAX:
        return list(points)
    size = math.ceil(len(points) / (_POINTS_MAX // 2))
    edges = [*range(0, len(points), size), len(points)]
    kept = []
    for start, stop in pairwise(edges):
        part = points[start:stop]
        kept += sorted({min(part, key=lambda each: each[1]), max(part, key=lambda each: each[1])})
    return kept


def _figure(name: str, height: int, parts: Iterable[str], summary: str, keys: str = "") -> str:
    label = escape(summary)
    svg = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    return (
        f'<figure class="chart" id="chart-{name}">{keys}'
        f'<div class="wide" tabindex="0" role="group" aria-label="Chart: {name.replace("-", " ")}">{svg}</div>'
        f"<figcaption>{label}</figcaption></figure>"
    )


def _dot(x: float, y: float, kind: str, title: str) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(title)}</title></circle>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _share(share: float) -> str:
    return f"{share * 100:.7f}".rstrip("0").rstrip(".") + " %"


def _ms(value: float) -> str:
    return format_duration(round(value, 4) if value >= 0.001 else value)


def _day(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
