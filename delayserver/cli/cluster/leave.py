"""`delayserver cluster leave`: makes a single server of a member."""

from __future__ import annotations

import click

from delayserver.cli.recover.recover_options import usage_of_directory
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json


@click.command
@click.option("--data-dir", required=True, type=click.Path(exists=True, file_okay=False), metavar="DIR",
              help="The directory of the member.")  # fmt: skip
@options.as_json
def leave(data_dir: str, as_json: bool) -> None:
    """Make the directory of a member that of a single server, without Kafka. Then start it with serve, without --cluster.

    Stop all members of the shard for good first: their directories have the same server id. Take the member that was
    furthest. What the others decided behind it is not in the directory: such messages are delivered once more.
    """
    import trio

    from delayserver.crossing.leaving import leave as left
    from delayserver.runtime.runtime import Runtime
    from store.disk.filesystem import RealFileSystem
    from store.tables.identity import read_identity

    fs, root = RealFileSystem(), data_dir.rstrip("/") or "/"
    with usage_of_directory():
        server_id = read_identity(fs, root)
        following = trio.run(left, fs, root, Runtime.on())
    if as_json:
        print_json({"server_id": f"{server_id:012x}", "next_sequence": following})
        return
    click.echo(f"{data_dir} is the directory of a single server now. Start it with serve, without --cluster.")
    click.echo(
        f"It keeps the server id {server_id:012x}, so receipts stay valid. New messages get sequences from {following} on."
    )
    click.echo("Never start another member of the shard again.")
