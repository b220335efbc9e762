"""Every setting of the server with its default and the reason for it. Data only; `toml_file.py` reads files and flags.

Bounds are settings too: everything that can grow has a bound, with its reason beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from delayserver.targets.node_options import NodeOptions

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """The address of the server, and the bounds of connections."""

    host: str = "127.0.0.1"
    """Loopback by default. The server listens beyond it only if it has tokens (`delayserver token create`), or if
    `insecure` says so. `::` is all addresses of both families, `*` the same where the machine may have no IPv6."""
    hosts: tuple[str, ...] = ()
    """Several addresses to listen on, instead of `host`. A name stands for all its addresses."""
    announced: tuple[str, ...] = ()
    """Addresses (HOST:PORT) at which clients reach this server, where it is not the address that it listens on: behind a
    mapped port, a container, NAT. One for all hosts, or one for each. `route` names it."""
    port: int = 20801
    insecure: bool = False
    """True: listen beyond loopback although any client may do everything, because there are no tokens."""
    connections_max: int = 4096
    """A connection takes about 20 KiB, and at most `memory_bytes_each` besides the common `memory_bytes_max`. Beyond
    the bound a new one is refused as `too_many_connections`."""
    connections_of_client_max: int = 1024
    """Connections of one token; without a token, of one address, or of a /64 of IPv6. So three more clients find a place
    beside one that opens all it can. Addresses in `shared_networks` have no bound of their own."""
    connections_new_max: int = 512
    """Connections without a request so far, or without a token where the server asks for one. Beyond it the oldest one of
    the client with most of them gives way to a new one. So connections that do nothing take few places."""
    hello_timeout_ms: int = 10_000
    """A connection without a whole request after this time is closed. The handshake of TLS is part of it."""
    shared_networks: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks in which an address stands for many clients: of proxies, tunnels and networks behind one address. A
    connection from there counts as a client of its own. Loopback by default: programs of a machine are different clients."""
    frame_bytes_max: int = 16 * MIB
    """Each connection may hold one whole frame in memory."""
    frame_items_max: int = 262_144
    """Items of all arrays and maps of one request. A frame of empty maps takes a hundred times its bytes in memory, and
    is read in one step on the event loop."""
    memory_bytes_max: int = 128 * MIB
    """Unfinished frames and unread replies of all connections together, beyond `memory_bytes_each`. Six of the largest
    frames may arrive at the same time, and a quarter is for frames up to 1 MiB. Further frames wait for room, and so do
    requests of clients that do not read."""
    memory_bytes_of_client_max: int = 32 * MIB
    """The same bytes of all connections of one client: of a token, or without one of an address, as for
    `connections_of_client_max`. Two of the largest frames. So one client leaves room for others."""
    memory_bytes_each: int = 64 * 1024
    """The same bytes, reserved for each connection: requests of this size get through whatever other clients hold."""
    unsent_bytes_max: int = 1 * MIB
    """While a client has more unread replies than this, the next request of its connection does not begin. The kernel
    buffers some MiB besides, so a client that reads never waits for this bound."""
    unsent_timeout_ms: int = 30_000
    """A client with unread replies that reads nothing for this long loses its connection. Messages pulled for it and
    never sent are redelivered."""
    idle_frame_timeout_ms: int = 30_000
    """A connection is closed if an unfinished frame gets no bytes for this long."""
    server_secret: str = ""
    """A secret that servers and their nodes share. With it, only a peer that proves to know it may deliver or
    redispatch. Without it, only a peer in `server_networks` may: a name and a port must not be enough to do so."""
    server_secret_file: str = ""
    """A file with this secret, so that it stands in no configuration and in no list of processes."""
    server_networks: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks of servers that may deliver without a `server_secret`. Loopback by default: a demo needs no secret."""

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """The addresses to listen on, at least one."""
        return self.hosts or (self.host,)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The HTTP gateway, a process beside the server, and the bounds of its connections."""

    host: str = "127.0.0.1"
    """As `listen.host`."""
    hosts: tuple[str, ...] = ()
    """Several addresses to listen on, instead of `host`."""
    port: int = 20880
    """0: no HTTP."""
    connections_max: int = 4096
    """A connection takes about 10 KiB, with TLS about 300 KiB. Beyond the bound the one that has been idle the longest gives
    way. Where none is idle, a new one is refused."""
    connections_of_address_max: int = 1024
    """Connections of one address; of IPv6 those of a /64 count together. Connections from this machine have no such bound.
    Raise it where a proxy on another machine makes all the connections."""
    head_bytes_max: int = 32 * 1024
    """Request line and headers of one request. Browsers and proxies send a few KiB."""
    head_timeout_ms: int = 10_000
    """A request whose head is not there after this long is refused. Slow heads would hold connections for nothing."""
    idle_timeout_ms: int = 75_000
    """A connection without a request for this long is closed. Proxies and browsers keep theirs for about a minute."""
    body_timeout_ms: int = 30_000
    """A request is refused if its body gets no bytes for this long, or fewer than 1 KiB a second on
    average. Lines are spared the latter. An answer of which its client reads nothing for this long is cut."""
    allowed_hosts: str = ""
    """Names, with spaces between, under which clients without a token reach a gateway that listens on loopback, such as
    that of a proxy. Another name may belong to a page that wants to read the answers (DNS rebinding)."""
    streams_max: int = 1024
    """Streams of server-sent events at the same time. Each keeps a task and a connection."""

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """The addresses to listen on, at least one."""
        return self.hosts or (self.host,)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Encryption. Files of PEM; a changed file counts for new connections, after a reload or within seconds."""

    certificate: str = ""
    """The server's certificate and those between it and its authority. Empty: no encryption. Tokens then cross the network
    as they are, so use it on every network that others can listen on."""
    key: str = ""
    """The private key of the certificate."""
    client_ca: str = ""
    """Authorities of clients: with it every client must show a certificate of theirs, servers too. See `http_client_ca`."""
    node_ca: str = ""
    """Authorities of nodes: with it this server encrypts its connections to nodes, and shows them its certificate."""
    http_client_ca: bool = True
    """Whether `client_ca` counts for the HTTP gateway too: then browsers, scrapers and probes need a certificate.
    False where they come with tokens alone."""
    http: bool = True
    """Whether the HTTP gateway uses the certificate too. False where a proxy before it encrypts."""


@dataclass(frozen=True, slots=True)
class MessageSettings:
    """Bounds of a message."""

    body_bytes_max: int = 1 * MIB
    """A delay server moves notices, not files. Sixteen of the largest fit into one frame."""
    subject_bytes_max: int = 255
    message_id_bytes_max: int = 255
    properties_bytes_max: int = 16 * 1024
    batch_messages_max: int = 16_384
    """Messages of one send. A batch is handled in one step on the event loop, about 5 ms for this many."""
    delay_ms_max: int = 2 * 366 * 86_400_000
    """Two years of due times take some hundreds of coarse files. Later ones are refused as `too_far`, never clamped."""
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """Named delays, counted from 1, as `delay_level` of a nack and of a group's policy takes them."""
    subjects_max: int = 1_000_000
    """Names of subjects. They stay in memory, about 200 bytes each."""
    tags_max: int = 65_536
    """Names of tags, of all subjects together. A tag names a kind of message. So few are needed, and each stays in memory
    as a subject does."""
    names_of_token_percent: int = 25
    """How much of each table of names (subjects, tags, consumer groups) one token may fill with new names. A restart
    keeps the count. So three more tokens find places beside one that invents names. 100: all of it."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Files: place, durability, retention and bounds."""

    data_dir: str = "./delayserver-data"
    durability: str = "sync"
    """`sync`: acknowledged means fdatasync'ed. `os`: acknowledged means in the page cache (lost with the machine)."""
    window_ms: int = 60_000
    """One schedule file a minute: small enough to load at once, few enough to list. Whole seconds that divide a day. A
    data directory keeps the length that it was made with; the server refuses another one."""
    fine_horizon_ms: int = 12 * 3_600_000
    """A day is split into minutes when it starts within this time. Messages of later days are in one coarse file a day.
    So minutes reach 12 to 36 hours ahead, a day on average. A longer horizon spreads due times over more files. With a
    shorter one more messages are written twice."""
    message_log_segment_bytes: int = 256 * MIB
    message_log_retention_ms: int = 3_600_000
    """Replayed message_log is kept this long for `rebuild`. schedule_log has the whole messages too."""
    retention_ms: int = 24 * 3_600_000
    """Completed windows stay this long for lookup, deduplication and the audit. Then the ledger keeps the counts."""
    clock_hold_ms: int = 30 * 60_000
    """A clock that was set forward counts for removals only after this time. A removal cannot be undone, and a time
    service corrects a wrong clock within minutes (ntpd waits up to fifteen). Deliveries follow the clock at once."""
    open_files_max: int = 440
    """A year of coarse days stays open, and the process stays below 512 files. dispatch_log gets an eighth of them."""
    group_bytes_max: int = 8 * MIB
    """Bytes of one group commit. Larger ones add no throughput and delay the acks of small sends."""
    gather_bytes_max: int = 64 * MIB
    """Sends that wait for a commit. Beyond it sends are refused as `queue_full`."""
    inline_sync_bytes_max: int = 64 * 1024
    """While the disk is quick, groups up to this size are written and synced on the event loop. A hop to a thread costs
    more than such a sync."""
    warm_ahead_bytes: int = 8 * MIB
    replay_lag_bytes_max: int = 512 * MIB
    """Bytes acknowledged and not yet replayed. Beyond it acks wait, so that a restart never replays more than this."""
    checkpoint_interval_ms: int = 1_000
    checkpoint_bytes: int = 64 * MIB
    """A checkpoint is due after this many replayed bytes, so that a restart replays little."""
    free_bytes_min: int = 64 * MIB
    """Free space for outcomes and checkpoints, besides the room that accepted messages still need in schedule_log. With
    less, sends are refused as `disk_full`. While accepted messages need room, the broker's store leaves that room and
    half of this."""
    dispatch_reserve_bytes: int = 8 * MIB
    memory_bytes_max: int = 1024 * MIB
    """Only for a server in memory (`--memory`): the size of its disk, which the machine must have to spare. Beyond it sends
    are refused as `disk_full`, as on a disk. Only what is written takes memory, not what is allocated."""


@dataclass(frozen=True, slots=True)
class WheelSettings:
    """The timing wheel: messages due soon, in memory."""

    tick_ms: int = 10
    slots: int = 8192
    load_ahead_ms: int = 90_000
    """Windows are loaded this long before they start."""
    rows_max: int = 1_500_000
    """Rows in memory, about 165 bytes each. Beyond it the latest ones are dropped, and read again from disk in slices.
    Rows on their way to the nodes are not counted."""
    slice_rows: int = 8192
    """Rows that one step takes from the wheel, or hands over: about 2 ms of work."""
    shared_slice_rows: int = 1024
    """The same if several broker groups share the event loop. In a hot second of one group, each step of another waits
    for one of its steps. So the steps are small, and the throughput of one group is a little lower."""


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """Hand-off to broker groups."""

    batch_messages_max: int = 8192
    batch_bytes_max: int = 4 * MIB
    queue_rows_max: int = 1_250_000
    """Rows waiting for one group. Beyond it they are dropped from memory, and read again from disk when it recovers. If
    several groups share `wheel.rows_max` and it is short, each keeps at most its part of half of it."""
    workers: int = 8
    """Deliveries in parallel per group: some wait for the node's sync while the next ones are read."""
    deliver_timeout_ms: int = 10_000
    backoff_ms_min: int = 100
    backoff_ms_max: int = 30_000
    breaker_failures: int = 5
    """Consecutive failures that open a node's circuit. The node is probed again after its back-off."""
    dead_letter_attempts: int = 0
    """0: retries never end. Otherwise a message is dead-lettered after this many attempts with a known failure."""
    outcome_flush_ms: int = 5
    outcome_rows_max: int = 1_000_000
    """Outcomes not yet on disk. Beyond it dispatch waits for the disk."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """A node: `embedded`, HOST:PORT of a server or `delayserver broker`, or `kafka://HOST:PORT/TOPIC`."""

    address: str = "embedded"
    weight: int = 1
    """Its share of the batches in flight. 0 drains it: it gets no new messages, and what is in flight ends. A running
    server takes a new weight over on SIGHUP."""
    options: NodeOptions = field(default_factory=NodeOptions)
    """What its kind of target needs beside the address. Only `kafka://` has options: see the page on Kafka topics."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A broker group: nodes that can replace each other."""

    name: str = "default"
    nodes: tuple[NodeSettings, ...] = (NodeSettings(),)


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """Subjects that match the shell-style pattern go to the first group. If it fails, they go to the next ones."""

    pattern: str = "*"
    groups: tuple[str, ...] = ("default",)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The embedded broker."""

    segment_bytes: int = 64 * MIB
    cache_bytes_max: int = 64 * MIB
    """Delivered batches kept in memory for consumers that keep up."""
    ack_timeout_ms: int = 60_000
    """The lease: a message that is not acked for this long comes again, unless the `pull` or an `extend` asked for another
    time."""
    redelivery_first_ms: int = 1_000
    """Pause before the first redelivery, after the ack timeout. Each further pause is twice as long. A consumer that
    fails now would probably fail again at once. A nack may ask for another delay."""
    redelivery_cap_ms: int = 300_000
    """The longest pause. A consumer that works again may wait this long for the messages that it failed."""
    redelivery_bytes_max: int = 1024 * MIB
    """Bytes of one consumer group's redeliveries on disk. message_log, schedule_log and the broker's store each keep a
    copy, as long as their retention. Beyond it messages are redelivered from their place in the queue."""
    retention_ms: int = 3_600_000
    unconsumed_retention_ms: int = 7 * 86_400_000
    lag_bytes_max: int = 0
    """Retention may remove what lies this far behind the end of the broker's store, although a consumer group has not
    consumed it. 0: never. Without a bound, a group that was forgotten keeps the store from shrinking for ever."""
    lag_ms_max: int = 0
    """The same for messages that are older than this. A group that lost messages gets an error at its next pull."""
    groups_max: int = 65_536
    """Consumer groups of all subjects, about 1 KiB of memory each. They stay until they are removed."""
    waiting_pulls_max: int = 65_536
    """Pulls that wait on this node, about 1 KiB of memory each. Beyond it a pull is refused as `queue_full`."""
    mailbox_pulls_max: int = 8_192
    """Waiting pulls of one consumer group, also for the first message of a subject. So no group takes the places of all
    others."""
    pull_messages_max: int = 16_384
    wait_ms_max: int = 60_000
    server_clock_ahead_ms_max: int = 300_000
    """A server may deliver a message that is due this much later by the clock of this node, since clocks of two hosts
    differ. Five minutes is Kerberos' bound. Beyond it one clock is wrong, and the message would be early."""


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Transactions whose `prepare` does not say otherwise."""

    check_after_ms: int = 60_000
    """Pause before the first check-back and between two. A producer that lives answers within milliseconds of its own
    commit; so a check-back is for one that died, and it needs a minute to start again."""
    checks_max: int = 15
    """Check-backs without an answer before the policy decides. With the pause above a quarter of an hour."""
    policy: str = "rollback"
    """`rollback` or `commit`: the end of a transaction after its last check-back. A message that the producer's
    database never committed must not be seen, so the default is the safe one."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log of the process, on stderr. One line is one event. At most 20 lines of one event come in a minute."""

    format: str = "auto"
    """`text` for people, `json` for programs: an object a line. `auto`: text on a terminal, JSON elsewhere."""
    level: str = "warning"
    """The least level: `debug`, `info`, `warning` or `error`. `info` also has each start and stop."""
    audit_file: str = ""
    """Administrative acts and refused tokens are also appended to this file, as JSON lines. Empty: to the log alone."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. The server runs with the defaults, without any file."""

    listen: ListenSettings = field(default_factory=ListenSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    message: MessageSettings = field(default_factory=MessageSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    wheel: WheelSettings = field(default_factory=WheelSettings)
    dispatch: DispatchSettings = field(default_factory=DispatchSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    log: LogSettings = field(default_factory=LogSettings)
    groups: tuple[GroupSettings, ...] = (GroupSettings(),)
    routes: tuple[RouteSettings, ...] = (RouteSettings(),)
    shutdown_timeout_ms: int = 10_000
    """The longest clean stop. The next start resolves deliveries that are not answered by then."""
    stall_log_ms: int = 250
    """A step that keeps all clients waiting this long is logged. It is a bug, a disk that stands still, or a machine with
    too much to do: the largest step that is meant to be takes some 10 ms. 0: never."""


def for_broker(settings: Settings) -> Settings:
    """The settings of a lone broker. Its delay pipeline delivers only its own redeliveries, to itself."""
    return replace(settings, groups=(GroupSettings(),), routes=(RouteSettings(),))


def for_memory(settings: Settings) -> Settings:
    """The settings of a server in memory: files that fit into `storage.memory_bytes_max`, and none that only help after the
    end of the process. Retention of what consumers can ask for stays as it is set."""
    storage, part = settings.storage, max(settings.storage.memory_bytes_max // 16, 1)
    return replace(
        settings,
        storage=replace(
            storage,
            data_dir="memory",
            message_log_segment_bytes=min(storage.message_log_segment_bytes, part),
            message_log_retention_ms=0,  # for `rebuild`, which has no directory here
            dispatch_reserve_bytes=min(storage.dispatch_reserve_bytes, part // 8),
            free_bytes_min=min(storage.free_bytes_min, part),
            warm_ahead_bytes=0,  # zeros make no write quicker here
        ),
        broker=replace(settings.broker, segment_bytes=min(settings.broker.segment_bytes, part)),
    )


def redelivery_kept_ms(settings: Settings) -> int:
    """How long a redelivery stays on disk: until the retention of its last copy has passed."""
    storage = settings.storage
    retention_ms = max(storage.retention_ms, storage.message_log_retention_ms, settings.broker.retention_ms)
    return retention_ms + storage.window_ms


def for_frames(settings: Settings) -> Settings:
    """The settings with deliveries bounded to fit into a frame of a node with the same `listen`. Half of the frame is
    for ids, properties and bodies, half for columns and names of subjects (at most 336 bytes a message)."""
    half, dispatch = settings.listen.frame_bytes_max // 2, settings.dispatch
    rows, size = min(dispatch.batch_messages_max, max(half // 336, 1)), min(dispatch.batch_bytes_max, half)
    return replace(settings, dispatch=replace(dispatch, batch_messages_max=rows, batch_bytes_max=size))
