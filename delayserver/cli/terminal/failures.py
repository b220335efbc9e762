"""Reports failures of a command as one line on stderr and an exit code: 1 failed, 2 usage, 130 interrupted; 3: a member of a
cluster cannot go on with its log, or with its directory.

Expected failures have named errors and get a line. A bug keeps its traceback.
"""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import Final

import click

from delayserver.cli.terminal.output import visible_block
from delayserver.runtime.error_groups import first_of

FAILED: Final = 1
USAGE: Final = 2
LOG_LOST: Final = 3
"""A member cannot go on with its log. To start it again does not help before somebody has done what the line says."""
INTERRUPTED: Final = 130


def report_failure(error: BaseException) -> int | None:
    """Prints a failure and returns the exit code. None for a bug, which the caller raises again."""
    error = first_of(error)
    if isinstance(error, SystemExit):  # click's, when a shell asked for completions
        return None
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.ClickException):
        shown = io.StringIO()
        error.show(shown)
        click.echo(visible_block(shown.getvalue()), err=True, nl=False)  # it may repeat what the user pasted
        return error.exit_code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        _abandon_stdout()
        return FAILED
    described = _describe(error)
    if described is None:
        return None
    code, line = described
    click.echo(f"Error: {visible_block(line)}", err=True)
    return code


def _describe(error: BaseException) -> tuple[int, str] | None:
    # Imported here, because only failures need them.
    from delayserver.config.toml_file import ConfigError
    from delayserver.protocol.errors import DelayServerError
    from delayserver.runtime.shared_log import LogLost, LogTrimmed, LogUnusable, SharedLogError
    from store.errors import DivergedError, StoreError, UpgradeNeededError

    if isinstance(error, LogLost) and not isinstance(error, LogTrimmed):
        return (
            LOG_LOST,
            f"log_lost: {error}. Stop all members of the shard, then call delayserver cluster heal for each",
        )
    if isinstance(error, DivergedError):
        return (
            LOG_LOST,
            f"diverged: {error}. This member never leads. Put its directory aside, and make it anew from a backup "
            "(delayserver restore)",
        )
    if isinstance(error, LogLost | LogUnusable | UpgradeNeededError):
        return LOG_LOST, str(error)
    if isinstance(error, SharedLogError):
        return FAILED, str(error)
    if isinstance(error, ConfigError):
        return USAGE, str(error)
    if isinstance(error, DelayServerError):
        again = f" (try again in {error.retry_after_ms} ms)" if error.retry_after_ms is not None else ""
        return FAILED, f"{error}{again}"
    if isinstance(error, StoreError):
        return FAILED, str(error)
    if isinstance(error, OSError):
        return FAILED, _describe_os_error(error)
    return None


def _describe_os_error(error: OSError) -> str:
    # trio appends the address as a Python tuple, which `serve` and `broker` print themselves.
    reason = (error.strerror or str(error)).partition(" (while attempting")[0]
    return f"{error.filename}: {reason}" if error.filename else reason


def _abandon_stdout() -> None:
    # The reader is gone. Discards the buffered output, which Python would otherwise fail to flush at exit.
    with suppress(BrokenPipeError):
        sys.stdout.close()
