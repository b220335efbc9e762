"""The reply of the operation `metrics` as metric families, as the table of figures says. Pure.

Every name begins with `delayserver_`. Times are seconds, sizes bytes. A field that a server does not send is left out, so
an older or newer server can be scraped. All label sets are bounded: by the configuration (broker groups, nodes), by the
program (outcomes, errors, stages, queues), or by `ROWS_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from delayserver.protocol.figure_fields import PREFIX, Field, Figure, Kind, Label, fields_of
from delayserver.protocol.figures import Figures

ROWS_MAX: Final = 1000
"""Subjects and consumer groups, each: those with the most pending messages or the largest lag. Prometheus keeps each label
value in memory, and a server may have a million subjects."""

LARGEST: Final = {"subjects": "pending", "consumer_groups": "lag"}
"""The lists of a reply that are cut, and the field whose largest values stay."""

Reply: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[tuple[dict[str, str], Reply]]
"""Maps of the same table, each with the labels of its samples. All samples of a row share one dict."""


def server_families(reply: Reply) -> Iterator[Metric]:
    """All families of a reply."""
    yield _info(reply)
    cut = {name: _largest(reply.get(name) or [], by) for name, by in LARGEST.items()}
    families: dict[str, Metric] = {}
    _add_table(families, Figures, [({}, {**reply, **cut})])
    yield from families.values()
    groups = reply.get("consumer_groups") or []
    yield GaugeMetricFamily(
        f"{PREFIX}consumer_groups_not_shown", "Consumer groups left out of delayserver_consumer_group_lag.",
        reply.get("consumer_groups_all", len(groups)) - len(cut["consumer_groups"]),
    )  # fmt: skip


def _info(reply: Reply) -> Metric:
    names = ("version", "role", "server_id")
    info = GaugeMetricFamily(f"{PREFIX}info", "What runs; the value is always 1.", labels=[*names, "durability"])
    storage = reply.get("storage") or {}
    info.add_metric([*[str(reply.get(name, "")) for name in names], str(storage.get("durability", ""))], 1)
    return info


def _largest(rows: Sequence[Reply], by: str) -> Sequence[Reply]:
    return rows if len(rows) <= ROWS_MAX else sorted(rows, key=lambda row: -row[by])[:ROWS_MAX]


def _add_table(families: dict[str, Metric], kind: Kind, rows: Rows) -> None:
    """Add the samples of a table to their families. Those of a list without rows are declared, without samples."""
    for field in fields_of(kind):
        if field.figure:
            samples = list(_samples(field, field.figure, rows))
            if samples or not rows:
                family = Metric(PREFIX + field.figure.name, field.figure.help, field.figure.kind)
                families.setdefault(family.name, family).samples.extend(samples)
        if field.rows:
            _add_table(families, field.rows, _below(field, field.rows, rows))


def _below(field: Field, kind: Kind, rows: Rows) -> Rows:
    """The maps in a field of these rows, with their labels."""
    key = field.keys[0]
    if field.shape == "one":
        return [(labels, (row.get(key) or {}) if key else row) for labels, row in rows]
    if field.label:  # a map by the values of the label
        name = field.label.name
        return [({**labels, name: each}, inner) for labels, row in rows for each, inner in (row.get(key) or {}).items()]
    own = [(each.label.name, each.name) for each in fields_of(kind) if each.label]
    return [
        (labels | {name: str(inner.get(place, "")) for name, place in own}, inner)
        for labels, row in rows
        for inner in row.get(key) or []
    ]


def _samples(field: Field, figure: Figure, rows: Rows) -> Iterable[Sample]:
    if field.label:
        return _samples_by_key(field, field.label, figure, rows)
    metric, name, scale = figure.metric, field.name, field.scale
    if figure.where:
        rows = [({**labels, **figure.where}, row) for labels, row in rows]
    return [
        # By far the most are integers: they take no call.
        Sample(metric, labels, (float(value) if type(value) is int else _number(value, figure)) * scale)
        for labels, row in rows
        if (value := row.get(name)) is not None
    ]


def _number(value: Any, figure: Figure) -> float:
    if isinstance(value, str):
        value = value == figure.equals if figure.equals else bool(value)
    elif isinstance(value, list):
        value = len(value)
    return float(value)


def _samples_by_key(field: Field, label: Label, figure: Figure, rows: Rows) -> Iterator[Sample]:
    for labels, row in rows:
        for key, value in (dict.fromkeys(label.known, 0) | (row.get(field.name) or {})).items():
            if figure.kind == "histogram":
                yield from _buckets(figure, {**labels, label.name: key}, value)
            else:
                yield Sample(figure.metric, {**labels, label.name: key}, value)


def _buckets(figure: Figure, labels: Mapping[str, str], histogram: Reply) -> Sequence[Sample]:
    """Counts for each bucket as cumulative ones. The counts may have one more than the bounds: what lies beyond."""
    bounds = [*[floatToGoString(bound_us / 1_000_000) for bound_us in histogram["bounds_us"]], "+Inf"]
    counts = [*histogram["counts"], 0][: len(bounds)]
    family = HistogramMetricFamily(figure.metric, figure.help, labels=list(labels))
    family.add_metric(
        list(labels.values()), [*zip(bounds, accumulate(counts), strict=True)], histogram["sum_us"] * 1e-6
    )
    return family.samples
