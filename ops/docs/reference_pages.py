"""Parts of the reference as markdown, made from the code: commands, settings, errors, outcomes, frames.

mkdocs-click prints `Sentinel.UNSET` for the defaults of click 8.2 and newer, so the pages of commands are made here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from delayserver.cli import cli
from delayserver.protocol.errors import ERRORS, DelayServerError, ProtocolError, Refused, Unavailable
from delayserver.protocol.outcomes import Outcome
from ops.docs.frame_pages import frames
from ops.docs.request_pages import requests

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
        yield f"{_plain(inspect.cleandoc(command.help or ''))}\n"
        yield _options(command, inner)
        if isinstance(command, click.Group):
            yield from _sections(command, inner, depth + 1)


def _options(command: click.Command, context: click.Context) -> str:
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            rows.append((f"`{record[0]}`", _cell(_plain(record[1]))))
    return _table(("option", "meaning"), rows)


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
            parts.append(_table(("setting", "default", "meaning"), rows))
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
            rows.append((f"`{name}`", f"`{key[2]}`", _cell(_text(comments))))
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
                parts.append(f"### {name}\n\n`{kind.__name__}`. {_plain(inspect.cleandoc(kind.__doc__ or ''))}\n")
    return "\n".join(parts)


def outcomes() -> str:
    """A table of the outcomes, with their codes and meanings."""
    text = inspect.getsource(Outcome)
    meanings = dict(re.findall(r'^    (\w+) = \d+\n    """(.*?)"""', text, re.MULTILINE | re.DOTALL))
    rows = [(f"`{one.label}`", str(one.value), _cell(_plain(meanings[one.name]))) for one in Outcome]
    return _table(("outcome", "code", "meaning"), rows)


PARTS: Final[dict[str, Callable[[Path], str]]] = {
    "commands": lambda root: commands(),
    "settings": lambda root: settings_of((root / "delayserver.sample.toml").read_text()),
    "errors": lambda root: errors(),
    "outcomes": lambda root: outcomes(),
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
    return _plain("\n".join(comments).strip())


def _plain(text: str) -> str:
    """Text of a help or a docstring as markdown: doubled backticks are single ones, and brackets are no links."""
    text = text.replace("\b\n", "").replace("``", "`")
    return re.sub(r"(`[^`]*`)|([\[<*])", lambda found: found[1] or f"\\{found[2]}", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join([f"| {' | '.join(cells)} |" for cells in lines]) + "\n"
