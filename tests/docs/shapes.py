"""Compares the output that a document shows with that of a run, in which times, ids and measured figures differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

# Each kind of text that differs, with its pattern in a run. Whole numbers below 10,000 are counts, and must be equal.
_KINDS: Final = [
    (r"\b\d+(?:\.\d+)? m?s late\b", r"\d+(?:\.\d+)? (?:m?s|min) late"),
    (
        r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[+-]\d\d:\d\d|Z)",
        r"\d{4}-\d\d-\d\dT[\d:.]+(?:[+-]\d\d:\d\d|Z)",
    ),
    (r"\b[0-9a-f]{12}-[0-9a-f]{12}-[0-9a-f]{12}\b", r"[0-9a-f]{12}-[0-9a-f]{12}-[0-9a-f]{12}"),
    (r"\b[0-9a-f]{12}-[0-9a-f]{12}\b", r"[0-9a-f]{12}-[0-9a-f]{12}"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", r"[0-9a-f]{8}-[0-9a-f-]{27}"),
    (r"\b[0-9a-f]{32}\b", r"[0-9a-f]{32}"),
    (r"\b(?=[a-f]*\d)[0-9a-f]{12}\b", r"[0-9a-f]{12}"),
    # A message that becomes due while its server is down, or that a busy machine delays, is late by seconds.
    (r"\b\d+\.\d+ ms\b", r"\d+(?:\.\d+)?(?:e-?\d+)? m?s|\d+ m(?: \d+ s)?"),
    (r"\b\d+\.\d+\b", r"\d+(?:\.\d+)?(?:e-?\d+)?"),
    (r"\b\d{5,}\b", r"\d+"),
    (r"\.\.\.", r".*"),
]
_VARIABLE: Final = re.compile("|".join([f"({shown})" for shown, _ in _KINDS]))


def pattern_of(line: str) -> tuple[re.Pattern[str], list[str]]:
    """The pattern of a line that a document shows, with a group for each text that differs, and these texts as shown."""
    parts: list[str] = []
    shown: list[str] = []
    end = 0
    for found in _VARIABLE.finditer(line):
        assert found.lastindex is not None
        parts += [_literal(line[end : found.start()]), f"({_KINDS[found.lastindex - 1][1]})"]
        shown.append(found[0])
        end = found.end()
    return re.compile("".join([*parts, _literal(line[end:])]).rstrip() + r"\s*"), shown


def _literal(text: str) -> str:
    """Columns move with the width of figures, so any white space is like any other."""
    return r"\s+".join([re.escape(part) for part in re.split(r"\s+", text)])


def match(shown: str, actual: str) -> dict[str, str] | str:
    """The texts of the run in place of those shown, or the first line shown that the run does not have.

    The lines come in the order shown; others may stand between them, such as the log of a program in the background.
    """
    values: dict[str, str] = {}
    lines = iter(actual.splitlines())
    for line in [line for line in shown.splitlines() if line.strip() not in ("", "...")]:
        pattern, texts = pattern_of(_with(values, line))
        found = _first(pattern, lines)
        if found is None:
            return line
        values |= {text: value for text, value in zip(texts, found.groups(), strict=True) if len(text) >= 12}
    return values


def _with(values: dict[str, str], text: str) -> str:
    for shown, value in values.items():
        text = text.replace(shown, value)
    return text


def _first(pattern: re.Pattern[str], lines: Iterator[str]) -> re.Match[str] | None:
    return next((found for line in lines if (found := pattern.fullmatch(line))), None)
