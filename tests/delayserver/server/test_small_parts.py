"""The parts without I/O: latency histogram, routes, buckets, the book of windows."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from delayserver.config.settings import RouteSettings
from delayserver.replay.buckets import bucket
from delayserver.state.counts.latency import LatencyHistogram
from delayserver.state.memory.routes import Routes
from delayserver.state.windows.window_book import WindowBook
from store.logs.dispatch_log import DispatchKey, DispatchLog
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.logs.window_files import FileUse
from store.tables.days import DayTable
from store.tables.names import SUBJECT, Names
from tests.fakes.disk import FakeDisk
from tests.fakes.rows import messages, outcomes
from wheel.cursors import LoadCursors
from wheel.keys import Key

MINUTE_MS = 60_000
DAY_MS = 86_400_000


@pytest.mark.parametrize("seed", range(4))
def test_percentiles_are_within_two_per_cent_and_never_below_the_truth(seed: int) -> None:
    values = np.array([int(Random(seed * 1000 + i).lognormvariate(6, 3)) for i in range(2_000)])
    histogram = LatencyHistogram()
    for part in np.array_split(values, 7):
        histogram.add(part)
    for share in (0.5, 0.9, 0.99, 0.999):
        true = int(np.sort(values)[max(int(np.ceil(share * len(values))) - 1, 0)])
        assert true <= histogram.percentile_us(share) <= max(true * 1.021 + 1, 1)
    assert histogram.percentile_us(1.0) == histogram.max_us == int(values.max())
    assert (histogram.count, histogram.early) == (2_000, 0)


def test_a_histogram_is_empty_at_first_and_counts_early_deliveries() -> None:
    histogram = LatencyHistogram()
    assert histogram.summary_ms() == {"p50": 0.0, "p90": 0.0, "p99": 0.0, "p999": 0.0, "max": 0.0}
    histogram.add(np.array([-5, 3, 10**15]))
    assert histogram.early == 1
    assert histogram.max_us == 10**15


@pytest.mark.parametrize("value", [-7, 0, 1, 1_000, 10**15])
def test_equal_values_are_counted_as_others_are(value: int) -> None:
    together, apart = LatencyHistogram(), LatencyHistogram()
    together.add(np.full(1_000, value))
    apart.add(np.array([value] * 1_000 + [10**17]))
    assert (together.count, together.max_us) == (1_000, value if value > 0 else 0)
    assert together.early == apart.early == (1_000 if value < 0 else 0)
    together.add(np.array([10**17]))
    shares = (0.1, 0.999, 1.0)
    assert [together.percentile_us(share) for share in shares] == [apart.percentile_us(share) for share in shares]
    assert together.told_counts() == apart.told_counts()


def test_the_first_route_that_matches_decides_and_fails_over_along_its_groups() -> None:
    names = Names.open(FakeDisk(), "/", 1)
    routes = Routes(
        (RouteSettings("orders.*", ("a", "b", "c")), RouteSettings("orders.eu", ("c",)), RouteSettings("?", ("b",))),
        {"a": 7, "b": 8, "c": 9},
        names,
    )
    subjects = ["orders.eu", "x", "orders", "orders.", "ORDERS.eu"]
    codes = names.intern(SUBJECT, subjects)
    assert routes.groups(codes).tolist() == [7, 8, 7, 7, 7], "what matches nothing goes to the first group"
    many = names.intern(SUBJECT, [f"orders.{i}" for i in range(3_000)])
    assert (routes.groups(many) == 7).all()
    places = routes.route_numbers(codes).tolist()
    assert places[0] == places[3] and len({*places}) == 3 and places[2] == places[4] == 0
    fallbacks = [routes.fallbacks(places[0], group) for group in (7, 8, 9, 1)]
    assert fallbacks == [[8, 9], [9, 7], [7, 8], []]
    assert routes.fallbacks(places[2], 7) == []
    assert routes.partners(7) == {8, 9} and not routes.partners(1)


def test_routes_change_at_once_and_a_route_that_stays_keeps_its_place() -> None:
    names = Names.open(FakeDisk(), "/", 1)
    catch_all, of_orders = RouteSettings("*", ("a",)), RouteSettings("orders.*", ("b", "a"))
    routes = Routes((catch_all,), {"a": 7}, names)
    known = names.intern(SUBJECT, ["orders.eu", "x"])
    assert routes.groups(known).tolist() == [7, 7]
    places = routes.route_numbers(known)

    changed = Routes((of_orders, catch_all), {"a": 7, "b": 8}, names, routes)
    later = names.intern(SUBJECT, ["orders.us"])
    assert routes.groups(later).tolist() == [7], "named while the new routes were matched"
    assert routes.adopt(changed) and routes.have_changed
    assert routes.groups(known).tolist() == [8, 7] and routes.groups(later).tolist() == [8]
    assert routes.route_numbers(known)[1] == places[1] and routes.route_numbers(known)[0] != places[0]
    assert routes.leads_to(known, "a", 7).tolist() == [True, True] and routes.leads_to(known, "b", 8).tolist() == [
        True,
        False,
    ]

    more = (of_orders, RouteSettings("nothing.yet", ("b",)), catch_all)
    assert not routes.adopt(Routes(more, {"a": 7, "b": 8}, names, routes)), "no subject goes another way"
    assert routes.adopt(Routes(more[1:], {"b": 8, "a": 7}, names, routes))
    assert routes.groups(known).tolist() == [7, 7]
    assert routes.adopt(Routes(more[1:2], {"b": 8, "a": 7}, names, routes))
    assert routes.groups(known).tolist() == [8, 8] and routes.fallbacks(int(places[1]), 7) == []


@pytest.mark.parametrize("seed", range(6))
def test_buckets_hold_every_row_once_in_the_order_of_their_sequences(seed: int) -> None:
    chance = np.random.default_rng(seed)
    batch = messages(1, 200, due_ms=5 * DAY_MS - 3 * MINUTE_MS, span_ms=6 * MINUTE_MS, seed=seed)
    coarse = chance.random(200) < 0.3 if seed % 2 else None
    parts = bucket(batch, MINUTE_MS, coarse)
    seen: dict[int, bytes] = {}
    for part in parts:
        assert (np.diff(part.batch.sequence) > 0).all()
        for row in range(len(part.batch)):
            single = part.batch.take(np.array([row]))
            due_ms, sequence = int(single.due_ms[0]), int(single.sequence[0])
            length = DAY_MS if part.key.source == ScheduleSource.DAY else MINUTE_MS
            assert part.key.start_ms <= due_ms < part.key.start_ms + length
            assert (part.key.source == ScheduleSource.DAY) == bool(coarse is not None and coarse[sequence - 1])
            seen[sequence] = bytes(single.bodies)
    assert seen == {
        sequence: bytes(batch.take(np.array([row])).bodies) for row, sequence in enumerate(batch.sequence.tolist())
    }
    assert len({part.key for part in parts}) == len(parts)


def test_a_window_is_incomplete_until_each_row_has_an_outcome_and_again_after_a_late_row(disk: FakeDisk) -> None:
    schedule = ScheduleLog(disk, "/s", 1, MINUTE_MS, FileUse(8))
    dispatch = DispatchLog(disk, "/d", 1, MINUTE_MS, FileUse(8))
    book = WindowBook(schedule, dispatch, DayTable(disk, "/days", 0, {}), MINUTE_MS)
    key = ScheduleKey(MINUTE_MS, ScheduleSource.DIRECT)
    schedule.append(key, messages(1, 3, due_ms=MINUTE_MS, span_ms=1_000))
    book.open()
    assert book.oldest_incomplete_ms == MINUTE_MS
    assert list(book.incomplete_before(MINUTE_MS)) == []
    assert list(book.incomplete_before(MINUTE_MS + 1)) == [MINUTE_MS]
    dispatch.append(DispatchKey(MINUTE_MS, False), outcomes([1, 2, 3], due_ms=MINUTE_MS))
    assert book.refresh([MINUTE_MS]) == [MINUTE_MS]
    assert len(book) == 0
    schedule.append(key, messages(4, 1, due_ms=MINUTE_MS, span_ms=1_000))
    assert book.refresh([MINUTE_MS]) == []
    assert not book.is_complete(MINUTE_MS)
    book.forget(MINUTE_MS)
    assert len(book) == 0


def test_incomplete_windows_that_are_loaded_are_not_looked_at_again_until_they_leave_memory() -> None:
    """Messages of a group that is down are overdue in thousands of windows, and keys of other groups ask each time."""
    disk, asked = FakeDisk(), []

    class Cursors(LoadCursors):
        def is_loaded(self, window_start_ms: int) -> bool:
            asked.append(window_start_ms)
            return super().is_loaded(window_start_ms)

    schedule = ScheduleLog(disk, "/s", 1, MINUTE_MS, FileUse(8))
    dispatch = DispatchLog(disk, "/d", 1, MINUTE_MS, FileUse(8))
    book, cursors = WindowBook(schedule, dispatch, DayTable(disk, "/days", 0, {}), MINUTE_MS), Cursors(MINUTE_MS)
    starts = [MINUTE_MS * number for number in range(1, 9)]
    for start in starts:
        schedule.append(ScheduleKey(start, ScheduleSource.DIRECT), messages(start, 1, due_ms=start))
    book.open()
    for start in [starts[0], *starts[2:6]]:
        cursors.finish_load(cursors.begin_load(start, {}))
    for _ in range(2):
        asked.clear()
        assert list(book.unloaded_before(starts[7], cursors)) == [starts[1], starts[6]]
    assert asked == [starts[1], starts[6]]
    cursors.evict_between(Key(starts[2], 0), starts[4])
    book.mark_unloaded(starts[2], starts[4])
    assert list(book.unloaded_before(starts[7], cursors)) == [*starts[1:4], starts[6]]
    cursors.evict_after(Key(starts[5], 0))
    book.mark_unloaded(starts[5])
    assert next(book.unloaded_before(starts[7], cursors)) == starts[1]
    assert list(book.unloaded_before(1 << 62, cursors)) == [*starts[1:4], *starts[5:]]
    dispatch.append(DispatchKey(starts[1], False), outcomes([starts[1]], due_ms=starts[1]))
    book.refresh(starts)
    assert list(book.unloaded_before(starts[3], cursors)) == [starts[2]]
    book.check_invariants()
