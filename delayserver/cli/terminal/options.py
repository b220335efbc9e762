"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from delayserver.config.units import format_duration, parse_duration_ms, parse_instant_ms
from delayserver.protocol.addresses import parse_address
from delayserver.protocol.operation_names import DEFAULT_HOST, DEFAULT_PORT

if TYPE_CHECKING:
    from delayserver.client import Client, ServerInfo

Command = TypeVar("Command", bound=Callable[..., Any])


class Whole(click.IntRange):
    """A whole number within bounds. click calls it an integer range, in words for programs."""

    name = "integer"


class Number(click.FloatRange):
    """A number within bounds, as `Whole`."""

    name = "number"


class ParsedText(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic only in newer versions of click
    """An option value parsed by a function of `units`. A ValueError of the function is a usage error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The parsed value. Fails with the message of the function's ValueError."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _checked_addresses(text: str) -> str:
    for address in text.split(","):
        parse_address(address)
    return text.strip()


def _expiry(text: str) -> tuple[bool, int]:
    """(relative, milliseconds). A duration is relative to the due time; an instant is not."""
    try:
        return True, parse_duration_ms(text)
    except ValueError:
        pass
    try:
        return False, parse_instant_ms(text)
    except ValueError as error:
        raise ValueError(f"{error}; or a duration from the due time on, such as 10s, 5m or 3d") from None


def _start(text: str) -> str | int:
    """`earliest`, `latest`, or a time in milliseconds."""
    word = text.strip()
    if word in ("earliest", "latest"):
        return word
    try:
        return parse_instant_ms(text)
    except ValueError as error:
        raise ValueError(f"{error}; or earliest, or latest") from None


def _goal(text: str) -> str | int | datetime:
    """`earliest`, `latest`, a position, or a time."""
    word = text.strip()
    if word.isascii() and word.isdecimal():
        return int(word)
    start = _start(text)
    return start if isinstance(start, str) else datetime.fromtimestamp(start / 1000, UTC)


def _level(text: str) -> int | timedelta:
    """The number of a delay level, or its name, which is its duration."""
    word = text.strip()
    if word.isascii() and word.isdecimal():
        return int(word)
    try:
        return timedelta(milliseconds=parse_duration_ms(text))
    except ValueError as error:
        raise ValueError(f"{error}; or the number of a level, from 1 on") from None


DURATION: Final = ParsedText("duration", parse_duration_ms)
INSTANT: Final = ParsedText("time", parse_instant_ms)
ADDRESS: Final = ParsedText("host:port", _checked_addresses)
START: Final = ParsedText("earliest|latest|time", _start)
GOAL: Final = ParsedText("earliest|latest|time|position", _goal)
EXPIRY: Final = ParsedText("duration|time", _expiry)
LEVEL: Final = ParsedText("level", _level)

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")

_address = click.option(
    "--server",
    type=ADDRESS,
    envvar="DELAYSERVER_SERVER",
    default=f"{DEFAULT_HOST}:{DEFAULT_PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the server listens, several addresses with commas between; or DELAYSERVER_SERVER says so.",
)


def warn_of_secrets(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """A warning on stderr for each secret among the assignments. The command goes on with it."""
    from delayserver.config.toml_file import SECRETS

    for key in sorted(SECRETS & {text.partition("=")[0].strip() for text in texts}):
        click.echo(
            f"Warning: every user of this machine can read {key} in the list of processes; give {key}_file instead, a file "
            "that has it",
            err=True,
        )
    return texts


assignments = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    callback=warn_of_secrets,
    help="Any key of that file; may be repeated.",
)
"""A setting on the command line."""

TOKEN_VARIABLE: Final = "DELAYSERVER_TOKEN"
TOKEN_FILE_VARIABLE: Final = "DELAYSERVER_TOKEN_FILE"
SECRET_VARIABLES: Final = frozenset({TOKEN_VARIABLE, TOKEN_FILE_VARIABLE})
"""Variables that lead to a token. Commands that a command runs do not get them."""


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keeps the value of an option for `connect`, so that no command passes it on."""
    if parameter.name is not None:
        context.meta[f"delayserver.{parameter.name}"] = value


def server(command: Command) -> Command:
    """Adds ``--server``, and what a client of it needs besides: ``--token-file`` and ``--tls-ca``."""
    return _address(access(command))


def access(command: Command) -> Command:
    """Adds what a client needs beside an address: ``--token-file`` and ``--tls-ca``."""
    token_file = click.option(
        "--token-file",
        type=click.File(),
        envvar=TOKEN_FILE_VARIABLE,
        expose_value=False,
        callback=_keep,
        metavar="FILE",
        help=f"A file with the access token; or {TOKEN_VARIABLE} has it.",
    )
    tls_ca = click.option(
        "--tls-ca",
        envvar="DELAYSERVER_TLS_CA",
        expose_value=False,
        callback=_keep,
        metavar="FILE",
        help="Encrypt, and trust the authorities in this file; `system` for those of the system.",
    )
    return token_file(tls_ca(command))


def shard(command: Command) -> Command:
    """Adds ``--shard``: `connect` gives a client of this shard alone."""
    return click.option(
        "--shard",
        type=Whole(min=0),
        expose_value=False,
        callback=_keep,
        metavar="N",
        help="In a cluster of several shards: ask this shard alone.",
    )(command)


def chosen_shard() -> int | None:
    """The shard that the command that runs now was given."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get("delayserver.shard")


def client_arguments() -> dict[str, Any]:
    """How the command that runs now makes its client, beside the address: the token, if one was given."""
    context = click.get_current_context(silent=True)
    file = None if context is None else context.meta.get("delayserver.token_file")
    token = file.read().strip() if file is not None else os.environ.get(TOKEN_VARIABLE, "").strip()
    authority = None if context is None else context.meta.get("delayserver.tls_ca")
    return ({"token": token} if token else {}) | ({"tls": _context(authority)} if authority else {})


def _context(authority: str) -> ssl.SSLContext:
    """Raises `click.ClickException`."""
    try:
        return ssl.create_default_context(cafile=None if authority == "system" else authority)
    except OSError as error:
        raise click.ClickException(f"--tls-ca {authority}: {error.strerror or error}") from None


def due_options(command: Command) -> Command:
    """Adds ``--delay`` and ``--at``, as delay_ms and at_ms."""
    delay = click.option(
        "--delay", "delay_ms", type=DURATION, metavar="DURATION", help="Due after this: 10s, 5m, 2h, 3d, 1h30m."
    )
    at = click.option(
        "--at", "at_ms", type=INSTANT, metavar="TIME", help="Due at this time: ISO 8601 with zone, 2027-03-03T09:00Z."
    )
    return delay(at(command))


def check_due(delay_ms: int | None, at_ms: int | None, *, required: bool) -> None:
    """Raises `click.UsageError` if both are given, or neither while one is `required`."""
    if delay_ms is not None and at_ms is not None:
        raise click.UsageError("give --delay or --at, not both")
    if required and delay_ms is None and at_ms is None:
        raise click.UsageError("say when: --delay 10s, or --at 2027-03-03T09:00Z (--delay 0s for now)")


@contextmanager
def connect(address: str) -> Iterator[Client]:
    """A connected client. If no server answers, raises `click.ClickException` with the address and advice."""
    from delayserver.client import Client
    from delayserver.protocol.errors import ConnectionLost, RequestTimedOut, UnknownOperation

    # One attempt for each address, so that the user sees at once that no server answers.
    arguments = client_arguments()
    probe = Client(address, retries=address.count(","), **arguments)
    try:
        probe.connect()
    except ConnectionLost as error:
        named = error.message if address in error.message else f"{address}: {error.message}"
        raise click.ClickException(named) from None
    except RequestTimedOut:
        raise click.ClickException(
            f"something listens at {address}, but does not answer: another program's port, or a server that hangs"
        ) from None
    finally:
        probe.close()
    with Client(address, **arguments) as client:
        try:
            yield _of_shard(client)
        except UnknownOperation:
            if client.status().get("role") != "broker":
                raise
            raise click.ClickException(
                f"{address} is a broker node, which only hands messages out: name the server with --server HOST:PORT"
            ) from None


def _of_shard(client: Client) -> Client:
    """The client of the shard that was chosen. Raises `click.ClickException`."""
    number = chosen_shard()
    if number is None:
        return client
    clients = client.shard_clients()
    if number not in clients:
        known = ", ".join(map(str, clients))
        raise click.ClickException(f"the cluster has no shard {number} with messages; it has {known}")
    return clients[number]


def level_number(server: ServerInfo, level: int | timedelta) -> int:
    """The number of a delay level of this server. Raises `click.UsageError` if none of its levels has this name."""
    if not isinstance(level, timedelta):
        return level
    ms, levels_ms = level // timedelta(milliseconds=1), server.delay_levels_ms
    if ms not in levels_ms:
        known = ", ".join(map(format_duration, levels_ms)) or "none"
        raise click.UsageError(f"{format_duration(ms)} is no delay level of this server; it has: {known}")
    return levels_ms.index(ms) + 1


yes = click.option("--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, yes: bool) -> None:
    """Asks before a change, unless `yes`. Raises `click.Abort`, and `click.UsageError` without a terminal to ask on."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("nothing was changed: say --yes (there is no terminal to ask on)")
    click.confirm(question, abort=True, err=True)
