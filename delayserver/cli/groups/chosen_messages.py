"""What commands about dead letters and about waiting keys share: the options that choose messages, and the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click
from msgspec.structs import asdict

from delayserver.cli.terminal import options
from delayserver.cli.terminal.failures import FAILED
from delayserver.cli.terminal.output import print_json

if TYPE_CHECKING:
    from delayserver.client import DropResult, ResendResult, RetryKeysResult, SkipResult

    Done: TypeAlias = DropResult | ResendResult | RetryKeysResult | SkipResult

Command = TypeVar("Command", bound=Callable[..., Any])

_subject = click.argument("subject")
_group = click.option("--group", required=True, metavar="NAME", help="The consumer group.")
_page_max = click.option(
    "--max", "maximum", type=options.Whole(min=1), default=1000, show_default=True, help="At most so many."
)
_after = click.option("--after", type=options.Whole(min=0), metavar="POSITION", help="Those behind this one.")
max_option = click.option("--max", "maximum", type=options.Whole(min=1), help="At most so many.  [default: all]")
positions = click.option(
    "--position", "positions", multiple=True, type=options.Whole(min=0), metavar="N", help="These; may be repeated."
)


def of_group(command: Command) -> Command:
    """The subject and the group."""
    return _subject(_group(command))


def page(command: Command) -> Command:
    """Which rows to list."""
    return _page_max(_after(command))


def answer(context: click.Context, done: Done, given: Sequence[int], as_json: bool) -> None:
    """Prints what was done. The exit code is 1 if it was done to fewer messages than positions are `given`, or if some
    cannot be read."""
    counts = asdict(done)
    word, count = next(iter(counts.items()))
    unreadable = counts.get("unreadable", 0)
    if as_json:
        print_json(counts)
    else:
        click.echo(f"{word}  {count:,}")
        click.echo(f"{'left':<{len(word)}}  {done.left:,}")
    if unreadable and not as_json:
        click.echo(f"{unreadable:,} cannot be read; `delayserver recover check` names the file", err=True)
    context.exit(FAILED if unreadable or count < len(set(given)) else 0)
