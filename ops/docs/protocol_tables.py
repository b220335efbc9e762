"""Makes the tables of the protocol's pages: ``python -m ops.docs.protocol_tables``.

A table stands between ``<!-- table: waiting_keys.WaitingKey -->``, which names a file of `protocol/schema` and a type of it,
and ``<!-- end of table -->``. Several types, with commas between, are the requests of one operation, by action.
``<!-- table of errors -->`` begins a table with a name of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from msgspec import Struct, inspect

from delayserver.protocol.schema.structs import Request, described, facts_of, plain
from ops.docs.figure_tables import status_table
from ops.docs.wire_tables import error_table, limit_table, outcome_table, setting_table

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "PROTOCOL.md"
"""What a client needs."""
PAGES: Final = (PAGE, ROOT / "docs" / "reference" / "protocol-operators.md")
"""All pages with operations: what a client needs, and the rest."""
_TABLE: Final = re.compile(r"(<!-- table: (\w+)\.([\w, ]+) -->)\n.*?(\n<!-- end of table -->)", re.DOTALL)
_NAMED_TABLE: Final = re.compile(r"(<!-- table of (\w+) -->)\n.*?(\n<!-- end of table -->)", re.DOTALL)
_NAMED: Final[dict[str, Callable[[], str]]] = {
    "status": status_table,
    "outcomes": outcome_table,
    "limits": limit_table,
    "settings": setting_table,
    "errors": error_table,
}
_WORDS: Final[dict[type[inspect.Type], str]] = {
    inspect.IntType: "int",
    inspect.FloatType: "number",
    inspect.BoolType: "bool",
    inspect.StrType: "text",
    inspect.LiteralType: "text",
    inspect.BytesType: "bytes",
    inspect.DictType: "map",
    inspect.StructType: "row",
}
_ENDLESS: Final = 1 << 40
"""A larger bound is none that a caller meets."""
_SHARED: Final = frozenset({"subject", "group"})
"""Names that the section of an operation with actions gives once, above the table."""


def page(text: str) -> str:
    """The page with all its tables made anew. Raises KeyError for a name that no table has."""
    text = _TABLE.sub(lambda found: found[1] + "\n\n" + _table(found[2], found[3].split(", ")) + found[4], text)
    return _NAMED_TABLE.sub(lambda found: found[1] + "\n\n" + _NAMED[found[2]]() + found[3], text)


def by_hand(text: str) -> str:
    """What people have written of a page: all but its tables and the values of frames that are made."""
    return re.sub(r"<!-- table.*?<!-- end of table -->|```value .*?```", "", text, flags=re.DOTALL)


def _table(module: str, names: Sequence[str]) -> str:
    kinds = [getattr(import_module(f"delayserver.protocol.schema.{module}"), name) for name in names]
    if len(kinds) == 1:
        head = "argument" if issubclass(kinds[0], Request) else "field"
        return _lines([[head, "type", ""], *_rows(kinds[0])])
    rows = [["action", "argument", "type", ""]]
    for kind in kinds:
        own = [row for row in _rows(kind) if row[0] not in _SHARED]
        rows += [["" if place else f"`{kind.__struct_config__.tag}`", *row] for place, row in enumerate(own)]
    return _lines(rows)


def _lines(rows: Sequence[Sequence[str]]) -> str:
    lines = ["|" + "|".join([f" {cell} " if cell else " " for cell in row]) + "|" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:], ""])


def _rows(kind: type[Struct]) -> list[list[str]]:
    """For each field its name, its type and its meaning. A question mark says that it may be missing."""
    asked, rows = issubclass(kind, Request), []
    for field in described(kind):
        missing = not field.required if asked else facts_of(field).left_out
        nil = " or nil" if isinstance(field.type, inspect.UnionType) and not missing else ""
        meaning = facts_of(field).text + (_bounds(field) if asked else "")
        rows.append(
            [
                field.encode_name + ("?" if missing else ""),
                (facts_of(field).written or _type(field.type)) + nil,
                meaning,
            ]
        )
    return rows


def _type(kind: inspect.Type) -> str:
    kind = plain(kind)
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return f"[{_type(kind.item_type)}]"
    if isinstance(kind, inspect.TupleType):
        return f"[{', '.join([_type(each) for each in kind.item_types])}]"
    return _WORDS[type(kind)]


def _bounds(field: inspect.Field) -> str:
    """The bounds and the default of an argument, as further sentences."""
    kind, said = plain(field.type), ""
    bytes_max = facts_of(field).bytes_max
    if bytes_max is not None:
        said += f" At most {bytes_max:,} bytes."
    if isinstance(kind, inspect.IntType) and kind.le is not None and kind.le < _ENDLESS:
        said += f" {kind.ge:,} to {kind.le:,}{', the default' if field.default == kind.le else ''}."
    return said


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(page(each.read_text()))
