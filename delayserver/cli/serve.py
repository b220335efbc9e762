"""`delayserver serve`: runs the server until SIGTERM or SIGINT."""

from __future__ import annotations

import click

from delayserver.cli import running


@click.command
@running.options
@click.pass_context
def serve(
    context: click.Context,
    data_dir: str | None,
    host: str | None,
    port: int | None,
    config: str | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the server until SIGTERM or SIGINT. Prints one line once it accepts requests.

    It needs no configuration file: the defaults serve. The broker that consumers pull from runs inside.
    """
    settings = running.settings_from(data_dir, host, port, config, assignments)
    running.log_to_stderr()
    from delayserver.server.process import run_server

    with running.naming_what_failed(settings):
        code = run_server(settings, ready=running.announce("server", settings, as_json))
    context.exit(code)
