"""What `serve` and `broker` share: options, settings from them, and the one line that says "ready"."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delayserver import __version__
from delayserver.cli.output import print_json

if TYPE_CHECKING:
    from delayserver.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])


def options(command: Command) -> Command:
    """The options of a process that serves."""
    for option in reversed(
        (
            click.option("--data-dir", metavar="DIR", help="Where the data is kept.  [default: ./delayserver-data]"),
            click.option("--host", metavar="ADDRESS", help="Where to listen.  [default: 127.0.0.1]"),
            click.option(
                "--port", type=int, metavar="N", help="Where to listen; 0 takes a free port.  [default: 20801]"
            ),
            click.option("--config", metavar="FILE", help="A TOML file; delayserver.sample.toml shows every key."),
            click.option(
                "--set",
                "assignments",
                multiple=True,
                metavar="KEY=VALUE",
                help="Any key of that file; may be repeated.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print the ready line as a JSON object."),
        )
    ):
        command = option(command)
    return command


def settings_from(
    data_dir: str | None, host: str | None, port: int | None, config: str | None, assignments: tuple[str, ...]
) -> Settings:
    """Settings from the file, then ``--set``, then the named flags. Raises `ConfigError`."""
    from delayserver.config import load_settings, parse_assignment

    flags = dict(parse_assignment(text) for text in assignments)
    named = {"storage.data_dir": data_dir, "listen.host": host, "listen.port": port}
    flags |= {key: value for key, value in named.items() if value is not None}
    return load_settings(config, flags)


def log_to_stderr() -> None:
    """Warnings and errors of the running server go to stderr, a line each with its time; stdout has the ready line."""
    import logging

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)


def announce(role: str, settings: Settings, as_json: bool) -> Callable[[str, int], None]:
    """The callback that prints one line once requests are accepted."""

    def ready(host: str, port: int) -> None:
        from store.filesystem import RealFileSystem
        from store.identity import read_identity

        data_dir = settings.storage.data_dir
        server_id = f"{read_identity(RealFileSystem(), data_dir):012x}"
        if as_json:
            print_json(
                {
                    "ready": True,
                    "role": role,
                    "version": __version__,
                    "host": host,
                    "port": port,
                    "data_dir": data_dir,
                    "server_id": server_id,
                }
            )
        else:
            name = "delayserver" if role == "server" else "delayserver broker"
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            click.echo(f"{name} {__version__} ready on {place}, data in {data_dir}, server id {server_id}")

    return ready
