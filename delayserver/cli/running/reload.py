"""`delayserver reload`: has a running server take over other broker groups, nodes, weights and routes."""

from __future__ import annotations

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json


@click.command
@options.server
@options.as_json
def reload(server: str, as_json: bool) -> None:
    """Have the server read its configuration file again, and take over what has changed in [[groups]] and [[routes]].

    The file is checked first. If it is wrong, or if another setting differs, nothing is changed. The command returns when
    nodes and groups that leave have settled what they had. SIGHUP to the server does the same.
    """
    with options.connect(server) as client:
        changes = client.reload()
    if as_json:
        print_json({"changes": changes})
        return
    for change in changes:
        click.echo(change)
    if not changes:
        click.echo("Nothing has changed.")
