"""Durable records are counted, told and handed to the replay in one step, whoever wrote them."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.config.settings import StorageSettings
from delayserver.protocol.errors import DelayServerError, DiskFull
from delayserver.state.counts.balance import Balance
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.positions.gathering import CommitGroup, Gathering
from delayserver.state.positions.log_queue import LogQueue
from delayserver.state.positions.positions import Positions
from store.logs.message_log import LogEntry
from store.records.batches import CancelBatch
from store.records.message_rows import MessageRows
from tests.fakes.clock import SimulatedClock
from tests.fakes.rows import messages

ROW = (1_000, 1, 0, b"", b"", b"body", 0, b"")


def fresh(gathering: Gathering | None = None) -> tuple[AcceptedLog, LogQueue, Balance]:
    queue = LogQueue(Positions(durable=0, accepted_sequence=0, replayed=0, replayed_sequence=0), SimulatedClock())
    queue.catch_up()
    balance = Balance()
    if gathering is None:
        gathering = Gathering(StorageSettings(), SimulatedClock())
    return AcceptedLog(queue, balance, gathering), queue, balance


async def test_records_that_nobody_of_this_process_wrote_are_counted_and_replayed_too() -> None:
    accepted, queue, balance = fresh()
    batch = messages(1, 5).with_columns(origin_sequence=np.array([0, 0, 7, 0, 0]))
    entries = [
        LogEntry(0, 90, batch),
        LogEntry(90, 120, CancelBatch.filled(1, sequence=1)),
        LogEntry(128, 200, MessageRows([ROW, ROW], 6, 0)),
    ]
    accepted.accept(entries)
    assert balance.accepted == 6, "an internal record is no message"
    assert queue.positions.accepted_sequence.value == 7
    assert queue.positions.durable.value == 200
    assert queue.take(1 << 20, 1 << 20) == entries
    queue.check_invariants()


async def test_all_of_a_group_are_told_in_the_step_in_which_their_records_count() -> None:
    accepted, queue, balance = fresh()
    group, told = CommitGroup(0), list[int | DelayServerError]()
    group.add_rows([ROW, ROW], told.append)
    group.add_rows([ROW], told.append)
    group.number(11, 0)
    accepted.accept([LogEntry(0, 90, MessageRows(group.rows, 11, 0))], group)
    assert told == [11, 13]
    assert balance.accepted == 3 and queue.positions.accepted_sequence.value == 13


async def test_a_record_that_comes_a_second_time_is_not_accepted() -> None:
    accepted, queue, balance = fresh()
    entry = LogEntry(0, 90, MessageRows([ROW], 1, 0))
    accepted.accept([entry])
    with pytest.raises(AssertionError, match="second time"):
        accepted.accept([entry])
    assert balance.accepted == 1 and queue.positions.durable.value == 90


async def test_groups_on_their_way_end_in_their_order_by_acceptance_or_refusal() -> None:
    settings = StorageSettings()
    gathering = Gathering(settings, SimulatedClock())
    accepted, queue, _ = fresh(gathering)
    positions, told = queue.positions, list[int | DelayServerError]()
    for _ in range(3):
        group = gathering.take(settings.group_bytes_max // 2 + 1)
        assert group is not None
        group.add_rows([ROW], told.append)
    first, second = accepted.begin(), accepted.begin()
    assert gathering.on_their_way == [first, second]
    first.number(5, 0)
    accepted.accept([LogEntry(0, 90, MessageRows(first.rows, 5, 0))], first)
    assert (positions.commits_begun.value, positions.commits_ended.value) == (2, 1), "the second one is on its way"
    accepted.refuse(second, DiskFull("no room"))
    assert (positions.commits_begun.value, positions.commits_ended.value) == (2, 2)
    assert told[0] == 5 and isinstance(told[1], DiskFull) and len(told) == 2, "the third one gathers"
    accepted.refuse(gathering.next(), DiskFull("no room"))
    assert positions.commits_ended.value == 2, "a group that ends in its own step has not begun"
    assert gathering.is_idle
    gathering.check_invariants()
    positions.check_invariants()
