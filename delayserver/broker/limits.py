"""The bounds of the broker, each with its reason. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

from delayserver.broker.redelivery import RedeliveryPolicy

MIB = 1 << 20
DAY_MS = 86_400_000
# The longest delay that a nack may ask for.
NACK_DELAY_MS_MAX = 30 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Every bound of the broker. The defaults suit a machine with 1 GiB to spare on disk and 200 MiB in memory."""

    segment_bytes: int = 64 * MIB
    """Disk is given back a segment at a time. A segment is preallocated whole, and a start reads what is empty of the
    last one to tell a torn tail: 0.1 s."""
    queue_segment_bytes: int = 4 * MIB
    """Spilled index rows: 4 MiB hold 170,000 runs, and the first segment is there whether one is needed or not."""
    cache_bytes_max: int = 64 * MIB
    """Batches in memory for consumers that keep up: about a second of the fastest stream."""
    read_ahead_bytes: int = MIB
    """One read of the store for a consumer that lags: enough for the disk, little for the cache."""
    queue_runs_max: int = 4096
    """Index rows of one queue in memory (24 bytes each); beyond it the older half goes to the queue file."""
    runs_max: int = 2_000_000
    """Index rows of all queues in memory: 48 MB. Beyond it even short queues spill."""
    blocks_cached_max: int = 128
    """Blocks of spilled index rows held for readers: 128 of at most 2,048 rows are 6 MB."""
    outstanding_max: int = 1 << 20
    """Handed out and not acked, per consumer group. The set of acked ranges above the first gap takes at most 16 bytes
    for every second one of them, 8 MB; a group that never acks stops at this many until its leases end."""
    lease_ranges_max: int = 65_536
    """Pulls of one group whose deadline is pending; each is an entry of a heap (100 bytes)."""
    ack_timeout_ms_default: int = 60_000
    """A consumer that says nothing for a minute is taken for dead."""
    ack_timeout_ms_max: int = DAY_MS
    """A longer lease would only hide a dead consumer."""
    pull_messages_max: int = 16_384
    """A pull is answered in one step on the event loop."""
    pull_bytes_max: int = 8 * MIB
    """One reply fits into a frame, whatever the client asks for; a single larger message is still handed out."""
    retry_bytes_max: int = 16 * MIB
    """Messages gathered for the retry pipeline in one step; what is beyond stays leased until the delay has passed."""
    redelivery: RedeliveryPolicy = field(default_factory=lambda: RedeliveryPolicy(1_000, 300_000))
    """A consumer that fails at once gets a message some ten times in its first quarter of an hour, then every five
    minutes. Without a pause a group that never acks wrote 75 MB/s."""
    redelivery_bytes_max: int = 1 << 30
    """What the redeliveries of one group may take on disk, all copies together. Beyond it messages are redelivered from
    their place, which takes a row of the progress log."""
    redelivery_kept_ms: int = DAY_MS
    """How long a redelivery stays on disk: as long as schedule_log keeps its window."""
    groups_max: int = 65_536
    """Consumer groups of all subjects, each about 1 KiB of memory and a few rows of the progress log. A group stays until
    the broker's files go, so a name made up for every consumer would fill both. Beyond it
    a new one is refused as `groups_full`."""
    waiting_pulls_max: int = 65_536
    """A waiting pull costs about 1 KiB; beyond it pulls are told `queue_full`."""
    turn_bytes_max: int = 4 * MIB
    """Served to waiting pulls before other tasks get their turn: 2 ms of work."""
    window_extents_max: int = 4096
    """Places of one schedule window in the store; beyond it neighbours are merged, and a check reads more."""
    known_rows_max: int = 4_000_000
    """Keys of windows that are being checked after an uncertain hand-off: 8 bytes each."""
    checkpoint_bytes: int = 64 * MIB
    """Store written since the last checkpoint: what a restart has to scan, 0.1 s."""
    progress_bytes_max: int = 16 * MIB
    """The progress log is replaced by a snapshot when it is longer and has doubled since the last one."""
    retention_ms: int = 3_600_000
    """Consumed by every group and older than this: the disk is given back. An hour is for groups that come late."""
    unconsumed_retention_ms: int = 7 * DAY_MS
    """A subject that no group ever pulled from keeps its messages for a week; the same holds for the keys of a window
    that its server never declared complete."""
