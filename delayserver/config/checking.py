"""Every problem of a configuration at once, each with its place. `load_settings` stops at the first one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from delayserver.config.settings import Settings
from delayserver.config.toml_file import (
    ConfigError,
    check_settings,
    keys_of,
    parse_assignment,
    parse_text,
    settings_of,
    text_of,
    with_flag,
    with_secret,
)
from delayserver.config.toml_lines import Path, lines_of

_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """A problem. `place`: the file or the assignment. `line`: of the file, from 1; None if it has no line."""

    place: str
    line: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.place}{f':{self.line}' if self.line else ''}: {self.text}"


def find_problems(
    path: str | None, assignments: Sequence[str], try_files: Callable[[Settings], object] = lambda _settings: None
) -> list[ConfigProblem]:
    """Problems of a file and of assignments (`KEY=VALUE`). None: a server starts with them.

    Values that contradict each other, and files that the settings name, are looked at when each value is valid alone. Only
    the first one is returned. `try_files` reads the files, and raises ConfigError."""
    tree: dict[str, Any] = {}
    lines: dict[Path, int] = {}
    found: list[ConfigProblem] = []
    if path is not None:
        try:
            text = text_of(path)
            tree = parse_text(path, text)
            lines = lines_of(text)
        except ConfigError as error:
            return [_of_file(path, str(error))]
        found += [ConfigProblem(path, lines.get(place), said) for place, said in _wrong_values(tree)]
    settings, wrong = _assigned(Settings() if found else settings_of(tree), assignments)
    found += wrong
    if not found:
        try:
            check_settings(with_secret(settings))
            try_files(settings)
        except ConfigError as error:
            found.append(ConfigProblem(path or "command line", _line_named(str(error), lines), str(error)))
    return found


def _of_file(path: str, said: str) -> ConfigProblem:
    """The problem of a file that is unreadable, or no TOML."""
    line = _AT_LINE.search(said)
    return ConfigProblem(path, int(line[1]) if line else None, said.removeprefix(f"{path}: "))


def _wrong_values(tree: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Unknown keys and wrong values, with their places: each key of a table, and each entry of a list, is read alone."""
    for name, value in tree.items():
        if isinstance(value, dict):
            parts: list[tuple[Path, Any]] = [((name, inner), {inner: value[inner]}) for inner in value]
        elif isinstance(value, list):
            parts = [((name, number), [entry]) for number, entry in enumerate(value)]
        else:
            parts = []
        said = _refusal({name: value})
        if said is None:
            continue
        within = [(place, inner) for place, part in parts if (inner := _refusal({name: part})) is not None]
        # An unknown table is one problem, not one for each of its keys.
        yield from within if within and not said.startswith(f"unknown key {name!r}") else [((name,), said)]


def _refusal(tree: dict[str, Any]) -> str | None:
    try:
        settings_of(tree)
    except ConfigError as error:
        return str(error)
    return None


def _assigned(settings: Settings, assignments: Sequence[str]) -> tuple[Settings, list[ConfigProblem]]:
    found = []
    for text in assignments:
        try:
            settings = with_flag(settings, *parse_assignment(text))
        except ConfigError as error:
            found.append(ConfigProblem("--set", None, str(error)))
    return settings, found


def _line_named(said: str, lines: dict[Path, int]) -> int | None:
    """The line of the first setting that a problem names and the file has."""
    named = [key for key in keys_of() if re.search(rf"\b{re.escape(key)}\b", said)]
    return next((lines[place] for key in named if (place := tuple(key.split("."))) in lines), None)
