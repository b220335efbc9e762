"""The reply of the operation `metrics` as metric families. Pure.

Every name begins with `delayserver_`. Times are seconds, sizes bytes. A field that a server does not send is left out, so
an older or newer server can be scraped. All label sets are bounded: by the configuration (broker groups, nodes), by the
program (outcomes, errors, stages, queues), or by `ROWS_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from delayserver.protocol.errors import ERRORS

ROWS_MAX: Final = 1000
"""Subjects and consumer groups, each: those with the most pending messages or the largest lag. Prometheus keeps each label
value in memory, and a server may have a million subjects."""

OUTCOMES: Final = ("delivered", "cancelled", "dead_lettered", "expired", "deduplicated", "rolled_back")

Reply = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plain:
    """A family with one value: where the reply has it, and what it means. ``scale`` turns its unit into the base unit."""

    path: str
    name: str
    help: str
    scale: float = 1.0
    counter: bool = False

    def family(self, labels: Iterable[str] = ()) -> CounterMetricFamily | GaugeMetricFamily:
        """The family without samples."""
        kind = CounterMetricFamily if self.counter else GaugeMetricFamily
        return kind(self.name, self.help, labels=list(labels))


def _gauge(path: str, name: str, text: str, scale: float = 1.0) -> Plain:
    return Plain(path, f"delayserver_{name}", text, scale)


def _counter(path: str, name: str, text: str) -> Plain:
    return Plain(path, f"delayserver_{name}", text, counter=True)


MS: Final = 1e-3
US: Final = 1e-6

PLAIN: Final = (
    _gauge("ready", "ready", "1 while the server serves all operations."),
    _gauge("uptime_s", "uptime_seconds", "Time since the start of the server."),
    # the balance: accepted = the sum of all outcomes + pending
    _counter("accepted", "messages_accepted", "Messages accepted, over all starts."),
    _counter("replaced", "messages_replaced", "Messages in the place of another one, which counts as cancelled."),
    _gauge("pending", "messages_pending", "Accepted messages without a durable outcome."),
    # the clock
    _gauge("clock.server_us", "clock_timestamp_seconds", "The clock by which the server delivers.", US),
    _counter("clock.steps", "clock_steps", "Steps of the wall clock since the start."),
    _gauge("clock.step_last_ms", "clock_step_last_seconds", "The last step of the wall clock.", MS),
    # the event loop
    _counter(
        "event_loop.long_stalls", "event_loop_stalls", "Stalls of the event loop of at least stall_log_ms since the start."
    ),
    _gauge(
        "event_loop.longest_stall_minute_ms", "event_loop_longest_stall_seconds",
        "The longest stall of the event loop in about the last minute.", MS,
    ),
    # connections
    _gauge("connections", "connections", "Open connections of the server's own protocol."),
    _gauge("connection_memory.used_bytes", "connection_memory_bytes", "Unfinished frames and unread replies."),
    _gauge("connection_memory.bytes_max", "connection_memory_max_bytes", "The bound of these bytes."),
    _gauge("connection_memory.frames_waiting", "connection_frames_waiting", "Frames that wait for memory."),
    _counter("one_way_refused", "one_way_refused", "Messages of one-way sends that were refused since the start."),
    # the disk
    _gauge("storage.disk_free_bytes", "disk_free_bytes", "Free bytes of the disk with the data directory."),
    _gauge("storage.disk_low", "disk_low", "1 while sends are refused because the disk is nearly full."),
    _counter("storage.disk_errors", "disk_errors", "Operations that the disk refused since the start."),
    _gauge("storage.open_files", "open_files", "Open files of windows."),
    _gauge("storage.subjects", "subjects", "Names of subjects."),
    _gauge("storage.subjects_max", "subjects_max", "The bound of delayserver_subjects."),
    _gauge("storage.tags", "tags", "Names of tags."),
    _gauge("storage.tags_max", "tags_max", "The bound of delayserver_tags."),
    _gauge("storage.replay_lag_bytes", "replay_lag_bytes", "Bytes of message_log that are durable and not yet replayed."),
    _counter("storage.group_commits", "group_commits", "Group commits since the start."),
    _gauge("storage.commit_us_max", "commit_longest_seconds", "The longest group commit since the start.", US),
    _counter("storage.checkpoints", "checkpoints", "Checkpoints written since the start."),
    _gauge("storage.outcomes_waiting", "outcomes_waiting", "Outcomes that are decided and not yet on disk."),
    _gauge("storage.incomplete_windows", "incomplete_windows", "Windows with messages that have no outcome yet."),
    _gauge(
        "storage.oldest_incomplete_window_ms", "oldest_incomplete_window_timestamp_seconds",
        "The begin of the oldest window with messages that have no outcome yet.", MS,
    ),
    _gauge(
        "storage.oldest_due_ms", "oldest_due_timestamp_seconds", "The oldest due time that a send may still have.", MS
    ),
    _gauge("storage.retired_windows_ahead", "retired_windows_ahead", "Windows ahead of the clock that take no sends."),
    # messages in memory
    _gauge("wheel.rows", "wheel_rows", "Messages in memory that are not due yet."),
    _gauge("wheel.bytes", "wheel_bytes", "Memory of these messages."),
    _gauge("wheel.next_due_ms", "next_due_timestamp_seconds", "The due time of the next message in memory.", MS),
    _counter("wheel.loads", "wheel_loads", "Loads of windows into memory since the start."),
    _counter("wheel.evictions", "wheel_evictions", "Times that the far end of memory was dropped since the start."),
    # the embedded broker
    _counter("broker.delivered", "broker_delivered", "Messages that the embedded broker took over."),
    _counter("broker.published", "broker_published", "Messages that were published to it, due at once."),
    _counter("broker.duplicates", "broker_duplicates", "Deliveries that it recognised as duplicates."),
    _counter("broker.pulled", "broker_pulled", "Messages handed to consumers, redeliveries too."),
    _counter("broker.acked", "broker_acked", "Messages that consumers acked."),
    _counter("broker.retried", "broker_retried", "Messages that consumers get again, after a nack or an ack timeout."),
    _counter("broker.dead_letters", "broker_dead_letters", "Messages that a consumer group gave up."),
    _counter("broker.dead_letters_retired", "broker_dead_letters_retired", "Dead letters that retention removed."),
    _counter("broker.expired", "broker_expired", "Messages that expired before a consumer got them."),
    _counter("broker.filtered", "broker_filtered", "Messages that a group's filter passed over."),
    _counter("broker.given_back", "broker_given_back", "Messages pulled for clients that went away, and given back."),
    _gauge(
        "broker.redeliveries_waiting", "broker_redeliveries_waiting", "Redeliveries that wait in the delay pipeline."
    ),
    _gauge("broker.store_bytes", "broker_store_bytes", "Bytes of the broker's message store."),
    _gauge("broker.cache_bytes", "broker_cache_bytes", "Bytes of batches in the broker's cache."),
    _gauge("broker.damaged_messages", "broker_damaged_messages", "Messages of the store that cannot be read."),
    _gauge("broker.queues", "broker_queues", "Subjects with a queue."),
    _gauge("broker.groups", "broker_consumer_groups", "Consumer groups."),
    _gauge("broker.groups_max", "broker_consumer_groups_max", "The bound of delayserver_broker_consumer_groups."),
    _gauge("broker.waiting_pulls", "broker_waiting_pulls", "Pulls that wait for messages."),
    _gauge("broker.open_windows", "broker_open_windows", "Windows whose delivery keys the broker keeps."),
)  # fmt: skip

# Of each broker group.
GROUP: Final = (
    _gauge("waiting", "broker_group_waiting", "Due messages that wait for the broker group."),
    _gauge("in_flight", "broker_group_in_flight", "Messages handed to its nodes that are not settled."),
    _counter("delivered", "broker_group_delivered", "Messages delivered to the broker group since the start."),
    _counter("attempts_failed", "broker_group_attempts_failed", "Messages in attempts that failed since the start."),
    _counter("duplicates_suppressed", "broker_group_duplicates_suppressed", "Messages that its nodes already had."),
    _counter("failed_over", "broker_group_failed_over", "Messages moved to a fallback group."),
    _counter("uncertain_failovers", "broker_group_uncertain_failovers", "Of these, those with an attempt in doubt."),
    _counter("maybe_delivered_twice", "broker_group_maybe_delivered_twice", "Messages that may have come twice."),
    _counter("dropped_from_memory", "broker_group_dropped_from_memory", "Messages that a full queue dropped to disk."),
)  # fmt: skip

# Of each node of a broker group.
NODE: Final = (
    _gauge("weight", "node_weight", "The weight of the node; 0: it is drained."),
    _counter("failures", "node_failures", "Failed attempts at the node since the start."),
)

# Of each consumer group.
CONSUMERS: Final = (
    _gauge("lag", "consumer_group_lag", "Messages of the subject that the group has not acked."),
    _gauge("leased", "consumer_group_leased", "Of these, those with a consumer."),
    _gauge("retrying", "consumer_group_retrying", "Of these, those that wait for their redelivery."),
    _gauge("waiting_keys", "consumer_group_waiting_keys", "Order keys that wait for a message that has failed."),
    _gauge(
        "oldest_ms", "consumer_group_oldest_due_timestamp_seconds", "When the oldest message not acked was due.", MS
    ),
)  # fmt: skip


def server_families(reply: Reply) -> Iterator[Metric]:
    """All families of a reply."""
    yield _info(reply)
    for plain in PLAIN:
        value = _number_at(reply, plain.path)
        if value is not None:
            family = plain.family()
            family.add_metric([], value * plain.scale)
            yield family
    yield from _balance(reply)
    yield from _damage(reply)
    yield from _lateness(reply.get("lateness") or {})
    yield from _stages(reply.get("stages") or {})
    yield from _queues(reply.get("queues") or [])
    yield from _broker_groups(reply.get("groups") or {})
    yield from _subjects(reply.get("subjects") or [])
    yield from _consumer_groups(reply.get("consumer_groups") or [], reply.get("consumer_groups_all"))


def _info(reply: Reply) -> Metric:
    names = ("version", "role", "server_id")
    info = GaugeMetricFamily("delayserver_info", "What runs; the value is always 1.", labels=[*names, "durability"])
    storage = reply.get("storage") or {}
    info.add_metric([*[str(reply.get(name, "")) for name in names], str(storage.get("durability", ""))], 1)
    return info


def _balance(reply: Reply) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "delayserver_messages_ended", "Messages by their outcome, over all starts.", labels=["outcome"]
    )
    for outcome in OUTCOMES:
        if outcome in reply:
            ended.add_metric([outcome], reply[outcome])
    yield ended
    errors = CounterMetricFamily("delayserver_errors", "Error replies since the start.", labels=["error"])
    # A series that began with its first error would hide that one from `increase`.
    for name, count in (dict.fromkeys(ERRORS, 0) | dict(reply.get("errors") or {})).items():
        errors.add_metric([name], count)
    yield errors


def _damage(reply: Reply) -> Iterator[Metric]:
    for field, name, text in (
        ("corruption", "corruptions", "Findings of corruption since the start; at most 100 are counted."),
        (
            "unreadable",
            "unreadable_files",
            "Files that the disk could not read since the start; at most 100 are counted.",
        ),
        ("duplicate_server_ids", "duplicate_server_ids", "Server ids that two processes use now."),
    ):
        if field in reply:
            yield GaugeMetricFamily(f"delayserver_{name}", text, value=len(reply[field]))


def _lateness(lateness: Mapping[str, Reply]) -> Iterator[Metric]:
    late = HistogramMetricFamily(
        "delayserver_lateness_seconds",
        "Time from the due time of a message, or its acceptance if that was later, to its hand-over.",
        labels=["broker_group"],
    )
    early = CounterMetricFamily(
        "delayserver_early", "Messages handed over before they were due: must be 0.", labels=["broker_group"]
    )
    for group, histogram in lateness.items():
        _add_histogram(late, group, histogram)
        early.add_metric([group], histogram.get("early", 0))
    yield late
    yield early


def _stages(stages: Mapping[str, Reply]) -> Iterator[Metric]:
    family = HistogramMetricFamily(
        "delayserver_stage_seconds", "Time of the batches of a stage of the journey.", labels=["stage"]
    )
    for stage, histogram in stages.items():
        _add_histogram(family, stage, histogram)
    yield family


def _queues(queues: Sequence[Reply]) -> Iterator[Metric]:
    names = ["queue", "broker_group"]
    used = GaugeMetricFamily("delayserver_queue_used", "Fill of a bounded queue, in its own unit.", labels=names)
    bound = GaugeMetricFamily("delayserver_queue_bound", "The bound of the queue, in the same unit.", labels=names)
    for queue in queues:
        labels = [queue["name"], str(queue.get("group", ""))]
        used.add_metric(labels, queue["used"])
        bound.add_metric(labels, queue["bound"])
    yield used
    yield bound


def _broker_groups(groups: Mapping[str, Reply]) -> Iterator[Metric]:
    rows = [({"broker_group": name}, group) for name, group in groups.items()]
    yield from _table(GROUP, rows)
    nodes = [
        ({"broker_group": name, "node": str(node["address"])}, node)
        for name, group in groups.items()
        for node in group.get("nodes") or []
    ]
    yield from _table(NODE, nodes)
    names = ["broker_group", "node"]
    circuit = GaugeMetricFamily("delayserver_node_circuit_open", "1 while the node counts as down.", labels=names)
    problem = GaugeMetricFamily("delayserver_node_problem", "1 while an operator must mend something.", labels=names)
    for labels, node in nodes:
        circuit.add_metric(list(labels.values()), float(node.get("circuit") == "open"))
        problem.add_metric(list(labels.values()), float(bool(node.get("problem"))))
    yield circuit
    yield problem


def _subjects(subjects: Sequence[Reply]) -> Iterator[Metric]:
    shown = _largest(subjects, "pending")
    pending = GaugeMetricFamily("delayserver_subject_pending", "Pending messages of a subject.", labels=["subject"])
    for row in shown:
        pending.add_sample(pending.name, {"subject": row["subject"]}, float(row["pending"]))
    yield pending


def _consumer_groups(groups: Sequence[Reply], count: int | None) -> Iterator[Metric]:
    shown = _largest(groups, "lag")
    rows = [({"subject": row["subject"], "consumer_group": row["group"]}, row) for row in shown]
    yield from _table(CONSUMERS, rows)
    yield GaugeMetricFamily(
        "delayserver_consumer_groups_not_shown", "Consumer groups left out of delayserver_consumer_group_lag.",
        (len(groups) if count is None else count) - len(shown),
    )  # fmt: skip


def _largest(rows: Sequence[Reply], by: str) -> Sequence[Reply]:
    return rows if len(rows) <= ROWS_MAX else sorted(rows, key=lambda row: -row[by])[:ROWS_MAX]


def _table(columns: Sequence[Plain], rows: Sequence[tuple[dict[str, str], Reply]]) -> Iterator[Metric]:
    if not rows:
        return
    for plain in columns:
        family = plain.family(rows[0][0])
        name = f"{plain.name}_total" if plain.counter else plain.name
        # Not `add_metric`: it copies the labels, which all columns of a row share.
        family.samples.extend(
            [
                Sample(name, labels, value * plain.scale)
                for labels, row in rows
                if (value := _number_at(row, plain.path)) is not None
            ]
        )
        yield family


def _add_histogram(family: HistogramMetricFamily, label: str, histogram: Reply) -> None:
    """Adds counts for each bucket as cumulative ones. The counts may have one more than the bounds: what lies beyond."""
    bounds = [*[floatToGoString(bound_us / 1_000_000) for bound_us in histogram["bounds_us"]], "+Inf"]
    counts = [*histogram["counts"], 0][: len(bounds)]
    family.add_metric([label], list(zip(bounds, accumulate(counts), strict=True)), histogram["sum_us"] * US)


def _number_at(reply: Reply, path: str) -> float | None:
    value: Any = reply.get(path)
    if type(value) is int:  # by far the most
        return float(value)
    value = reply
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None
