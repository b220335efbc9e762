"""`delayserver recover rebuild`: makes schedule_log and the checkpoint anew from message_log and dispatch_log."""

from __future__ import annotations

import click

from delayserver.cli.recover import recover_options as shared
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json


@click.command
@shared.directory
@shared.dry_run
@options.yes
@options.as_json
def rebuild(directory: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Make schedule_log, the checkpoint and lost tables of DIR anew from message_log and dispatch_log.

    Messages that only schedule_log holds any more (their message_log is retired) stay. Files that lack nothing are not
    touched. The server must be stopped. Interrupted, it can be run again. Run `repair` first where `check` says corrupt.
    """
    from delayserver.recover.mending.mender import carry_out, locked
    from delayserver.recover.mending.plan import Deed
    from delayserver.recover.mending.rebuild_plan import plan_rebuild
    from delayserver.recover.reading.capture import capture, find_server_id
    from delayserver.recover.reading.findings import Findings
    from store.disk.filesystem import RealFileSystem

    fs, findings = RealFileSystem(), Findings()
    with shared.usage_of_directory():
        find_server_id(
            fs, directory.rstrip("/") or "/", Findings()
        )  # first, so that no lock file is left in a folder that is no data directory
    with shared.usage_of_directory(), locked(fs, directory.rstrip("/")):
        taken = capture(fs, directory, findings)
        try:
            plan = plan_rebuild(taken, findings)
            for refusal in plan.refusals:
                click.echo(f"{refusal.file} at {refusal.offset}: {refusal.detail}", err=True)
            if plan.refusals:
                raise click.ClickException(
                    "nothing was changed: settle these files first (repair them, or move them away)"
                )
            if as_json:
                counts = {"lost_messages": plan.lost_messages, "perhaps_retired": plan.perhaps_retired}
                files = len(plan.steps_of(Deed.RESTORE, Deed.FILL_UP))
                print_json({"changes": plan.texts(), "files": files, **counts})
            else:
                click.echo("\n".join(plan.texts()))
            if dry_run:
                return
            options.confirm("Write these files?", yes)
            carry_out(taken, plan, lambda text: click.echo(text, err=as_json))
        finally:
            taken.close()
