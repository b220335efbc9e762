"""Failures of a command as one line on stderr and an exit code: 1 failed, 2 usage, 130 interrupted.

What the world can break has a name and gets a line. What only a bug of ours breaks has none and keeps its traceback.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

import click

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130


def report_failure(error: BaseException) -> int | None:
    """Tell the user, and return the exit code; None for what is a bug, which the caller raises again."""
    error = leaf(error)
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.ClickException):
        error.show()
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
    click.echo(f"Error: {line}", err=True)
    return code


def _describe(error: BaseException) -> tuple[int, str] | None:
    # Imported here: only a failure pays for it.
    from delayserver.config.toml_file import ConfigError
    from delayserver.protocol.errors import DelayServerError
    from store.errors import StoreError

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
    # trio appends the address as a Python tuple; `serve` and `broker` name it themselves.
    reason = (error.strerror or str(error)).partition(" (while attempting")[0]
    return f"{error.filename}: {reason}" if error.filename else reason


def leaf(error: BaseException) -> BaseException:
    """The one failure inside nested groups; a group of several speaks through its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _abandon_stdout() -> None:
    # The reader is gone. What is still buffered goes with it here, or Python would complain when it flushes at exit.
    with suppress(BrokenPipeError):
        sys.stdout.close()
