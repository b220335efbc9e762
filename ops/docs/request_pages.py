"""The requests of the HTTP API as markdown, made from the gateway's table of endpoints and the types of their documents."""

from __future__ import annotations

import os
import time
import types
import typing
from typing import Any, Final

import anyio
import msgspec

from delayserver.config.settings import HttpSettings
from delayserver.metrics.http_figures import HttpFigures
from delayserver.web.clients import Clients
from delayserver.web.gateway import Gateway
from delayserver.web.router import Endpoint
from delayserver.web.sessions import Sessions

Cells = tuple[str, ...]
INT64_MAX: Final = 2**63 - 1


def endpoints() -> list[Endpoint]:
    """The requests of the gateway, in their order. It opens no connection."""

    async def made() -> list[Endpoint]:
        sessions = Sessions(time.monotonic, os.urandom)
        return list(Gateway(Clients("127.0.0.1:1"), sessions, HttpSettings(), HttpFigures()).router.endpoints)

    return anyio.run(made, backend="trio")


def section_of(endpoint: Endpoint) -> str:
    """One request: its meaning, its fields, and its answers."""
    parts = [f"## {endpoint.method} {endpoint.path}\n", f"{endpoint.summary}.\n"]
    for title, kind in (("Parameters", endpoint.query), ("Body", endpoint.body)):
        rows = fields_of(kind)
        if rows:
            parts += [f"{title}:\n", _table(("field", "type", "needed"), rows)]
    if endpoint.headers:
        parts.append(_table(("header", "meaning"), [(f"`{name}`", says) for name, says in endpoint.headers.items()]))
    answers = [
        (str(status), _answer(answer.says, answer.media), _fields(answer.document))
        for status, answer in endpoint.answers.items()
    ]
    errors = [(str(status), "a problem document", "") for status in endpoint.errors]
    return "\n".join([*parts, _table(("status", "answer", "fields"), [*answers, *errors])])


def fields_of(kind: Any) -> list[tuple[str, str, str]]:
    """(name, type, needed) of each field of a struct, or of the first struct of a union or a list."""
    struct = _struct_of(kind)
    if struct is None:
        return []
    rows = []
    for field in msgspec.structs.fields(struct):
        (schema,), components = msgspec.json.schema_components([field.type], ref_template="{name}")
        rows.append((f"`{field.encode_name}`", _type_of(schema, components), "yes" if field.required else ""))
    return rows


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) in (list, typing.Union):
        return next((found for each in typing.get_args(kind) if (found := _struct_of(each)) is not None), None)
    return None


def _type_of(schema: dict[str, Any], components: dict[str, Any]) -> str:
    if "$ref" in schema:
        names = components[schema["$ref"]].get("properties", {})
        return f"an object with {', '.join([f'`{name}`' for name in names])}" if names else "an object"
    if "anyOf" in schema:
        kinds = [_type_of(each, components) for each in schema["anyOf"] if each != {"type": "null"}]
        return " or ".join(kinds)
    if "enum" in schema:
        return ", ".join([f"`{value}`" for value in schema["enum"]])
    if schema.get("type") == "array":
        return f"a list of {_type_of(schema.get('items', {}), components)}"
    words = (("minimum", "from"), ("maximum", "to"))
    bounds = [f"{word} {schema[key]:,}" for key, word in words if abs(schema.get(key, INT64_MAX)) < INT64_MAX]
    return " ".join([{"object": "a map"}.get(schema.get("type", ""), schema.get("type", "any value")), *bounds])


def _fields(kind: Any) -> str:
    return ", ".join([name for name, _, _ in fields_of(kind)])


def _answer(says: str, media: str) -> str:
    return says if media == "application/json" else f"{says} (`{media}`)"


def _table(head: Cells, rows: list[Any]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return (
        "\n".join([f"| {' | '.join([cell.replace('|', chr(92) + '|') for cell in cells])} |" for cells in lines]) + "\n"
    )


def requests() -> str:
    """A section for each request."""
    return "\n".join([section_of(endpoint) for endpoint in endpoints()])
