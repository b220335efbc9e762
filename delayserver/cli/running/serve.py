"""`delayserver serve`: runs the server until SIGTERM or SIGINT."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from delayserver.cli.running import starting as running

if TYPE_CHECKING:
    from delayserver.config.settings import Settings


@click.command
@running.options
@click.option(
    "--memory",
    is_flag=True,
    help="Keep the data in memory, at most storage.memory_bytes_max. It ends with the process.",
)
@click.pass_context
def serve(context: click.Context, /, memory: bool, as_json: bool, **given: Any) -> None:
    """Run the server until SIGTERM or SIGINT. Prints one line once it accepts requests.

    It needs no configuration file: the defaults serve. The broker that consumers pull from runs inside. SIGHUP and
    `delayserver reload` have it read the configuration again and take over groups, nodes, weights and routes.
    """
    if memory and given["data_dir"] is not None:
        raise click.UsageError("--memory has no data directory: leave --data-dir out")
    reread = partial(_reread, memory, given)
    settings = running.settings_from(**given)
    settings, fs = running.disk_for(settings, memory=memory)
    running.begin_logs(settings)
    from delayserver.server.process import run_server

    with running.naming_what_failed(settings):
        code = run_server(
            settings,
            ready=running.announce("server", settings, as_json, fs),
            fs=fs,
            reread=reread,
            manager=running.service_manager(),
        )
    context.exit(code)


def _reread(memory: bool, given: dict[str, Any]) -> Settings:
    """The settings as they are now. Raises `ConfigError`."""
    return running.disk_for(running.settings_from(**given), memory=memory)[0]
