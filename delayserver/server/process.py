"""A server as a process: sockets, signals, the event loop. `DelayServer` itself knows none of them."""

from __future__ import annotations

import gc
import ipaddress
import resource
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace

import trio

from delayserver.config.cluster_file import ClusterFile
from delayserver.config.settings import ListenSettings, Settings
from delayserver.config.toml_file import ConfigError
from delayserver.front.audit import tell_reload_by_signal
from delayserver.front.front import BROKER, SERVER
from delayserver.logs.events import EventLogger
from delayserver.net.listening import is_wildcard, place_of
from delayserver.net.transport import SocketListener, StreamListener
from delayserver.operations.nodes.reload import Reread
from delayserver.protocol.errors import DelayServerError
from delayserver.runtime.chance import system_chance
from delayserver.runtime.free_memory import give_back_when_quiet
from delayserver.runtime.runtime import Runtime
from delayserver.server.cluster_engines import engines_of
from delayserver.server.delay_server import DelayServer, Ready, holder_of
from delayserver.server.encryption import Encryption
from delayserver.server.ground import Doors
from delayserver.server.http_gateway import HttpGateway
from delayserver.server.joining import Following, Joined, Look, has_tokens, join, require_of_member
from delayserver.server.lives import Lives
from delayserver.server.map_reading import MapReading, say_diverged
from delayserver.server.service_manager import BEATS, ServiceManager, status_line
from delayserver.startup.directory_opening import require_openable
from store.disk.filesystem import FileSystem, RealFileSystem
from store.errors import DivergedError, StoreError
from store.tables.stored_tokens import FILE_NAME as TOKENS

# A worker thread that holds the interpreter gives it up after this long: the event loop waits no longer than that.
SWITCH_INTERVAL_S = 0.001
COLLECTION_THRESHOLDS = (50_000, 20, 50)
# Descriptors beside connections and the files of windows: logs, sockets of nodes, files of a checkpoint, the libraries.
DESCRIPTORS_KEPT = 96
CONNECTIONS_LEAST = 16
# A window has up to three files, and a round of the replay or a load uses a few windows at a time.
FILES_LEAST = 24
# Their segments stay open.
SEGMENT_FOLDERS = ("message_log", "broker/store", "broker/queue")
# A start or a stop that goes on asks the service manager for at least this much more time, with each sign of life.
EXTEND_MS_MIN = 30_000

events = EventLogger()


async def serve(
    settings: Settings,
    *,
    role: str = SERVER,
    runtime: Runtime | None = None,
    fs: FileSystem | None = None,
    ready: Ready | None = None,
    signals: bool = False,
    reread: Reread | None = None,
    manager: ServiceManager | None = None,
    http: bool = False,
    cluster: ClusterFile | None = None,
    following: Following | None = None,
) -> None:
    """Open, serve until cancelled (or, with `signals`, until SIGTERM or SIGINT), stop cleanly. A `reload` and, with
    `signals`, SIGHUP take over what `reread` gives. `manager` learns how far the server is. With `http` the gateway of
    `settings.http` runs beside it. With `cluster` it is a member; `following` is called when it has become a standby.

    Raises StoreError (data directory locked, damaged, disk), OSError (an address is taken), HttpAddressError, and
    ConfigError (it would listen beyond loopback, where any client could do everything; too few file descriptors; settings
    that are not for a member). A member raises LogLost, LogUnusable, UpgradeNeededError and DivergedError too.
    """
    fs = fs or RealFileSystem()
    if cluster is not None:
        require_of_member(settings)
    settings = within_descriptors(settings, fs)
    encryption = Encryption(settings.tls)
    guarded = fs.exists(f"{settings.storage.data_dir}/{TOKENS}")
    if cluster is not None and not guarded and not _is_alone(settings):
        guarded = await has_tokens(engines_of(cluster))
    bound, gateway = _listen(settings, http, member=cluster is not None, guarded=guarded)
    listener = encryption.around(bound)

    def again() -> Settings:
        encryption.renew()
        assert reread is not None
        return within_descriptors(reread(), fs)

    try:
        joined = None
        if cluster is not None:
            joined = await _join(
                cluster,
                settings,
                listener,
                gateway,
                lambda member: require_openable(fs, settings.storage.data_dir, member, holder_of(role), role),
            )

        def begin(latest: Settings) -> DelayServer:
            return DelayServer(
                latest,
                role=role,
                runtime=runtime,
                doors=Doors(fs, encryption.connect),
                reread=None if reread is None else again,
                membership=None if joined is None else joined.membership(system_chance(), told.following, latest.tls),
            )

        told = _Telling(listener.address, ready, following, manager)
        lives = Lives(begin, settings)
        failure: StoreError | OSError | None = None
        try:
            async with trio.open_nursery() as nursery:
                if manager is not None:
                    nursery.start_soon(_show_life, lives, manager)
                if signals:
                    await nursery.start(_stop_on_signal, lives, manager)
                if signals and reread is not None:
                    await nursery.start(_reload_on_signal, lives, manager)
                nursery.start_soon(encryption.run)
                if joined is not None:
                    nursery.start_soon(MapReading(joined.engines.map, joined.own, joined.shards).run)
                nursery.start_soon(give_back_when_quiet, lives.server.clock)
                try:
                    await lives.run(listener, gateway, _dialled(*listener.address), told.ready)
                except (StoreError, OSError) as error:  # for the caller as it is, not in a group
                    failure = error
                nursery.cancel_scope.cancel()
            if failure is not None:
                await _say_in_the_map(joined, failure)
                raise failure
        finally:
            lives.server.close()
    finally:
        listener.close()
        if gateway is not None:
            gateway.close()


async def _join(
    cluster: ClusterFile, settings: Settings, listener: StreamListener, gateway: HttpGateway | None, look: Look
) -> Joined:
    """Join the cluster. Raises ConfigError, LogUnusable, and what `look` raises."""
    announced = settings.listen.announced
    if not announced and any(is_wildcard(host) for host, _ in listener.addresses):
        raise ConfigError(
            "listen.announced: this member listens on all addresses, and the others must know one: --announce HOST:PORT"
        )
    address = announced[0] if announced else place_of(*listener.address)
    http = ""
    if gateway is not None:
        host = gateway.hosts[0]
        named = address.rpartition(":")[0].strip("[]") if is_wildcard(host) else host
        scheme = "https" if settings.tls.certificate and settings.tls.http else "http"
        http = f"{scheme}://{place_of(named, settings.http.port)}"
    return await join(cluster, engines_of(cluster), address, http, settings.storage.window_ms, system_chance(), look)


async def _say_in_the_map(joined: Joined | None, failure: StoreError | OSError) -> None:
    """The others learn why a member stays down, if it is for good."""
    if joined is not None and isinstance(failure, DivergedError):
        await say_diverged(joined.engines.map, joined.own)


def _listen(
    settings: Settings, http: bool, *, member: bool, guarded: bool
) -> tuple[SocketListener, HttpGateway | None]:
    """Binds all addresses. `guarded`: there are tokens. Raises OSError, HttpAddressError, ConfigError."""
    with ExitStack() as opened:
        listen = settings.listen
        listener = SocketListener(listen.all_hosts, listen.port, listen.announced)
        opened.callback(listener.close)
        for host, _ in listener.addresses:
            require_authentication("listen.host", host, settings, member=member, guarded=guarded)
        gateway = HttpGateway.listen(settings) if http and settings.http.port else None
        if gateway is not None:
            opened.callback(gateway.close)
            for host in gateway.hosts:
                require_authentication("http.host", host, settings, member=member, guarded=guarded)
        opened.pop_all()
    return listener, gateway


def _dialled(host: str, port: int) -> str:
    """The address at which a process of this machine reaches the server that listens on a host."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_alone(settings: Settings) -> bool:
    """Whether only this machine reaches the server, or whoever reaches it may do everything."""
    hosts = (*settings.listen.all_hosts, *settings.http.all_hosts)
    return settings.listen.insecure or all(map(_is_loopback, hosts))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def require_authentication(key: str, host: str, settings: Settings, *, member: bool, guarded: bool) -> None:
    """Raises ConfigError for an address beyond loopback if there are no tokens, unless `listen.insecure`. `key`: the setting
    with the address. `member`: of a cluster, whose tokens are common. `guarded`: there are tokens."""
    if settings.listen.insecure or _is_loopback(host):
        return
    if not guarded:
        # What made a token in the directory of a new member would make a directory of no shard.
        first = (
            "Make a token of the cluster first: delayserver token create --cluster FILE --role admin"
            if member
            else f"Make a token first: delayserver token create --data-dir {settings.storage.data_dir} --role admin"
        )
        raise ConfigError(
            f"{key}: {host} can be reached from other machines, and without tokens any client may do everything. {first}. "
            "Or allow it with --insecure (listen.insecure = true)"
        )


def within_descriptors(settings: Settings, fs: FileSystem) -> Settings:
    """Take the file descriptors that the system allows. The files of windows that stay open, and the connections, share what
    the segments of the logs and the server's other files leave: half of it each, or less where the settings say so.

    Otherwise one of them takes the descriptors of the others. Raises ConfigError where too few are left to serve.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return settings
    storage, listen = settings.storage, settings.listen
    kept = DESCRIPTORS_KEPT + sum([len(fs.listdir(f"{storage.data_dir}/{folder}")) for folder in SEGMENT_FOLDERS])
    room = hard - kept
    if room < FILES_LEAST + CONNECTIONS_LEAST:
        raise ConfigError(
            f"this process may have {hard} file descriptors, and the server needs {kept + FILES_LEAST + CONNECTIONS_LEAST} "
            f"at least ({kept} for its logs, {FILES_LEAST} for files of windows, {CONNECTIONS_LEAST} for connections); "
            "raise the limit (ulimit -n, LimitNOFILE= of systemd)"
        )
    files = min(storage.open_files_max, max(FILES_LEAST, room // 2, room - listen.connections_max))
    connections = min(listen.connections_max, room - files)
    if files == storage.open_files_max and connections == listen.connections_max:
        return settings
    events.warning(
        "descriptors_limited",
        "{descriptors} file descriptors leave room for {files} open files of windows and {connections} connections; the "
        "settings have storage.open_files_max = {open_files_max} and listen.connections_max = {connections_max}; raise the "
        "limit (ulimit -n)",
        descriptors=hard,
        files=files,
        connections=connections,
        open_files_max=storage.open_files_max,
        connections_max=listen.connections_max,
    )
    return replace(
        settings,
        storage=replace(storage, open_files_max=files),
        listen=fewer_connections(listen, connections),
    )


def fewer_connections(listen: ListenSettings, connections: int) -> ListenSettings:
    """The settings for so many connections. The bounds of one client and of new connections keep their part of them."""
    before = listen.connections_max
    return replace(
        listen,
        connections_max=connections,
        connections_of_client_max=max(listen.connections_of_client_max * connections // before, 1),
        connections_new_max=max(listen.connections_new_max * connections // before, 1),
    )


async def _show_life(lives: Lives, manager: ServiceManager) -> None:
    """Tell the service manager the stage, and that the event loop turns: a task of the loop can only run if it does."""
    while True:
        server = lives.server
        more_us = max(BEATS * manager.beat_ms, EXTEND_MS_MIN) * 1000
        waits = [] if server.readiness.serves else [f"EXTEND_TIMEOUT_USEC={more_us}"]
        manager.tell("WATCHDOG=1", _status(server), *waits)
        await server.clock.sleep_ms(manager.beat_ms)


def _status(server: DelayServer) -> str:
    if server.stopping.is_set():
        return status_line("stopping: what is in flight is being settled")
    if not server.readiness.ready:
        return status_line(server.readiness.reason)
    host, port = server.address
    return status_line(f"serving on {host} port {port}, {server.parts.state.balance.accepted:,} messages accepted")


class _Telling:
    """Tells that the process serves: as a server or primary, or for the first time as a standby. The line for scripts comes
    once in a process."""

    def __init__(
        self, address: tuple[str, int], ready: Ready | None, following: Following | None, manager: ServiceManager | None
    ) -> None:
        self._address = address
        self._ready = ready
        self._following = following
        self._manager = manager

    def ready(self, host: str, port: int) -> None:
        """All is served."""
        if self._ready is not None:
            self._ready(host, port)
        self._tell(status_line(f"serving on {host} port {port}"))

    def following(self, primary: str) -> None:
        """This member is a standby."""
        if self._following is not None:
            self._following(*self._address, primary)
        self._tell(status_line(f"standby of {primary}"))

    def _tell(self, status: str) -> None:
        self._ready = self._following = None
        if self._manager is not None:
            self._manager.tell("READY=1", status)


async def _stop_on_signal(
    lives: Lives, manager: ServiceManager | None, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """From its start on, a signal is a stop, also while the server opens its files or waits for room."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for _ in received:
            lives.stop()
            if manager is not None:
                manager.tell("STOPPING=1", _status(lives.server))


async def _reload_on_signal(
    lives: Lives, manager: ServiceManager | None, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """SIGHUP is a `reload`. The log says what has changed, or what is wrong."""
    with trio.open_signal_receiver(signal.SIGHUP) as received:
        task_status.started()
        async for _ in received:
            server = lives.server
            if not server.is_open:
                events.error(
                    "reload_refused",
                    "the configuration was not taken over: {reason}",
                    reason="the server opens its files; send SIGHUP again later",
                )
                continue
            if manager is not None:
                manager.tell("RELOADING=1", f"MONOTONIC_USEC={server.clock.monotonic_us()}")
            try:
                await server.parts.dispatch.reload.reload()
            except DelayServerError as error:
                tell_reload_by_signal(error.name)
            else:
                tell_reload_by_signal("done")
            if manager is not None and server.readiness.serves:
                manager.tell("READY=1", _status(server))


def run_server(
    settings: Settings,
    *,
    role: str = SERVER,
    ready: Ready | None = None,
    fs: FileSystem | None = None,
    reread: Reread | None = None,
    manager: ServiceManager | None = None,
    cluster: ClusterFile | None = None,
    following: Following | None = None,
) -> int:
    """Run until a signal; returns the exit code of a clean stop. Raises what `serve` raises; the command line prints it."""
    # A worker thread that holds the interpreter gives it up after this long: the event loop waits no longer than that.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Objects of the start stay for good. Requests leave no cycles behind, so the collector runs rarely.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    trio.run(
        lambda: serve(
            settings,
            role=role,
            fs=fs,
            ready=ready,
            signals=True,
            reread=reread,
            manager=manager,
            http=True,
            cluster=cluster,
            following=following,
        )
    )
    return 0


def run_broker(settings: Settings, *, ready: Ready | None = None, manager: ServiceManager | None = None) -> int:
    """`run_server` as a lone node of a broker group."""
    return run_server(settings, role=BROKER, ready=ready, manager=manager)
