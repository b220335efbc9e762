"""`delayserver recover export`: writes accepted and dispatched messages as Parquet."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from delayserver.cli.recover import recover_options as shared
from delayserver.cli.terminal import options
from delayserver.cli.terminal.options import INSTANT
from delayserver.cli.terminal.output import print_json
from delayserver.config.units import parse_instant_ms


@click.command
@shared.directory
@click.option("--from", "from_ms", type=INSTANT, metavar="TIME", help="Due at or after this time (ISO 8601).")
@click.option(
    "--to",
    "targets",
    multiple=True,
    required=True,
    metavar="PATH|TIME",
    help="The folder to write to; also a last due time.",
)
@options.as_json
def export(directory: str, from_ms: int | None, targets: tuple[str, ...], as_json: bool) -> None:
    """Write accepted.parquet and dispatched.parquet of DIR into the folder PATH.

    --to is given once with the folder, and once more with a time (ISO 8601) to end the range before it:
    `export DIR --to out --from 2026-11-21T00:00Z --to 2026-11-22T00:00Z`. Works beside a running server. Damage and
    missing files that hide messages or outcomes are named, and so is what retention takes while it is read; then the exit
    code is 1. Needs pyarrow: pip install --use-pep517 '.[audit]' in the clone.
    """
    folder, to_ms = _split(targets)
    shared.check_range(from_ms, to_ms)
    if importlib.util.find_spec("pyarrow") is None:
        raise click.ClickException("export needs pyarrow: pip install --use-pep517 '.[audit]'")
    from delayserver.recover.checking.survey import hiding
    from delayserver.recover.reading.due_range import Range
    from delayserver.recover.reading.findings import Findings
    from delayserver.recover.telling.export import Export

    Path(folder).mkdir(parents=True, exist_ok=True)
    unread = Findings()
    with shared.captured(directory, unread) as taken, shared.advancing_bar("exporting") as advance:
        work = Export(taken, Range(from_ms or 0, to_ms or 1 << 62), folder)
        work.run(advance)
    for name, rows in work.rows.items():
        if as_json:
            print_json({"file": f"{folder}/{name}", "rows": rows})
        else:
            click.echo(f"{folder}/{name}: {rows:,} rows")
    shared.tell_unread([*hiding(unread), *work.unread])


def _split(targets: tuple[str, ...]) -> tuple[str, int | None]:
    """The path, and the time or None. Raises `click.UsageError` for more than one of either, or no path."""
    paths: list[str] = []
    times: list[int] = []
    for text in targets:
        try:
            times.append(parse_instant_ms(text))
        except ValueError:
            paths.append(text)
    if len(paths) != 1 or len(times) > 1:
        raise click.UsageError("--to names one folder, and at most one time (ISO 8601 with a zone)")
    return paths[0], times[0] if times else None
