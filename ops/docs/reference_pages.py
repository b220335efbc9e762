"""Parts of the reference as markdown, made from the code: commands, settings, errors, outcomes, frames.

mkdocs-click prints `Sentinel.UNSET` for the defaults of click 8.2 and newer, so the pages of commands are made here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click

from delayserver.cli import cli
from delayserver.protocol.errors import ERRORS, DelayServerError, ProtocolError, Refused, Unavailable
from ops.docs.frame_pages import frames
from ops.docs.request_pages import requests
from ops.docs.wire_tables import again, outcome_table, plain, table_of, words_of

GROUPS_OF_ERRORS: Final = {
    ProtocolError: "Mistakes of a client program",
    Refused: "Refused: change the request",
    Unavailable: "Not now: the same request may succeed later",
    DelayServerError: "Others",
}


def commands() -> str:
    """A section for each command of the command line, with its usage, text and options."""
    root = click.Context(cli, info_name="delayserver")
    return "\n".join(_sections(cli, root, depth=2))


def _sections(group: click.Group, context: click.Context, depth: int) -> Iterator[str]:
    for name in group.list_commands(context):
        try:
            command = group.get_command(context, name)
        except click.ClickException:
            continue  # the extra of this command is not installed
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        yield f"{'#' * depth} {inner.command_path}\n"
        yield f"```text\n{command.get_usage(inner).removeprefix('Usage: ')}\n```\n"
        yield f"{plain(inspect.cleandoc(command.help or ''))}\n"
        yield _options(command, inner)
        if isinstance(command, click.Group):
            yield from _sections(command, inner, depth + 1)


def _options(command: click.Command, context: click.Context) -> str:
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            rows.append((f"`{record[0]}`", plain(record[1])))
    return table_of(("option", "meaning"), rows)


def settings_of(sample: str) -> str:
    """A section for each table of the sample's text, with every setting, its default and its reason.

    A comment belongs to the key or the table below it.
    """
    parts: list[str] = ["## Top level\n"]
    rows: list[tuple[str, ...]] = []
    comments: list[str] = []
    table = ""

    def end_table() -> None:
        if rows:
            parts.append(table_of(("setting", "default", "meaning"), rows))
            rows.clear()

    for line in [*sample.partition("\n\n")[2].splitlines(), ""]:
        header = re.fullmatch(r"\[+([\w.]+)\]+", line)
        key = re.fullmatch(r"(\w+) = (.*)", line)
        if header:
            end_table()
            table = header[1]
            parts += [f"## {line}\n".replace("[", "\\["), f"{_text(comments)}\n"]
            comments = []
        elif key:
            name = f"{table}.{key[1]}".lstrip(".")
            rows.append((f"`{name}`", f"`{key[2]}`", _text(comments)))
            comments = []
        elif line.startswith("#"):
            comments.append(line.lstrip("# "))
    end_table()
    return "\n".join(parts)


def errors() -> str:
    """A section for each error that may cross the wire, in groups by what the caller can do."""
    left = dict(ERRORS)
    parts = []
    for base, title in GROUPS_OF_ERRORS.items():
        parts.append(f"## {title}\n")
        for name, kind in list(left.items()):
            if issubclass(kind, base):
                del left[name]
                facts = f"Fault: {kind.fault}. Again: {again(kind)}."
                parts.append(f"### {name}\n\n`{kind.__name__}`. {words_of(kind)} {facts}\n")
    return "\n".join(parts)


PARTS: Final[dict[str, Callable[[Path], str]]] = {
    "commands": lambda root: commands(),
    "settings": lambda root: settings_of((root / "delayserver.sample.toml").read_text()),
    "errors": lambda root: errors(),
    "outcomes": lambda root: outcome_table(),
    "requests": lambda root: requests(),
    "frames": frames,
}
"""The parts that a document asks for by a line ``<!-- made: NAME -->``, each made for a checkout."""


def with_parts(markdown: str, root: Path) -> str:
    """A document with its parts in place of the lines that ask for them.

    `root` is the checkout. The code may be installed elsewhere, without the files of the checkout. Raises KeyError for
    an unknown part.
    """
    return re.sub(r"^<!-- made: (\w+) -->$", lambda found: PARTS[found[1]](root), markdown, flags=re.MULTILINE)


def _text(comments: list[str]) -> str:
    return plain("\n".join(comments).strip())
