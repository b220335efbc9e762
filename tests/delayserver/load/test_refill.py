"""Rows that left the memory of a broker group: each is read back and delivered, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from random import Random
from typing import Any

import pytest
import trio

from delayserver.config.settings import RouteSettings
from delayserver.load import refill
from delayserver.load.window_reader import WindowRows
from delayserver.server.delay_server import DelayServer
from delayserver.state.memory.group_queue import GroupQueue
from delayserver.state.memory.spilled import Spilled
from store.logs.schedule_log import ScheduleKey
from store.records.segment import Segment
from tests.delayserver.dispatch.test_broker_group import A_THEN_B, EACH_ITS_OWN, QUICK, TWO_GROUPS, put_many
from tests.delayserver.dispatch.test_order_of_keys import inversions, put_keyed
from tests.fakes.host import Boot, faked_settings, small_settings
from wheel.keys import KEY_LOWEST, Key

# What is sent to `c` has no stand-in.
ONE_ALONE = (RouteSettings("a*", ("fakeA", "fakeB")), RouteSettings("c*", ("fakeA",)), RouteSettings("*", ("fakeB",)))


def count_reads(server: DelayServer, at_most: int = 1 << 30) -> list[int]:
    """The windows that are read from now on. The server crashes beyond so many."""
    read = server.parts.load.window_reader.read
    windows: list[int] = []

    def counting(
        window_ms: int, ends: Mapping[str, int], from_key: Key, to_key: Key, rows_max: int | None = None
    ) -> WindowRows:
        windows.append(window_ms)
        assert len(windows) <= at_most, "windows are read again and again"
        return read(window_ms, ends, from_key, to_key, rows_max)

    server.parts.load.window_reader.read = counting  # type: ignore[method-assign]
    return windows


async def test_rows_that_leave_memory_while_their_window_is_read_back_are_read_back_too(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, client = await boot.connected(
        faked_settings(dispatch=QUICK | {"queue_rows_max": 20, "batch_messages_max": 5, "workers": 1})
    )
    server = host.server
    reading, go_on = trio.Event(), trio.Event()

    async def slow(name: str, work: Callable[[], Any]) -> Any:
        done = work()
        if name == "_read_from":
            reading.set()
            await go_on.wait()
        return done

    host.workers.around = slow
    host.fake().up = False
    await put_many(client, 30, host.now_ms, "s")
    (group,) = server.parts.dispatch.groups
    await host.until(lambda: group.rows.failing and bool(group.rows.spilled))
    host.fake().up = True
    await reading.wait()
    host.fake().up, dropped = False, group.rows.counters.dropped_from_memory
    await put_many(client, 10, host.now_ms, "s", first=30)
    await host.until(lambda: group.rows.failing)
    await put_many(client, 30, host.now_ms, "s", first=40)
    await host.sleep_ms(100)
    assert group.rows.counters.dropped_from_memory > dropped, "no row behind what is read has left memory"
    host.fake().up = True
    await host.until(lambda: not len(group.rows.queue))
    go_on.set()
    await host.until(lambda: len(host.fake().stored) == 70, within_ms=30_000)
    await host.settled()
    assert len(set(host.fake().stored)) == 70
    host.check_balance(pending=0)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("routes", [EACH_ITS_OWN, A_THEN_B])
async def test_a_window_with_more_rows_than_are_read_at_once_is_read_back_in_parts(
    boot: Boot, monkeypatch: pytest.MonkeyPatch, routes: tuple[RouteSettings, ...], keyed: bool
) -> None:
    monkeypatch.setattr(refill, "READ_ROWS_MAX", 64)
    monkeypatch.setattr(refill, "STEP_ROWS", 24)
    dispatch = QUICK | {"queue_rows_max": 100, "batch_messages_max": 20}
    host = boot(small_settings(groups=TWO_GROUPS, routes=routes, dispatch=dispatch))
    server = await host.start()
    client, bad = await host.client(), host.fake("fakeA")
    taker = host.fake("fakeB") if routes is A_THEN_B else bad
    bad.up, taker.delay_ms, due_ms = False, 20, host.now_ms + 2_000
    await host.until(lambda: server.parts.state.windows.cursors.is_loaded(due_ms // 60_000 * 60_000))
    read, most = server.parts.load.window_reader.read, 0

    def reading(*args: Any) -> WindowRows:
        nonlocal most
        found = read(*args)
        most = max(most, len(found.loaded))
        return found

    server.parts.load.window_reader.read = reading  # type: ignore[method-assign,assignment]
    if keyed:
        await put_keyed(client, [due_ms + place % 500 for place in range(700)], lambda place: f"{place % 30}", "a")
    else:
        await put_many(client, 700, due_ms, "a")
    await host.sleep_ms(3_000)
    bad.up = taker is bad
    await host.until(lambda: len(taker.stored) == 700, within_ms=60_000)
    assert 0 < most <= 2 * 64
    assert len(set(taker.stored)) == 700
    assert not keyed or inversions(taker) == []
    await host.balanced(pending=0)


async def test_a_window_that_is_decided_and_retired_before_it_is_read_back_is_done(boot: Boot) -> None:
    storage = {"window_ms": 1_000, "retention_ms": 10_000}
    dispatch = QUICK | {"queue_rows_max": 10, "batch_messages_max": 5, "workers": 1}
    host, client = await boot.connected(faked_settings(storage=storage, dispatch=dispatch))
    server = host.server
    host.fake().up = False
    await put_many(client, 12, host.now_ms, "s")
    (group,) = server.parts.dispatch.groups
    await host.until(lambda: group.rows.failing and bool(group.rows.spilled))
    await host.sleep_ms(3_000)
    due_ms = host.now_ms
    receipts = [(await client.put(str(number), due_ms))["receipt"] for number in range(5)]
    await host.sleep_ms(1_000)
    assert set(await client.cancel(*receipts)) == {"cancelled"}
    await host.sleep_ms(60_000)
    assert not any(server.parts.load.window_reader.ends(due_ms // 1_000 * 1_000).values()), "retention took the window"
    host.fake().up = True
    await host.until(lambda: len(host.fake().stored) == 12 and not group.rows.spilled, within_ms=30_000)
    await host.settled()
    assert host.died_of is None
    host.check_balance(pending=0)


async def test_a_window_that_retention_takes_while_it_is_read_back_is_done(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, client = await boot.connected(faked_settings())
    server = host.server
    due_ms = host.now_ms
    await client.put("m", due_ms)
    await host.until(lambda: host.fake().texts == ["m"])
    await host.settled()
    files = server.parts.files.schedule._files
    reading = files.reading

    def retired_first(key: ScheduleKey) -> AbstractContextManager[Segment]:
        files.remove(key)
        return reading(key)

    monkeypatch.setattr(files, "reading", retired_first)
    (group,) = server.parts.dispatch.groups
    group.rows.spilled.add(due_ms // 60_000 * 60_000)
    await host.sleep_ms(3_000)
    assert host.died_of is None
    assert not group.rows.spilled
    assert host.fake().texts == ["m"]


async def test_rows_without_a_fallback_group_do_not_keep_later_rows_from_theirs(boot: Boot) -> None:
    dispatch = QUICK | {"queue_rows_max": 20, "batch_messages_max": 5}
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=ONE_ALONE, dispatch=dispatch))
    stand_in = host.fake("fakeB")
    host.fake("fakeA").up = False
    await put_many(client, 30, host.now_ms, "c")
    await host.sleep_ms(2_000)
    for number in range(30, 60):
        await client.put(str(number), host.now_ms, subject="a")
        await host.sleep_ms(50)
    await host.until(lambda: len(stand_in.stored) == 30, within_ms=5_000)
    late_us = [stand_in.at_us[sequence] - stand_in.due_ms[sequence] * 1_000 for sequence in stand_in.stored]
    assert max(late_us) < 100_000, "they left memory, and were read back for the stand-in"
    await host.balanced(pending=30)
    host.fake("fakeA").up = True
    await host.until(lambda: len(host.fake("fakeA").stored) == 30, within_ms=5_000)
    await host.balanced(pending=0)


async def test_rows_of_keys_beyond_the_share_of_a_group_that_is_down_are_not_read_again_and_again(boot: Boot) -> None:
    """What is read back beyond the share of the group would leave memory in the same moment."""
    dispatch = QUICK | {"batch_messages_max": 3}
    host, client = await boot.connected(
        small_settings(groups=TWO_GROUPS, routes=ONE_ALONE, wheel={"rows_max": 24}, dispatch=dispatch)
    )
    count_reads(host.server, at_most=5_000)
    host.fake("fakeA").up = False
    for subject in "ca":
        due_ms = [host.now_ms + 200 + place for place in range(60)]
        await put_keyed(client, due_ms, lambda place: str(place % 20), subject=subject)
    await host.sleep_ms(20_000)
    host.fake("fakeA").up = True
    await host.until(lambda: len({*host.fake("fakeA").stored, *host.fake("fakeB").stored}) == 120, within_ms=60_000)
    await host.balanced(pending=0)


async def test_rows_that_left_memory_come_back_to_their_fallback_group_while_others_wait(boot: Boot) -> None:
    """Both groups are down when they come, and the queue of the first stays full of rows that have no stand-in."""
    dispatch = QUICK | {"queue_rows_max": 20, "batch_messages_max": 5}
    host, client = await boot.connected(small_settings(groups=TWO_GROUPS, routes=ONE_ALONE, dispatch=dispatch))
    server = host.server
    first, second = host.fake("fakeA"), host.fake("fakeB")
    first.up = second.up = False
    await client.put("shows that it is down", host.now_ms, subject="b")
    await put_many(client, 200, host.now_ms, "c")
    await host.sleep_ms(2_000)
    await put_many(client, 100, host.now_ms, "a", first=200)
    await host.sleep_ms(2_000)
    second.up, reads = True, count_reads(server)
    await host.until(lambda: len(second.stored) == 101, within_ms=30_000)
    before = len(reads)
    await host.sleep_ms(60_000)
    assert len(reads) == before, "rows without a stand-in were read, and dropped, again and again"
    await host.balanced(pending=200)
    first.up = True
    await host.until(lambda: len(first.stored) == 200, within_ms=30_000)
    await host.settled()
    assert len(set(first.stored + second.stored)) == len(first.stored + second.stored) == 301
    host.check_balance(pending=0)


def test_windows_that_left_memory_are_known_by_the_routes_of_their_rows() -> None:
    chance = Random(1)
    spilled, known = Spilled(), dict[tuple[int, int], Key]()
    for _ in range(2_000):
        if not known or chance.random() < 0.55:
            window, place = chance.randrange(6), chance.randrange(3)
            first = Key(window, chance.randrange(10)) if chance.random() < 0.5 else None
            spilled.add(window, place, first)
            first = first or Key(window, KEY_LOWEST.sequence)
            known[window, place] = min(known.get((window, place), first), first)
        else:
            wanted = chance.choice([None, *spilled.route_numbers])
            rest = [(window, place) for window, place in known if wanted in (None, place)]
            taken, had = spilled.take(wanted)
            assert taken == min(rest)[0]
            assert sorted(had) == sorted(place for window, place in rest if window == taken)
            being_read = [known.pop((taken, place)) for place in had]
            assert spilled.first == min([*known.values(), *being_read])
            spilled.end_read()
        assert spilled.first == spilled.first_waiting == min(known.values(), default=None)
        assert spilled.first_window_ms == min([window for window, _ in known], default=None)
        assert (bool(spilled), len(spilled)) == (bool(known), len({window for window, _ in known}))
        assert sorted(spilled.route_numbers) == sorted({place for _, place in known})


@pytest.mark.parametrize("seed", range(4))
async def test_each_row_is_delivered_once_whichever_groups_were_down_while_it_waited(boot: Boot, seed: int) -> None:
    chance = Random(seed)
    dispatch = QUICK | {"queue_rows_max": 20, "batch_messages_max": 5, "workers": chance.choice([1, 3])}
    storage, wheel = {"window_ms": 1_000}, {"rows_max": chance.choice([60, 1_000]), "load_ahead_ms": 2_000}
    host, client = await boot.connected(
        small_settings(groups=TWO_GROUPS, routes=ONE_ALONE, dispatch=dispatch, storage=storage, wheel=wheel)
    )
    fakes, sent = (host.fake("fakeA"), host.fake("fakeB")), 0
    for _ in range(60):
        for fake in fakes:
            fake.up, fake.delay_ms = chance.random() < 0.4, chance.choice([0, 0, 30])
        count = chance.choice([0, 1, 5, 40])
        if count:
            due_ms = host.now_ms + chance.choice([0, 100, 1_500])
            await put_many(client, count, due_ms, chance.choice("abc"), first=sent)
            sent += count
        await host.sleep_ms(chance.choice([1, 100, 1_000]))
    for fake in fakes:
        fake.up, fake.delay_ms = True, 0
    stored = [fake.stored for fake in fakes]
    await host.until(lambda: sum(map(len, stored)) >= sent, within_ms=60_000)
    await host.settled()
    assert len(set(stored[0] + stored[1])) == len(stored[0] + stored[1]) == sent
    host.check_balance(pending=0)


async def test_a_load_of_the_near_future_looks_at_no_row_that_waits_in_a_queue(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, client = await boot.connected(faked_settings(dispatch=QUICK | {"workers": 1}))
    server = host.server
    host.fake().up = False
    await put_many(client, 200, host.now_ms, "s")
    (group,) = server.parts.dispatch.groups
    await host.until(lambda: len(group.rows.queue) > 150)
    later_ms = host.now_ms + 3 * 60_000
    await put_many(client, 100, later_ms, "s", first=200)
    looked: list[str] = []
    for name in ("sequences", "holds"):  # every way by which a load may compare with the rows of a queue
        ask = getattr(GroupQueue, name)

        def counting(queue: GroupQueue, *columns: Any, _ask: Any = ask, _name: str = name) -> Any:
            looked.append(_name)
            return _ask(queue, *columns)

        monkeypatch.setattr(GroupQueue, name, counting)
    await host.until(lambda: len(server.parts.state.wheel) == 100, within_ms=3 * 60_000)
    assert not looked
    host.fake().up = True
    await host.until(lambda: len(host.fake().stored) == 300, within_ms=4 * 60_000)
    assert len(set(host.fake().stored)) == 300


async def test_rows_of_a_window_that_is_loaded_again_are_found_in_the_queue_where_they_wait(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(dispatch=QUICK | {"workers": 1}))
    server = host.server
    host.fake().up = False
    due_ms = host.now_ms + 500
    await put_many(client, 50, due_ms, "s")
    await put_many(client, 50, due_ms + 1, "s", first=50)
    (group,) = server.parts.dispatch.groups
    await host.until(lambda: group.rows.rows_held == 100)
    # As a cancel that could not be recorded: from one of the rows on the window is loaded again.
    server.parts.state.residency.evict_after(Key(due_ms, int(group.rows.queue.sequences().min()) + 10))
    server.parts.state.residency.loadable.ring()
    loads = server.parts.load.loader.loads
    await host.until(lambda: server.parts.load.loader.loads > loads)
    assert group.rows.rows_held == 100 and not len(server.parts.state.wheel)
    server.parts.state.residency.check_invariants()
    host.fake().up = True
    await host.until(lambda: len(host.fake().stored) == 100, within_ms=60_000)
    assert len(set(host.fake().stored)) == 100
