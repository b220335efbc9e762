"""`delayserver recover repair`: cut torn ends, move corrupt ranges aside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delayserver.cli import options
from delayserver.cli import recover_options as shared
from delayserver.cli.failures import FAILED
from delayserver.cli.output import print_json

if TYPE_CHECKING:
    from delayserver.recover.repair_plan import Step


@click.command
@shared.directory
@shared.dry_run
@shared.yes
@options.as_json
def repair(directory: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Cut torn ends of the files in DIR, and move corrupt ranges aside into files of DIR/quarantine.

    Each quarantine file begins with a line of JSON that says what was in the range, as far as that can be told. The
    server must be stopped. Run `rebuild` afterwards: it restores from message_log what was taken out. Files of another
    server or of a newer version are never touched. The exit code is 1 where something is left to do.
    """
    from delayserver.recover.capture import capture
    from delayserver.recover.findings import Findings
    from delayserver.recover.repair_plan import Deed, plan_repair
    from delayserver.recover.repairing import carry_out, locked
    from store.filesystem import RealFileSystem

    fs = RealFileSystem()
    with shared.usage_of_directory():
        taken = capture(fs, directory, Findings())
    try:
        if dry_run:
            _show(plan_repair(taken), as_json)
            return
        with locked(fs, taken.path):
            # Once more: a server may have worked on it until just now.
            taken.close()
            taken = capture(fs, directory, Findings())
            steps = plan_repair(taken)
            _show(steps, as_json)
            changed = {step.path for step in steps if step.changes}
            if changed:
                shared.confirm(f"Change {len(changed)} files?", yes)
                carry_out(taken, steps, lambda text: click.echo(text, err=as_json))
            if any(step.deed == Deed.LEAVE for step in steps):
                raise click.exceptions.Exit(FAILED)
    finally:
        taken.close()


def _show(steps: list[Step], as_json: bool) -> None:
    for step in steps:
        print_json(step.to_map()) if as_json else click.echo(str(step))
    if not steps and not as_json:
        click.echo("nothing to repair")
