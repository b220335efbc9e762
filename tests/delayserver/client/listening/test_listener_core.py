"""The decisions of a listener, without I/O: who starts next, when to pull, what is settled how, and how it stops."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from delayserver.client.listening.handling import ACK, GIVE_BACK, NACK, Handling, Verdict, verdict_of
from delayserver.client.listening.listener_core import UNSETTLED_MAX, ListenerCore
from delayserver.client.listening.listener_settings import ListenerSettings
from delayserver.client.listening.settlements import Settlement
from delayserver.client.listening.subject_source import SubjectSource
from delayserver.client.values.retry import Retry
from delayserver.protocol.errors import InvalidArgument
from tests.delayserver.client.listening.deliveries import delivery


def core_of(**settings: float) -> ListenerCore:
    return ListenerCore("shop", ListenerSettings(**settings))  # type: ignore[arg-type]


def bring(core: ListenerCore, source: SubjectSource, *numbers: int, now_s: float = 0.0, body: bytes = b"") -> None:
    ask = core.next_ask(source)
    assert ask is not None
    core.begin_pull(source, ask)
    core.pulled(source, [delivery(number, subject=source.subject, body=body) for number in numbers], now_s)
    core.check_invariants()


def bring_keyed(core: ListenerCore, source: SubjectSource, keys: str, first: int = 1, now_s: float = 0.0) -> None:
    """Deliveries `first` and so on with these order keys, a letter each; "-" is none."""
    ask = core.next_ask(source)
    assert ask is not None
    core.begin_pull(source, ask)
    rows = [delivery(number, order_key=None if key == "-" else key) for number, key in enumerate(keys, first)]
    core.pulled(source, rows, now_s)
    core.check_invariants()


def running_now(core: ListenerCore) -> list[int]:
    """Start all handlers that may start; the deliveries of these."""
    found = []
    while (handling := core.start(0.0)) is not None:
        core.check_invariants()
        found.append(handling.delivery.delivery)
    return found


def handling_of(core: ListenerCore, number: int) -> Handling:
    (found,) = [each for each in core.abandoned() if each.delivery.delivery == number]
    return found


def start(core: ListenerCore, now_s: float = 0.0) -> Handling:
    handling = core.start(now_s)
    assert handling is not None
    core.check_invariants()
    return handling


def sent(core: ListenerCore, source: SubjectSource, now_s: float = 0.0) -> dict[Verdict, list[int]]:
    return {each.verdict: each.deliveries for each in core.take(source, now_s)}


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (None, ACK),
        (ValueError(), Verdict(ack=False, reason="ValueError")),
        (ValueError("no order"), Verdict(ack=False, reason="ValueError: no order")),
        (ValueError("€" * 1000), Verdict(ack=False, reason="ValueError: " + "€" * 337)),
        (Retry(), Verdict(ack=False, snoozed=True)),
        (Retry(level=3), Verdict(ack=False, level=3, snoozed=True)),
        (Retry(delay_ms=0), Verdict(ack=False, delay_ms=0, snoozed=True)),
        (Retry("later", delay_ms=5000), Verdict(ack=False, delay_ms=5000, reason="later", snoozed=True)),
        (Retry("failed", delay_ms=5000, counts=True), Verdict(ack=False, delay_ms=5000, reason="failed")),
        (KeyboardInterrupt(), Verdict(ack=False, reason="KeyboardInterrupt")),
    ],
)
def test_the_verdict_follows_from_the_error_of_the_handler(error: BaseException | None, verdict: Verdict) -> None:
    assert verdict_of(error) == verdict


class NoText(Exception):
    """Its text is a number."""

    def __str__(self) -> str:
        return 404  # type: ignore[return-value]  # noqa: PLE0307


class Raising(Exception):
    """It raises when it is asked for anything."""

    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__
    __eq__ = __hash__ = __bool__ = __str__  # type: ignore[assignment]


class OddText(str):
    """A text that raises when it is compared or encoded."""

    def encode(self, *_: object) -> bytes:
        raise RuntimeError("encode")

    def __hash__(self) -> int:
        raise RuntimeError("hash")


class WithOddText(Exception):
    def __str__(self) -> str:
        return OddText("odd")


class HalfRetry(Retry):
    """It never came to have a delay."""

    def __init__(self) -> None:
        Exception.__init__(self, "half")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NoText(), "NoText: (NoText without a text)"),
        (Raising(), "Raising: (Raising without a text)"),
        (WithOddText(), "WithOddText: odd"),
        (HalfRetry(), "HalfRetry"),
        (SystemExit(3), "SystemExit: 3"),
        (UnicodeError("\ud800"), "UnicodeError: ?"),
    ],
)
def test_an_error_without_a_text_is_a_failure_like_others(error: BaseException, reason: str) -> None:
    verdict = verdict_of(error)
    assert (verdict.ack, verdict.reason, type(verdict.reason)) == (False, reason, str)
    assert verdict in {verdict}


@pytest.mark.parametrize("delay_ms", [-1, 1.5, True, 2_592_000_001])
def test_a_delay_that_no_server_takes_is_refused_where_it_is_made(delay_ms: int) -> None:
    with pytest.raises(InvalidArgument):
        Retry(delay_ms=delay_ms)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"prefetch_messages": 0},
        {"prefetch_bytes": 1.5},
        {"ack_timeout_s": 0},
        {"stop_s": -1},
        {"extend_max_s": -1},
        {"extend_max_s": float("nan")},
        {"messages_max": 0},
        {"outlive_s": -1},
        {"outlive_s": 61},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        ListenerSettings(**wrong)  # type: ignore[arg-type]


def test_no_more_handlers_run_than_may() -> None:
    core = core_of(concurrency=2)
    source = core.add_source("a", "n")
    bring(core, source, 1, 2, 3)
    first, second = start(core), start(core)
    assert core.start(0.0) is None and not core.may_start
    core.finish(first, ACK, 1.0)
    assert start(core).delivery.delivery == 3
    core.finish(second, ACK, 1.0)
    assert core.start(1.0) is None
    assert sent(core, source) == {ACK: [1, 2]}


def test_a_busy_subject_leaves_half_of_the_handlers_to_another() -> None:
    core = core_of(concurrency=4)
    busy, other = core.add_source("busy", "n"), core.add_source("other", "n")
    bring(core, busy, *range(8))
    running = [start(core) for _ in range(4)]
    bring(core, other, *range(100, 108))
    for handling in running[:2]:
        core.finish(handling, ACK, 1.0)
    assert [start(core).delivery.subject for _ in range(2)] == ["other", "other"]


def test_a_slow_subject_beside_a_fast_one_does_not_take_its_places() -> None:
    core = core_of(concurrency=4)
    slow, fast = core.add_source("slow", "n"), core.add_source("fast", "n")
    bring(core, slow, *range(8))
    bring(core, fast, *range(100, 108))
    handled: Counter[str] = Counter()
    for _ in range(20):
        handling = core.start(0.0)
        if handling is None:
            break
        handled[handling.delivery.subject] += 1
        if handling.delivery.subject == "fast":
            core.finish(handling, ACK, 0.0)
    assert handled["fast"] == 8, "all of them, while the slow ones hang"


def test_subjects_without_running_handlers_take_turns() -> None:
    core = core_of(concurrency=1)
    for name in "abc":
        bring(core, core.add_source(name, "n"), *range(3))
    order = []
    for _ in range(9):
        handling = start(core)
        order.append(handling.delivery.subject)
        core.finish(handling, ACK, 0.0)
    assert order == [*"abcabcabc"]


def test_after_a_stop_no_handler_starts_and_waiting_and_later_messages_are_given_back() -> None:
    core = core_of(concurrency=1)
    source, late = core.add_source("a", "n"), core.add_source("b", "n")
    ask = core.next_ask(late)
    assert ask is not None
    core.begin_pull(late, ask)
    bring(core, source, 1, 2, 3)
    running = start(core)
    core.stop()
    core.check_invariants()
    assert core.start(0.0) is None and core.next_ask(source) is None
    assert sent(core, source) == {GIVE_BACK: [2, 3]}
    core.pulled(late, [delivery(9)], 0.0)
    core.check_invariants()
    assert sent(core, late) == {GIVE_BACK: [9]}
    core.finish(running, ACK, 1.0)
    assert sent(core, source, 1.0) == {ACK: [1]}
    assert core.stats.given_back == 3
    assert GIVE_BACK.delay_ms == 0


def test_a_stop_does_not_wait_for_the_interval_of_acks() -> None:
    core = core_of(ack_interval_s=100)
    source = core.add_source("a", "n")
    bring(core, source, 1, 2, 3)
    handlings = [start(core) for _ in range(3)]
    core.finish(handlings[0], ACK, 1.0)
    assert sent(core, source, 1.0) == {ACK: [1]}
    core.finish(handlings[1], ACK, 1.0)
    assert core.settle_due_s(source, 2.0) == 101.0
    core.stop()
    assert core.settle_due_s(source, 2.0) == 2.0
    assert sent(core, source, 2.0) == {ACK: [2]}
    core.finish(handlings[2], ACK, 2.0)
    assert core.settle_due_s(source, 2.0) == 2.0


def test_a_subscription_of_so_many_messages_starts_no_more() -> None:
    core = core_of(concurrency=4, messages_max=2)
    bring(core, core.add_source("a", "n"), 1, 2, 3)
    start(core)
    assert core.may_start
    start(core)
    assert (core.is_enough, core.start(0.0), core.may_start) == (True, None, False)


def test_a_source_is_drained_when_its_last_settlement_is_answered() -> None:
    core = core_of()
    source = core.add_source("a", "n")
    bring(core, source, 1)
    core.retire(source)
    assert not core.is_drained(source)
    core.finish(start(core), ACK, 0.0)
    assert not core.is_drained(source)
    (settlement,) = core.take(source, 0.0)
    assert not core.is_drained(source)
    core.finish_settlement(source, settlement, 0, 0.0)
    assert core.is_drained(source)
    assert list(core.remove(source, 0.0)) == []


def test_a_source_that_goes_away_gives_up_its_open_settlements() -> None:
    core = core_of(concurrency=1)
    source = core.add_source("a", "n")
    bring(core, source, 1, 2, 3)
    running = start(core)
    assert [each.delivery.delivery for each in core.remove(source, 0.0)] == [2, 3]
    core.check_invariants()
    core.finish(running, ACK, 0.0)
    core.check_invariants()
    assert core.stats.lost == 3 and core.running == core.waiting == 0


def test_a_message_that_waits_for_half_of_its_lease_is_given_back_and_fewer_are_pulled() -> None:
    core = core_of(concurrency=1, ack_timeout_s=10)
    source = core.add_source("a", "n")
    bring(core, source, 1, 2)
    start(core)
    window = source.share.window
    assert core.look(4.9) == [] and core.waiting == 1
    assert core.look(5.0) == []
    core.check_invariants()
    assert core.waiting == 0 and source.share.window == window // 2
    assert sent(core, source, 5.0) == {GIVE_BACK: [2]}


def test_a_handler_that_outlives_its_lease_is_reported_once_and_its_late_ack_counted() -> None:
    core = core_of(ack_timeout_s=10)
    source = core.add_source("a", "n")
    bring(core, source, 1)
    handling = start(core, 3.0)
    assert core.look(10.0) == []
    assert core.look(10.1) == [handling]
    assert core.look(11.0) == []
    core.finish(handling, ACK, 12.0)
    assert handling.late and (handling.received_s, handling.started_s, handling.ended_s) == (0.0, 3.0, 12.0)
    (settlement,) = core.take(source, 12.0)
    core.finish_settlement(source, settlement, 1, 12.5)
    assert (core.stats.overdue, core.stats.too_late, core.stats.acked) == (1, 1, 0)
    assert handling.settled_s == 12.5


def test_an_ack_that_its_node_does_not_know_is_too_late_only_if_its_lease_is_over() -> None:
    core = core_of(ack_timeout_s=10)
    source = core.add_source("a", "n")
    bring(core, source, 1, 2)
    early, overdue = start(core, 1.0), start(core, 1.0)
    early.extend(20.0)
    for handling in (early, overdue):
        core.finish(handling, ACK, 12.0)
    (settlement,) = core.take(source, 12.0)
    assert core.finish_settlement(source, settlement, 2, 12.5) == 1
    assert (core.stats.too_late, core.stats.unknown, core.stats.acked) == (1, 1, 0)


def test_a_lease_is_extended_when_less_than_two_thirds_of_it_are_left() -> None:
    core = core_of(ack_timeout_s=30, concurrency=2)
    source, other = core.add_source("a", "n"), core.add_source("b", "n")
    bring(core, source, 1, 2)
    bring(core, other, 3, now_s=4.0)
    first, second = start(core, 1.0), start(core, 5.0)
    assert source.due(10.0) == [] == other.due(14.0)
    assert source.due(10.1) == [first] and other.due(14.1) == [second]
    first.extend(40.1)
    assert source.due(14.2) == [] and other.due(14.2) == [second]


def test_a_handler_that_hangs_is_extended_until_the_bound_and_reported_one_lease_later() -> None:
    core = core_of(ack_timeout_s=10, extend_max_s=25)
    source = core.add_source("a", "n")
    bring(core, source, 1)
    handling, now_s = start(core, 2.0), 2.0
    overdue: list[float] = []
    while now_s < 60:
        now_s += 0.5
        if core.look(now_s):
            overdue.append(now_s)
        if source.due(now_s):
            handling.extend(now_s + 10)
    assert 2 + 25 <= handling.lease_ends_s <= 2 + 25 + 10
    assert overdue == [pytest.approx(handling.lease_ends_s, abs=0.5)]


@pytest.mark.parametrize("settings", [{"extend_max_s": 0}, {}])
def test_a_lease_that_has_ended_or_shall_not_be_extended_is_left_alone(settings: dict[str, float]) -> None:
    core = core_of(ack_timeout_s=10, **settings)
    source = core.add_source("a", "n")
    bring(core, source, 1, 2)
    handling = start(core, 1.0)
    if settings:
        assert source.due(9.0) == []
        return
    handling.extend(5.0)
    assert source.due(5.0) == []
    assert core.look(5.1) == [handling]


def test_another_connection_takes_over_what_runs_waits_and_is_to_be_settled() -> None:
    core = core_of(ack_timeout_s=10, concurrency=2, ack_interval_s=1000)
    source = core.add_source("a", "n")
    assert source.known(0.0) == [], "nothing is leased"
    bring(core, source, 1, 2, 3, 4)
    core.take(source, 0.0)  # nothing: the next acks wait for the interval
    first, second = start(core, 1.0), start(core, 1.0)
    core.finish(first, ACK, 2.0)
    assert {each.delivery.delivery for each in source.known(3.0)} == {1, 2, 3, 4}
    assert second.in_work and not first.in_work and not first.settled
    assert source.known(10.0) == [], "the leases have ended"


def test_what_waits_and_is_with_another_consumer_by_now_is_not_handled() -> None:
    core = core_of(ack_timeout_s=10, concurrency=2)
    source = core.add_source("a", "n")
    bring(core, source, 1, 2, 3)
    running = start(core, 1.0)
    for handling in source.known(2.0):
        handling.lose()
    assert core.start(2.0) is None and core.stats.given_back == 2
    assert source.due(9.0) == [] and core.look(9.0) == []
    core.finish(running, ACK, 9.0)
    core.check_invariants()


def test_a_handler_that_hangs_loses_its_lease_with_the_connection() -> None:
    core = core_of(ack_timeout_s=10, extend_max_s=25, concurrency=1)
    source = core.add_source("a", "n")
    bring(core, source, 1)
    handling = start(core, 1.0)
    handling.extend(40.0)
    assert source.known(25.9) == [handling]
    assert source.known(26.1) == []


def test_a_source_that_cannot_settle_pulls_nothing() -> None:
    core = core_of()
    source = core.add_source("a", "n")
    for number in range(UNSETTLED_MAX - 1):
        source.settlements.add(Handling(delivery(number), "g", "n", 0, 0.0, 60.0), ACK)
    assert core.next_ask(source) is not None
    source.settlements.add(Handling(delivery(0), "g", "n", 0, 0.0, 60.0), ACK)
    assert core.next_ask(source) is None


def test_a_source_that_is_found_after_the_stop_pulls_nothing() -> None:
    core = core_of()
    core.stop()
    source = core.add_source("a", "n")
    assert core.next_ask(source) is None and core.is_drained(source)


class Model:
    """Feeds a core at random, and knows where each delivery must be."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.core = core_of(
            concurrency=data.draw(st.integers(1, 4)), prefetch_messages=data.draw(st.integers(1, 30)), ack_timeout_s=20
        )
        self.sources: list[SubjectSource] = []
        self.running: list[Handling] = []
        self.requests: list[tuple[SubjectSource, Settlement]] = []
        self.now_s = 0.0
        self.number = 0
        self.connection = 0
        self.brought: set[int] = set()
        self.answered: Counter[int] = Counter()
        self.acked: set[int] = set()
        self.lost: set[int] = set()

    def step(self, name: str) -> None:
        core, data = self.core, self.data
        self.now_s += data.draw(st.sampled_from([0.0, 0.001, 1.0, 9.0]))
        if name == "add" and len(self.sources) < 4:
            self.sources.append(core.add_source(f"s{len(self.sources)}", "n"))
        elif name == "stop":
            core.stop()
        elif name == "start":
            before = {each: len(each.running) for each in self.sources if each.ready}
            handling = core.start(self.now_s)
            if handling is not None:
                source = core.source_of(handling)
                assert before[source] == min(before.values())
                self.running.append(handling)
                assert not core.stopping
        elif name == "finish" and self.running:
            handling = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            verdict = data.draw(st.sampled_from([ACK, NACK, Verdict(ack=False, delay_ms=7)]))
            core.finish(handling, verdict, self.now_s)
            if verdict.ack:
                self.acked.add(handling.delivery.delivery)
        elif name == "look":
            core.look(self.now_s)
        elif name == "reconnect":
            self.connection += 1
            for source in self.sources:
                knows = data.draw(st.booleans())
                for each in source.known(self.now_s):
                    each.extend(self.now_s + 60) if knows else each.lose()
                source.belong(self.connection)
        elif name == "answer" and self.requests:
            source, settlement = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
            self.answer(source, settlement, data.draw(st.booleans()))
        elif name in ("pull", "take", "retire") and self.sources:
            self.of_source(name, data.draw(st.sampled_from(self.sources)))

    def of_source(self, name: str, source: SubjectSource) -> None:
        core, data = self.core, self.data
        if name == "retire":
            core.retire(source)
        elif name == "pull":
            ask = core.next_ask(source)
            if ask is None:
                return
            assert not source.retired
            core.begin_pull(source, ask)
            count = data.draw(st.integers(-1, ask.messages))
            if count < 0:
                core.fail_pull(source)
                return
            numbers = range(self.number, self.number + count)
            self.number += count
            self.brought.update(numbers)
            core.pulled(source, [delivery(number, subject=source.subject) for number in numbers], self.now_s)
        elif (due_s := core.settle_due_s(source, self.now_s)) is not None and due_s <= self.now_s:
            self.requests += [(source, settlement) for settlement in core.take(source, self.now_s)]

    def answer(self, source: SubjectSource, settlement: Settlement, well: bool) -> None:
        if not well:
            self.lost |= {each.delivery.delivery for each in self.core.fail_settlement(source, settlement, self.now_s)}
            return
        self.core.finish_settlement(source, settlement, 0, self.now_s)
        self.answered.update(settlement.deliveries)
        if settlement.verdict.ack:
            assert set(settlement.deliveries) <= self.acked, "only what a handler acked is acked"

    def end(self) -> None:
        """Stop, let all end and be settled: each delivery was answered once, or its loss was told."""
        core = self.core
        core.stop()
        for handling in self.running:
            core.finish(handling, NACK, self.now_s)
        for source, settlement in self.requests:
            self.answer(source, settlement, True)
        for source in self.sources:
            while (due_s := core.settle_due_s(source, self.now_s)) is not None:
                self.now_s = max(self.now_s, due_s)
                for settlement in core.take(source, self.now_s):
                    self.answer(source, settlement, True)
            assert core.is_drained(source)
            assert list(core.remove(source, self.now_s)) == []
        core.check_invariants()
        assert set(self.answered) | self.lost == self.brought
        assert not set(self.answered) & self.lost
        assert all(count == 1 for count in self.answered.values())
        stats = core.stats
        assert stats.received == len(self.brought) == stats.acked + stats.nacked + stats.lost


@hypothesis_settings(max_examples=200)
@given(st.data())
def test_every_delivery_is_settled_once_or_its_loss_is_reported(data: st.DataObject) -> None:
    model = Model(data)
    names = ["add", "pull", "pull", "start", "start", "finish", "finish", "take", "answer", "look", "retire", "stop"]
    names.append("reconnect")
    model.step("add")
    for name in data.draw(st.lists(st.sampled_from(names), max_size=60)):
        model.step(name)
        model.core.check_invariants()
    model.end()


def test_messages_of_one_order_key_are_handled_one_after_the_other() -> None:
    core = core_of(concurrency=4)
    source = core.add_source("orders", "n")
    bring_keyed(core, source, "aab-ab")
    assert running_now(core) == [1, 3, 4], "other keys, and none, go on"
    core.finish(handling_of(core, 1), ACK, 1.0)
    assert running_now(core) == [2]
    core.finish(handling_of(core, 3), ACK, 1.0)
    core.finish(handling_of(core, 2), ACK, 1.0)
    assert sorted(running_now(core)) == [5, 6]
    core.check_invariants()


@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_nothing_of_a_key_is_handled_behind_a_failed_message(concurrency: int) -> None:
    core = core_of(concurrency=concurrency)
    source = core.add_source("orders", "n")
    bring_keyed(core, source, "aaaa-b")
    assert running_now(core)[0] == 1
    core.finish(handling_of(core, 1), NACK, 1.0)
    core.check_invariants()
    rest = running_now(core)
    while running := list(core.abandoned()):
        core.finish(running[0], ACK, 1.0)
        rest += running_now(core)
    assert not {2, 3, 4} & set(rest), "the node has taken them back"
    found = sent(core, source, 5.0)
    assert found[NACK] == [1] and found[GIVE_BACK] == [2, 3, 4] and found[ACK] == [5, 6]


def test_a_message_that_waits_too_long_goes_back_with_the_others_of_its_key() -> None:
    core = core_of(concurrency=1, ack_timeout_s=10.0)
    source = core.add_source("orders", "n")
    bring_keyed(core, source, "-aa")
    assert running_now(core) == [1]
    core.look(5.0)
    core.check_invariants()
    core.finish(handling_of(core, 1), ACK, 5.0)
    assert running_now(core) == []
    assert sent(core, source, 9.0) == {ACK: [1], GIVE_BACK: [2, 3]}


def test_a_parked_message_that_waits_too_long_goes_back_with_later_ones_of_its_key() -> None:
    core = core_of(concurrency=2, ack_timeout_s=10.0)
    source = core.add_source("orders", "n")
    bring_keyed(core, source, "aa-")
    assert running_now(core) == [1, 3]
    bring_keyed(core, source, "ab", first=4, now_s=4.0)
    core.look(5.0)
    core.check_invariants()
    core.finish(handling_of(core, 1), ACK, 5.0)
    assert running_now(core) == [5], "the node has taken 2 back and 4 with it, and gives them out in their order"
    assert sent(core, source, 9.0) == {ACK: [1], GIVE_BACK: [2, 4]}


def test_a_stop_gives_parked_messages_back() -> None:
    core = core_of(concurrency=2)
    source = core.add_source("orders", "n")
    bring_keyed(core, source, "aab")
    assert running_now(core) == [1, 3]
    core.stop()
    core.check_invariants()
    assert sent(core, source, 1.0) == {GIVE_BACK: [2]}
    core.finish(handling_of(core, 1), ACK, 1.0)
    assert running_now(core) == []
