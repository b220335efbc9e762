"""Acks and nacks are gathered for a moment, sent in batches, and kept for a while when a node does not answer."""

from __future__ import annotations

import pytest

from delayserver.client.listening.handling import ACK, GIVE_BACK, NACK, Handling, Verdict
from delayserver.client.listening.settlements import AT_ONCE_MAX, KINDS_MAX, RETRY_CAP_S, RETRY_FIRST_S, Settlements
from tests.delayserver.client.listening.deliveries import delivery


def handled(number: int, lease_ends_s: float = 60.0) -> Handling:
    return Handling(delivery(number), "g", "node:1", 64, 0.0, lease_ends_s)


def rouses(line: Settlements) -> bool:
    return line.rouses


def test_the_first_settlement_leaves_at_once_and_the_next_after_the_interval() -> None:
    line = Settlements(0.005)
    assert line.due_s(10.0) is None
    line.add(handled(1), ACK)
    assert rouses(line) and line.due_s(10.0) == 10.0
    (sent,) = line.take(10.0)
    assert sent.deliveries == [1]
    line.finish(sent)
    line.add(handled(2), ACK)
    line.add(handled(3), ACK)
    assert not rouses(line)
    assert line.due_s(10.001) == pytest.approx(10.005)
    assert [each.deliveries for each in line.take(10.005)] == [[2, 3]]
    line.check_invariants()


def test_a_full_request_does_not_wait_for_the_interval() -> None:
    line = Settlements(100.0)
    line.add(handled(0), ACK)
    line.take(1.0)
    for number in range(AT_ONCE_MAX):
        assert line.due_s(2.0) in (None, 101.0)
        line.add(handled(number), ACK)
    assert rouses(line) and line.due_s(2.0) == 2.0
    line.add(handled(9), ACK)
    assert [len(each.handlings) for each in line.take(2.0)] == [AT_ONCE_MAX, 1]


def test_acks_nacks_and_each_delay_are_requests_of_their_own() -> None:
    line = Settlements(0.0)
    verdicts = [ACK, NACK, Verdict(ack=False, delay_ms=5), GIVE_BACK, Verdict(ack=False, delay_ms=5), ACK]
    for number, verdict in enumerate(verdicts):
        line.add(handled(number), verdict)
    assert {(each.verdict.ack, each.verdict.delay_ms): each.deliveries for each in line.take(0.0)} == {
        (True, None): [0, 5],
        (False, None): [1],
        (False, 5): [2, 4],
        (False, 0): [3],
    }
    assert len(line) == 6, "those under way count until they are answered"


def test_an_unanswered_settlement_is_repeated_after_growing_pauses_before_later_ones() -> None:
    line = Settlements(0.0)
    line.add(handled(1), ACK)
    now_s, pauses = 0.0, []
    for _ in range(8):
        (sent,) = line.take(now_s)
        assert line.retry_later(sent, now_s) == []
        line.add(handled(2), ACK)
        due_s = line.due_s(now_s)
        assert due_s is not None
        pauses.append(round(due_s - now_s, 3))
        now_s = due_s
    assert pauses == [RETRY_FIRST_S, 0.2, 0.4, 0.8, 1.6, 3.2, RETRY_CAP_S, RETRY_CAP_S]
    (sent,) = line.take(now_s)
    assert sent.deliveries == [1] + [2] * 8
    line.finish(sent)
    line.add(handled(3), ACK)
    assert line.due_s(now_s) == now_s, "after an answer all is as before"
    assert len(line) == 1


def test_a_failed_settlement_goes_before_those_added_meanwhile() -> None:
    line = Settlements(0.0)
    line.add(handled(1), ACK)
    (sent,) = line.take(0.0)
    line.add(handled(2), ACK)
    line.add(handled(3), NACK)
    assert line.retry_later(sent, 0.0) == []
    line.check_invariants()
    assert {each.verdict: each.deliveries for each in line.take(1.0)} == {ACK: [1, 2], NACK: [3]}


def test_a_settlement_without_an_answer_before_its_lease_ends_is_given_up() -> None:
    line = Settlements(0.0)
    short, long = handled(1, lease_ends_s=5.05), handled(2, lease_ends_s=60.0)
    line.add(short, NACK)
    line.add(long, NACK)
    (sent,) = line.take(5.0)
    assert line.retry_later(sent, 5.0) == [short]
    assert len(line) == 1
    assert line.abandon() == [long]
    assert len(line) == 0 and line.due_s(9.0) is None
    line.check_invariants()


def test_reasons_of_nacks_beyond_the_bound_are_left_out_so_that_requests_stay_few() -> None:
    line = Settlements(0.0)
    for number in range(KINDS_MAX + 10):
        line.add(handled(number), Verdict(ack=False, reason=f"order {number}"))
    requests = line.take(0.0)
    assert len(requests) == KINDS_MAX + 1
    assert requests[-1].verdict == NACK and len(requests[-1].handlings) == 10
    line.check_invariants()


def test_requests_stay_few_where_those_of_before_failed() -> None:
    line = Settlements(0.0)
    for failures in range(3):
        for number in range(KINDS_MAX):
            line.add(handled(number), Verdict(ack=False, reason=f"order {failures} {number}"))
        requests = line.take(10.0 * failures)
        assert len(requests) <= KINDS_MAX + 1
        for number in range(KINDS_MAX):
            line.add(handled(number), Verdict(ack=False, reason=f"meanwhile {failures} {number}"))
        for request in requests:
            assert line.retry_later(request, 10.0 * failures) == []
        line.check_invariants()
    assert len(line) == 6 * KINDS_MAX
