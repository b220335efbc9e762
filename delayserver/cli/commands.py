"""The table of commands, each one a file that is imported only when it runs, and those that other packages register.

An entry point of the group `delayserver.commands` adds a command. Its extra in square brackets, as in
``report = "ops.audit.command:report [audit]"``, tells the user what to install when an import fails.
"""

from __future__ import annotations

import importlib
import io
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import click

GROUP: Final = "delayserver.commands"

COMMANDS: Final = {
    "serve": "Run the server.",
    "broker": "Run the broker alone, as a node of a broker group.",
    "send": "Send one message, due later.",
    "pull": "Receive messages that are due.",
    "cancel": "Cancel messages before they are due.",
    "reschedule": "Move a message to another due time.",
    "lookup": "Say what became of messages.",
    "groups": "List consumer groups and what each has before it.",
    "status": "Show what the server holds and how late it is.",
    "demo": "Start a server, schedule messages, watch them arrive.",
    "recover": "Check, trace and repair a data directory.",
}
"""In the order of the help; each is the function of the same name in the module of the same name."""

REGISTERED: Final = {
    "bench": "Measure this machine and show the figures.",
    "report": "Report latency and completeness from the logs.",
}
"""Summaries of commands that our own distribution may register, so that the help need not import them."""


class CommandGroup(click.Group):
    """Commands by name, imported late."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        # What somebody sent may not fit the terminal or the file that it is printed to: it is shown as \u20ac then.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Our own first, then the registered ones by name."""
        return [*COMMANDS, *sorted(_registered())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, or None if there is none of that name. Raises `click.ClickException` if it is broken."""
        if cmd_name in COMMANDS:
            command = getattr(importlib.import_module(f"delayserver.cli.{cmd_name}"), cmd_name)
            assert isinstance(command, click.Command)
            return command
        point = _registered().get(cmd_name)
        return None if point is None else _load(point)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, but a misspelt name is answered with the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib  # only a failure pays for it

            nearest = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not nearest:
                raise
            raise click.UsageError(f"No such command {args[0]!r}, did you mean {nearest[0]!r}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help, from the tables above alone."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        points = _registered()
        if points:
            with formatter.section("Registered commands"):
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
            f"`delayserver {point.name}` cannot be loaded ({error}): install what it needs with pip install '.{extra}'"
        ) from error
    if not isinstance(command, click.Command):
        raise click.ClickException(f"`delayserver {point.name}`: {point.value} is no command; report it to its authors")
    return command
