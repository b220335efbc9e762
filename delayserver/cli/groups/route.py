"""`delayserver route`: where the messages of a subject go."""

from __future__ import annotations

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible
from delayserver.config.units import format_instant


@click.command
@click.argument("subject")
@click.option("--order-key", metavar="KEY", help="Also say which node gets the messages of this order key.")
@options.server
@options.as_json
def route(subject: str, order_key: str | None, server: str, as_json: bool) -> None:
    """Show the broker group to which the messages of SUBJECT go, and its nodes.

    Consumers pull from these nodes; `delayserver consume` does so by itself.
    """
    with options.connect(server) as client:
        found = client.route(subject=subject, order_key=order_key)
    if as_json:
        from msgspec.structs import asdict

        print_json(asdict(found) | {"nodes": [asdict(node) for node in found.nodes]})
        return
    click.echo(f"group {visible(found.group)}")
    for node in found.nodes:
        since = f" since {format_instant(node.since_ms)}" if node.since_ms else ""
        here = "  this server" if node.here else ""
        click.echo(f"    {visible(node.address)}  weight {node.weight}  {visible(node.state)}{since}{here}")
    if found.key_node is not None:
        click.echo(f"the key's node is {visible(found.key_node)}")
