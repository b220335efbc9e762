"""Operations are called with values and answer with values. So another front needs neither a connection nor a frame."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import trio

from delayserver.broker.service.pull_actor import UNBOUNDED
from delayserver.operations.access.access import EVERYTHING
from delayserver.operations.all_operations import DelayOperations
from delayserver.operations.groups.consuming import Pull, Pulled
from delayserver.operations.messages.named_messages import GivenItems, GivenName, GivenReceipts
from delayserver.operations.messages.reschedule import Change, GivenMoves
from delayserver.operations.sending.send import SentColumns, SentRows
from delayserver.protocol.columns import make_ragged
from delayserver.protocol.errors import DelayServerError, InvalidArgument
from delayserver.protocol.message_columns import DueColumn, MessageColumns
from delayserver.protocol.outcomes import Outcome
from delayserver.protocol.schema.groups import ListGroups
from delayserver.runtime.fair_shares import Account
from delayserver.runtime.fair_turns import Work
from delayserver.server.operations_of import operations_of
from tests.fakes.host import Boot, Host


def delay_of(host: Host) -> DelayOperations:
    delay = operations_of(host.server.parts, [host.server.address]).delay
    assert delay is not None
    return delay


def work_of(host: Host) -> Work:
    return Work(host.server.fair_turns, Account())


async def send(host: Host, *messages: object) -> SentRows:
    answers: list[SentRows | DelayServerError] = []
    delay_of(host).send.rows(list(messages), answers.append)
    await host.until(lambda: bool(answers))
    (answer,) = answers
    assert isinstance(answer, SentRows)
    return answer


async def test_a_bad_message_is_answered_by_its_place_beside_a_good_one(boot: Boot) -> None:
    host = await boot.started()
    sent = await send(host, {"subject": "s"}, {"subject": "s", "body": "m", "delay_ms": 60_000})
    (refused,) = sent.rejections
    assert refused.index == 0 and isinstance(refused.error, InvalidArgument)
    ((receipt, message_id, subject, due_ms, sequence),) = sent.messages
    assert (subject, due_ms - host.now_ms <= 60_000) == ("s", True)
    assert receipt.endswith(f"{due_ms:012x}-{sequence:012x}") and message_id.endswith(f"-{sequence:012x}")


async def test_a_message_is_found_moved_and_cancelled_by_its_message_id(boot: Boot) -> None:
    host = await boot.started()
    delay, due_ms = delay_of(host), host.now_ms + 60_000
    sent = await send(host, {"subject": "s", "body": "m", "due_ms": due_ms, "message_id": "mine"})
    receipt = sent.messages[0][0]
    by_receipt = await delay.lookup.by_name(GivenReceipts([receipt]), work_of(host))
    assert [found.outcome for found in by_receipt.found] == [Outcome.PENDING]

    named = GivenItems(1, names={0: GivenName("s", "mine", due_ms)})
    later = GivenMoves(named, {0: Change(due_ms + 1_000, None, None, None, None)})
    moved = await delay.reschedule.by_name(later, work_of(host))
    assert moved.moved.outcome.tolist() == [Outcome.CANCELLED] and not moved.errors

    again = GivenItems(1, names={0: GivenName("s", "mine", due_ms + 1_000)})
    cancelled = await delay.cancel.by_name(again, work_of(host))
    assert cancelled.outcome.tolist() == [Outcome.CANCELLED]
    assert cancelled.named.sequence.tolist() == moved.moved.new_sequence.tolist()


async def test_columns_go_in_and_come_out_as_arrays(boot: Boot) -> None:
    host = await boot.started()
    due = DueColumn(np.array([1_000, -1, 2_000]), are_delays=True)
    bodies = make_ragged(b"abc", np.ones(3, np.uint32))
    answers: list[SentColumns | DelayServerError] = []
    delay_of(host).send.columns(MessageColumns(due, bodies, ["s"]), answers.append)
    await host.until(lambda: bool(answers))
    (sent,) = answers
    assert isinstance(sent, SentColumns)
    assert [rejection.index for rejection in sent.rejections] == [1]
    sequence = sent.first_sequence + np.arange(2)
    outcome = await delay_of(host).cancel.by_number(sequence, sent.due_ms)
    assert outcome.tolist() == [Outcome.CANCELLED] * 2


async def test_a_pull_hands_messages_to_its_caller_and_takes_lost_ones_back(boot: Boot) -> None:
    host = await boot.started()
    operations = operations_of(host.server.parts, [host.server.address])
    consuming = operations.consuming
    pull = Pull("s", "g", max_messages=10, max_bytes=1 << 20, wait_ms=5_000, ack_timeout_ms=60_000)
    handed: list[Pulled] = []

    def lose(pulled: Pulled, lost: Callable[[], None]) -> None:
        handed.append(pulled)
        lost()

    def keep(pulled: Pulled, _lost: Callable[[], None]) -> None:
        handed.append(pulled)

    await send(host, {"subject": "s", "body": "m", "delay_ms": 0})
    assert await consuming.pull(pull, None, lose, UNBOUNDED, trio.CancelScope(), work_of(host))
    assert await consuming.pull(pull, None, keep, UNBOUNDED, trio.CancelScope(), work_of(host))
    assert [pulled.attempt.tolist() for pulled in handed] == [[1], [1]], "nobody has seen it"
    await host.until(lambda: consuming.given_back == 1)
    acked = await consuming.ack("s", "g", handed[1].delivery, work_of(host))
    assert (acked.acked, acked.unknown) == (1, 0)
    (group,) = (await operations.groups.page(ListGroups(subject="s"), work_of(host), EVERYTHING)).groups
    assert (group.group, group.lag) == ("g", 0)


async def test_a_caller_ends_its_wait_by_the_scope_that_it_gave(boot: Boot) -> None:
    host = await boot.started()
    pull = Pull("s", "g", max_messages=10, max_bytes=1 << 20, wait_ms=60_000, ack_timeout_ms=60_000)
    waiting, answered = trio.CancelScope(), []

    async def consume() -> None:
        consuming = operations_of(host.server.parts, [host.server.address]).consuming
        answered.append(
            await consuming.pull(pull, None, lambda _pulled, _lost: None, UNBOUNDED, waiting, work_of(host))
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        await host.sleep_ms(100)
        waiting.cancel()
    assert answered == [False]
    assert host.server.parts.groups.consuming.waiting_pulls == 0
