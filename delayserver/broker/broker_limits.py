"""The bounds of the broker, each with its reason. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

from delayserver.broker.redelivery_policy import RedeliveryPolicy

MIB = 1 << 20
DAY_MS = 86_400_000
# The longest delay that a nack may ask for.
NACK_DELAY_MS_MAX = 30 * DAY_MS
DELAY_LEVELS_MS = tuple([seconds * 1000 for seconds in (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200)])


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Every bound of the broker. The defaults suit a machine with 1 GiB to spare on disk and 200 MiB in memory."""

    segment_bytes: int = 64 * MIB
    """Retention removes whole segments. A segment is preallocated. A start reads the empty part of the last one to
    recognise a torn tail, in 0.1 s."""
    queue_segment_bytes: int = 4 * MIB
    """Spilled index rows: 4 MiB hold 170,000 runs. The first segment exists even if no queue spills."""
    cache_bytes_max: int = 64 * MIB
    """Batches in memory for consumers that keep up: about a second of the fastest stream."""
    read_ahead_bytes: int = MIB
    """One read of the store for a consumer that lags: large enough for the disk, small for the cache."""
    queue_runs_max: int = 4096
    """Index rows of one queue in memory (24 bytes each). Beyond it the older half goes to the queue file."""
    runs_max: int = 2_000_000
    """Index rows of all queues in memory: 48 MB. Beyond it even short queues spill."""
    blocks_cached_max: int = 128
    """Blocks of spilled index rows cached for readers: 128 blocks of at most 2,048 rows are 6 MB."""
    outstanding_max: int = 1 << 20
    """Messages handed out and not acked, per consumer group. A group that never acks gets no more until leases end.
    The ranges acked above the first gap take at most 16 bytes for every second message, 8 MB. Messages with an order key
    take some 100 bytes each."""
    lease_ranges_max: int = 65_536
    """Leases of one group whose deadline is pending. Each is an entry of a heap (100 bytes)."""
    blocked_messages_max: int = 65_536
    """Messages of a group that wait for their order keys, some 100 bytes each. At the bound the group reads no further until
    a key is free: it must not look at a whole backlog behind one key. A pull that looks through all of them takes 1 ms."""
    ack_timeout_ms_default: int = 60_000
    """A consumer that does not ack for a minute counts as dead."""
    ack_timeout_ms_max: int = DAY_MS
    """A longer lease would only hide a dead consumer."""
    pull_messages_max: int = 16_384
    """A pull is answered in one step on the event loop."""
    pull_bytes_max: int = 8 * MIB
    """One reply fits into a frame, whatever the client asks for. A single larger message is still handed out."""
    filters_characters_max: int = 4 * MIB
    """The filters of all groups together. Compiled, they take at most some 50 MB."""
    filter_step_ns: int = 3_000_000
    """Work of a group's filter in one step on the event loop. Then other tasks run, and the group goes on."""
    retry_bytes_max: int = 16 * MIB
    """Messages gathered for redelivery in one step. Another step takes the rest."""
    redelivery: RedeliveryPolicy = field(default_factory=lambda: RedeliveryPolicy(1_000, 300_000))
    """A message that its consumer fails at once comes about ten times in a quarter of an hour, then every five minutes.
    Without pauses, a group that never acked wrote 75 MB/s."""
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    """The named delay levels, from which a group's policy may take its pauses."""
    redelivery_bytes_max: int = 1 << 30
    """Bytes of one group's redeliveries on disk, all copies together. Beyond it messages are redelivered from their
    place in the queue, which takes one row of the progress log."""
    redelivery_kept_ms: int = DAY_MS
    """A redelivery stays on disk as long as schedule_log keeps its window."""
    groups_max: int = 65_536
    """Consumer groups of all subjects. Each takes about 1 KiB of memory and a few rows of the progress log, until it
    is removed. A new name for every consumer would fill both.
    Beyond the bound a new group is refused as `groups_full`."""
    waiting_pulls_max: int = 65_536
    """A waiting pull costs about 1 KiB. Beyond the bound pulls are refused as `queue_full`."""
    mailbox_pulls_max: int = 8_192
    """Waiting pulls of one consumer group. So no group takes the places of all others."""
    turn_bytes_max: int = 4 * MIB
    """Bytes served to waiting pulls before other tasks run: 2 ms of work."""
    window_extents_max: int = 4096
    """Extents of one schedule window in the store. Beyond it neighbours are merged, and a check reads more."""
    known_rows_max: int = 4_000_000
    """Cached keys of windows with an uncertain hand-off, 8 bytes each."""
    checkpoint_bytes: int = 64 * MIB
    """Bytes stored since the last checkpoint. A restart scans them in 0.1 s."""
    progress_bytes_max: int = 16 * MIB
    """The progress log is replaced by a snapshot when it is longer and has doubled since the last one."""
    retention_ms: int = 3_600_000
    """Messages that every group consumed are removed after this time. An hour is for groups that come late."""
    lag_bytes_max: int = 0
    """A group that lags holds back this much of the store at most. 0: no bound."""
    lag_ms_max: int = 0
    """A group that lags holds back segments until they are this old. 0: no bound."""
    unconsumed_retention_ms: int = 7 * DAY_MS
    """A subject that no group ever pulled from keeps its messages for a week. A window that its server never declared
    complete keeps its keys as long."""
