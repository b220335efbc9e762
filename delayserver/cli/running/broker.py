"""`delayserver broker`: runs only a broker, as a node of a broker group of other servers."""

from __future__ import annotations

from typing import Any

import click

from delayserver.cli.running import starting as running


@click.command
@running.options
@click.pass_context
def broker(context: click.Context, /, as_json: bool, **given: Any) -> None:
    """Run a broker node until SIGTERM or SIGINT. Prints one line once it accepts requests.

    Servers deliver to it when its HOST:PORT is a node of one of their groups; consumers pull from it.
    """
    # A file that several servers and brokers of a machine share must not give all of them the same port.
    given["http_port"] = given["http_port"] or 0
    settings = running.settings_from(**given)
    settings, fs = running.disk_for(settings, memory=False)
    running.begin_logs(settings)
    from delayserver.server.process import run_broker

    with running.naming_what_failed(settings):
        ready = running.Announcement("broker", settings, as_json, fs).ready
        code = run_broker(settings, ready=ready, manager=running.service_manager())
    context.exit(code)
