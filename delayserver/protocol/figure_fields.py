"""What a line of the table of figures says, and the table as values.

The table is made of structs. The annotation of a field says how it becomes a metric (`gauge`, `counter`, `histogram`), a
label (`Label`), or the keys of the reply (`Section`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, to_builtins

PREFIX: Final = "delayserver_"
BASE_UNITS: Final = {"ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True, slots=True)
class Figure:
    """How a field becomes a metric. The samples of a counter have the suffix `_total`."""

    name: str
    help: str
    kind: str
    panel: str = ""
    """`ROW/TITLE` of the panel that draws it as it is. Other panels combine several figures, by their names."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Labels that are the same for each value of the field."""
    equals: str = ""
    """The text for which the metric is 1. It is 0 for all others."""

    @property
    def metric(self) -> str:
        """The name of its samples."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


@dataclass(frozen=True, slots=True)
class Label:
    """The label of which the field is the value, or which the keys of a map are. `known`: keys that count 0 if they are
    missing. A series that began with its first value would hide that one from `increase`."""

    name: str
    known: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """The keys under which the reply has a section. An empty one: the reply has its fields themselves."""

    keys: tuple[str, ...]


def words(text: str) -> Meta:
    """What a field means that is no metric."""
    return Meta(description=text)


def gauge(name: str, text: str, panel: str = "", equals: str = "", field: str = "") -> Meta:
    """A number that rises and falls. For a list it is the length, for a text whether there is one. `field`: what the field
    means, where `text` speaks of the metric alone."""
    return _meta(Figure(name, text, "gauge", panel, equals=equals), field)


def counter(name: str, text: str, panel: str = "", **where: str) -> Meta:
    """A number that only rises."""
    return _meta(Figure(name, text, "counter", panel, where))


def histogram(name: str, text: str) -> Meta:
    """A `Histogram`, or a map of them."""
    return _meta(Figure(name, text, "histogram"))


def _meta(figure: Figure, words: str = "") -> Meta:
    return Meta(description=words or figure.help, extra={"figure": figure})


Kind: TypeAlias = type[Struct]


@dataclass(frozen=True, slots=True)
class Field:
    """One line of the table. `rows`: the table of the maps in it, which are one, a list, or a map of them (`shape`)."""

    name: str
    keys: tuple[str, ...]
    figure: Figure | None
    label: Label | None
    rows: Kind | None
    shape: str
    scale: float
    """What turns the unit of the field into seconds or bytes."""


@cache
def fields_of(kind: Kind) -> tuple[Field, ...]:
    """The lines of a table."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple([_field(name, hints[name]) for name in kind.__struct_fields__])


def _field(name: str, hint: Any) -> Field:
    notes = getattr(hint, "__metadata__", ())
    value = get_args(hint)[0] if notes else hint
    shape = {dict: "map", list: "list"}.get(get_origin(value), "one")
    inner = value if shape == "one" else get_args(value)[-1]
    found = {type(note): note for note in notes}
    meta, place = found.get(Meta), found.get(Section)
    return Field(
        name,
        place.keys if place else (name,),
        (meta.extra or {}).get("figure") if meta else None,
        found.get(Label),
        inner if isinstance(inner, type) and issubclass(inner, Struct) else None,
        shape,
        next((BASE_UNITS[part] for part in name.split("_") if part in BASE_UNITS), 1.0),
    )


def figures(kind: Kind, labels: tuple[str, ...] = ()) -> Iterator[tuple[Field, Figure, tuple[str, ...]]]:
    """Each figure with its field and the names of its labels."""
    fields = fields_of(kind)
    own = labels + tuple([each.label.name for each in fields if each.label and each.shape == "one" and not each.rows])
    for each in fields:
        below = own + ((each.label.name,) if each.label and each.shape == "map" else ())
        if each.figure:
            yield each, each.figure, below + tuple(each.figure.where)
        if each.rows:
            yield from figures(each.rows, below)


def as_map(values: Struct) -> dict[str, Any]:
    """The values as the reply has them."""
    found: dict[str, Any] = {}
    for each in fields_of(type(values)):
        value = getattr(values, each.name)
        value = as_map(value) if each.rows and each.shape == "one" else to_builtins(value)
        for key in each.keys:
            if not key:
                found |= value
            elif key in found:
                found[key] |= value
            else:
                found[key] = value
    return found


def reply_type(kind: Kind, name: str) -> Kind:
    """The type of what `as_map` gives for values of a table. A process of another role leaves out fields."""
    parts: dict[str, list[Kind]] = {}
    hints = get_type_hints(kind, include_extras=True)
    single: dict[str, Any] = {}
    for each in fields_of(kind):
        for key in each.keys:
            if each.rows and each.shape == "one":
                parts.setdefault(key, []).append(each.rows)
            else:
                single[key] = hints[each.name]
    for section in parts.pop("", ()):
        single |= get_type_hints(section, include_extras=True)
    single |= {key: found[0] if len(found) == 1 else _merged(key, found) for key, found in parts.items()}
    fields = [(field, value | UnsetType, UNSET) for field, value in single.items()]
    return defstruct(name, fields, frozen=True, kw_only=True, namespace={"__doc__": kind.__doc__})


def _merged(key: str, kinds: list[Kind]) -> Kind:
    """One type with the fields of several."""
    hints = {name: hint for kind in kinds for name, hint in get_type_hints(kind, include_extras=True).items()}
    text = " ".join([(kind.__doc__ or "").strip() for kind in kinds])
    return defstruct(f"{key.capitalize()}Status", [*hints.items()], frozen=True, namespace={"__doc__": text})
