"""The table of the fields of `status` in the protocol's page of operators, made from the table of figures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct

from delayserver.protocol.figure_fields import fields_of
from delayserver.protocol.figures import ServerStatus

_WORDS: Final[dict[Any, str]] = {int: "int", float: "number", bool: "bool", str: "text", NoneType: "nil", dict: "map"}

_INNER: Final = {"one": ".", "map": ".NAME.", "list": "[]."}
"""How the way to a field goes on: in a map, in a map by names, in a list of maps."""


def status_table() -> str:
    """A row for each field. Neighbours with the same words share one. A field of a map has the names of its way."""
    lines = ["| field | type | |", "|---|---|---|"]
    for (kind, words), rows in groupby(_rows(ServerStatus, ""), key=lambda row: row[1:]):
        lines.append(f"| {', '.join([row[0] for row in rows])} | {kind} | {words} |")
    return "\n".join(lines) + "\n"


def _rows(kind: type[Struct], way: str) -> Iterator[tuple[str, str, str]]:
    hints = get_type_hints(kind, include_extras=True)
    for each in fields_of(kind):
        name = way + each.keys[-1]
        if each.rows is None:
            hint = hints[each.name]
            yield name, _type(get_args(hint)[0]), _words(hint)
        elif not each.keys[-1]:
            yield from _rows(each.rows, way)
        else:
            yield from _rows(each.rows, name + _INNER[each.shape])


def _words(hint: Any) -> str:
    (meta,) = [note for note in hint.__metadata__ if isinstance(note, Meta)]
    assert meta.description is not None
    return meta.description.removesuffix(".")


def _type(hint: Any) -> str:
    if isinstance(hint, UnionType):
        return " or ".join([_type(one) for one in get_args(hint)])
    if get_origin(hint) is list:
        return f"[{_type(get_args(hint)[0])}]"
    return _WORDS[get_origin(hint) or hint]
