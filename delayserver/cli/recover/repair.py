"""`delayserver recover repair`: cuts torn ends and moves corrupt ranges aside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delayserver.cli.recover import recover_options as shared
from delayserver.cli.terminal import options
from delayserver.cli.terminal.failures import FAILED
from delayserver.cli.terminal.output import print_json

if TYPE_CHECKING:
    from delayserver.recover.mending.plan import Plan


@click.command
@shared.directory
@shared.dry_run
@options.yes
@options.as_json
def repair(directory: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Cut torn ends of the files in DIR, and move corrupt ranges aside into files of DIR/quarantine.

    Each quarantine file begins with a line of JSON that says what was in the range, as far as that is known. The
    server must be stopped. Run `rebuild` afterwards: it restores from message_log what was taken out. Files of another
    server or of a newer version are never touched. The exit code is 1 where something is left to do.
    """
    from delayserver.recover.mending.mender import carry_out, locked
    from delayserver.recover.mending.plan import Deed
    from delayserver.recover.mending.repair_plan import plan_repair
    from delayserver.recover.reading.capture import capture
    from delayserver.recover.reading.findings import Findings
    from store.disk.filesystem import RealFileSystem

    fs = RealFileSystem()
    with shared.usage_of_directory():
        taken = capture(fs, directory, Findings())
    try:
        if dry_run:
            _show(plan_repair(taken), as_json)
            return
        with locked(fs, taken.path):
            # Captured again under the lock, because a server may have changed the files before.
            taken.close()
            taken = capture(fs, directory, Findings())
            plan = plan_repair(taken)
            _show(plan, as_json)
            if plan.changed():
                options.confirm(f"Change {len(plan.changed())} files?", yes)
                carry_out(taken, plan, lambda text: click.echo(text, err=as_json))
            if plan.steps_of(Deed.LEAVE):
                raise click.exceptions.Exit(FAILED)
    finally:
        taken.close()


def _show(plan: Plan, as_json: bool) -> None:
    for step in plan.steps:
        print_json(step.to_map()) if as_json else click.echo(str(step))
    if not plan.steps and not as_json:
        click.echo("nothing to repair")
