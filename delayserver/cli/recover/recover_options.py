"""Shared by the recovery commands: arguments, times, and the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from delayserver.cli.terminal.failures import FAILED
from delayserver.cli.terminal.options import INSTANT
from delayserver.cli.terminal.output import visible

if TYPE_CHECKING:
    from delayserver.recover.reading.capture import Capture
    from delayserver.recover.reading.findings import Finding, Findings

DAMAGES_SHOWN: Final = 16

Command = TypeVar("Command", bound=Callable[..., Any])

directory = click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
dry_run = click.option("--dry-run", is_flag=True, help="Only show what would change.")


def time_range(command: Command) -> Command:
    """Adds ``--from`` and ``--to``, due times as from_ms and to_ms."""
    start = click.option(
        "--from", "from_ms", type=INSTANT, metavar="TIME", help="Due at or after this time (ISO 8601)."
    )
    end = click.option("--to", "to_ms", type=INSTANT, metavar="TIME", help="Due before this time.")
    return start(end(command))


def check_range(from_ms: int | None, to_ms: int | None) -> None:
    """Raises `click.UsageError` for a range that is empty or ends before it starts."""
    if from_ms is not None and to_ms is not None and to_ms <= from_ms:
        raise click.UsageError("--to must lie behind --from")


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A function of (bytes done, total bytes) that moves a bar on a terminal, and does nothing elsewhere."""
    if sys.stderr is None or not sys.stderr.isatty():  # None: the parent process closed it
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=max(total, done))


@contextmanager
def advancing_bar(title: str) -> Iterator[Callable[[int], None]]:
    """As `progress_bar`, of a total that nobody knows: a function of how many bytes more are done."""
    done = 0
    with progress_bar(title) as progress:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(done, 0)

        yield advance


@contextmanager
def captured(directory: str, unread: Findings) -> Iterator[Capture]:
    """What the directory holds now, until the block ends. ``unread`` gets the damage. Raises `click.UsageError` for a
    directory of something else.
    """
    from delayserver.recover.reading.capture import capture
    from store.disk.filesystem import RealFileSystem

    with usage_of_directory(), closing(capture(RealFileSystem(), directory, unread)) as taken:
        yield taken


@contextmanager
def usage_of_directory() -> Iterator[None]:
    """Raises `click.UsageError` for a FormatError: a foreign directory is wrong usage, not a finding."""
    from store.errors import FormatError

    try:
        yield
    except FormatError as error:
        raise click.UsageError(str(error)) from error


def tell_unread(unread: Sequence[Finding]) -> None:
    """Prints damage that hides messages or outcomes. If there is any, raises `click.exceptions.Exit` with code 1."""
    for finding in unread[:DAMAGES_SHOWN]:
        click.echo(visible(f"{finding.kind}  {finding.file} at {finding.offset}: {finding.detail}"), err=True)
    if len(unread) > DAMAGES_SHOWN:
        rest = len(unread) - DAMAGES_SHOWN
        click.echo(f"{rest:,} more are not shown: `delayserver recover check` lists all", err=True)
    if unread:
        raise click.exceptions.Exit(FAILED)
