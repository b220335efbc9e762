"""Rule 9 and the bounds of dispatch: one group's trouble is its own; failover, back-off, circuit, refusals, bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from random import Random

import numpy as np
import pytest
import trio

from delayserver.config.settings import DispatchSettings, GroupSettings, NodeSettings, RouteSettings
from delayserver.dispatch.broker_node import BrokerNode, choose
from delayserver.runtime.clock import SystemClock
from delayserver.state.memory import attempted
from delayserver.state.memory.node_health import NodeHealth
from delayserver.targets.answer import Answer, RowAnswer
from delayserver.targets.kinds import Capabilities
from store.records.batches import StoredBatch
from tests.fakes.broker import FakeBroker
from tests.fakes.clock import SimulatedClock
from tests.fakes.host import Boot, Client, fake_group, faked_settings, small_settings

TWO_GROUPS = (fake_group("fakeA"), fake_group("fakeB"))
EACH_ITS_OWN = (RouteSettings("a*", ("fakeA",)), RouteSettings("*", ("fakeB",)))
A_THEN_B = (RouteSettings("a*", ("fakeA", "fakeB")), RouteSettings("*", ("fakeB",)))
QUICK = {"backoff_ms_min": 10, "backoff_ms_max": 200, "breaker_failures": 3}


async def put_many(client: Client, count: int, due_ms: int, subject: str, first: int = 0) -> None:
    bodies = [str(first + i).encode() for i in range(count)]
    lengths = np.array([len(body) for body in bodies], "<u4").tobytes()
    arguments = {
        "count": count,
        "subject": subject,
        "due_ms": due_ms,
        "bodies": b"".join(bodies),
        "body_length": lengths,
    }
    assert (await client.request("send", arguments))["accepted"] == count


@pytest.mark.parametrize("trouble", ["dead", "hangs", "refuses"])
async def test_a_group_in_trouble_does_not_delay_another(boot: Boot, trouble: str) -> None:
    host, client = await boot.connected(
        small_settings(groups=TWO_GROUPS, routes=EACH_ITS_OWN, dispatch=QUICK | {"deliver_timeout_ms": 2_000})
    )
    bad, good = host.fake("fakeA"), host.fake("fakeB")
    match trouble:
        case "dead":
            bad.up = False
        case "hangs":
            bad.gate = trio.Event()
        case "refuses":
            bad.refuse = lambda batch: np.ones(len(batch), dtype=bool)
    start_ms = host.now_ms
    await put_many(client, 2_000, start_ms + 100, "a")
    for number in range(50):
        await client.put(str(number), start_ms + 100 + 20 * number, subject="b")
    await host.until(lambda: len(good.stored) == 50, within_ms=2_000)
    assert all(good.at_us[sequence] - good.due_ms[sequence] * 1_000 < 10_000 for sequence in good.stored)
    assert not bad.stored
    bad.up, bad.refuse = True, None
    if bad.gate is not None:
        bad.gate.set()
        bad.gate = None
    await host.until(lambda: len(bad.stored) >= 2_000, within_ms=5_000)
    await host.settled()
    assert len(set(bad.stored)) == 2_000
    host.check_balance(pending=0)


@pytest.mark.parametrize("room", ["of the wheel", "of the loader"])
async def test_a_group_that_is_slow_and_does_not_fail_leaves_room_for_the_others(boot: Boot, room: str) -> None:
    """Its rows fill what memory may hold: they are read again later, so that those of another group come in time."""
    dispatch = QUICK | {"queue_rows_max": 330, "batch_messages_max": 10, "workers": 2}
    wheel = {"rows_max": 400, "load_ahead_ms": 2_000}
    storage = {"window_ms": 1_000}
    host, client = await boot.connected(
        small_settings(groups=TWO_GROUPS, routes=EACH_ITS_OWN, dispatch=dispatch, wheel=wheel, storage=storage)
    )
    slow, good = host.fake("fakeA"), host.fake("fakeB")
    slow.delay_ms = 100
    start_ms = host.now_ms
    later = [start_ms + (1_000 if room == "of the wheel" else 5_000) + 100 * number for number in range(30)]
    if room == "of the loader":
        for number, due_ms in enumerate(later):
            await client.put(str(number), due_ms, subject="b")
    await put_many(client, 2_000, start_ms + 100, "a")
    await host.sleep_ms(700)
    if room == "of the wheel":
        for number, due_ms in enumerate(later):
            await client.put(str(number), due_ms, subject="b")
    await host.until(lambda: len(good.stored) == len(later), within_ms=10_000)
    assert all(good.at_us[sequence] - good.due_ms[sequence] * 1_000 < 10_000 for sequence in good.stored)
    assert len(slow.stored) < 1_900  # it was slow all the time
    await host.until(lambda: len(slow.stored) >= 2_000, within_ms=60_000)
    await host.settled()
    assert len(set(slow.stored)) == len(slow.stored) == 2_000
    host.check_balance(pending=0)


async def test_nodes_of_a_group_share_by_weight_and_stand_in_for_each_other(boot: Boot) -> None:
    group = GroupSettings("g", (NodeSettings("fake1:1", 3), NodeSettings("fake2:1", 1), NodeSettings("fake3:1", 0)))
    host, client = await boot.connected(
        small_settings(groups=(group,), routes=(RouteSettings("*", ("g",)),), dispatch=QUICK)
    )
    for number in range(40):
        await client.put(str(number), host.now_ms)
        await host.sleep_ms(20)
    counts = {name: len(host.fake(name).stored) for name in ("fake1", "fake2", "fake3")}
    assert counts == {"fake1": 30, "fake2": 10, "fake3": 0}
    host.fake("fake1").up = False
    for number in range(20):
        await client.put(f"more{number}", host.now_ms)
        await host.sleep_ms(20)
    await host.until(lambda: len(host.fake("fake2").stored) == 30, within_ms=2_000)
    await host.balanced(pending=0)


async def test_when_a_whole_group_is_down_its_rows_go_to_the_next_of_the_route(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=A_THEN_B, dispatch=QUICK))
    host.fake("fakeA").up = False
    for number in range(20):
        await client.put(str(number), host.now_ms + 10, subject="a")
    await host.until(lambda: len(host.fake("fakeB").stored) == 20, within_ms=5_000)
    status = await host.balanced(pending=0)
    assert status["groups"]["fakeA"]["failed_over"] >= 20
    assert status["groups"]["fakeA"]["uncertain_failovers"] == 0
    node = status["groups"]["fakeA"]["nodes"][0]
    assert (node["state"], node["circuit"]) == ("down", "open")
    assert 0 <= node["retry_in_ms"] <= QUICK["backoff_ms_max"]
    host.fake("fakeA").up = True
    await host.sleep_ms(1_000)
    await client.put("back", host.now_ms, subject="a")
    await host.until(lambda: "back" in host.fake("fakeA").texts + host.fake("fakeB").texts, within_ms=1_000)
    await client.put("home", host.now_ms + 300, subject="a")
    await host.until(lambda: host.fake("fakeA").texts[-1:] == ["home"], within_ms=1_000)


async def test_failover_goes_on_for_rows_that_had_left_memory(boot: Boot) -> None:
    """The queue of the dead group drops rows; they must reach the stand-in all the same."""
    host, client = await boot.connected(
        small_settings(groups=TWO_GROUPS, routes=A_THEN_B, dispatch=QUICK | {"queue_rows_max": 50})
    )
    host.fake("fakeA").up = False
    await put_many(client, 500, host.now_ms + 100, "a")
    await host.until(lambda: len(host.fake("fakeB").stored) == 500, within_ms=30_000)
    assert len(set(host.fake("fakeB").stored)) == 500
    await host.balanced(pending=0)


async def test_rows_that_failed_over_and_left_the_memory_of_the_fallback_group_come_back(boot: Boot) -> None:
    dispatch = QUICK | {"queue_rows_max": 50, "batch_messages_max": 10}
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=A_THEN_B, dispatch=dispatch))
    host.fake("fakeA").up = False
    host.fake("fakeB").delay_ms = 20
    await put_many(client, 300, host.now_ms + 100, "a")
    await put_many(client, 300, host.now_ms + 100, "b", first=1_000)
    await host.until(lambda: len(host.fake("fakeB").stored) >= 600, within_ms=60_000)
    assert len(set(host.fake("fakeB").stored)) == 600
    await host.balanced(pending=0)


async def test_a_subject_without_a_fallback_group_does_not_hold_back_one_that_has_it(boot: Boot) -> None:
    routes = (RouteSettings("a1", ("fakeA",)), *A_THEN_B)
    host, client = await boot.connected(
        small_settings(groups=TWO_GROUPS, routes=routes, dispatch=QUICK | {"batch_messages_max": 10})
    )
    host.fake("fakeA").up = False
    await put_many(client, 100, host.now_ms + 100, "a1")
    await put_many(client, 100, host.now_ms + 110, "a2")
    await host.until(lambda: len(host.fake("fakeB").stored) == 100, within_ms=10_000)


async def test_an_unrouted_subject_goes_to_the_default_group_also_after_leaving_memory(boot: Boot) -> None:
    routes = (RouteSettings("a*", ("fakeA",)),)
    dispatch = QUICK | {"queue_rows_max": 20, "batch_messages_max": 5}
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=routes, dispatch=dispatch))
    host.fake("fakeA").delay_ms = 5
    await put_many(client, 200, host.now_ms + 100, "unrouted")
    await host.until(lambda: len(host.fake("fakeA").stored) == 200, within_ms=20_000)
    await host.balanced(pending=0)


async def test_past_its_bound_a_queue_drops_rows_from_memory_and_delivers_each_once_from_disk(boot: Boot) -> None:
    host, client = await boot.connected(
        faked_settings(dispatch=QUICK | {"queue_rows_max": 100, "batch_messages_max": 50})
    )
    fake = host.fake()
    fake.up = False
    for part in range(4):
        await put_many(client, 500, host.now_ms + 100 + part * 7, "s", first=part * 500)
    held = 0
    for _ in range(40):
        await host.sleep_ms(25)
        held = max(held, host.server.parts.state.residency.rows_held)
    assert held <= 100 + host.settings.dispatch.workers * 50
    assert host.status()["groups"]["fake"]["dropped_from_memory"] >= 1_900
    fake.up = True
    await host.until(lambda: len(fake.stored) >= 2_000, within_ms=20_000)
    await host.settled()
    assert len(set(fake.stored)) == len(fake.stored) == 2_000
    host.check_balance(pending=0)


async def test_a_failing_group_keeps_no_more_rows_than_a_working_one(boot: Boot) -> None:
    dispatch = QUICK | {"queue_rows_max": 30, "batch_messages_max": 5, "workers": 2, "breaker_failures": 1}
    host = await boot.started(faked_settings(dispatch=dispatch))
    host.fake().up = False
    client = await host.client()
    await put_many(client, 200, host.now_ms + 100, "s")
    (group,) = host.server.parts.dispatch.groups
    await host.until(lambda: group.rows.failing)
    await put_many(client, 200, host.now_ms + 100, "s", first=200)
    for _ in range(40):
        await host.sleep_ms(25)
        assert len(group.rows.queue) <= 30 + 2 * 5


async def test_all_workers_of_a_group_work_and_their_common_failure_counts_once(boot: Boot) -> None:
    host = await boot.started(
        faked_settings(dispatch=QUICK | {"workers": 4, "backoff_ms_min": 100, "breaker_failures": 2})
    )
    client, fake = await host.client(), host.fake()
    fake.gate, fake.up = trio.Event(), False
    (group,) = host.server.parts.dispatch.groups
    for number in range(6):
        await client.put(str(number), host.now_ms)
        await host.sleep_ms(10)
    assert (group.rows.running, len(group.rows.queue)) == (4, 2)
    fake.gate.set()
    await host.until(lambda: not group.rows.running)
    node = group.nodes[0]
    assert (node.health.failures, node.health.failures_total, node.health.open_circuit) == (1, 4, False)
    fake.gate = trio.Event()
    await host.sleep_ms(300)
    assert (group.rows.running, node.health.failures) == (1, 1)  # one attempt shows whether the node is back
    fake.up = True
    fake.gate.set()
    await host.until(lambda: len(fake.stored) == 6)
    assert len(set(fake.stored)) == 6
    await host.balanced(pending=0)


async def test_rows_refused_by_the_node_are_retried_and_their_neighbours_are_delivered(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(dispatch=QUICK))
    fake = host.fake()
    fake.refuse = lambda batch: batch.sequence % 2 == 0
    await put_many(client, 10, host.now_ms + 50, "s")
    await host.sleep_ms(100)
    assert len(fake.stored) == 5
    fake.refuse = None
    await host.until(lambda: len(fake.stored) == 10, within_ms=2_000)
    await host.settled()
    assert len(set(fake.stored)) == 10
    host.check_balance(pending=0)


async def test_refused_rows_that_left_memory_rest_while_others_of_their_window_are_read_back(boot: Boot) -> None:
    settings = QUICK | {"backoff_ms_max": 60_000}
    host = await boot.started(
        small_settings(dispatch=settings, wheel={"rows_max": 400}, groups=TWO_GROUPS, routes=EACH_ITS_OWN)
    )
    client, fake = await host.client(), host.fake("fakeA")
    refused_ms = host.now_ms
    fake.refuse = lambda batch: batch.due_ms == refused_ms

    def delivered(count: int) -> bool:
        return len(fake.stored) == count

    await put_many(client, 1_000, refused_ms, "a")
    await host.until(lambda: sum(fake.attempt_rows) >= 1_000)
    for number in range(1, 11):  # each of these fills the queue, and leaves it in part
        fake.gate = trio.Event()
        await put_many(client, 500, refused_ms + 1, "a")
        await host.sleep_ms(20)
        fake.gate.set()
        await host.until(partial(delivered, 500 * number), within_ms=4_000)
    assert sum(fake.attempt_rows) < 7_000  # each once; a few of the refused ones wait in memory, and are tried again
    fake.refuse = None
    await host.until(lambda: len(fake.stored) == 6_000, within_ms=120_000)
    await host.settled()
    assert len(set(fake.stored)) == 6_000
    host.check_balance(pending=0)


async def test_each_message_of_a_batch_may_have_an_answer_of_its_own(boot: Boot) -> None:
    """The node took the first ones, may have the next, has no room for the third kind, and never takes the last."""
    host = await boot.started(faked_settings(dispatch=QUICK))
    client, node = await host.client(), host.fake("fake")
    codes = (RowAnswer.STORED, RowAnswer.UNKNOWN, RowAnswer.FAILED, RowAnswer.REJECTED)
    due_ms = host.now_ms + 100
    receipts = [(await client.put(str(int(code)), due_ms))["receipt"] for code in codes]

    def first(batch: StoredBatch) -> Answer:
        node.answers = None
        assert len(batch) == len(codes)
        by_body = [codes[int(place)] for place in np.argsort(np.argsort(batch.sequence))]
        return Answer(np.array(by_body, np.uint8), "it is full")

    node.answers = first
    await host.until(lambda: len(node.stored) == 4, within_ms=5_000)
    await host.settled()
    assert node.texts[:2] == ["1", "4"] and sorted(node.texts[2:]) == ["4", "6"]
    assert node.uncertain_attempts == 1 and len(node.uncertain) == 1
    outcomes = await client.lookup(*receipts)
    assert outcomes == ["delivered", "delivered", "delivered", "dead_lettered"]
    assert not host.server.parts.dispatch.groups.first.nodes[0].health.failures_total
    host.check_balance(pending=0)


async def test_messages_that_a_node_leaves_unknown_one_by_one_are_a_bounded_number(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempted, "UNKNOWN_ROWS_MAX", 20)
    host = boot(faked_settings(dispatch=QUICK | {"batch_messages_max": 8, "workers": 2}))
    await host.start()
    client, node, known = await host.client(), host.fake("fake"), host.server.parts.opened.attempts.attempted

    def every_other(batch: StoredBatch) -> Answer:
        return Answer(np.where(batch.sequence % 2, RowAnswer.UNKNOWN, RowAnswer.STORED).astype(np.uint8), "it hung up")

    node.answers = every_other
    await put_many(client, 400, host.now_ms, "s")
    most = 0
    for _ in range(200):
        await host.sleep_ms(50)
        most = max(most, int(known.unknown(np.arange(2_000)).sum()))
    assert 20 <= most <= 20 + 3 * 8, "the bound, and the batches that two workers and a probe had then"
    node.answers = None
    await host.until(lambda: len({*node.stored}) == 400, within_ms=60_000)
    await host.sleep_ms(1_000)
    assert not known.any_unknown
    host.check_balance(pending=0)


async def test_dead_lettering_is_asked_for_and_only_after_known_failures(boot: Boot) -> None:
    for known in (True, False):
        host, client = await boot.connected(
            faked_settings(dispatch=QUICK | {"dead_letter_attempts": 4}), name=f"host{known}"
        )
        fake = host.fake()
        fake.up, fake.known_failures = False, known
        receipt = (await client.put("m", host.now_ms + 10))["receipt"]
        await host.sleep_ms(3_000)
        assert await client.lookup(receipt) == (["dead_lettered"] if known else ["retrying"])
        if known:
            assert len(fake.attempts) == 4
            assert await client.cancel(receipt) == ["dead_lettered"]
            assert (await host.balanced(pending=0))["dead_lettered"] == 1
        fake.up = True
        await host.sleep_ms(1_000)
        assert fake.texts == ([] if known else ["m"])


async def test_a_node_that_does_not_answer_in_time_counts_as_failed_with_an_unknown_result(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(dispatch=QUICK | {"deliver_timeout_ms": 300}))
    fake = host.fake()
    fake.gate = trio.Event()
    await client.put("m", host.now_ms + 10)
    await host.until(lambda: len(fake.attempts) >= 2, within_ms=2_000)
    fake.gate.set()
    await host.until(lambda: fake.texts == ["m"], within_ms=2_000)
    assert fake.uncertain_attempts >= 1
    assert host.status()["groups"]["fake"]["nodes"][0]["last_error"] in ("", "no answer in time")


async def test_expired_messages_are_not_delivered_and_say_so(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(dispatch=QUICK))
    fake = host.fake()
    fake.up = False
    due_ms = host.now_ms + 10
    short = (await client.put("short", due_ms, expires_ms=due_ms + 500))["receipt"]
    long = (await client.put("long", due_ms, expires_ms=due_ms + 60_000))["receipt"]
    await host.sleep_ms(1_000)
    fake.up = True
    await host.sleep_ms(1_000)
    assert fake.texts == ["long"]
    assert await client.lookup(short, long) == ["expired", "delivered"]
    assert await client.cancel(short) == ["expired"]
    assert (await host.balanced(pending=0))["expired"] == 1


def test_the_pause_after_failures_doubles_with_jitter_up_to_its_bound() -> None:
    settings = DispatchSettings(backoff_ms_min=100, backoff_ms_max=5_000, breaker_failures=3)
    for chance, low in ((0.0, 0.5), (0.999, 0.999)):
        node = NodeHealth("n:1", 1, settings, lambda chance=chance: chance)  # type: ignore[misc]
        pauses = []
        for count in range(1, 12):
            node.record_failure("down", count, count)
            pauses.append((node.closed_until_us - count) / 1_000)
            assert node.open_circuit == (count >= 3)
            assert not node.ready(0)
        assert pauses[:6] == pytest.approx([low * 100 * 2**i for i in range(6)], rel=0.02)
        assert max(pauses) <= 5_000
        node.record_success(0)
        assert node.ready(0)
        assert not node.open_circuit


def test_the_log_says_once_that_a_node_is_down_and_once_that_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    node = NodeHealth("n:1", 1, DispatchSettings(breaker_failures=3), lambda: 0.0)
    node.record_failure("no route", 1, 1)
    node.record_success(0)
    assert not caplog.messages
    for now_us in range(2, 9):
        node.record_failure("no route", now_us, now_us)
    node.record_success(0)
    node.record_success(0)
    assert caplog.messages == ["broker node n:1 counts as down: no route", "broker node n:1 takes messages again"]


def test_smooth_round_robin_spreads_by_weight_over_the_ready_nodes() -> None:
    settings = DispatchSettings()
    nodes = [
        BrokerNode(FakeBroker(SystemClock()), NodeHealth("n:1", weight, settings, lambda: 0.0), Capabilities())
        for weight in (5, 1, 1, 0)
    ]
    taken = [nodes.index(node) for _ in range(14) if (node := choose(nodes, 0))]
    assert Counter(taken) == {0: 10, 1: 2, 2: 2}
    assert "0, 0, 0, 0, 0" not in str(taken)[1:-1], "the heavy one is not asked in one run"
    nodes[0].health.record_failure("x", 0, 0)
    light = [choose(nodes, 1) for _ in range(4)]
    assert {nodes.index(node) for node in light if node is not None} == {1, 2}
    for node in nodes:
        node.health.record_failure("x", 0, 0)
    assert choose(nodes, 1) is None


async def test_a_dead_group_costs_few_attempts_by_its_growing_pause(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(dispatch={"backoff_ms_min": 100, "backoff_ms_max": 5_000}))
    fake: FakeBroker = host.fake()
    fake.up = False
    await client.put("m", host.now_ms)
    await host.sleep_ms(30_000)
    assert 5 <= len(fake.attempts) <= 40
    assert isinstance(host.clock, SimulatedClock)


async def test_a_message_that_expires_behind_another_batch_is_not_delivered(boot: Boot) -> None:
    host = await boot.started(
        faked_settings(
            dispatch={
                "deliver_timeout_ms": 10_000,
                "backoff_ms_min": 1_000,
                "backoff_ms_max": 2_000,
                "breaker_failures": 100,
                "batch_messages_max": 1,
                "workers": 1,
            }
        )
    )
    client, node = await host.client(), host.fake()
    node.up = False
    start_ms = host.now_ms // 60_000 * 60_000 + 60_000
    await client.put("first", start_ms - 1)
    second = await client.put("second", start_ms, expires_ms=start_ms + 8_000)
    await host.sleep_ms(start_ms + 3_000 - host.now_ms)
    node.up, node.gate = True, trio.Event()
    before = len(node.attempts)
    await host.until(lambda: len(node.attempts) > before)
    node.gate = None  # only the attempt that runs hangs
    await host.sleep_ms(15_000)
    await host.settled()
    assert await client.lookup(second["receipt"]) == ["expired"]
    assert "second" not in node.texts
    host.check_balance(pending=0)


@pytest.mark.parametrize("expires_ms", [1 << 61, (1 << 62) - 1])
async def test_an_expiry_that_never_comes_is_no_overflow(boot: Boot, expires_ms: int) -> None:
    host, client = await boot.connected(faked_settings())
    await client.put("row", host.now_ms + 500, expires_ms=expires_ms)
    columns = {"count": 1, "subject": "s", "due_ms": host.now_ms + 500, "bodies": b"column", "body_length": 6}
    await client.request("send", columns | {"expires_ms": 2 * expires_ms + 1})
    await host.sleep_ms(1_000)
    assert host.fake().texts == ["row", "column"]


def test_a_node_is_known_by_its_last_attempts_and_since_when() -> None:
    node = NodeHealth("n:1", 1, DispatchSettings(breaker_failures=2), lambda: 0.0, now_us=5)
    seen = [(node.state, node.since_us)]
    steps: list[Callable[[], None]] = [
        lambda: node.record_success(10),
        lambda: node.record_success(20),
        lambda: node.record_failure("x", 30, 29),
        lambda: node.record_failure("x", 40, 39),
        lambda: node.record_failure("x", 50, 49),
        lambda: node.record_success(60),
    ]
    for step in steps:
        step()
        seen.append((node.state, node.since_us))
    assert seen == [("unknown", 5), ("up", 10), ("up", 10), ("failing", 30), ("down", 40), ("down", 40), ("up", 60)]


def spread(weights: list[int], hold_ms: list[float], seed: int, batches: int = 6000, workers: int = 8) -> list[int]:
    """How many batches each node gets from workers that each give the next one when the last is answered."""
    chance = Random(seed)
    nodes = [
        BrokerNode(FakeBroker(SystemClock()), NodeHealth("n:1", each, DispatchSettings(), lambda: 0.0), Capabilities())
        for each in weights
    ]
    given, busy = [0] * len(nodes), list[tuple[float, int, int]]()
    now_ms = 0.0
    for number in range(batches):
        if len(busy) == workers:
            now_ms, _, place = heappop(busy)
            nodes[place].health.give()
        node = choose(nodes, 0)
        assert node is not None
        place = nodes.index(node)
        node.health.take()
        given[place] += 1
        heappush(busy, (now_ms + hold_ms[place] * (0.5 + chance.random()), number, place))
    return given


@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_are_as_quick_as_each_other_get_their_weights(seed: int) -> None:
    for workers in (1, 4, 8):
        shares = [part / 6000 for part in spread([1, 1, 2], [5, 5, 5], seed, workers=workers)]
        assert shares == pytest.approx([0.25, 0.25, 0.5], abs=0.04)


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_node_gets_its_share_and_does_not_slow_the_others(seed: int) -> None:
    slow, *quick = spread([1, 1, 1], [100, 5, 5], seed)
    assert slow < 0.08 * 6000, "round robin would give it a third, and all workers would wait for it"
    assert quick[0] == pytest.approx(quick[1], rel=0.1)
    assert spread([1, 1, 1], [100, 5, 5], seed) == [slow, *quick], "nothing is drawn"


def test_a_slow_node_of_a_large_weight_holds_more_at_the_same_time() -> None:
    heavy, light = spread([3, 1], [50, 50], 1)
    assert heavy / light == pytest.approx(3, rel=0.1)


async def test_a_group_delivers_to_its_nodes_by_their_answers(boot: Boot) -> None:
    host, client = await boot.connected(
        small_settings(
            groups=(fake_group("fakes", "fakeA", "fakeB", "fakeC"),),
            routes=(RouteSettings("*", ("fakes",)),),
            dispatch={"batch_messages_max": 1},
        )
    )
    slow, *quick = (host.fake(name) for name in ("fakeA", "fakeB", "fakeC"))
    slow.delay_ms, quick[0].delay_ms, quick[1].delay_ms = 500, 5, 5
    due_ms = host.now_ms + 1_000
    for first in range(0, 600, 100):
        await client.send(*[{"subject": "s", "body": b"%d" % n, "due_ms": due_ms} for n in range(first, first + 100)])
    await host.until(lambda: sum(len(node.stored) for node in (slow, *quick)) == 600, within_ms=60_000)
    assert len(slow.stored) < 30
    assert min(len(node.stored) for node in quick) > 200


async def test_a_drained_node_does_not_keep_its_group_from_failing_over(boot: Boot) -> None:
    groups = (
        GroupSettings("g", (NodeSettings("fake1:1", 0), NodeSettings("fake2:1", 1))),
        fake_group("fakeB"),
    )
    host, client = await boot.connected(
        small_settings(groups=groups, routes=(RouteSettings("*", ("g", "fakeB")),), dispatch=QUICK)
    )
    host.fake("fake2").up = False
    for number in range(10):
        await client.put(f"{number}", host.now_ms)
    await host.until(lambda: len(host.fake("fakeB").stored) == 10, within_ms=60_000)
    assert host.fake("fake1").stored == []
