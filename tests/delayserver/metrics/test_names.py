"""The names that monitors and clients know stay as they were: of metrics with their kinds and labels, and of fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from delayserver.metrics.server_families import server_families
from delayserver.protocol.figure_fields import Field, Kind, fields_of, figures
from delayserver.protocol.figures import Figures
from tests.fakes.host import Boot, small_settings

ROOT = Path(__file__).parents[3]
OF_GATEWAY = ("http_requests_total", "http_request_duration_seconds", "http_requests_in_flight")

# Without `delayserver_` before and `_total` after the name of a counter.
METRICS: Final = {
    "gauge": """
broker_cache_bytes broker_consumer_groups broker_consumer_groups_max broker_damaged_messages
broker_group_in_flight{broker_group} broker_group_waiting{broker_group} broker_open_windows broker_queues
broker_redeliveries_waiting broker_store_bytes broker_waiting_pulls clock_step_last_seconds clock_timestamp_seconds
commit_longest_seconds connection_frames_waiting connection_memory_bytes connection_memory_max_bytes connections
consumer_group_lag{consumer_group,subject} consumer_group_leased{consumer_group,subject}
consumer_group_oldest_due_timestamp_seconds{consumer_group,subject} consumer_group_retrying{consumer_group,subject}
consumer_group_waiting_keys{consumer_group,subject} consumer_groups_not_shown corruptions disk_free_bytes disk_low
duplicate_server_ids event_loop_longest_stall_seconds incomplete_windows info{durability,role,server_id,version}
messages_pending next_due_timestamp_seconds node_circuit_open{broker_group,node} node_problem{broker_group,node}
node_weight{broker_group,node} oldest_due_timestamp_seconds oldest_incomplete_window_timestamp_seconds open_files
last_backup_timestamp_seconds log_answers{member,shard} log_copies{member,shard} log_faults{member,shard}
log_in_sync{member,shard} log_in_sync_min{member,shard} log_kept{member,shard} log_position
member_beat_age_seconds{member,shard} member_epoch{member,shard} member_lag_records{member,shard}
member_compared_position{member,shard} member_damaged{member,shard}
member_lag_seconds{member,shard} member_leads{member,shard} member_lease_left_seconds{member,shard}
member_proposals{member,shard} member_proposals_bytes{member,shard}
member_unfit{member,shard} member_unreached{member,shard} member_unreached_by{member,shard}
outcomes_waiting queue_bound{broker_group,queue} queue_used{broker_group,queue}
ready replay_lag_bytes retired_windows_ahead subject_pending{subject} subjects subjects_max tags tags_max
unreadable_files uptime_seconds wheel_bytes wheel_rows
""",
    "counter": """
broker_acked broker_dead_letters broker_dead_letters_retired broker_delivered broker_duplicates broker_expired
broker_filtered broker_given_back broker_group_attempts_failed{broker_group} broker_group_delivered{broker_group}
broker_group_dropped_from_memory{broker_group} broker_group_duplicates_suppressed{broker_group}
broker_group_failed_over{broker_group} broker_group_maybe_delivered_twice{broker_group}
broker_group_uncertain_failovers{broker_group} broker_published broker_pulled broker_retried checkpoints clock_steps
disk_errors early{broker_group} errors{error} event_loop_stalls group_commits log_unanswered{member,shard} messages_accepted
member_front_hand_overs{member,shard}
messages_ended{outcome} messages_replaced node_failures{broker_group,node} one_way_refused wheel_evictions
wheel_loads
""",
    "histogram": """
lateness_seconds{broker_group} stage_seconds{stage}
""",
}

# The fields of the maps of a reply of `metrics`, those of `status` first.
FIELDS: Final = {
    "": """
ready waits_for role server_id version uptime_s accepted delivered cancelled dead_lettered expired deduplicated
rolled_back pending replaced early lateness_ms clock event_loop connections one_way_refused connection_memory errors
corruption unreadable duplicate_server_ids storage wheel groups broker_groups broker cluster lateness stages queues
consumer_groups consumer_groups_all subjects subjects_counted
""",
    "lateness_ms": "p50 p90 p99 p999 max",
    "clock": "server_us believable_us steps step_last_ms",
    "event_loop": "longest_stall_ms longest_stall_minute_ms long_stalls",
    "connection_memory": "used_bytes bytes_max frames_waiting",
    "storage": """
durability disk_free_bytes disk_low disk_errors disk_error_last open_files subjects subjects_max tags tags_max
replay_lag_bytes group_commits commit_us_max checkpoints last_backup_ms log_position outcomes_waiting
oldest_due_ms retired_windows_ahead oldest_incomplete_window_ms incomplete_windows
""",
    "wheel": "rows bytes next_due_ms loads evictions",
    "broker": """
delivered published duplicates pulled acked retried dead_letters dead_letters_retired expired filtered store_bytes
cache_bytes open_windows damaged_messages damages queues groups groups_max waiting_pulls given_back
redeliveries_waiting duplicate_servers
""",
    "groups.default": """
waiting in_flight delivered attempts_failed duplicates_suppressed failed_over uncertain_failovers
maybe_delivered_twice dropped_from_memory nodes
""",
    "groups.default.nodes.0": "address weight state circuit retry_in_ms failures last_error problem",
    "lateness.default": "bounds_us counts sum_us early",
    "stages.sync": "bounds_us counts sum_us",
    "queues.0": "name used bound",
    "subjects.0": "subject pending",
    "consumer_groups.0": "subject group lag leased retrying oldest_ms dead_letters waiting_keys",
}


def named(metric: str, labels: set[str]) -> str:
    shown = ",".join(sorted(labels - {"le"}))
    return f"{metric.removeprefix('delayserver_')}{{{shown}}}" if shown else metric.removeprefix("delayserver_")


def value_at(reply: dict[str, Any], path: str) -> Any:
    found: Any = reply
    for key in path.split(".") if path else ():
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found


def test_the_table_has_each_metric_with_its_kind_and_labels() -> None:
    made: dict[str, set[str]] = {"gauge": {"info{durability,role,server_id,version}", "consumer_groups_not_shown"}}
    for _, figure, labels in figures(Figures):
        made.setdefault(figure.kind, set()).add(named(figure.name, set(labels)))
    assert made == {kind: set(names.split()) for kind, names in METRICS.items()}


def fields_below(kind: Kind) -> Iterator[Field]:
    for each in fields_of(kind):
        yield each
        if each.rows:
            yield from fields_below(each.rows)


def test_the_protocol_names_each_field() -> None:
    text = (ROOT / "docs" / "reference" / "protocol-operators.md").read_text()
    part = text[text.index("\n### `status`\n") : text.index("\n### `pending`\n")]
    part += text[text.index("\n### `metrics`\n") :].partition("\n### ")[2].partition("\n## ")[0]
    keys = {key for each in fields_below(Figures) for key in each.keys if key}
    assert keys - set(re.findall(r"\w+", part)) == set()


@pytest.mark.parametrize("page", ["docs/how-to/monitor.md", "ops/RUNBOOK.md", "HTTP.md"])
def test_a_document_names_only_metrics_that_exist(page: str) -> None:
    known = {"delayserver_up", *(f"delayserver_{name}" for name in OF_GATEWAY)}
    for _, figure, _ in figures(Figures):
        parts = ("_bucket", "_sum", "_count") if figure.kind == "histogram" else ()
        known |= {figure.metric, *(figure.metric + part for part in parts)}
    assert set(re.findall(r"\bdelayserver_\w+", (ROOT / page).read_text())) - known == set()


async def test_a_server_has_each_field_and_only_metrics_of_the_table(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    await client.send(
        *[{"subject": "s", "body": "", "due_ms": host.now_ms + delay_ms} for delay_ms in (300, 3_600_000)]
    )
    await host.sleep_ms(1_000)
    await client.request("pull", {"subject": "s", "group": "g"})
    await host.until(lambda: host.server.parts.state.balance.subjects.is_counted)
    reply = await client.request("metrics")
    found = {path: set(value_at(reply, path)) for path in FIELDS}
    assert found == {path: set(names.split()) for path, names in FIELDS.items()}
    status = await client.status()
    assert set(status) == set(reply) - {
        "lateness", "stages", "queues", "consumer_groups", "consumer_groups_all", "subjects", "subjects_counted",
    }  # fmt: skip
    known = {kind: set(names.split()) for kind, names in METRICS.items()}
    for family in server_families(reply):
        for sample in family.samples:
            assert named(family.name, set(sample.labels)) in known[family.type]
