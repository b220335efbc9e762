"""Shared by `serve` and `broker`: options, the settings made from them, and the ready line."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delayserver import __version__
from delayserver.cli.terminal.failures import LOG_LOST
from delayserver.cli.terminal.options import assignments
from delayserver.cli.terminal.output import print_json
from delayserver.runtime.error_groups import first_of

if TYPE_CHECKING:
    from delayserver.config.cluster_file import ClusterFile
    from delayserver.config.settings import Settings
    from delayserver.server.service_manager import ServiceManager
    from store.disk.filesystem import FileSystem

Command = TypeVar("Command", bound=Callable[..., Any])


LOG_OPTIONS = (
    click.option(
        "--log-format",
        type=click.Choice(("auto", "text", "json")),
        help="Log lines on stderr; auto: text on a terminal, JSON elsewhere.  [default: auto]",
    ),
    click.option(
        "--log-level",
        type=click.Choice(("debug", "info", "warning", "error")),
        help="The least level that is logged.  [default: warning]",
    ),
)


def log_options(command: Command) -> Command:
    """Adds the options about the log."""
    for option in reversed(LOG_OPTIONS):
        command = option(command)
    return command


def options(command: Command) -> Command:
    """Adds the options of `serve` and `broker`."""
    for option in reversed(
        (
            click.option(
                "--data-dir",
                type=click.Path(),
                metavar="DIR",
                help="Where the data is kept.  [default: ./delayserver-data]",
            ),
            click.option(
                "--host",
                "hosts",
                multiple=True,
                metavar="ADDRESS",
                help="Where to listen; :: is all addresses of IPv4 and IPv6. May be repeated.  [default: 127.0.0.1]",
            ),
            click.option(
                "--announce",
                "announced",
                multiple=True,
                metavar="HOST:PORT",
                help="Where clients reach the server, if that is not where it listens: one for all hosts, or one for each. "
                "A member of a cluster that listens on all addresses needs it.",
            ),
            click.option(
                "--port", type=int, metavar="N", help="Where to listen; 0 takes a free port.  [default: 20801]"
            ),
            click.option(
                "--http-port",
                type=int,
                metavar="N",
                help="Where the HTTP API and the console listen; 0: none.  [default: 20880, of a broker: none]",
            ),
            click.option(
                "--insecure",
                is_flag=True,
                help="Listen beyond loopback without tokens: any client may do everything.",
            ),
            click.option(
                "--config",
                type=click.Path(),
                metavar="FILE",
                help="A TOML file; delayserver.sample.toml shows every key.",
            ),
            assignments,
            *LOG_OPTIONS,
            click.option("--json", "as_json", is_flag=True, help="Print the ready line as a JSON object."),
        )
    ):
        command = option(command)
    return command


def settings_from(
    data_dir: str | None,
    hosts: tuple[str, ...],
    port: int | None,
    http_port: int | None,
    config: str | None,
    assignments: tuple[str, ...],
    log_format: str | None,
    log_level: str | None,
    insecure: bool = False,
    announced: tuple[str, ...] = (),
    more: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from the file, then ``--set``, then the named flags, ``more`` among them. Raises `ConfigError`."""
    from delayserver.config.toml_file import load_settings, parse_assignment

    flags = dict(parse_assignment(text) for text in assignments)
    named = {
        "storage.data_dir": data_dir,
        **hosts_flag("listen", hosts),
        "listen.announced": list(announced) or None,
        "listen.port": port,
        "http.port": http_port,
        "log.format": log_format,
        "log.level": log_level,
        "listen.insecure": insecure or None,
        **(more or {}),
    }
    flags |= {key: value for key, value in named.items() if value is not None}
    return load_settings(config, flags)


def cluster_from(path: str | None, shard: int | None) -> ClusterFile | None:
    """The cluster of a file; None without one. A shard takes the place of that of the file. Raises `ConfigError`."""
    from delayserver.config.cluster_file import load_cluster

    if path is None:
        return None
    cluster = load_cluster(path)
    return cluster if shard is None else replace(cluster, shard=shard)


def hosts_flag(section: str, hosts: tuple[str, ...]) -> dict[str, Any]:
    """The setting of ``--host``: given once or more often, or with several addresses and commas between."""
    named = [host.strip() for text in hosts for host in text.split(",")]
    if len(named) == 1:
        # The one that is given replaces all that the file names.
        return {f"{section}.hosts": named, f"{section}.host": named[0]}
    return {f"{section}.hosts": named or None}


def disk_for(settings: Settings, *, memory: bool) -> tuple[Settings, FileSystem]:
    """The disk of a server, and its settings for that disk."""
    from delayserver.config.settings import for_memory
    from store.disk.filesystem import RealFileSystem
    from store.disk.memory_filesystem import MemoryFileSystem

    if not memory:
        return settings, RealFileSystem()
    settings = for_memory(settings)
    return settings, MemoryFileSystem(settings.storage.memory_bytes_max)


def begin_logs(settings: Settings) -> None:
    """Logs events of the server to stderr, and the audit log to its file. stdout has the ready line. Raises
    `click.ClickException` if that file cannot be written."""
    from delayserver.logs.setup import set_up

    try:
        set_up(settings.log.format, settings.log.level, audit_file=settings.log.audit_file)
    except OSError as error:
        raise click.ClickException(f"cannot write log.audit_file {settings.log.audit_file}: {error.strerror}") from None


def service_manager() -> ServiceManager | None:
    """The service manager that started this process (`NOTIFY_SOCKET`); None if none did."""
    from delayserver.server.service_manager import NotifySocket

    return NotifySocket.of(os.environ, os.getpid())


@contextmanager
def naming_what_failed(settings: Settings) -> Iterator[None]:
    """Turns a failure to listen, and the loss of the data directory, into a `click.ClickException` with advice. Other
    exceptions pass."""
    from delayserver.server.http_gateway import HttpAddressError
    from store.errors import StoreError

    try:
        yield
    except (OSError, StoreError, BaseExceptionGroup) as error:
        if _directory_is_gone(first_of(error), settings.storage.data_dir):
            raise click.ClickException(
                f"{settings.storage.data_dir}: the data directory was removed or moved while the server ran; put it (or a "
                "copy) back and start again: without it, what was not delivered is lost"
            ) from None
        for_http = isinstance(first_of(error), HttpAddressError)
        advice = _listen_advice(first_of(error), "http" if for_http else "listen")
        if advice is None:
            raise
        place = settings.http if for_http else settings.listen
        what = "listen for HTTP" if for_http else "listen"
        host = getattr(first_of(error), "host", place.host)
        raise click.ClickException(f"cannot {what} on {place_of(host, place.port)}: {advice}") from None


class StaysDown(click.ClickException):
    """A member cannot go on with its directory. To start it again does not help before somebody has done what the line
    says."""

    exit_code = LOG_LOST


@contextmanager
def staying_down() -> Iterator[None]:
    """Turns what a start finds wrong with the directory of a member into `StaysDown`. Other exceptions pass, also one about
    bytes that the disk cannot read now: the next start may read them."""
    from store.errors import CorruptionError, FormatError, StoreError, UnreadableError

    try:
        yield
    except (StoreError, BaseExceptionGroup) as error:
        found = first_of(error)
        if isinstance(found, FormatError):
            raise StaysDown(f"wrong directory: {found}") from None
        if isinstance(found, CorruptionError) and not isinstance(found, UnreadableError):
            raise StaysDown(f"damaged: {found}") from None
        raise


def listen_for_http(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Listening sockets. Raises `click.ClickException` with advice."""
    from delayserver.net.listening import AddressError, listening_sockets

    try:
        return [each for sockets in listening_sockets(hosts, port) for each in sockets]
    except AddressError as error:
        advice = _listen_advice(error, "listen")
        if advice is None:
            raise
        raise click.ClickException(f"cannot listen on {place_of(error.host, port)}: {advice}") from None


def _directory_is_gone(error: BaseException, data_dir: str) -> bool:
    """True if a file is missing because the whole data directory is."""
    if str(error).startswith(f"{data_dir}: cannot make"):  # it was never there
        return False
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, FileNotFoundError) and not Path(data_dir).exists()


def _listen_advice(error: BaseException, section: str) -> str | None:
    """Advice for a failure of bind; None for any other failure. ``section``: the one of the settings with the address."""
    host, port = ("--host (listen.host)", "--port (listen.port)")
    if section == "http":
        host, port = "--set http.host=ADDRESS", "--http-port (http.port)"
    if not isinstance(error, OSError) or error.errno is None:
        return None
    if error.errno < 0:  # an error of the resolver, which trio raises as a plain OSError
        return f"no such host; choose another address with {host}"
    if error.errno == errno.EADDRINUSE:
        return f"another process listens on this port; stop it, or choose another with {port}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"this machine has no such address; choose another with {host}"
    if error.errno in (errno.EACCES, errno.EPERM) and error.filename is None:
        return f"not permitted; ports below 1024 need privileges, choose another with {port}"
    return None


def place_of(host: str, port: int) -> str:
    """`host:port` as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Announcement:
    """Prints the one line which says that requests are accepted: those of clients, or of a standby, which names the
    primary."""

    def __init__(self, role: str, settings: Settings, as_json: bool, fs: FileSystem, member: str = "") -> None:
        """`member`: the name in its cluster; empty for a server without one."""
        self._role = role
        self._settings = settings
        self._as_json = as_json
        self._fs = fs
        self._member = member

    def ready(self, host: str, port: int) -> None:
        """All is served."""
        self._say(host, port, "primary", "")

    def following(self, host: str, port: int, primary: str) -> None:
        """This member is a standby of another one."""
        self._say(host, port, "standby", primary)

    def _say(self, host: str, port: int, standing: str, primary: str) -> None:
        from store.disk.memory_filesystem import MemoryFileSystem
        from store.tables.identity import read_identity

        settings, role = self._settings, self._role
        data_dir = settings.storage.data_dir
        server_id = f"{read_identity(self._fs, data_dir):012x}"
        in_memory = isinstance(self._fs, MemoryFileSystem)
        if self._as_json:
            print_json(
                {
                    "ready": True,
                    "role": role,
                    "version": __version__,
                    "host": host,
                    "port": port,
                    "hosts": settings.listen.all_hosts,
                    "data_dir": None if in_memory else data_dir,
                    "server_id": server_id,
                    "http_port": settings.http.port or None,
                }
                | ({"member": self._member, "standing": standing} if self._member else {})
                | ({"primary": primary} if primary else {})
            )
            return
        place = "memory" if in_memory else data_dir
        name = "delayserver" if role == "server" else "delayserver broker"
        urls = [f"http://{place_of(each, settings.http.port)}/" for each in settings.http.all_hosts]
        http = f", HTTP on {' and '.join(urls)}" if settings.http.port else ""
        hosts = settings.listen.hosts if len(settings.listen.hosts) > 1 else (host,)
        listens = " and ".join(place_of(each, port) for each in hosts)
        member = f", member {self._member}: {standing}" if self._member else ""
        of = f" of {primary}" if primary else ""
        where = f"ready on {listens}, data in {place}, server id {server_id}"
        click.echo(f"{name} {__version__} {where}{http}{member}{of}")
