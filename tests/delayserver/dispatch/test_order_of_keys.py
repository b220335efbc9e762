"""Messages of one order key reach their node in the order of (due time, sequence), whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import trio

from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings
from delayserver.state.memory.order_gate import OrderGate
from delayserver.targets.answer import Answer
from delayserver.targets.target import DeliveryError
from store.errors import DiskError
from store.records.batches import StoredBatch
from tests.delayserver.dispatch.test_broker_group import A_THEN_B, TWO_GROUPS, put_many
from tests.fakes.broker import FakeBroker
from tests.fakes.host import Boot, Client, faked_settings, small_settings

QUICK = {"backoff_ms_min": 10, "backoff_ms_max": 200, "breaker_failures": 3}


async def put_keyed(client: Client, due_ms: list[int], key: Callable[[int], str], subject: str = "s") -> None:
    """One message for each due time, in columns. The body is the key."""
    keys = [key(place).encode() for place in range(len(due_ms))]
    lengths = np.array([len(each) for each in keys], "<u4").tobytes()
    for start in range(0, len(due_ms), 10_000):
        stop = min(start + 10_000, len(due_ms))
        arguments: dict[str, Any] = {
            "count": stop - start,
            "subject": subject,
            "due_ms": np.array(due_ms[start:stop], "<i8").tobytes(),
            "bodies": b"".join(keys[start:stop]),
            "body_length": lengths[4 * start : 4 * stop],
            "order_keys": b"".join(keys[start:stop]),
            "order_key_length": lengths[4 * start : 4 * stop],
        }
        assert (await client.request("send", arguments))["accepted"] == stop - start


def inversions(broker: FakeBroker) -> list[tuple[int, int]]:
    """Pairs of sequences of a key that were stored first in the wrong order."""
    last: dict[bytes, tuple[int, int]] = {}
    wrong = []
    for sequence in dict.fromkeys(broker.stored):
        key, mine = broker.bodies[sequence], (broker.due_ms[sequence], sequence)
        if mine[0] != -1 and mine < last.get(key, (0, 0)) and key:
            wrong.append((last[key][1], sequence))
        last[key] = max(mine, last.get(key, (0, 0)))
    return wrong


async def test_single_sends_ahead_of_time_arrive_in_the_order_in_which_they_are_due(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    client, node, chance = await host.client(), host.fake(), Random(1)
    node.delay_ms = 3  # batches of eight workers would overtake each other
    for number in range(600):
        key = chance.choice(["a", "b", ""])
        rest = {"order_key": key} if key else {}
        await client.put(key, host.now_ms + 2_000 + chance.randrange(60), **rest)
        if number % 3 == 0:
            await host.sleep_ms(1)
    await host.until(lambda: len(node.stored) == 600, within_ms=30_000)
    assert inversions(node) == []
    await host.balanced(pending=0)


@pytest.mark.parametrize("held_ms", [3, 12, 40])
async def test_a_message_that_waits_for_its_sync_is_waited_for(boot: Boot, held_ms: int) -> None:
    """It was accepted in time: the disk takes its time, and the later one of its key is due meanwhile."""
    host = await boot.started(faked_settings(storage={"inline_sync_bytes_max": 0}))
    client, node = await host.client(), host.fake()
    held = 0

    async def slow(name: str, work: Callable[[], Any]) -> Any:
        nonlocal held
        if name == "_append" and held:
            await host.clock.sleep_ms(held)
        return work()

    host.workers.around = slow
    for number in range(40):
        due_ms = host.now_ms + 100
        await client.put("a", due_ms, order_key="a")
        await host.sleep_ms(due_ms - host.now_ms - 6 - number % 3)
        held = held_ms
        # Accepted 5 ms or more before the other is due, and due earlier.
        await client.put("a", due_ms - 1, order_key="a")
        held = 0
        await host.sleep_ms(100)
    assert len(node.stored) == 80
    assert inversions(node) == []


async def test_a_message_that_was_accepted_while_the_clock_was_set_back_is_waited_for(boot: Boot) -> None:
    """The clock goes far ahead during its sync. The order gate asked last before the clock was set back."""
    host = await boot.started(faked_settings(storage={"inline_sync_bytes_max": 0}))
    client, node = await host.client(), host.fake()
    held = False

    async def slow(name: str, work: Callable[[], Any]) -> Any:
        if name == "_append" and held:
            host.clock.step(200_000)
            await host.clock.sleep_ms(1_000)
        return work()

    host.workers.around = slow
    await client.put("a", host.now_ms, order_key="a")
    await host.until(lambda: len(node.stored) == 1)
    host.clock.step(-100_000)
    due_ms = host.now_ms + 50_000
    await client.put("a", due_ms, order_key="a")
    await host.sleep_ms(1_000)
    held = True
    await client.put("a", due_ms - 10_000, order_key="a")
    held = False
    await host.until(lambda: len(node.stored) == 3)
    assert [node.due_ms[sequence] for sequence in node.stored[1:]] == [due_ms - 10_000, due_ms]


@pytest.mark.parametrize("rows_max", [4_000, 1 << 20])
async def test_after_a_downtime_fresh_messages_of_a_key_wait_for_its_overdue_ones(boot: Boot, rows_max: int) -> None:
    """Also where memory cannot hold the overdue ones, while messages without a key pass them."""
    wheel = {"rows_max": rows_max, "load_ahead_ms": 5_000}
    host = await boot.started(
        faked_settings(storage={"window_ms": 1_000}, wheel=wheel, dispatch={"batch_messages_max": 200})
    )
    client, node, chance = await host.client(), host.fake(), Random(2)
    start_ms = host.now_ms
    await put_keyed(client, [start_ms + 10_000 + chance.randrange(60_000) for _ in range(20_000)], lambda _: "a")
    await host.stop()
    host.clock.step(120_000_000)
    node.delay_ms = 5
    client = await host.start_connected()
    for number in range(50):
        await client.put("a", host.now_ms + chance.randrange(100), order_key="a")
        await client.put("", host.now_ms, subject=f"free{number}")
        await host.sleep_ms(5)
    free = sum(not body for body in node.bodies.values())
    assert len(node.stored) - free < 20_000  # it still works at the backlog
    await host.until(lambda: len(node.stored) == 20_100, within_ms=120_000)
    assert inversions(node) == []
    await host.balanced(pending=0)


@pytest.mark.parametrize("trouble", ["fails", "stores and fails", "refuses"])
async def test_a_node_in_trouble_gets_the_messages_of_a_key_in_order(boot: Boot, trouble: str) -> None:
    host = await boot.started(faked_settings(dispatch=QUICK | {"batch_messages_max": 16}))
    client, node, chance = await host.client(), host.fake(), Random(3)
    node.delay_ms = 1
    if trouble == "refuses":
        bad = {bytes([letter]) for letter in b"ab"}

        def refuse(batch: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
            keys = [bytes(batch.order_keys[place : place + 1]) for place in range(len(batch))]
            refused = np.zeros(len(batch), bool)
            for key in bad:  # none of a key behind one that is refused
                places = [place for place, mine in enumerate(keys) if mine == key]
                if places and chance.random() < 0.5:
                    refused[places[chance.randrange(len(places)) :]] = True
            return refused

        node.refuse = lambda batch: refuse(batch) & np.isin(batch.sequence, batch.sequence[batch.order_keys_length > 0])
    else:
        node.known_failures = trouble == "fails"
        node.stores_before_failing = not node.known_failures
    start_ms = host.now_ms
    await put_keyed(client, [start_ms + 50 + 2 * place for place in range(600)], lambda place: "abc"[place % 3])
    for _ in range(30):
        await host.sleep_ms(chance.choice([5, 20, 60]))
        if trouble != "refuses":
            node.up = not node.up
    node.up, node.refuse = True, None
    await host.until(lambda: len(set(node.stored)) == 600, within_ms=30_000)
    assert host.server.parts.dispatch.groups.first.rows.counters.attempts_failed > 3
    assert inversions(node) == []
    await host.balanced(pending=0)


async def test_a_queue_that_is_too_short_keeps_the_order_of_keys(boot: Boot) -> None:
    dispatch = QUICK | {"queue_rows_max": 40, "batch_messages_max": 5}
    host = await boot.started(faked_settings(dispatch=dispatch, storage={"window_ms": 1_000}))
    client, node = await host.client(), host.fake()
    node.delay_ms = 60
    start_ms = host.now_ms
    await put_keyed(client, [start_ms + 200 + place * 7 % 2_000 for place in range(800)], lambda place: "ab"[place % 2])
    await host.until(lambda: len(node.stored) == 800, within_ms=60_000)
    assert host.server.parts.dispatch.groups.first.rows.counters.dropped_from_memory > 0
    assert inversions(node) == []
    await host.balanced(pending=0)


@pytest.mark.parametrize(("queue_rows_max", "delay_ms"), [(20, 0), (40, 60)])
async def test_a_fallback_group_gets_the_messages_of_a_key_in_order_though_queues_are_too_short(
    boot: Boot, queue_rows_max: int, delay_ms: int
) -> None:
    """Those that left memory, also out of the queue of the stand-in, do not go around those that wait for it."""
    dispatch = QUICK | {"queue_rows_max": queue_rows_max, "batch_messages_max": 5, "workers": 2}
    storage = {"window_ms": 1_000}
    host = await boot.started(small_settings(groups=TWO_GROUPS, routes=A_THEN_B, storage=storage, dispatch=dispatch))
    client, node = await host.client(), host.fake("fakeB")
    host.fake("fakeA").up, node.delay_ms = False, delay_ms
    start_ms = host.now_ms
    due_ms = [start_ms + 200 + place * 7 % 2_000 for place in range(400)]
    await put_keyed(client, due_ms, lambda place: "ab"[place % 2], subject="a")
    await put_many(client, 60, start_ms + 283, "b")
    await host.until(lambda: len(node.stored) == 460, within_ms=60_000)
    assert host.server.parts.dispatch.groups.first.rows.counters.dropped_from_memory > 0
    node.bodies = {sequence: body for sequence, body in node.bodies.items() if body in (b"a", b"b")}
    node.stored = [sequence for sequence in node.stored if sequence in node.bodies]
    assert inversions(node) == []
    await host.balanced(pending=0)


@pytest.mark.parametrize(("up", "spread_ms"), [(True, 1), (False, 1), (False, 2_000)])
async def test_a_minute_with_more_messages_of_keys_than_memory_holds_leaves_it_in_order(
    boot: Boot, up: bool, spread_ms: int
) -> None:
    """Also where the node was down, so that they left memory out of the queue, and where all are due at one moment."""
    wheel = {"rows_max": 64, "load_ahead_ms": 5_000}
    host = await boot.started(faked_settings(dispatch=QUICK | {"batch_messages_max": 5}, wheel=wheel))
    client, node = await host.client(), host.fake()
    node.delay_ms, node.up = 5, up
    start_ms = host.now_ms + 60_000
    due_ms = [start_ms + place * 7 % spread_ms for place in range(800)]
    await put_keyed(client, due_ms, lambda place: "abcdefg"[place % 7])
    await host.sleep_ms(start_ms + 5_000 - host.now_ms)
    node.up = True
    residency = host.server.parts.state.residency
    for _ in range(1_000):
        if len(node.stored) == 800:
            break
        assert len(residency.wheel) <= 2 * 64
        await host.sleep_ms(20)
    assert len(set(node.stored)) == 800
    assert inversions(node) == []
    await host.balanced(pending=0)


@pytest.mark.parametrize("fails", [False, True])
async def test_messages_of_keys_that_wait_for_a_load_are_looked_at_when_it_ends(
    boot: Boot, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """They were looked at every 5 ms. A load that fails brings no row that would make the dispatcher look."""
    host = boot(faked_settings(storage={"window_ms": 1_000}))
    await host.start()
    node = host.fake()
    node.up = False
    await (await host.client()).put("a", host.now_ms, order_key="a")
    await host.sleep_ms(1_000)
    await host.stop()
    host.clock.step(60_000)
    node.up, read_until_ms, looks = True, host.now_ms + 2_000, []

    async def slow(name: str, work: Callable[[], Any]) -> Any:
        if name == "read" and host.now_ms < read_until_ms:
            await host.sleep_ms(read_until_ms - host.now_ms)
            if fails:
                raise DiskError("schedule file", "read", 5, "it does not answer")
        return work()

    limit_ms = OrderGate.limit_ms

    def counting(gate: OrderGate, now_ms: int, to_ms: int) -> int:
        looks.append(now_ms)
        return limit_ms(gate, now_ms, to_ms)

    host.workers.around = slow
    monkeypatch.setattr(OrderGate, "limit_ms", counting)
    await host.start()
    await (await host.client()).put("b", host.now_ms + 100, order_key="b")
    await host.until(lambda: len(node.stored) == 2, within_ms=10_000)
    assert node.texts == (["b", "a"] if fails else ["a", "b"])
    (at_us,) = [node.at_us[sequence] for sequence, body in node.bodies.items() if body == b"b"]
    assert at_us <= (read_until_ms + 100) * 1000, "when the load ended, not at the next look"
    assert 1 <= len([look for look in looks if look < read_until_ms]) <= 20


async def test_a_key_that_waits_holds_up_no_other_key(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    client, node = await host.client(), host.fake()
    node.gate = gate = trio.Event()
    await client.put("a", host.now_ms, order_key="a")
    await host.until(lambda: len(node.attempts) == 1)
    await client.put("a", host.now_ms, order_key="a")
    node.gate = None
    await client.put("b", host.now_ms, order_key="b")
    await host.until(lambda: node.texts == ["b"])
    await host.sleep_ms(100)
    assert node.texts == ["b"]
    gate.set()
    await host.until(lambda: node.texts == ["b", "a", "a"])
    assert inversions(node) == []


async def test_a_message_that_waits_for_its_key_can_be_cancelled(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    client, node = await host.client(), host.fake()
    node.gate = trio.Event()
    await client.put("a", host.now_ms, order_key="a")
    await host.until(lambda: len(node.attempts) == 1)
    sent = [await client.put("a", host.now_ms, order_key="a") for _ in range(2)]
    await host.sleep_ms(50)
    assert (await client.cancel(sent[0]["receipt"])) == ["cancelled"]
    node.gate.set()
    await host.until(lambda: len(node.stored) == 2)
    await host.balanced(pending=0)


def keys_at(node: FakeBroker) -> set[bytes]:
    return set(node.bodies.values())


async def test_a_key_has_one_node_until_that_counts_as_down_and_comes_back_to_it(boot: Boot) -> None:
    nodes = tuple(NodeSettings(f"fake{number}:1", weight) for number, weight in ((1, 1), (2, 1), (3, 2), (4, 0)))
    group = GroupSettings("g", nodes)
    host, client = await boot.connected(
        small_settings(groups=(group,), routes=(RouteSettings("*", ("g",)),), dispatch=QUICK)
    )
    fakes = [host.fake(f"fake{number}") for number in (1, 2, 3)]
    health = host.server.parts.dispatch.groups.first.nodes[0].health

    async def round_of_messages() -> dict[bytes, int]:
        await host.settled()
        before = sum(len(set(fake.stored)) for fake in fakes)
        places = [len(fake.stored) for fake in fakes]
        await put_keyed(client, [host.now_ms + 20 + place for place in range(400)], lambda place: f"key{place % 200}")
        await host.until(lambda: sum(len(set(fake.stored)) for fake in fakes) == before + 400, within_ms=20_000)
        found: dict[bytes, int] = {}
        for number, (fake, place) in enumerate(zip(fakes, places, strict=True)):
            for sequence in fake.stored[place:]:
                assert found.setdefault(fake.bodies[sequence], number) == number, "a key at two nodes"
        return found

    first = await round_of_messages()
    assert await round_of_messages() == first
    for key, place in [*first.items()][:20]:
        told = await client.request("route", {"subject": "s", "order_key": key.decode()})
        assert told["key_node"] == fakes[place].address
    assert "key_node" not in await client.request("route", {"subject": "s"})
    assert await client.refused("route", {"subject": "s", "order_key": ""}) == "invalid_argument"
    shares = [sum(number == place for place in first.values()) for number in range(3)]
    assert all(share > 20 for share in shares) and shares[2] > max(shares[:2]) and not host.fake("fake4").stored
    fakes[0].up = False
    own = next(key for key, place in first.items() if not place).decode()
    await client.put("probe", host.now_ms, order_key=own)
    await host.until(lambda: health.open_circuit)
    await host.until(lambda: sum(b"probe" in keys_at(fake) for fake in fakes) == 1)
    second = await round_of_messages()
    assert all(second[key] == place for key, place in first.items() if place)
    assert not any(place == 0 for place in second.values())
    fakes[0].up = True
    for _ in range(100):
        if not health.failures:
            break
        await client.put("probe", host.now_ms, order_key=own)
        await host.sleep_ms(50)
    assert await round_of_messages() == first
    assert all(inversions(fake) == [] for fake in fakes)


async def test_the_batch_that_shows_whether_a_node_is_back_has_no_more_rows_than_others(boot: Boot) -> None:
    host = await boot.started(faked_settings(dispatch=QUICK | {"batch_messages_max": 3}))
    client, node = await host.client(), host.fake()
    rows = host.server.parts.dispatch.groups.first.rows
    node.up = False
    await put_keyed(client, [host.now_ms] * 60, lambda place: f"key{place}")
    await host.until(lambda: rows.failing)
    node.attempt_rows.clear()
    await host.until(lambda: len(node.attempt_rows) > 2)
    assert max(node.attempt_rows) <= 3
    node.up = True
    await host.until(lambda: len(set(node.stored)) == 60)


async def test_a_clock_that_steps_back_by_milliseconds_keeps_the_order_of_a_key(boot: Boot) -> None:
    """The first part of a batch goes back to the wheel, so the second one does not go before it."""
    host = boot(faked_settings(dispatch=QUICK | {"backoff_ms_min": 100}))
    server = await host.start()
    client, node = await host.client(), host.fake()
    node.known_failures = False
    (group,) = server.parts.dispatch.groups
    health = group.nodes[0].health
    for number in range(12):
        due_ms, attempts = host.now_ms + 60, health.failures_total
        await client.put(f"{number}", due_ms, order_key=f"{number}")
        await client.put(f"{number}", due_ms + 1, order_key=f"{number}")
        node.up = False
        await host.until(lambda: health.failures_total > attempts)  # noqa: B023
        node.up = True
        # The node may be tried again two milliseconds before the first of the two is due.
        pause_ms = (health.closed_until_us - host.clock.monotonic_us()) / 1000
        host.clock.step(int(due_ms - 2 - host.now_ms - pause_ms))
        await host.sleep_ms(pause_ms + 1)
        host.clock.step(-2)
        await host.until(lambda: len(node.stored) == 2 * number + 2)  # noqa: B023
    assert inversions(node) == []


async def test_rows_with_a_key_wait_no_longer_than_an_attempt_that_became_the_probe_of_its_node(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one = {"backoff_ms_min": 40, "backoff_ms_max": 40, "batch_messages_max": 1, "workers": 2}
    host = boot(faked_settings(dispatch=one_by_one))
    server = await host.start()
    client, node = await host.client(), host.fake()
    reader, probe, reads, tries = next(iter(server.parts.dispatch.groups)).reader, trio.Event(), [0], [0]
    read, deliver = reader.read, node.deliver

    async def second_is_slow(shipment: Any) -> Any:
        reads[0] += 1
        if reads[0] == 2:
            await host.clock.sleep_ms(8)
        return await read(shipment)

    async def first_fails_meanwhile(batch: StoredBatch, *, uncertain: bool) -> Answer:
        tries[0] += 1
        if tries[0] == 1:
            await host.clock.sleep_ms(3)
            raise DeliveryError("it is down", known=True)
        if tries[0] == 2:
            await probe.wait()
        return await deliver(batch, uncertain=uncertain)

    monkeypatch.setattr(reader, "read", second_is_slow)
    monkeypatch.setattr(node, "deliver", first_fails_meanwhile)
    await put_many(client, 2, host.now_ms, "s")
    await host.until(lambda: tries[0] == 2)
    await client.put("keyed", host.now_ms, order_key="k")
    await host.sleep_ms(110)  # the pause of the node is over, and the second attempt is its probe
    assert not node.stored
    ended_ms = host.now_ms
    probe.set()
    await host.until(lambda: len(node.stored) == 3)
    (keyed,) = [sequence for sequence in node.stored if node.bodies[sequence] == b"keyed"]
    assert node.at_us[keyed] / 1000 - ended_ms < 50
