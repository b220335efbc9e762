"""`delayserver subjects`: the subjects that a node has met."""

from __future__ import annotations

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible


@click.command
@click.argument("pattern", required=False)
@options.server
@options.shard
@options.as_json
@click.pass_context
def subjects(context: click.Context, pattern: str | None, server: str, as_json: bool) -> None:
    """List the subjects that a node has met, or those that match a shell-style PATTERN, such as 'orders*'.

    The exit code is 1 if there is none.
    """
    with options.connect(server) as client:
        found = client.subjects(pattern)
    for subject in found:
        if as_json:
            print_json({"subject": subject})
        else:
            click.echo(visible(subject))
    context.exit(0 if found else 1)
