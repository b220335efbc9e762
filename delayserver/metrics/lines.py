"""Metric families as lines, in the two formats of Prometheus.

The library's own writers look at every character of every label, and need 60 ms for a thousand subjects. All names here are
of the plain kind, so a line is a join. A test compares the bytes with those of the library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.utils import floatToGoString

_TEXT_TYPES = {"unknown": "untyped", "info": "gauge", "stateset": "gauge"}
_TEXT_SUFFIXES = {"counter": "_total", "info": "_info"}


def text_lines(families: Iterable[Metric]) -> bytes:
    """The text format, version 0.0.4."""
    lines: list[str] = []
    for family in families:
        name = family.name + _TEXT_SUFFIXES.get(family.type, "")
        lines.append(f"# HELP {name} {_escaped(family.documentation, quotes=False)}\n")
        lines.append(f"# TYPE {name} {_TEXT_TYPES.get(family.type, family.type)}\n")
        lines += _samples(family)
    return "".join(lines).encode()


def openmetrics_lines(families: Iterable[Metric]) -> bytes:
    """OpenMetrics, version 1.0.0."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escaped(family.documentation, quotes=True)}\n")
        lines.append(f"# TYPE {family.name} {family.type}\n")
        lines += _samples(family)
    return "".join([*lines, "# EOF\n"]).encode()


def _samples(family: Metric) -> Iterator[str]:
    for sample in family.samples:
        labels = _labels(sample.labels) if sample.labels else ""
        yield f"{sample.name}{labels} {floatToGoString(sample.value)}\n"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join([f'{name}="{_escaped(labels[name], quotes=True)}"' for name in sorted(labels)]) + "}"


def _escaped(text: str, *, quotes: bool) -> str:
    if "\\" in text or "\n" in text or (quotes and '"' in text):
        text = text.replace("\\", "\\\\").replace("\n", "\\n")
        return text.replace('"', '\\"') if quotes else text
    return text
