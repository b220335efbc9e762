"""`delayserver recover`: tools for a data directory. One file per command, imported when it runs."""

from __future__ import annotations

import importlib
from typing import Final

import click

COMMANDS: Final = {
    "check": "Verify every file and reconcile every message.",
    "trace": "Show the life of one message, with evidence.",
    "pending": "Count and list what is not delivered yet.",
    "dump": "Print any file of a data directory as JSON lines.",
    "export": "Write accepted and dispatched messages as Parquet.",
    "repair": "Cut torn ends, move corrupt ranges aside.",
    "rebuild": "Make schedule_log and checkpoint anew from message_log and dispatch_log.",
    "redispatch": "Deliver a range again, for brokers that lost data.",
}
"""In the order of the help. Each command is the function of that name in `delayserver.cli.recover.<name>`."""


class RecoverGroup(click.Group):
    """The commands of the table above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command; None if the name is unknown."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"delayserver.cli.recover.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=RecoverGroup, epilog="Exit codes: 0 done and clean, 1 findings or failure, 2 wrong usage.")
def recover() -> None:
    """Check, trace and repair a data directory.

    `check`, `trace`, `pending`, `dump` and `export` only read, and work beside a running server. The others change
    files: they say what will change, ask first, and need the server to be stopped (`redispatch` also takes --server).
    """
