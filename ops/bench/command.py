"""The command `bench`: `delayserver bench` and `python -m ops.bench`."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json
from ops.bench.children import ChildFailed
from ops.bench.figures import Figure, Options, WrongResult
from ops.bench.machine import describe_machine, load_average
from ops.bench.report import markdown, table_header, table_line
from ops.bench.rows import BY_NAME, ROWS
from ops.bench.server_process import ServerFailed

COMPARE = "compare"
LOAD_QUIET = 0.5


@click.command(epilog="Rows: " + ", ".join(row.name for row in ROWS))
@click.argument("rows", nargs=-1, metavar="[ROW…|compare]", type=click.Choice([*BY_NAME, COMPARE]))
@click.option("--runs", type=options.Whole(1), default=3, show_default=True, help="Runs of each row.")
@click.option(
    "--seconds", type=options.Number(0, min_open=True), help="How long to send, where a row sends for a time."
)
@click.option("--messages", type=options.Whole(1), help="How many messages, where a row has a number of them.")
@click.option(
    "--data-dir", metavar="DIR", help="Where the data directories are made.  [default: the temporary directory]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row.")
@click.option("--markdown", "as_markdown", is_flag=True, help="The page that is committed as RESULTS.md.")
@click.option("--peers", help="compare: which, of redis,postgres,beanstalkd.  [default: all]")
@click.option("--harness", metavar="DIR", help="compare: the folder of the peers' harness.  [default: $PEERS_HARNESS]")
@click.option("--shapes", help="compare: which comparisons, by name.  [default: all]")
@click.option(
    "--bursts",
    type=options.Whole(1),
    help="compare: only sending, in so many short bursts in turns on servers that stay.",
)
@click.pass_context
def bench(
    context: click.Context,
    rows: tuple[str, ...],
    runs: int,
    seconds: float | None,
    messages: int | None,
    data_dir: str | None,
    as_json: bool,
    as_markdown: bool,
    peers: str | None,
    harness: str | None,
    shapes: str | None,
    bursts: int | None,
) -> None:
    """Measure a real server on this machine: all rows, or those named.

    Every run starts its own server on a fresh data directory and verifies what comes back; a wrong result ends the
    bench. Figures are medians of the runs. "compare" sets the figures against Redis, PostgreSQL and beanstalkd.
    """
    options = Options(runs, seconds, messages, data_dir)
    if load_average() > LOAD_QUIET:
        click.echo(f"note: the load average is {load_average():.2f}: the machine is doing other work", err=True)
    try:
        if COMPARE in rows:
            _compare(rows, options, peers, harness, shapes, as_json, bursts)
            return
        figures = _measure([BY_NAME[name] for name in rows] or list(ROWS), options, as_json, as_markdown)
    except (WrongResult, ChildFailed, ServerFailed) as error:
        raise click.ClickException(f"{type(error).__name__}: {error}") from error
    if as_markdown:
        click.echo(markdown(figures, describe_machine(), _command_line()))
    context.exit(0)


def _measure(rows: list[Any], options: Options, as_json: bool, as_markdown: bool) -> list[Figure]:
    figures = []
    if not as_json and not as_markdown:
        click.echo(table_header())
    for row in rows:
        figure = row.figure(options)
        figures.append(figure)
        if as_json:
            print_json(figure.to_record())
        else:
            click.echo(table_line(figure), err=as_markdown)
    return figures


def _compare(
    rows: tuple[str, ...],
    options: Options,
    peers: str | None,
    harness: str | None,
    shapes: str | None,
    as_json: bool,
    bursts: int | None,
) -> None:
    if len(rows) > 1:
        raise click.UsageError("compare stands alone; choose what is compared with --shapes and --peers")
    from ops.bench.compare import compare

    compare(options, peers, harness, shapes, as_json, bursts)


def _command_line() -> str:
    return shlex.join(["python", "-m", "ops.bench", *sys.argv[1:]])
