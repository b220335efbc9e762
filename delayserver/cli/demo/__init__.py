"""`delayserver demo`: shows and checks the whole path of some hundreds of messages."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json

if TYPE_CHECKING:
    from delayserver.cli.demo.demo_run import Measurements


@click.command
@click.option("--messages", type=options.Whole(1, 1_000_000), default=500, show_default=True, help="How many.")
@click.option(
    "--seconds", type=options.Number(0.1, 3600), default=5.0, show_default=True, help="Due times spread over so long."
)
@click.option("--json", "as_json", is_flag=True, help="Print only the summary, as one JSON object.")
@click.pass_context
def demo(context: click.Context, messages: int, seconds: float, as_json: bool) -> None:
    """Start a server in a temporary directory, schedule messages over the next seconds, and watch them arrive.

    Ends with 0 only if every message arrived, once, and none before it was due.
    """
    from delayserver.cli.demo.demo_run import Demo, running_server
    from delayserver.cli.demo.view import make_view, print_summary

    with (
        ending_on_signals() as end_if_told,
        tempfile.TemporaryDirectory(prefix="delayserver-demo-") as directory,
        running_server(directory) as server,
    ):
        if not as_json:
            click.echo(f"server    {server.address}, temporary data in {server.directory}")
        demonstration = Demo(server.address, messages, seconds)
        progress = demonstration.schedule()
        if not as_json:
            click.echo(f"scheduled {messages:,} messages in {demonstration.send_ms:.0f} ms, due over {seconds:g} s")
        with make_view(sys.stdout.isatty(), as_json) as show:
            for progress in demonstration.consume():
                end_if_told()
                show(progress)
    if as_json:
        print_json(progress.summary())
    else:
        print_summary(progress)
        _print_verdict(progress)
    context.exit(0 if progress.ok else 1)


@contextmanager
def ending_on_signals() -> Iterator[Callable[[], None]]:
    """Makes SIGHUP and SIGTERM end the process like Ctrl-C within the block, so that temporary files are removed.

    Yields a function to call regularly, which ends the block after any of the three. It is needed because Python loses an
    exception of a signal handler that runs within a weak-reference callback, as at the end of each import.
    """
    told: list[int] = []

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        told.append(number)
        raise_for(number)

    def end_if_told() -> None:
        if told:
            raise_for(told[0])

    def show(lost: sys.UnraisableHookArgs) -> None:
        """Python tells of an exception that it loses. That of the handler is raised again, so nobody need know."""
        if not told or not issubclass(lost.exc_type, (SystemExit, KeyboardInterrupt)):
            shown(lost)

    def raise_for(number: int) -> NoReturn:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    shown, sys.unraisablehook = sys.unraisablehook, show
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, end)
        yield end_if_told
    finally:
        sys.unraisablehook = shown
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_verdict(progress: Measurements) -> None:
    if progress.ok:
        click.echo("every message arrived once, none before it was due")
    else:
        click.echo(
            f"demo failed: {progress.missing} missing, {progress.early} early, {progress.duplicates} delivered twice",
            err=True,
        )
