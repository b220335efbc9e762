"""`delayserver broker`: runs only a broker, as a node of a broker group of other servers."""

from __future__ import annotations

import click

from delayserver.cli.running import starting as running


@click.command
@running.options
@click.pass_context
def broker(
    context: click.Context,
    data_dir: str | None,
    host: str | None,
    port: int | None,
    http_port: int | None,
    insecure: bool,
    config: str | None,
    assignments: tuple[str, ...],
    log_format: str | None,
    log_level: str | None,
    as_json: bool,
) -> None:
    """Run a broker node until SIGTERM or SIGINT. Prints one line once it accepts requests.

    Servers deliver to it when its HOST:PORT is a node of one of their groups; consumers pull from it.
    """
    # A file that several servers and brokers of a machine share must not give all of them the same port.
    http_port = http_port or 0
    settings = running.settings_from(
        data_dir, host, port, http_port, config, assignments, log_format, log_level, insecure
    )
    settings, fs = running.disk_for(settings, memory=False)
    running.begin_logs(settings)
    from delayserver.server.process import run_broker

    with running.naming_what_failed(settings):
        ready = running.announce("broker", settings, as_json, fs)
        code = run_broker(settings, ready=ready, manager=running.service_manager())
    context.exit(code)
