"""Examples of the wire protocol as markdown, made from the test vectors: the value and the bytes of each frame."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgpack

VECTORS: Final = "delayserver/protocol/vectors.json"
VALUE_WIDTH: Final = 110


def frames(root: Path) -> str:
    """A section for each request and its reply, and one for each other frame. `root` is the checkout."""
    named = {frame["name"]: frame["hex"] for frame in json.loads((root / VECTORS).read_text())["frames"]}
    requests = [name.removesuffix(" request") for name in named if name.endswith(" request")]
    pairs = [(name, [f"{name} request", f"{name} reply"]) for name in sorted(requests)]
    shown = {name for _, names in pairs for name in names}
    pairs += [(name, [name]) for name in sorted(named.keys() - shown)]
    return "\n".join([part for title, names in pairs for part in _section(title, names, named)])


def _section(title: str, names: list[str], named: dict[str, str]) -> Iterator[str]:
    yield f"### {title}\n"
    for name in names:
        if name in named:
            value = msgpack.unpackb(bytes.fromhex(named[name])[4:], strict_map_key=False)
            yield f"```text\n{drawn(value)}\n{dump_of(named[name])}```\n"


def dump_of(frame: str) -> str:
    """The lines of the bytes of a frame, which is given in hex."""
    return "\n".join(textwrap.wrap(bytes.fromhex(frame).hex(" "), 72)) + "\n"


def drawn(value: Any) -> str:
    """The lines of the value of a frame: JSON, with bytes as h'…' in hex."""
    return "\n".join(_drawn(value, "")) + "\n"


def _drawn(value: Any, indent: str) -> list[str]:
    line = _on_one_line(value)
    if len(indent) + len(line) <= VALUE_WIDTH or not isinstance(value, dict | list | tuple):
        return [line]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    items = value.items() if isinstance(value, dict) else [("", item) for item in value]
    lines = []
    for key, item in items:
        first, *rest = _drawn(item, indent + "  ")
        lines += [f"  {json.dumps(key)}: {first}" if key else f"  {first}", *[f"  {more}" for more in rest]]
        lines[-1] += ","
    lines[-1] = lines[-1].removesuffix(",")
    return [opening, *lines, closing]


def _on_one_line(value: Any) -> str:
    if isinstance(value, bytes):
        return f"h'{value.hex()}'"
    if isinstance(value, dict):
        return "{" + ", ".join([f"{json.dumps(key)}: {_on_one_line(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_on_one_line, value)) + "]"
    return "nil" if value is None else json.dumps(value)
