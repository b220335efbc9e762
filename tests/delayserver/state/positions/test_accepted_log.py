"""Durable records are counted, told and handed to the replay in one step, whoever wrote them."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.protocol.errors import DelayServerError
from delayserver.state.counts.balance import Balance
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.positions.gathering import CommitGroup
from delayserver.state.positions.log_queue import LogQueue
from delayserver.state.positions.positions import Positions
from store.logs.message_log import LogEntry
from store.records.batches import CancelBatch
from store.records.message_rows import MessageRows
from tests.fakes.clock import SimulatedClock
from tests.fakes.rows import messages

ROW = (1_000, 1, 0, b"", b"", b"body", 0, b"")


def fresh() -> tuple[AcceptedLog, LogQueue, Balance]:
    queue = LogQueue(Positions(durable=0, accepted_sequence=0, replayed=0, replayed_sequence=0), SimulatedClock())
    queue.caught_up()
    balance = Balance()
    return AcceptedLog(queue, balance), queue, balance


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


async def test_a_commit_runs_from_its_numbers_to_its_acceptance() -> None:
    accepted, queue, _ = fresh()
    positions = queue.positions
    accepted.begin()
    accepted.begin()
    accepted.end()
    assert (positions.commits_begun.value, positions.commits_ended.value) == (2, 1), "the second one still runs"
    accepted.end()
    positions.check_invariants()
    assert positions.commits_ended.value == 2
