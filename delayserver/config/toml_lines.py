"""Lines of a TOML file on which settings stand. `tomllib` does not give them.

A statement ends on the first line up to which it is valid TOML by itself. Its keys belong to the table of the last header.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

# The name of a table or of a key, or the number of an entry in a list of tables.
Path = tuple[str | int, ...]


def lines_of(text: str) -> dict[Path, int]:
    """The line of each table, key and entry of a list in a valid file, from 1."""
    found: dict[Path, int] = {}
    table: Path = ()
    entries: dict[Path, int] = {}
    lines = text.splitlines()
    begin = 0
    for number in range(len(lines)):
        try:
            tree = tomllib.loads("\n".join(lines[begin : number + 1]) + "\n")
        except tomllib.TOMLDecodeError:
            continue  # the statement goes on
        if lines[begin].lstrip().startswith("["):
            table = _header(tree, entries)
            paths = [table[:length] for length in range(1, len(table) + 1)]
        else:
            paths = list(_paths(tree, table))
        for path in paths:
            found.setdefault(path, begin + 1)
        begin = number + 1
    return found


def _header(tree: dict[str, Any], entries: dict[Path, int]) -> Path:
    """The table that a header opens. `entries` counts the entries of each list of tables."""
    path: Path = ()
    value: Any = tree
    while isinstance(value, dict) and value:
        ((name, value),) = value.items()
        path = (*path, name)
        if isinstance(value, list):
            entries[path] = entries.get(path, 0) + 1
        if path in entries:
            path = (*path, entries[path] - 1)
    return path


def _paths(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*path, name)
            yield from _paths(inner, (*path, name))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, inner in enumerate(value):
            yield (*path, number)
            yield from _paths(inner, (*path, number))
