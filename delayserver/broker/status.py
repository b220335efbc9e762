"""What the broker tells about itself."""

from __future__ import annotations

from typing import Any

from delayserver.broker.groups import Cursor, GroupKey
from delayserver.broker.queue import ConsumeQueue
from delayserver.broker.state import BrokerState


def broker_status(state: BrokerState) -> dict[str, Any]:
    """Numbers of the store, and one map per consumer group. Subjects and groups are codes."""
    return {
        "store_bytes": state.store.end - state.store.segments()[0][0],
        "cache_bytes": state.store.cache_bytes,
        "index_runs": sum([queue.runs_in_memory for queue in state.queues.values()]),
        "open_windows": len(state.windows.extents),
        "damaged_messages": state.damaged_messages,
        "damages": len(state.damages),
        "groups": [_group_status(state, key) for key in sorted(state.groups)],
        "subjects_without_group": _without_group(state),
    }


def _group_status(state: BrokerState, key: GroupKey) -> dict[str, Any]:
    group = state.groups[key]
    main, retry = state.queues.get((key[0], 0)), state.queues.get(key)
    return {
        "subject": key[0],
        "group": key[1],
        "backlog": _backlog(main, group.main) + _backlog(retry, group.retry),
        "leased": group.main.leased() + group.retry.leased(),
        "retrying": group.main.retrying.count() + group.retry.retrying.count(),
        "oldest_due_ms": _oldest_due_ms(state, key[0], group.main),
    }


def _backlog(queue: ConsumeQueue | None, cursor: Cursor) -> int:
    """Not acked: leased or never handed out."""
    return 0 if queue is None else max(0, queue.end - cursor.committed - cursor.acked.count())


def _oldest_due_ms(state: BrokerState, subject: int, cursor: Cursor) -> int | None:
    """When the oldest message that is not acked was due."""
    queue = state.queues.get((subject, 0))
    if queue is None or cursor.committed >= queue.end:
        return None
    run = state.run_at((subject, 0), cursor.committed)
    batch = state.read(run)
    return None if batch is None else int(batch.due_ms[run.row_start + cursor.committed - run.position])


def _without_group(state: BrokerState) -> int:
    with_group = {subject for subject, _ in state.groups}
    return len([subject for subject, target in state.queues if target == 0 and subject not in with_group])
