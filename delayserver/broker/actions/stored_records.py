"""A record of the store on its way into the index of its queues: at a start, and where another member has made it."""

from __future__ import annotations

from delayserver.broker.actions.delivered_batch import grouped_columns
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.files.store import StoredColumns
from delayserver.broker.queues.queue import ConsumeQueue
from store.records.batches import FLAG_PUBLISHED


def add_record(state: BrokerState, record: StoredColumns) -> list[ConsumeQueue]:
    """Add a record behind those that its queues have; returns these queues."""
    columns, queues = record.columns, []
    if not int(columns["flags"][0]) & FLAG_PUBLISHED:  # a record has published or delivered messages, not both
        state.windows.add_record(
            record.offset, record.stop, columns["server_id"], columns["window_ms"], columns["sequence"]
        )
    for run in grouped_columns(columns["subject"], columns["target_group"]):
        position = int(columns["position"][run.row_start])
        queue = state.queues.get(run.key)
        if queue is None:
            queue = state.queues.add(run.key, ConsumeQueue(position, position))
        if position > queue.end:
            # The messages between are lost to damage. An unreadable run stands for them, so that pulls report it.
            queue.append(record.offset, run.row_start, position - queue.end)
        if position == queue.end:
            queue.append(record.offset, run.row_start, run.row_count)
        queues.append(queue)
    return queues
