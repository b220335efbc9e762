"""Rows of the bench for the audit: `python -m ops.audit.bench [ROW…]`, like `ops.bench`.

Measures with `local[2]`, without the start of the session. The reports read directories that are written through the
store's own logs. The write path sends to a real server. Every run is verified, and a wrong count fails the row.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json
from ops.audit.audit import Audit
from ops.audit.bench_data import BenchDirectory, write_directory
from ops.audit.completeness import CompletenessQuestion
from ops.audit.latency import LatencyQuestion
from ops.audit.log_frames import Range
from ops.audit.session import start_session
from ops.bench.figures import Options, Run, WrongResult, expect, rounded
from ops.bench.machine import describe_machine, load_average
from ops.bench.report import markdown, table_header, table_line
from ops.bench.rows import Row
from ops.bench.server_process import ServerProcess, fresh_directory
from store.disk.filesystem import RealFileSystem

MASTER: Final = "local[2]"
MEMORY_MB_MAX: Final = 4096
WRITTEN: Final = 3_000_000
BODY: Final = 100
_SAMPLE_S: Final = 0.5
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def measure_latency(messages: int) -> Callable[[Options], Run]:
    """A measurement of the seconds of `report latency` over that many dispatch records."""

    def use(audit: Audit, written: BenchDirectory) -> None:
        found = audit.latency(LatencyQuestion(Range()), lambda report: report.to_map())
        expect(sum(found["outcomes"].values()) == written.messages, f"{found['outcomes']} of {written.messages}")
        expect(found["early"] == 0 and len(found["by"]) == len(written.subjects), "early or missing subjects")

    return lambda options: _measure(options, options.messages or messages, use, bodies=False)


def measure_completeness(messages: int) -> Callable[[Options], Run]:
    """A measurement of the seconds of `report completeness` over that many messages, in all three logs."""

    def use(audit: Audit, written: BenchDirectory) -> None:
        question = CompletenessQuestion(Range(), time.time_ns() // 1_000_000)
        found = audit.completeness(question, broker_log=False, use=lambda report: report.to_map())
        ends = found["delivered"] + found["cancelled"]
        expect(found["accepted"] == ends == written.messages, f"{found['accepted']} accepted, {ends} ended")
        expect(found["lost"] + found["duplicated"] + found["orphaned"] + found["early"] == 0, "findings where none are")

    return lambda options: _measure(options, options.messages or messages, use, bodies=True)


def _measure(options: Options, messages: int, use: Callable[[Audit, BenchDirectory], None], *, bodies: bool) -> Run:
    with fresh_directory(options.data_dir) as folder:
        written = write_directory(RealFileSystem(), f"{folder}/data", messages, bodies=bodies)
        audit = Audit(_session, RealFileSystem(), (written.path,), lambda _line: None)
        with watched_memory() as memory:
            begin = time.perf_counter()
            use(audit, written)
            seconds = time.perf_counter() - begin
    expect(memory.mb_max <= MEMORY_MB_MAX, f"{memory.mb_max:.0f} MB, more than {MEMORY_MB_MAX}")
    return Run(seconds, {"messages": messages, "rss_mb_max": rounded(memory.mb_max), "load_average": load_average()})


def measure_write(options: Options) -> Run:
    """Messages per second of `df.write.format("delayserver")` to one server, with derived ids, until the last ack."""
    messages = options.messages or WRITTEN
    spark = _session()
    due_ms = time.time_ns() // 1_000_000 + 86_400_000
    rows = spark.range(messages, numPartitions=8).selectExpr(
        "concat('campaign.', id % 10) as subject",
        f"cast(rpad(cast(id as string), {BODY}, '.') as binary) as body",
        f"{due_ms} + id % 3600000 as due_ms",
    )
    with fresh_directory(options.data_dir) as folder, ServerProcess(folder) as server:
        begin = time.perf_counter()
        rows.write.format("delayserver").option("servers", server.address).mode("append").save()
        seconds = time.perf_counter() - begin
        status = server.status()
        expect(status["accepted"] == messages, f"{status['accepted']} accepted of {messages}")
    return Run(messages / seconds, {"messages": messages, "body_bytes": BODY, "load_average": load_average()})


def _session() -> Any:
    """A session that has loaded Spark's classes, which the first query does. Made before the time is measured."""
    spark = start_session(MASTER)
    spark.range(1).count()
    return spark


@dataclass(slots=True)
class Memory:
    """The maximum memory of this process and its descendants together."""

    mb_max: float = 0.0

    def sample(self) -> None:
        """Takes one more sample."""
        self.mb_max = max(self.mb_max, tree_mb(os.getpid()))


@contextlib.contextmanager
def watched_memory() -> Iterator[Memory]:
    """Samples the resident memory of the process tree: Python, the JVM, and its Python workers."""
    memory, done = Memory(), threading.Event()

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            memory.sample()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        done.set()
        thread.join()


def tree_mb(pid: int) -> float:
    """Resident memory in MB of a process and its descendants. Shared pages count in each, so it is an overestimate."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(name))
    total, waiting = 0.0, [pid]
    while waiting:
        one = waiting.pop()
        waiting += parents.get(one, [])
        with contextlib.suppress(OSError, IndexError):
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * _PAGE / 1e6
    return total


ROWS: Final = (
    Row("audit-latency-1m", "latency report, 1 M dispatch records", "s", 40, measure_latency(1_000_000), True),
    Row("audit-latency-10m", "latency report, 10 M dispatch records", "s", 40, measure_latency(10_000_000), True),
    Row("audit-latency-30m", "latency report, 30 M dispatch records", "s", 120, measure_latency(30_000_000), True),
    Row("audit-completeness-1m", "completeness, 1 M messages", "s", 120, measure_completeness(1_000_000), True),
    Row("audit-completeness-10m", "completeness, 10 M messages", "s", 120, measure_completeness(10_000_000), True),
    Row("audit-completeness-30m", "completeness, 30 M messages", "s", 360, measure_completeness(30_000_000), True),
    Row("audit-write", "Spark into one server", "msg/s", 150_000, measure_write),
)
BY_NAME: Final = {row.name: row for row in ROWS}


@click.command
@click.argument("rows", nargs=-1, metavar="[ROW…]", type=click.Choice(list(BY_NAME)))
@click.option("--runs", type=options.Whole(1), default=3, show_default=True, help="Runs of each row.")
@click.option("--messages", type=options.Whole(1), help="How many messages, in place of the row's own number.")
@click.option("--data-dir", metavar="DIR", help="Where the data is made.  [default: the temporary directory]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row.")
@click.option("--markdown", "as_markdown", is_flag=True, help="A page as RESULTS.md has it.")
def bench(
    rows: tuple[str, ...], runs: int, messages: int | None, data_dir: str | None, as_json: bool, as_markdown: bool
) -> None:
    """Measure the audit on this machine: all rows, or those named. Figures are medians of the runs."""
    options = Options(runs, None, messages, data_dir)
    figures = []
    if not as_json and not as_markdown:
        click.echo(table_header())
    for row in [BY_NAME[name] for name in rows] or list(ROWS):
        try:
            figures.append(row.figure(options))
        except WrongResult as error:
            raise click.ClickException(f"{row.name}: {error}") from error
        if as_json:
            print_json(figures[-1].to_record())
        elif not as_markdown:
            click.echo(table_line(figures[-1]))
    if as_markdown:
        click.echo(markdown(figures, describe_machine(), "python -m ops.audit.bench --markdown"))


if __name__ == "__main__":
    bench(prog_name="python -m ops.audit.bench")
