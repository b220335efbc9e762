"""`delayserver serve`: runs the server until SIGTERM or SIGINT."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from delayserver.cli.running import starting as running
from delayserver.cli.terminal import options

if TYPE_CHECKING:
    from delayserver.config.settings import Settings


@click.command
@running.options
@click.option(
    "--memory",
    is_flag=True,
    help="Keep the data in memory, at most storage.memory_bytes_max. It ends with the process.",
)
@click.option(
    "--cluster",
    "cluster_path",
    type=click.Path(),
    metavar="FILE",
    help="Be a member of the cluster that this TOML file describes.",
)
@click.option(
    "--shard",
    type=options.Whole(0),
    metavar="NUMBER",
    help="The shard of which it is a member, counted from 0. Default: that of the file of the cluster.",
)
@click.pass_context
def serve(
    context: click.Context,
    /,
    memory: bool,
    cluster_path: str | None,
    shard: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run the server until SIGTERM or SIGINT. Prints one line once it accepts requests.

    It needs no configuration file: the defaults serve. The broker that consumers pull from runs inside. SIGHUP and
    `delayserver reload` have it read the configuration again and take over groups, nodes, weights and routes.
    """
    if memory and given["data_dir"] is not None:
        raise click.UsageError("--memory has no data directory: leave --data-dir out")
    if memory and cluster_path is not None:
        raise click.UsageError("a member of a cluster needs a data directory: leave --memory out")
    if shard is not None and cluster_path is None:
        raise click.UsageError("--shard is for a member of a cluster: give --cluster too")
    cluster = running.cluster_from(cluster_path, shard)
    reread = partial(_reread, memory, given)
    settings = running.settings_from(**given)
    settings, fs = running.disk_for(settings, memory=memory)
    running.begin_logs(settings)
    from delayserver.server.process import run_server

    announced = running.Announcement("server", settings, as_json, fs, "" if cluster is None else cluster.member)
    with running.naming_what_failed(settings), nullcontext() if cluster is None else running.staying_down():
        code = run_server(
            settings,
            ready=announced.ready,
            fs=fs,
            reread=reread,
            manager=running.service_manager(),
            cluster=cluster,
            following=announced.following,
        )
    context.exit(code)


def _reread(memory: bool, given: dict[str, Any]) -> Settings:
    """The settings as they are now. Raises `ConfigError`."""
    return running.disk_for(running.settings_from(**given), memory=memory)[0]
