"""The command line. `main` is the entry point of the `delayserver` script and of `python -m delayserver`.

For a short start-up, this module does not import numpy, trio or rich. Each command imports its modules when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from delayserver import __version__
from delayserver.cli.commands import CommandGroup
from delayserver.cli.terminal.failures import report_failure
from delayserver.runtime.names_guard import find_taken_names


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage. Every command that prints data takes --json.",
)
@click.version_option(__version__, prog_name="delayserver")
def cli() -> None:
    """Messages that arrive when they are due: never lost, never early, late by milliseconds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Prints a failure in one line on stderr; raises a bug."""
    # OpenBLAS starts a thread per core that spins between calls; this program does not need it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    taken = find_taken_names()
    if taken:
        click.echo(f"Error: {taken[0].explain()}", err=True)
        return 1
    try:
        result = cli.main(
            args=None if arguments is None else list(arguments), prog_name="delayserver", standalone_mode=False
        )
        if sys.stdout is not None:  # the parent process may have closed it
            sys.stdout.flush()
    except BaseException as error:
        code = report_failure(error)
        if code is None:
            raise
        return code
    return result if isinstance(result, int) else 0
