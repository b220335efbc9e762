"""`delayserver recover check`: verifies every file and reconciles every message."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import click

from delayserver.cli.recover import recover_options as shared
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible

if TYPE_CHECKING:
    from delayserver.config.cluster_file import ClusterFile
    from delayserver.members.founding import Engines
    from delayserver.recover.checking.against_log import LogCompared
    from delayserver.recover.checking.check import Checked
    from delayserver.recover.checking.retired_ahead import RetiredAhead
    from delayserver.recover.reading.capture import Capture
    from delayserver.recover.reading.findings import Findings
    from delayserver.recover.reading.subject_balances import SubjectBalances

# Rows of the printed table; --json prints all of them.
SUBJECTS_SHOWN = 20
FINDINGS_SHOWN = 50
# The width of the table if the output is not a terminal; wide enough for all columns.
PIPE_COLUMNS = 160


@click.command
@shared.directory
@shared.time_range
@click.option(
    "--against-log",
    "cluster_path",
    type=click.Path(),
    metavar="FILE",
    help="Compare a member's directory with the log of its shard too. FILE describes the cluster.",
)
@options.as_json
@click.pass_context
def check(
    context: click.Context,
    directory: str,
    from_ms: int | None,
    to_ms: int | None,
    cluster_path: str | None,
    as_json: bool,
) -> None:
    """Read every file of DIR, verify every checksum and the whole structure, and account for every message.

    accepted = delivered + cancelled + dead-lettered + expired + deduplicated + rolled back + pending, for each subject
    and window. A torn end is how a crash looks, and no fault; everything else that does not fit is one. Works beside a
    running server, of which it sees the moment at which it began. Exit code 0: clean, 1: findings.

    --against-log reads the shared log up to where this member was, record by record. Each difference is a finding, up to 20.

    --json prints the counts of every window and subject, and last a line with `clean`, all counts and `findings`.
    """
    shared.check_range(from_ms, to_ms)
    from delayserver.recover.checking.check import check_directory
    from delayserver.recover.checking.retired_ahead import retired_ahead
    from delayserver.runtime.clock import SystemClock
    from store.disk.filesystem import RealFileSystem

    def publish(taken: Capture, tier: str, start_ms: int, balance: SubjectBalances) -> None:
        if as_json:
            _print_balance(taken, tier, start_ms, balance)

    began = time.monotonic()
    with shared.usage_of_directory(), shared.progress_bar("checking") as progress:
        taken, checked = check_directory(
            RealFileSystem(), directory, from_ms=from_ms, to_ms=to_ms, publish=publish, progress=progress
        )
    seconds = time.monotonic() - began
    try:
        compared = None if cluster_path is None else _against_log(taken, checked.findings, cluster_path)
        ahead = retired_ahead(taken, SystemClock().now_ms())
        if as_json:
            print_json(_summary(checked, ahead, seconds, compared))
        else:
            _print_text(taken, checked, ahead, seconds)
            if compared is not None:
                click.echo(_of_log(compared))
    finally:
        taken.close()
    context.exit(0 if checked.findings.clean else 1)


def _print_balance(taken: Capture, tier: str, start_ms: int, balance: SubjectBalances) -> None:
    from delayserver.recover.reading.subject_balances import to_map

    subjects, counts = balance.rows()
    for subject, row in zip(subjects.tolist(), counts, strict=True):
        record: dict[str, Any] = {"tier": tier, "start_ms": start_ms, "subject": taken.tables.subject_name(subject)}
        if tier == "retired" and not start_ms:
            del record["start_ms"]
        print_json(record | to_map(row))


def _against_log(taken: Capture, findings: Findings, path: str) -> LogCompared:
    """What of the shared log is in the directory. Raises `click.UsageError` for a directory of no member."""
    from delayserver.cli.kafka.on_kafka import on_kafka
    from delayserver.recover.checking.against_log import AgainstLog

    place = taken.followed()
    if place is None:
        raise click.UsageError("the directory is not that of a member: nothing in it came from a shared log")

    async def work(_file: ClusterFile, engines: Engines) -> LogCompared:
        map_ = await engines.read_map()
        shards = map_.shards
        server_id = f"{taken.server_id:012x}"
        if server_id not in shards:
            raise click.UsageError(f"the cluster of {path} has no shard {server_id}, of which this directory is")
        shard = shards.index(server_id)
        healed = map_.healed.get(shard)
        log = AgainstLog(taken, map_.identity(shard), findings, -1 if healed is None else healed.until)
        return await log.run(engines.shards.open(shard), place.position)

    return on_kafka(path, work)


def _of_log(compared: LogCompared) -> str:
    if compared.start == compared.stop:
        return "the shared log has nothing of what this directory holds any more"
    text = (
        f"the shared log, positions {compared.start:,} to {compared.stop:,}: {compared.records:,} records are the same"
    )
    return text + f"; it goes on to {compared.end:,}" * (compared.end > compared.stop)


def _summary(checked: Checked, ahead: RetiredAhead, seconds: float, compared: LogCompared | None) -> dict[str, Any]:
    from delayserver.recover.reading.subject_balances import to_map

    findings = checked.findings
    record: dict[str, Any] = {"clean": findings.clean}
    record |= to_map(checked.balance.totals()) | findings.counts
    record |= {"files": checked.files, "bytes": checked.bytes_read, "seconds": round(seconds, 3)}
    if ahead.count:
        record |= {"retired_ahead": ahead.count, "retired_ahead_ms": ahead.starts_ms}
    if compared is not None:
        record["log"] = dataclasses.asdict(compared)
    if findings.left_out:
        record["findings_left_out"] = findings.left_out
    return record | {"findings": [finding.to_map() for finding in findings]}


def _print_text(taken: Capture, checked: Checked, ahead: RetiredAhead, seconds: float) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from delayserver.config.units import format_utc
    from delayserver.recover.reading.subject_balances import COUNTERS

    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS)
    subjects, counts = checked.balance.rows()
    table = Table("subject", *[name.replace("_", "-") for name in COUNTERS], box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    order = (-counts[:, 0]).argsort(kind="stable")
    for place in order[:SUBJECTS_SHOWN].tolist():
        # A subject may contain markup of rich.
        name = escape(visible(taken.tables.subject_name(int(subjects[place]))))
        table.add_row(name, *[f"{count:,}" for count in counts[place].tolist()])
    if len(order) > SUBJECTS_SHOWN:
        rest = counts[order[SUBJECTS_SHOWN:]].sum(axis=0)
        table.add_row(f"{len(order) - SUBJECTS_SHOWN} others", *[f"{count:,}" for count in rest.tolist()])
    table.add_row("all", *[f"{count:,}" for count in checked.balance.totals().tolist()], style="bold")
    console.print(table)
    findings = checked.findings
    for finding in findings.listed[:FINDINGS_SHOWN]:
        click.echo(visible(f"{finding.kind}  {finding.file} at {finding.offset}: {finding.detail}"))
    if len(findings) > FINDINGS_SHOWN:
        click.echo(f"{len(findings) - FINDINGS_SHOWN} findings more: --json lists them")
    if ahead.count:
        click.echo(
            f"retired windows of the future: {ahead.count:,}, from {format_utc(ahead.starts_ms[0])} to "
            f"{format_utc(ahead.last_ms)}; a clock that was ahead had them delivered, and sends due in them are refused "
            "(--json names them)"
        )
    megabytes = checked.bytes_read / 1e6
    speed = f"{megabytes:,.1f} MB in {seconds:.2f} s ({megabytes / max(seconds, 1e-9):,.0f} MB/s)"
    counted = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in findings.counts.items() if count)
    if findings.clean:
        click.echo(f"clean: every message is accounted for; {speed}" + (f"; {counted} (normal)" if counted else ""))
    else:
        click.echo(f"NOT clean: {counted}; {speed}")
