"""`delayserver report`: reports latency and completeness from the logs, with Spark.

It checks the arguments before it starts Spark, and finds Java before it imports Spark.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json
from delayserver.config.units import parse_duration_ms
from ops.audit.request import HTML, JSON, PARQUET, Request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])
DIMENSIONS = ("subject", "broker_group", "minute", "hour", "server_id")
# The default objective of the SLO, in per cent of deliveries within the target.
OBJECTIVE = 99.9


def report_options(command: Command) -> Command:
    """Adds the options of both reports."""
    for option in reversed(
        (
            click.argument("directories", metavar="[DIR...]", nargs=-1, type=click.Path()),
            click.option("--cluster", type=click.Path(), metavar="FILE", help="Read the topic of this cluster instead."),
            click.option("--from", "from_ms", type=options.INSTANT, metavar="TIME", help="Due at or after this time."),
            click.option("--to", "to_ms", type=options.INSTANT, metavar="TIME", help="Due before this time."),
            click.option("--subject", "subjects", multiple=True, metavar="NAME", help="Only this; may be repeated."),
            click.option(
                "--by", default="subject", show_default=True, metavar="LIST", help=f"Any of {', '.join(DIMENSIONS)}."
            ),
            click.option(
                "--slo", default="100ms", show_default=True, metavar="DURATION", help="How late a delivery may be."
            ),
            click.option(
                "--objective", type=options.Number(0, 100, max_open=True), default=OBJECTIVE, show_default=True,
                metavar="PERCENT", help="How many of them must be within the SLO.",
            ),
            click.option(
                "--broker-log", is_flag=True, help="Join the brokers' stores too; name the directories of all nodes."
            ),
            click.option("--master", metavar="URL", help="Where Spark runs.  [default: local[*], or spark-submit's]"),
            click.option("--out", metavar="FILE", help="Write .html, .json or .parquet instead of a summary."),
            options.as_json,
        )
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(epilog="Exit codes: 0 done and nothing wrong, 1 findings or failure, 2 wrong usage.")
def report() -> None:
    """Report latency and completeness from the logs of one or more data directories, with Spark.

    Reads only; works beside running servers. With --cluster it reads the topic of a cluster.
    An .html file holds both reports.
    """


@report.command(short_help="How late deliveries were, for whom, when, and in which stage.")
@report_options
@click.pass_context
def latency(context: click.Context, /, **given: Any) -> None:
    """How late deliveries were, for whom, when, and through which stage. Early ones are counted: there must be none."""
    context.exit(_run(_request(given), "latency"))


@report.command(short_help="What became of every message, and which ones are wrong.")
@report_options
@click.pass_context
def completeness(context: click.Context, /, **given: Any) -> None:
    """accepted = delivered + cancelled + dead-lettered + expired + deduplicated + rolled back + pending, and what
    breaks it.

    Lists lost, duplicated (of two outcomes, or delivered beside a cancel), early and orphaned messages with the receipts
    to hand to `delayserver recover trace`.
    """
    context.exit(_run(_request(given), "completeness"))


def _request(given: dict[str, Any]) -> Request:
    """Checks the options without Spark. Raises `click.UsageError`, `click.ClickException`."""
    by = tuple([name.strip() for name in given["by"].split(",") if name.strip()])
    unknown = [name for name in by if name not in DIMENSIONS]
    if unknown:
        raise click.UsageError(f"--by {', '.join(unknown)}: it takes {', '.join(DIMENSIONS)}")
    try:
        slo_ms = parse_duration_ms(given["slo"])
    except ValueError as error:
        raise click.UsageError(f"--slo: {error}") from None
    checked = {"by": by, "slo_ms": slo_ms, "objective": round(given["objective"] / 100, 9)}
    request = Request(**{name: value for name, value in given.items() if name != "slo"} | checked)
    if bool(request.directories) == bool(request.cluster):
        raise click.UsageError("name data directories, or the file of a cluster with --cluster")
    if request.cluster and request.broker_log:
        raise click.UsageError(
            "--broker-log reads directories: name those of the nodes, and of one member for each shard"
        )
    if request.from_ms is not None and request.to_ms is not None and request.from_ms >= request.to_ms:
        raise click.UsageError("--from must lie before --to")
    if request.out:
        _check_writable(request.out, request.format)
    return request


def _check_writable(out: str, suffix: str) -> None:
    """Checks `--out` before minutes of work. Raises `click.UsageError`, `click.ClickException`."""
    if suffix not in (JSON, HTML, PARQUET):
        raise click.UsageError(f"--out {out}: the name must end in .html, .json or .parquet")
    path = Path(out)
    if not path.parent.is_dir():
        raise click.ClickException(f"--out {out}: there is no directory {path.parent}; make it first")
    if path.is_dir() and suffix != PARQUET:
        raise click.ClickException(f"--out {out} is a directory; name a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise click.ClickException(f"--out {out}: no permission to write there")


def _check_packages() -> None:
    """Raises `click.ClickException` if a package of the extra is missing."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(f"{', '.join(missing)} not installed: pip install --use-pep517 '.[audit]'")


def _run(request: Request, name: str) -> int:
    """Makes the report and prints it; starts Spark if the report needs it. Returns the exit code."""
    from ops.audit.session import check_java, is_named, quiet, start_session

    # A report over small logs is made in this process, unless the caller says where Spark runs.
    small = not is_named(request.master)
    if not small:
        check_java()
    _check_packages()
    from ops.audit.audit import SMALL_BYTES, Audit
    from ops.audit.failures import one_line
    from ops.audit.progress import Progress
    from ops.audit.run import run_completeness, run_latency
    from store.disk.filesystem import RealFileSystem

    work = run_latency if name == "latency" else run_completeness
    progress = Progress(terminal=sys.stderr.isatty())

    @cache
    def session() -> SparkSession:
        progress.say("starting Spark")
        with quiet():
            spark = start_session(request.master, formats=False)
        progress.watch(spark)
        return spark

    small_bytes = SMALL_BYTES if small else 0
    audit = Audit(session, RealFileSystem(), request.directories, progress.say, small_bytes, request.cluster)
    with one_line(), progress.shown():
        done = work(audit, request)
    if request.out:
        click.echo(f"wrote {request.out}", err=True)
    elif request.as_json:
        print_json(done.figures)
    else:
        for line in done.lines:
            click.echo(line)
    return 0 if done.clean else 1
