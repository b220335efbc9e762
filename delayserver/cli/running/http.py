"""`delayserver http`: runs the HTTP gateway of a server alone, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from delayserver.cli.running import starting as running
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json

if TYPE_CHECKING:
    from delayserver.config.settings import Settings


@click.command
@options.server
@click.option("--insecure", is_flag=True, help="Listen beyond loopback for a server without tokens.")
@click.option(
    "--host", "hosts", multiple=True, metavar="ADDRESS", help="Where to listen; may be repeated.  [default: 127.0.0.1]"
)
@click.option("--port", type=int, metavar="N", help="Where to listen; 0 takes a free port.  [default: 20880]")
@click.option(
    "--config", type=click.Path(), metavar="FILE", help="A TOML file; its tables [http] and [log] count here."
)
@options.assignments
@running.log_options
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as a JSON object.")
def http(
    server: str,
    insecure: bool,
    hosts: tuple[str, ...],
    port: int | None,
    config: str | None,
    assignments: tuple[str, ...],
    log_format: str | None,
    log_level: str | None,
    as_json: bool,
) -> None:
    """Run the HTTP API and the console as a process of its own, for a server that may run elsewhere.

    `delayserver serve` runs one beside itself. This command is for more of them, or for another machine.
    """
    named = running.hosts_flag("http", hosts)
    # The port of the server is not this process's, and may be any.
    everything = running.settings_from(None, (), 0, port, config, assignments, log_format, log_level, more=named)
    running.begin_logs(everything)
    arguments = options.client_arguments()
    with ExitStack() as opened:
        listening = running.listen_for_http(everything.http.all_hosts, everything.http.port)
        for each in listening:
            opened.callback(each.close)
            host = str(each.getsockname()[0]).partition("%")[0]
            if not insecure and not ipaddress.ip_address(host).is_loopback:
                _require_tokens(server, host, arguments)
        asyncio.run(_serve(server, arguments, listening, everything, as_json))


def _require_tokens(server: str, host: str, arguments: dict[str, Any]) -> None:
    """Raises `click.ClickException` if the server serves every client: with a gateway that other machines reach, they
    could do everything."""
    from delayserver.client import Client

    with Client(server, **arguments) as client:
        if not client.hello().needs_token:
            raise click.ClickException(
                f"{host} can be reached from other machines, and the server at {server} has no tokens, so any client may do "
                "everything. Make one with `delayserver token create`, or allow it with --insecure"
            )


async def _serve(
    server: str, arguments: dict[str, Any], listening: list[socket.socket], settings: Settings, as_json: bool
) -> None:
    from delayserver.web.gateway_process import Upstream, serve_http
    from delayserver.web.secured import Secured

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    async def until_signal() -> None:
        host, port = listening[0].getsockname()[:2]
        if as_json:
            print_json({"ready": True, "host": host, "http_port": port, "server": server})
        else:
            urls = [f"http://{running.place_of(*each.getsockname()[:2])}/" for each in listening]
            click.echo(f"delayserver http ready on {' and '.join(urls)}, for the server at {server}")
        await stopping.wait()

    upstream = Upstream(server, arguments.get("token", ""), arguments.get("tls"))
    await serve_http(upstream, listening, settings.http, until_signal, Secured(settings.tls))
