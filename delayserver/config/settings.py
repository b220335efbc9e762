"""Every setting of the server with its default and the reason for it. Data only; `config.py` reads files and flags.

Bounds live here too: whatever can grow has one, and its reason stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Where the server listens and what one connection may ask of it."""

    host: str = "127.0.0.1"
    """Loopback by default: the protocol has no authentication, so opening it wider is a decision."""
    port: int = 20801
    connections_max: int = 4096
    """A connection costs about 20 KiB, and at most `memory_bytes_each` beside the common `memory_bytes_max`. Beyond this
    a new one is told `too_many_connections`."""
    frame_bytes_max: int = 16 * MIB
    """One frame is held in memory whole, per connection."""
    frame_items_max: int = 262_144
    """Items of all arrays and maps of one request. A frame of empty maps costs a hundred times its bytes in memory, and is
    read in one step on the event loop."""
    memory_bytes_max: int = 128 * MIB
    """Unfinished frames and unread replies of all connections together, beyond `memory_bytes_each`. Eight of the largest
    frames arrive at the same time. Others wait for room, and so do requests of clients that do not read."""
    memory_bytes_each: int = 64 * 1024
    """The same for each connection, always there: requests of this size get through whatever other clients hold."""
    unsent_bytes_max: int = 1 * MIB
    """While a client has more than this of its replies unread, the next request of its connection is not begun. The kernel
    holds some MiB besides, so a client that reads does not wait for it."""
    unsent_timeout_ms: int = 30_000
    """A client with unread replies that reads nothing for this long loses its connection. What was pulled for it and never
    sent is given back."""
    idle_frame_timeout_ms: int = 30_000
    """Half a frame that does not go on for this long closes its connection."""
    server_secret: str = ""
    """What servers and their nodes share. With it, only a peer that proves to know it may deliver or redispatch. Without it
    only a peer of `server_networks` may: a name and a port must not be enough to put messages into a broker."""
    server_networks: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Where servers may come from while no `server_secret` is set. Loopback by default: a demo and a test need no secret."""


@dataclass(frozen=True, slots=True)
class MessageSettings:
    """Bounds of a message."""

    body_bytes_max: int = 1 * MIB
    """A delay server moves notices, not files; sixteen of the largest still fit into one frame."""
    subject_bytes_max: int = 255
    message_id_bytes_max: int = 255
    properties_bytes_max: int = 16 * 1024
    batch_messages_max: int = 16_384
    """Rows of one send: a batch is handled in one step on the event loop, and that many rows take about 5 ms."""
    delay_ms_max: int = 2 * 366 * 86_400_000
    """Two years of due times cost some hundreds of coarse files. Farther ones are refused (`too_far`), never clamped."""
    subjects_max: int = 1_000_000
    """Names of subjects. They are in memory and stay: about 200 bytes each."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Where and how bytes rest."""

    data_dir: str = "./delayserver-data"
    durability: str = "sync"
    """`sync`: acknowledged means fdatasync'ed. `os`: acknowledged means in the page cache (lost with the machine)."""
    window_ms: int = 60_000
    """One schedule segment a minute: small enough to load at once, few enough to name and list. Whole seconds that divide
    a day; a directory keeps the length that it was made with, another one is refused."""
    fine_horizon_ms: int = 12 * 3_600_000
    """A day is split into minutes when it starts within it; messages of later days rest in one coarse file a day. So minutes
    reach 12 to 36 hours ahead, a day on average: longer, and far due times are spread over ever more files; shorter, and
    more messages are written twice."""
    message_log_segment_bytes: int = 256 * MIB
    message_log_retention_ms: int = 3_600_000
    """Replayed message_log is kept this long for `rebuild`; schedule_log holds the whole messages anyway."""
    retention_ms: int = 24 * 3_600_000
    """Completed windows stay this long for lookup, deduplication and the audit; then the ledger keeps the counts."""
    clock_hold_ms: int = 30 * 60_000
    """A removal cannot be undone, and a time service sets a wrong clock right within minutes (ntpd waits up to fifteen). So
    a clock that was set forward counts for removals after this time; it is believed at once for deliveries."""
    open_files_max: int = 440
    """A year of coarse days stays open at once, and the process stays below 512 files. An eighth is dispatch_log's."""
    group_bytes_max: int = 8 * MIB
    """One group commit: larger ones gain nothing in throughput and delay the acks of the small."""
    gather_bytes_max: int = 64 * MIB
    """Sends waiting for a commit; beyond it clients are told `queue_full`."""
    inline_sync_bytes_max: int = 64 * 1024
    """Groups up to this size are written and synced on the event loop while the disk is quick: a hop to a thread costs more
    than such a sync."""
    warm_ahead_bytes: int = 8 * MIB
    replay_lag_bytes_max: int = 512 * MIB
    """Acked but not yet bucketed. Beyond it acks wait, so that a restart never has more than this to replay."""
    checkpoint_interval_ms: int = 1_000
    checkpoint_bytes: int = 64 * MIB
    """A checkpoint is due after this much replayed, so that a restart replays little."""
    free_bytes_min: int = 64 * MIB
    """Below it, besides what accepted messages still take in schedule_log, sends are refused (`disk_full`) so that outcomes
    and checkpoints still find room. While accepted messages need room, the broker's store leaves them that and half of
    this."""
    dispatch_reserve_bytes: int = 8 * MIB


@dataclass(frozen=True, slots=True)
class WheelSettings:
    """The near future in memory."""

    tick_ms: int = 10
    slots: int = 8192
    load_ahead_ms: int = 90_000
    """Windows are loaded this long before they start."""
    rows_max: int = 1_500_000
    """Rows in memory, about 150 bytes each. Past it the far end is dropped and read again from disk in slices. What is in
    flight to the nodes comes on top."""
    slice_rows: int = 8192
    """Rows taken from the wheel, and handed over, in one step: about 2 ms of work each."""
    shared_slice_rows: int = 1024
    """The same where several broker groups share the event loop: a hot second of one costs the others a step of it for
    each of theirs, so the steps are small and the throughput of one group a little lower."""


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """Hand-off to broker groups."""

    batch_messages_max: int = 8192
    batch_bytes_max: int = 4 * MIB
    queue_rows_max: int = 1_250_000
    """Rows waiting for one group. Past it they are dropped from memory and read again from disk when it recovers. Where
    several groups share `wheel.rows_max` and it is short, each keeps no more than its part of half of it."""
    workers: int = 8
    """Deliveries in flight per group: some wait for the node's sync while the next ones are read."""
    deliver_timeout_ms: int = 10_000
    backoff_ms_min: int = 100
    backoff_ms_max: int = 30_000
    breaker_failures: int = 5
    """Consecutive failures that open a node's circuit; it is probed again after its back-off."""
    dead_letter_attempts: int = 0
    """0: retries never give up. Otherwise a message is dead-lettered after this many attempts with a known failure."""
    outcome_flush_ms: int = 5
    outcome_rows_max: int = 1_000_000
    """Outcomes not yet on disk; past it dispatch waits for the disk."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """A broker node: `embedded`, or HOST:PORT of a server or `delayserver broker`."""

    address: str = "embedded"
    weight: int = 1


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A broker group: nodes that can stand in for each other."""

    name: str = "default"
    nodes: tuple[NodeSettings, ...] = (NodeSettings(),)


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """Subjects that match the shell-style pattern go to the first group, and fail over to the next ones."""

    pattern: str = "*"
    groups: tuple[str, ...] = ("default",)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The embedded broker."""

    segment_bytes: int = 64 * MIB
    cache_bytes_max: int = 64 * MIB
    """Delivered batches kept in memory for consumers that keep up."""
    ack_timeout_ms: int = 60_000
    redelivery_first_ms: int = 1_000
    """Pause before the first redelivery, on top of the ack timeout; each further one waits twice as long. A consumer that
    cannot work now can hardly work at once. A nack may ask for another delay."""
    redelivery_cap_ms: int = 300_000
    """The longest pause: so long a consumer that works again may wait for what it failed with before."""
    redelivery_bytes_max: int = 1024 * MIB
    """What the redeliveries of one consumer group may keep on disk: message_log, schedule_log and the broker's store each
    keep a copy, for as long as their retention. Beyond it messages are redelivered from their place in the queue."""
    retention_ms: int = 3_600_000
    unconsumed_retention_ms: int = 7 * 86_400_000
    groups_max: int = 65_536
    """Consumer groups of all subjects, each about 1 KiB of memory; a group stays until the broker's files go."""
    waiting_pulls_max: int = 65_536
    pull_messages_max: int = 16_384
    wait_ms_max: int = 60_000
    server_clock_ahead_ms_max: int = 300_000
    """What a server delivers may be due this much later by the clock of this node: clocks of two hosts differ. Five minutes
    are what Kerberos takes for a difference of clocks; beyond it one of them is wrong, and the message would be early."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. The defaults serve without any file."""

    listen: ListenSettings = field(default_factory=ListenSettings)
    message: MessageSettings = field(default_factory=MessageSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    wheel: WheelSettings = field(default_factory=WheelSettings)
    dispatch: DispatchSettings = field(default_factory=DispatchSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    groups: tuple[GroupSettings, ...] = (GroupSettings(),)
    routes: tuple[RouteSettings, ...] = (RouteSettings(),)
    shutdown_timeout_ms: int = 10_000
    """A clean stop takes no longer: what is in flight then is settled by the next start."""


def for_broker(settings: Settings) -> Settings:
    """The settings of a lone broker: the delay pipeline inside it carries its own redeliveries, to itself."""
    return replace(settings, groups=(GroupSettings(),), routes=(RouteSettings(),))


def redelivery_kept_ms(settings: Settings) -> int:
    """How long a redelivery stays on disk: until the last of its copies is past its retention."""
    storage = settings.storage
    retention_ms = max(storage.retention_ms, storage.message_log_retention_ms, settings.broker.retention_ms)
    return retention_ms + storage.window_ms


def for_frames(settings: Settings) -> Settings:
    """The settings where a delivery of several messages fits into a frame of a node with the same `listen`: half of it is
    for what the messages hold, half for their columns and the names of their subjects (at most 336 bytes a message)."""
    half, dispatch = settings.listen.frame_bytes_max // 2, settings.dispatch
    rows, size = min(dispatch.batch_messages_max, max(half // 336, 1)), min(dispatch.batch_bytes_max, half)
    return replace(settings, dispatch=replace(dispatch, batch_messages_max=rows, batch_bytes_max=size))
