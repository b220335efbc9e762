"""The table of commands. Each command is a file that is imported only when it runs. Other packages can register more.

An entry point of the group `delayserver.commands` adds a command. If its import fails, the error names the extra in
square brackets to install, as in ``report = "ops.audit.command:report [audit]"``.
"""

from __future__ import annotations

import importlib
import io
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

GROUP: Final = "delayserver.commands"

COMMANDS: Final = {
    "serve": "Run the server.",
    "broker": "Run the broker alone, as a node of a broker group.",
    "http": "Run the HTTP gateway of a server alone.",
    "send": "Send one message, due later.",
    "publish": "Store one message for consumers now.",
    "pull": "Receive messages that are due.",
    "consume": "Run a command for each message as it comes.",
    "nack": "Give deliveries back, to come again.",
    "cancel": "Cancel messages before they are due.",
    "reschedule": "Move a message to another due time.",
    "lookup": "Say what became of messages.",
    "transactions": "List prepared messages, commit them or roll them back by hand.",
    "subjects": "List the subjects that a node has met.",
    "route": "Show where the messages of a subject go.",
    "groups": "List, move and remove consumer groups.",
    "peek": "Look at the messages of a subject without consuming them.",
    "find": "Find stored messages by id, by key, or by subject and time.",
    "dead": "List, resend and drop what consumer groups gave up.",
    "token": "Make, list, revoke and rotate access tokens.",
    "schedule": "Show when a cron expression or an interval fires.",
    "pending": "Count pending messages by due time or subject.",
    "targets": "List the nodes of a server, and send one a message to try it.",
    "reload": "Have the server read its configuration again.",
    "status": "Show what the server holds and how late it is.",
    "demo": "Start a server, schedule messages, watch them arrive.",
    "cluster": "Found a cluster, show its members and shards, move them.",
    "backup": "Copy the data of a running server, and look after the copies.",
    "restore": "Make a data directory of a backup, also of a moment in the past.",
    "recover": "Check, trace and repair a data directory.",
    "config": "Check a configuration, and show the settings.",
    "completion": "Print the completion script of a shell.",
}
"""In the order of the help. Each command is the function of the same name in the module of the same name."""

ROOMS: Final = {
    "running": ("serve", "broker", "http", "targets", "reload", "status", "config", "completion"),
    "messages": ("send", "publish", "cancel", "reschedule", "lookup", "transactions", "find", "pending"),
    "groups": ("pull", "consume", "nack", "subjects", "route", "groups", "peek", "dead"),
    "schedules": ("schedule",),
    "tokens": ("token",),
    "backup": ("backup", "restore"),
}
"""The rooms of the modules. `demo`, `cluster` and `recover` are rooms of their own."""

_MODULES: Final = {name: f"{room}.{name}" for room, names in ROOMS.items() for name in names}

REGISTERED: Final = {
    "bench": "Measure this machine and show the figures.",
    "report": "Report latency and completeness from the logs.",
}
"""Summaries of commands that our own distribution may register, so that the help does not import them."""


class CommandGroup(click.Group):
    """Commands by name, imported when they run."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the named command."""
        # The output encoding may lack characters of a message. They are printed like \u20ac then.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of our own commands, then the registered ones in order of name."""
        return [*COMMANDS, *sorted(_registered())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command; None if the name is unknown. Raises `click.ClickException` if it is broken."""
        if cmd_name in COMMANDS:
            command = getattr(importlib.import_module(f"delayserver.cli.{_MODULES.get(cmd_name, cmd_name)}"), cmd_name)
            assert isinstance(command, click.Command)
            return command
        point = _registered().get(cmd_name)
        return None if point is None else _load(point)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names of commands from the tables above, without importing the commands."""
        names = {**COMMANDS, **{name: REGISTERED.get(name) for name in sorted(_registered())}}
        found = [CompletionItem(name, help=text) for name, text in names.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolves a command like click, but suggests the nearest name for an unknown one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib  # here, because only failures need it

            nearest = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not nearest:
                raise
            raise click.UsageError(f"No such command {args[0]!r}, did you mean {nearest[0]!r}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands from the tables above, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        points = _registered()
        if points:
            with formatter.section("More commands"):
                formatter.write_dl(
                    [(name, REGISTERED.get(name, f"From {points[name].module}.")) for name in sorted(points)]
                )


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in COMMANDS}


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except (ImportError, AttributeError) as error:
        extra = f"[{','.join(point.extras)}]" if point.extras else ""
        raise click.ClickException(
            f"`delayserver {point.name}` cannot be loaded ({error}): "
            f"install what it needs with pip install --use-pep517 '.{extra}'"
        ) from error
    if not isinstance(command, click.Command):
        raise click.ClickException(f"`delayserver {point.name}`: {point.value} is no command; report it to its authors")
    return command
