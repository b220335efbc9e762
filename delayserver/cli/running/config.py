"""`delayserver config`: checks a configuration file, and shows the settings that a server would have."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible

if TYPE_CHECKING:
    from delayserver.config.checking import ConfigProblem
    from delayserver.config.listing import Setting

Command = TypeVar("Command", bound=Callable[..., Any])


def _source(command: Command) -> Command:
    """Adds the options that say where settings come from."""
    for option in (
        options.assignments,
        click.option(
            "--config",
            "path",
            type=click.Path(),
            metavar="FILE",
            help="A TOML file; delayserver.sample.toml shows every key.",
        ),
    ):
        command = option(command)
    return command


@click.group
def config() -> None:
    """Check a configuration, and show the settings that a server would have."""


@config.command
@click.argument("file", required=False, type=click.Path())
@_source
@options.as_json
@click.pass_context
def check(
    context: click.Context, file: str | None, path: str | None, assignments: tuple[str, ...], as_json: bool
) -> None:
    """Say everything that is wrong with the configuration FILE, with file and line. No server is needed. --config names the
    file too, as for `serve`. The files of [tls] are read.

    Exit code 0: a server starts with it, as far as the configuration goes. Exit code 1: it does not.
    """
    from delayserver.config.checking import find_problems
    from delayserver.server.encryption import Encryption

    if file is not None and path is not None:
        raise click.UsageError("give either FILE or --config, not both")
    path = path if file is None else file
    problems = find_problems(path, assignments, lambda settings: Encryption(settings.tls))
    if as_json:
        print_json({"ok": not problems, "problems": [_problem_record(problem) for problem in problems]})
    elif problems:
        for problem in problems:
            click.echo(visible(str(problem)), err=True)
    else:
        click.echo(f"{path or 'the configuration'}: no problems")
    context.exit(1 if problems else 0)


def _problem_record(problem: ConfigProblem) -> dict[str, Any]:
    return {"place": problem.place, "line": problem.line, "problem": problem.text}


@config.command
@_source
@click.option("--changed", is_flag=True, help="Leave out what has its default.")
@options.as_json
def show(path: str | None, assignments: tuple[str, ...], changed: bool, as_json: bool) -> None:
    """Show every setting with its source. The output is a configuration file.

    Secrets are never shown. With --json: one object for each setting, with `value`, `default`, `source` and `line`.
    """
    from delayserver.config.listing import DEFAULT, effective_settings
    from delayserver.config.toml_file import parse_assignment

    found = effective_settings(path, dict(parse_assignment(text) for text in assignments))
    shown = [setting for setting in found if not (changed and setting.source == DEFAULT)]
    if as_json:
        for setting in shown:
            print_json(_record(setting))
        return
    for line in _as_toml(shown, path):
        click.echo(visible(line))


def _record(setting: Setting) -> dict[str, Any]:
    place = {"source": setting.source} | ({"line": setting.line} if setting.line is not None else {})
    if setting.secret:
        return {"key": setting.key, "secret": True, **place}
    return {"key": setting.key, "value": setting.value, "default": setting.default, **place}


def _as_toml(settings: Sequence[Setting], path: str | None) -> list[str]:
    """Keys outside of tables first, as TOML needs it, then tables, then lists of tables."""
    lines: list[str] = []
    table = ""
    for setting in sorted(settings, key=lambda setting: (isinstance(setting.value, list) and "." not in setting.key,
                                                         "." in setting.key)):  # fmt: skip
        section, _, name = setting.key.rpartition(".")
        if section != table and not _is_list_of_tables(setting):
            lines += ["", f"[{section}]"]
            table = section
        source = f"  # {setting.source}" + (f", {path}:{setting.line}" if setting.line is not None else "")
        if setting.secret:
            lines.append(f"# {name} is not shown{source}")
        elif _is_list_of_tables(setting):
            for entry in setting.value:
                lines += ["", f"[[{name}]]{source}"]
                lines += [f"{inner} = {_toml_value(inner, value)}" for inner, value in entry.items()]
        else:
            lines.append(f"{name} = {_toml_value(name, setting.value)}{source}")
    return lines


def _is_list_of_tables(setting: Setting) -> bool:
    return isinstance(setting.value, list) and "." not in setting.key


def _toml_value(name: str, value: Any) -> str:
    """A value as TOML. Durations and sizes have the largest unit that divides them."""
    from delayserver.config.units import format_size

    if isinstance(value, dict):
        return "{ " + ", ".join([f"{inner} = {_toml_value(inner, each)}" for inner, each in value.items()]) + " }"
    if isinstance(value, list):
        return "[" + ", ".join([_toml_value(name, each) for each in value]) + "]"
    if isinstance(value, str):
        # A basic string of TOML has the escapes of JSON, and TOML forbids U+007F too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    words = name.split("_")
    if isinstance(value, int) and not isinstance(value, bool) and value and "bytes" in words:
        return f'"{format_size(value)}"'
    if isinstance(value, int) and not isinstance(value, bool) and "ms" in words:
        return f'"{_duration(value)}"'
    return json.dumps(value)


def _duration(value_ms: int) -> str:
    for unit, length_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if value_ms and value_ms % length_ms == 0:
            return f"{value_ms // length_ms}{unit}"
    return f"{value_ms}ms"
