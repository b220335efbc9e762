"""`delayserver recover dump`: prints any file of a data directory as JSON lines."""

from __future__ import annotations

import click

from delayserver.cli.terminal.output import print_json


@click.command
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@click.option("--records", is_flag=True, help="One line a record, without its rows.")
@click.option("--json", is_flag=True, expose_value=False, help="As everywhere; JSON lines are what it prints anyway.")
def dump(file: str, records: bool) -> None:
    """Print FILE, any file of a data directory, as JSON lines: its header, each record, each row.

    What does not verify stands between them, as `corrupt` or `torn` with its offset. Works beside a running server.
    """
    from delayserver.cli.terminal.failures import FAILED
    from delayserver.recover.telling.dump import dump_file
    from store.disk.filesystem import RealFileSystem
    from store.errors import FormatError

    bad = False
    try:
        for row in dump_file(RealFileSystem(), file, rows=not records):
            bad |= "corrupt" in row or "newer" in row
            print_json(row)
    except FormatError as error:
        raise click.UsageError(str(error)) from error
    if bad:
        click.get_current_context().exit(FAILED)
