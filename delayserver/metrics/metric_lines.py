"""Metric families as lines, in the two formats of Prometheus.

The library's own writers look at every character of every label, and need 60 ms for a thousand subjects. All names here are
of the plain kind, so a line is a join. A test compares the bytes with those of the library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

from prometheus_client.core import Metric
from prometheus_client.utils import floatToGoString

Known: TypeAlias = dict[int, tuple[Mapping[str, str], str]]
"""Labels as text, by their identity: the families of a table share the labels of its rows. It holds the labels too, so that
no others get their identity."""

TEXTS_MAX: Final = 4096
"""Texts of labels, and of large numbers, that are remembered from one scrape to the next. Nearly all come again."""

_TEXT_TYPES = {"unknown": "untyped", "info": "gauge", "stateset": "gauge"}
_TEXT_SUFFIXES = {"counter": "_total", "info": "_info"}


def text_lines(families: Iterable[Metric]) -> bytes:
    """The text format, version 0.0.4."""
    lines: list[str] = []
    known: Known = {}
    for family in families:
        name = family.name + _TEXT_SUFFIXES.get(family.type, "")
        lines.append(f"# HELP {name} {_escaped(family.documentation, quotes=False)}\n")
        lines.append(f"# TYPE {name} {_TEXT_TYPES.get(family.type, family.type)}\n")
        lines += _samples(family, known)
    return "".join(lines).encode()


def openmetrics_lines(families: Iterable[Metric]) -> bytes:
    """OpenMetrics, version 1.0.0."""
    lines: list[str] = []
    known: Known = {}
    for family in families:
        lines.append(f"# HELP {family.name} {_escaped(family.documentation, quotes=True)}\n")
        lines.append(f"# TYPE {family.name} {family.type}\n")
        lines += _samples(family, known)
    return "".join([*lines, "# EOF\n"]).encode()


def _samples(family: Metric, known: Known) -> Iterator[str]:
    for sample in family.samples:
        name, labels, value = sample[:3]
        text = ""
        if labels:
            found = known.get(id(labels))
            if found is None:
                found = known[id(labels)] = labels, _labels(tuple(labels.items()))
            text = found[1]
        # What Go writes as Python does: it takes to exponents sooner.
        number = repr(value) if type(value) is float and 0.0 <= value < 1e6 else _go_number(float(value))
        yield f"{name}{text} {number}\n"


@lru_cache(TEXTS_MAX)
def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join([f'{name}="{_escaped(value, quotes=True)}"' for name, value in sorted(labels)]) + "}"


@lru_cache(TEXTS_MAX)
def _go_number(value: float) -> str:
    return str(floatToGoString(value))


def _escaped(text: str, *, quotes: bool) -> str:
    if "\\" in text or "\n" in text or (quotes and '"' in text):
        text = text.replace("\\", "\\\\").replace("\n", "\\n")
        return text.replace('"', '\\"') if quotes else text
    return text
