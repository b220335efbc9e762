"""The table of figures: each value of `status` and `metrics`, in one line.

A line has the name and the type of the value in the reply. A value that monitors draw also has its kind, its name in
Prometheus, its meaning, and a panel of the dashboard. Three things follow from the table: the map on the wire, the families
of `/metrics`, and the panels. docs/reference/protocol-operators.md describes the fields.

The end of a field's name is its unit: `_ms`, `_us`, `_s` or `_bytes`. Prometheus gets seconds and bytes.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from delayserver.protocol.errors import ERRORS
from delayserver.protocol.figure_fields import Label, Section, counter, gauge, histogram, words

_ENDED: Final = "Balance/Accepted and ended"
_WRONG: Final = "Broker groups/What goes wrong"
_CONSUMING: Final = "Consumer groups and subjects/Consuming"
_LEASED: Final = "Consumer groups and subjects/Leased and waiting for redelivery"


def _outcome(name: str) -> Meta:
    return counter("messages_ended", "Messages by their outcome, over all starts.", _ENDED, outcome=name)


# -- the process


class ProcessStatus(Struct, frozen=True):
    """The identity of the process, and whether it serves."""

    ready: Annotated[
        bool, gauge("ready", "1 while the server serves all operations.", field="Whether all operations are served.")
    ]
    waits_for: Annotated[str, words("Why it is not ready. Empty when it is.")]
    role: Annotated[str, words("`server` or `broker`, as in `hello`.")]
    server_id: Annotated[str, words("The id of the data directory.")]
    version: Annotated[str, words("The version of the software.")]
    uptime_s: Annotated[int, gauge("uptime_seconds", "Time since the start of the server.")]


class ClockStatus(Struct, frozen=True):
    """The clock for deliveries (`server_us`), and the clock for the removal of files (`believable_us`)."""

    server_us: Annotated[int, gauge("clock_timestamp_seconds", "The clock by which the server delivers.")]
    believable_us: Annotated[int, words("The clock for the removal of files.")]
    steps: Annotated[int, counter("clock_steps", "Steps of the wall clock since the start.")]
    step_last_ms: Annotated[int, gauge("clock_step_last_seconds", "The last step of the wall clock.")]


class EventLoopStatus(Struct, frozen=True):
    """How long steps of the event loop kept all clients waiting. `long_stalls`: those of at least `stall_log_ms`."""

    longest_stall_ms: Annotated[int, words("The longest stall of the event loop since the start.")]
    longest_stall_minute_ms: Annotated[int, gauge(
        "event_loop_longest_stall_seconds", "The longest stall of the event loop in about the last minute.",
        "Queues and memory/Stalls of the event loop",
    )]  # fmt: skip
    long_stalls: Annotated[int, counter(
        "event_loop_stalls", "Stalls of the event loop of at least stall_log_ms since the start."
    )]  # fmt: skip


# -- the balance


class BalanceStatus(Struct, frozen=True):
    """Accepted messages by outcome, and the lateness of deliveries. `pending`: without a durable outcome. `replaced`: those
    that a reschedule or a commit put in the place of another one, which counts as cancelled."""

    accepted: Annotated[int, counter("messages_accepted", "Messages accepted, over all starts.", _ENDED)]
    delivered: Annotated[int, _outcome("delivered")]
    cancelled: Annotated[int, _outcome("cancelled")]
    dead_lettered: Annotated[int, _outcome("dead_lettered")]
    expired: Annotated[int, _outcome("expired")]
    deduplicated: Annotated[int, _outcome("deduplicated")]
    rolled_back: Annotated[int, _outcome("rolled_back")]
    pending: Annotated[
        int, gauge("messages_pending", "Accepted messages without a durable outcome.", "Balance/Pending")
    ]
    replaced: Annotated[int, counter(
        "messages_replaced", "Messages in the place of another one, which counts as cancelled."
    )]  # fmt: skip
    early: Annotated[int, words("Messages that left before they were due: must be 0.")]
    lateness_ms: Annotated[
        dict[str, float],
        words("`p50`, `p90`, `p99`, `p999` and `max`, floats where needed. It begins anew at each start."),
    ]


# -- connections


class MemoryFigures(Struct, frozen=True):
    """The memory of the connections of all fronts, without their allowances."""

    used_bytes: Annotated[int, gauge("connection_memory_bytes", "Unfinished frames and unread replies.")]
    bytes_max: Annotated[int, gauge("connection_memory_max_bytes", "The bound of these bytes.")]
    frames_waiting: Annotated[int, gauge("connection_frames_waiting", "Frames that wait for memory.")]


class ConnectionsStatus(Struct, frozen=True):
    """The connections of all fronts."""

    connections: Annotated[int, gauge("connections", "Open connections of the server's own protocol.")]
    one_way_refused: Annotated[int, counter(
        "one_way_refused", "Messages of one-way sends that were refused since the start."
    )]  # fmt: skip
    connection_memory: MemoryFigures


class TroubleStatus(Struct, frozen=True):
    """What needs an operator."""

    errors: Annotated[
        dict[str, int], Label("error", tuple(ERRORS)), counter("errors", "Error replies since the start.")
    ]
    corruption: Annotated[list[str], gauge(
        "corruptions", "Findings of corruption since the start; at most 100 are counted.",
        field="Damage on the disk: a sentence each, at most 100.",
    )]  # fmt: skip
    unreadable: Annotated[list[str], gauge(
        "unreadable_files", "Files that the disk could not read since the start; at most 100 are counted.",
        field="What the disk could not read: a sentence each, at most 100.",
    )]  # fmt: skip
    duplicate_server_ids: Annotated[list[str], gauge(
        "duplicate_server_ids", "Server ids that two processes use now.",
        field="A sentence for each server id of two processes.",
    )]  # fmt: skip


# -- the storage


class DiskStatus(Struct, frozen=True):
    """The disk and the files on it."""

    durability: Annotated[str, words("`sync` or `os`.")]
    disk_free_bytes: Annotated[
        int, gauge("disk_free_bytes", "Free bytes of the disk with the data directory.", "Disk/Free")
    ]
    disk_low: Annotated[bool, gauge(
        "disk_low", "1 while sends are refused because the disk is nearly full.",
        field="Whether sends are refused because the disk is nearly full.",
    )]  # fmt: skip
    disk_errors: Annotated[int, counter("disk_errors", "Operations that the disk refused since the start.")]
    disk_error_last: Annotated[str, words("The last one, as a sentence.")]
    open_files: Annotated[int, gauge("open_files", "Open files of windows.", "Disk/Windows")]
    subjects: Annotated[int, gauge("subjects", "Names of subjects.")]
    subjects_max: Annotated[int, gauge("subjects_max", "The bound of delayserver_subjects.", field="Their bound.")]
    tags: Annotated[int, gauge("tags", "Names of tags.")]
    tags_max: Annotated[int, gauge("tags_max", "The bound of delayserver_tags.", field="Their bound.")]


class ProgressStatus(Struct, frozen=True):
    """The progress of the stages that write files."""

    replay_lag_bytes: Annotated[int, gauge(
        "replay_lag_bytes", "Bytes of message_log that are durable and not yet replayed.", "Disk/Replay lag"
    )]  # fmt: skip
    group_commits: Annotated[int, counter("group_commits", "Group commits since the start.", "Disk/Writes")]
    commit_us_max: Annotated[int, gauge("commit_longest_seconds", "The longest group commit since the start.")]
    checkpoints: Annotated[int, counter("checkpoints", "Checkpoints written since the start.", "Disk/Writes")]
    outcomes_waiting: Annotated[int, gauge("outcomes_waiting", "Outcomes that are decided and not yet on disk.")]
    last_backup_ms: Annotated[int | None, gauge(
        "last_backup_timestamp_seconds",
        "The moment of the last backup that was completed since the start. Missing before the first one.",
    )]  # fmt: skip
    log_position: Annotated[int | None, gauge(
        "log_position", "Where the next process of a cluster's member would read on in the log of its shard."
    )]  # fmt: skip


class WindowsStatus(Struct, frozen=True):
    """The kept windows, and those that lack outcomes."""

    oldest_due_ms: Annotated[
        int, gauge("oldest_due_timestamp_seconds", "The oldest due time that a send may still have.")
    ]
    retired_windows_ahead: Annotated[
        int, gauge("retired_windows_ahead", "Windows ahead of the clock that take no sends.")
    ]
    oldest_incomplete_window_ms: Annotated[int | None, gauge(
        "oldest_incomplete_window_timestamp_seconds",
        "The begin of the oldest window with messages that have no outcome yet.",
    )]  # fmt: skip
    incomplete_windows: Annotated[
        int, gauge("incomplete_windows", "Windows with messages that have no outcome yet.", "Disk/Windows")
    ]


# -- deliveries


class WheelStatus(Struct, frozen=True):
    """Messages in memory that are not due yet."""

    rows: Annotated[int, gauge("wheel_rows", "Messages in memory that are not due yet.")]
    bytes: Annotated[int, gauge("wheel_bytes", "Memory of these messages.")]
    next_due_ms: Annotated[int | None, gauge(
        "next_due_timestamp_seconds", "The due time of the next message in memory."
    )]  # fmt: skip
    loads: Annotated[int, counter(
        "wheel_loads", "Loads of windows into memory since the start.", "Queues and memory/Loads and evictions"
    )]  # fmt: skip
    evictions: Annotated[int, counter(
        "wheel_evictions", "Times that the far end of memory was dropped since the start.",
        "Queues and memory/Loads and evictions",
    )]  # fmt: skip


class NodeStatus(Struct, frozen=True):
    """One node of a broker group. `retry_in_ms`: the rest of its pause after a failure."""

    address: Annotated[str, Label("node"), words("The address of the node.")]
    weight: Annotated[int, gauge("node_weight", "The weight of the node; 0: it is drained.", "Broker groups/Nodes")]
    state: Annotated[str, words("That of `route`.")]
    circuit: Annotated[str, gauge(
        "node_circuit_open", "1 while the node counts as down.", "Broker groups/Nodes", equals="open",
        field="`closed`, or `open` during the pause after failures.",
    )]  # fmt: skip
    retry_in_ms: Annotated[int, words("The rest of the pause after a failure.")]
    failures: Annotated[
        int, counter("node_failures", "Failed attempts at the node since the start.", "Broker groups/Nodes")
    ]
    last_error: Annotated[str, words("Why the last attempt failed.")]
    problem: Annotated[str, gauge(
        "node_problem", "1 while an operator must mend something.", "Broker groups/Nodes",
        field="The name of the error that an operator must mend, or empty.",
    )]  # fmt: skip


class GroupStatus(Struct, frozen=True):
    """One broker group."""

    waiting: Annotated[
        int, gauge("broker_group_waiting", "Due messages that wait for the broker group.", "Broker groups/Waiting")
    ]
    in_flight: Annotated[int, gauge(
        "broker_group_in_flight", "Messages handed to its nodes that are not settled.", "Broker groups/In flight"
    )]  # fmt: skip
    delivered: Annotated[int, counter(
        "broker_group_delivered", "Messages delivered to the broker group since the start.", "Broker groups/Delivered"
    )]  # fmt: skip
    attempts_failed: Annotated[
        int, counter("broker_group_attempts_failed", "Messages in attempts that failed since the start.", _WRONG)
    ]
    duplicates_suppressed: Annotated[
        int, counter("broker_group_duplicates_suppressed", "Messages that its nodes already had.", _WRONG)
    ]
    failed_over: Annotated[int, counter("broker_group_failed_over", "Messages moved to a fallback group.", _WRONG)]
    uncertain_failovers: Annotated[
        int, counter("broker_group_uncertain_failovers", "Of these, those with an attempt in doubt.")
    ]
    maybe_delivered_twice: Annotated[
        int, counter("broker_group_maybe_delivered_twice", "Messages that may have come twice.", _WRONG)
    ]
    dropped_from_memory: Annotated[
        int, counter("broker_group_dropped_from_memory", "Messages that a full queue dropped to disk.", _WRONG)
    ]
    nodes: list[NodeStatus]


# -- the broker


class BrokerStatus(Struct, frozen=True):
    """The broker of this process, its consumers, and the servers that deliver to it."""

    delivered: Annotated[int, counter("broker_delivered", "Messages that the embedded broker took over.", _CONSUMING)]
    published: Annotated[
        int, counter("broker_published", "Messages that were published to it, due at once.", _CONSUMING)
    ]
    duplicates: Annotated[int, counter("broker_duplicates", "Deliveries that it recognised as duplicates.")]
    pulled: Annotated[int, counter("broker_pulled", "Messages handed to consumers, redeliveries too.", _CONSUMING)]
    acked: Annotated[int, counter("broker_acked", "Messages that consumers acked.", _CONSUMING)]
    retried: Annotated[int, counter(
        "broker_retried", "Messages that consumers get again, after a nack or an ack timeout.", _CONSUMING
    )]  # fmt: skip
    dead_letters: Annotated[int, counter("broker_dead_letters", "Messages that a consumer group gave up.", _CONSUMING)]
    dead_letters_retired: Annotated[int, counter("broker_dead_letters_retired", "Dead letters that retention removed.")]
    expired: Annotated[int, counter("broker_expired", "Messages that expired before a consumer got them.", _CONSUMING)]
    filtered: Annotated[int, counter("broker_filtered", "Messages that a group's filter passed over.", _CONSUMING)]
    store_bytes: Annotated[int, gauge(
        "broker_store_bytes", "Bytes of the broker's message store.", "Consumer groups and subjects/Store of the broker"
    )]  # fmt: skip
    cache_bytes: Annotated[int, gauge(
        "broker_cache_bytes", "Bytes of batches in the broker's cache.",
        "Consumer groups and subjects/Store of the broker",
    )]  # fmt: skip
    open_windows: Annotated[int, gauge("broker_open_windows", "Windows whose delivery keys the broker keeps.")]
    damaged_messages: Annotated[int, gauge("broker_damaged_messages", "Messages of the store that cannot be read.")]
    damages: Annotated[list[str], words("A sentence for each damaged place.")]
    queues: Annotated[int, gauge("broker_queues", "Subjects with a queue.")]
    groups: Annotated[int, gauge("broker_consumer_groups", "Consumer groups.")]
    groups_max: Annotated[int, gauge(
        "broker_consumer_groups_max", "The bound of delayserver_broker_consumer_groups.", field="Their bound."
    )]  # fmt: skip
    waiting_pulls: Annotated[int, gauge("broker_waiting_pulls", "Pulls that wait for messages.")]
    given_back: Annotated[int, counter(
        "broker_given_back", "Messages pulled for clients that went away, and given back."
    )]  # fmt: skip
    redeliveries_waiting: Annotated[int, gauge(
        "broker_redeliveries_waiting", "Redeliveries that wait in the delay pipeline."
    )]  # fmt: skip
    duplicate_servers: Annotated[list[dict[str, Any]], words(
        "{`server_id`, `refused`, `now`}: two processes with this id deliver to it. `refused` counts their refused "
        "requests; `now`: both were there within the last minute."
    )]  # fmt: skip


# -- the cluster


class MemberFigures(Struct, frozen=True):
    """What a member of a cluster knows of its shard and of the shared log. A server without a cluster has none."""

    shard: Annotated[int, Label("shard"), words("The shard, counted from 0.")]
    member: Annotated[str, Label("member"), words("The name of the member.")]
    role: Annotated[str, gauge(
        "member_leads", "1 while the member is the primary of its shard.", "Cluster/Primaries", equals="primary",
        field="`primary`, `standby`, or `taking_over`: it leads, and does not serve yet.",
    )]  # fmt: skip
    epoch: Annotated[int, gauge(
        "member_epoch", "The leadership that the member has read of last. Each takeover adds one.", "Cluster/Epoch"
    )]  # fmt: skip
    lag_records: Annotated[int | None, gauge(
        "member_lag_records",
        "Records that the log had at the last look, which the member has not applied. Missing while the log does not "
        "answer.", "Cluster/Lag in records",
    )]  # fmt: skip
    lag_ms: Annotated[int, gauge(
        "member_lag_seconds",
        "0 where nothing is missing; else how long ago the last record that the member has read was written.",
        "Cluster/Lag in time",
    )]  # fmt: skip
    compared_position: Annotated[int, gauge(
        "member_compared_position",
        "The position in the log up to which the member was last found to have decided the same as the primary; 0: not yet.",
        "Cluster/Compared",
    )]  # fmt: skip
    lease_left_ms: Annotated[int, gauge(
        "member_lease_left_seconds", "How long the primary may serve without another beat. 0 on a standby.",
        "Cluster/Lease of the primary",
    )]  # fmt: skip
    beat_age_ms: Annotated[int | None, gauge(
        "member_beat_age_seconds",
        "How long ago the primary sent the last beat that came back from the log. Missing on a standby.",
        "Cluster/Lease of the primary",
    )]  # fmt: skip
    proposals: Annotated[int, gauge(
        "member_proposals", "Records of the primary that are on their way through the log.", "Cluster/On their way"
    )]  # fmt: skip
    proposals_bytes: Annotated[int, gauge(
        "member_proposals_bytes", "Bytes of these records.", "Cluster/On their way"
    )]  # fmt: skip
    unreached: Annotated[list[str], gauge(
        "member_unreached", "Members of the shard whose address this one has not reached for 10 s.", "Cluster/Fronts",
        field="The members whose address this one has not reached for 10 s.",
    )]  # fmt: skip
    unreached_by: Annotated[list[str], gauge(
        "member_unreached_by", "Members that have not reached the address of this one for 10 s.", "Cluster/Fronts",
        field="The members that have not reached the address of this one for 10 s.",
    )]  # fmt: skip
    front_hand_overs: Annotated[int, counter(
        "member_front_hand_overs", "How often this process has handed over because no member reached its address.",
        "Cluster/Fronts",
    )]  # fmt: skip
    front: Annotated[str, words("What is wrong with addresses of members, for people. Empty where nothing is.")]
    unfit: Annotated[list[str], gauge(
        "member_unfit",
        "Other members of the shard that never lead as they are: they have diverged, or found damage in their directories.",
        "Cluster/Fronts",
        field="The other members that never lead as they are: they have diverged, or found damage in their directories.",
    )]  # fmt: skip
    damaged: Annotated[bool, gauge(
        "member_damaged", "1 if the member knows of damage in its directory: then it never leads again.",
        field="Whether it knows of damage in its directory: then it never leads again.",
    )]  # fmt: skip
    log_answers: Annotated[bool, gauge(
        "log_answers", "1 if the log answered the last look of the member.",
        field="Whether the log answered the last look.",
    )]  # fmt: skip
    log_unanswered: Annotated[int, counter(
        "log_unanswered", "Looks at the log that got no answer since the member began to follow.",
        "Cluster/Looks without an answer",
    )]  # fmt: skip
    log_copies: Annotated[int | None, gauge(
        "log_copies", "Copies that the log has of each record. Missing until the log has told it.", "Cluster/Copies"
    )]  # fmt: skip
    log_in_sync: Annotated[
        int | None, gauge("log_in_sync", "Copies that have all records of the log.", "Cluster/Copies")
    ]
    log_in_sync_min: Annotated[
        int | None, gauge("log_in_sync_min", "Copies that have a record before it counts.", "Cluster/Copies")
    ]
    log_kept: Annotated[int | None, gauge(
        "log_kept", "Positions between the begin and the end of the log. Trimming makes them fewer.",
        "Cluster/Kept in the log",
    )]  # fmt: skip
    log_faults: Annotated[list[str], gauge(
        "log_faults", "Wrong settings of the log.", field="A sentence for each wrong setting of the log."
    )]  # fmt: skip


class ServerStatus(Struct, frozen=True):
    """All sections of `status`, in the order of the reply."""

    process: Annotated[ProcessStatus, Section(("",))]
    balance: Annotated[BalanceStatus, Section(("",))]
    clock: ClockStatus
    event_loop: EventLoopStatus
    connections: Annotated[ConnectionsStatus, Section(("",))]
    troubles: Annotated[TroubleStatus, Section(("",))]
    disk: Annotated[DiskStatus, Section(("storage",))]
    progress: Annotated[ProgressStatus, Section(("storage",))]
    windows: Annotated[WindowsStatus, Section(("storage",))]
    wheel: WheelStatus
    groups: Annotated[dict[str, GroupStatus], Label("broker_group"), Section(("groups", "broker_groups"))]
    broker: BrokerStatus
    cluster: Annotated[
        list[MemberFigures], words("The member of a cluster that this server is. Without one it is empty.")
    ]


# -- what `metrics` has beside it


class Histogram(Struct, frozen=True):
    """`counts` has one more bucket than `bounds_us`: what is longer than the last bound."""

    bounds_us: tuple[int, ...]
    counts: list[int]
    sum_us: int


class LatenessFigures(Histogram, frozen=True):
    """How late the messages of a broker group were handed over. `early` must be 0."""

    early: Annotated[int, counter("early", "Messages handed over before they were due: must be 0.")]


class QueueUse(Struct, frozen=True, omit_defaults=True):
    """One bounded thing. `group`: the broker group that it belongs to, empty for the others."""

    name: Annotated[str, Label("queue")]
    used: Annotated[int, gauge("queue_used", "Fill of a bounded queue, in its own unit.")]
    bound: Annotated[int, gauge("queue_bound", "The bound of the queue, in the same unit.")]
    group: Annotated[str, Label("broker_group")] = ""


class ConsumerGroupFigures(Struct, frozen=True):
    """The backlog of a consumer group. `oldest_ms`: the due time of its oldest message that is not acked; None if there
    is none, or if it was not read yet."""

    subject: Annotated[str, Label("subject")]
    group: Annotated[str, Label("consumer_group")]
    lag: Annotated[int, gauge(
        "consumer_group_lag", "Messages of the subject that the group has not acked.", "Consumer groups and subjects/Lag"
    )]  # fmt: skip
    leased: Annotated[int, gauge("consumer_group_leased", "Of these, those with a consumer.", _LEASED)]
    retrying: Annotated[
        int, gauge("consumer_group_retrying", "Of these, those that wait for their redelivery.", _LEASED)
    ]
    oldest_ms: Annotated[int | None, gauge(
        "consumer_group_oldest_due_timestamp_seconds", "When the oldest message not acked was due."
    )]  # fmt: skip
    dead_letters: int
    waiting_keys: Annotated[
        int, gauge("consumer_group_waiting_keys", "Order keys that wait for a message that has failed.")
    ]


class SubjectFigures(Struct, frozen=True):
    """The backlog of a subject."""

    subject: Annotated[str, Label("subject")]
    pending: Annotated[int, gauge(
        "subject_pending", "Pending messages of a subject.", "Consumer groups and subjects/Pending by subject"
    )]  # fmt: skip


class Figures(Struct, frozen=True):
    """All of it, in the order of the reply of `metrics`. `subjects`: those with the most pending messages first."""

    status: Annotated[ServerStatus, Section(("",))]
    lateness: Annotated[dict[str, LatenessFigures], Label("broker_group"), histogram(
        "lateness_seconds",
        "Time from the due time of a message, or its acceptance if that was later, to its hand-over.",
    )]  # fmt: skip
    stages: Annotated[dict[str, Histogram], Label("stage"), histogram(
        "stage_seconds", "Time of the batches of a stage of the journey."
    )]  # fmt: skip
    queues: list[QueueUse]
    consumer_groups: list[ConsumerGroupFigures]
    consumer_groups_all: int
    subjects: list[SubjectFigures]
    subjects_counted: bool
