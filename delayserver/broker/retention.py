"""When a segment of the broker's store may go: consumed by every group, old enough, no repeats to expect.

- A segment that a group still needs stays, however old it is.
- A subject that no group ever pulled from keeps its messages for `unconsumed_retention_ms`.
- A window that its server has not declared complete keeps its records, for `unconsumed_retention_ms` at most.
"""

from __future__ import annotations

from delayserver.broker.groups import ConsumerGroup
from delayserver.broker.limits import BrokerLimits
from delayserver.broker.queue import ConsumeQueue, QueueKey
from delayserver.broker.store import BrokerStore
from delayserver.broker.windows import WindowTable


def retire_store(
    store: BrokerStore,
    queues: dict[QueueKey, ConsumeQueue],
    groups: dict[tuple[int, int], ConsumerGroup],
    windows: WindowTable,
    segment_newest_us: dict[int, int],
    limits: BrokerLimits,
    now_us: int,
) -> list[str]:
    """Remove what may go, oldest first, and move the queues up; returns the removed paths."""
    sealed = store.segments()[:-1]
    old = [end for base, end, _ in sealed if _age_ms(segment_newest_us, base, now_us) > limits.retention_ms]
    if not old:
        return []
    abandoned = _old_enough(sealed, segment_newest_us, now_us, limits.unconsumed_retention_ms)
    needed = [max(lowest, abandoned) for lowest in [windows.lowest()] if lowest is not None]
    committed = _lowest_committed(groups)
    for key, queue in queues.items():
        position = committed.get(key)
        offset = queue.store_offset_of(queue.first if position is None else position)
        if offset is not None:
            needed.append(offset if position is not None else max(offset, abandoned))
    below = min([*needed, _old_enough(sealed, segment_newest_us, now_us, limits.retention_ms)])
    removed = store.retire(below)
    if removed:
        for queue in queues.values():
            queue.retire(store.first)
        windows.retire(store.first)
        _move_up(queues, groups)
        for base in [base for base in segment_newest_us if base < store.segments()[0][0]]:
            del segment_newest_us[base]
    return removed


def _age_ms(newest_us: dict[int, int], base: int, now_us: int) -> int:
    return (now_us - newest_us.get(base, now_us)) // 1000


def _old_enough(sealed: list[tuple[int, int, str]], newest_us: dict[int, int], now_us: int, age_ms: int) -> int:
    """The end of the oldest segments that are all older than `age_ms`."""
    below = 0
    for base, end, _ in sealed:
        if _age_ms(newest_us, base, now_us) <= age_ms:
            break
        below = end
    return below


def _lowest_committed(groups: dict[tuple[int, int], ConsumerGroup]) -> dict[QueueKey, int]:
    """The position of the slowest group of every queue."""
    lowest: dict[QueueKey, int] = {}
    for (subject, group), state in groups.items():
        main = (subject, 0)
        lowest[main] = min(lowest.get(main, state.main.committed), state.main.committed)
        lowest[subject, group] = state.retry.committed
    return lowest


def _move_up(queues: dict[QueueKey, ConsumeQueue], groups: dict[tuple[int, int], ConsumerGroup]) -> None:
    for (subject, group), state in groups.items():
        for cursor, target in ((state.main, 0), (state.retry, group)):
            queue = queues.get((subject, target))
            if queue is not None:
                cursor.skip_to(queue.first)
