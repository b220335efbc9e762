"""What every engine of a shared log keeps. Each proof is a function; an engine is a fixture that makes a `LogPlace`:

    @pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.__name__)
    async def test_the_engine(proof: Proof, place: LogPlace) -> None:
        await proof(place)

No proof measures time. A wait has a bound only so that a log that hangs fails its test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import pytest
import trio

from delayserver.runtime.marks import Mark
from delayserver.runtime.shared_log import (
    IN_FLIGHT_MAX,
    RECORD_BYTES_MAX,
    LogEngine,
    LogLost,
    LogRecord,
    LogTrimmed,
    LogUnavailable,
    LogUnusable,
    SharedLog,
)

T = TypeVar("T")
# A machine under load may stall an engine for long. Nothing is wrong with a log that takes a minute.
HANGS_S = 120
# Where nothing may arrive, this long is waited for it. A shorter wait would only find fewer mistakes.
QUIET_S = 0.3


@dataclass(frozen=True, slots=True)
class LogPlace:
    """An engine, and logs of it."""

    engine: LogEngine
    shard: int
    """A log without any record."""
    missing: int
    """A log that does not exist."""
    stalled: Callable[[], AbstractAsyncContextManager[None]]
    """While the context is open, nobody gets an answer from the log, and it takes no record."""

    def open(self) -> SharedLog:
        """The log as one more member uses it."""
        return self.engine.open(self.shard)


Proof: TypeAlias = Callable[[LogPlace], Awaitable[None]]
PROOFS: list[Proof] = []


def proof(function: Proof) -> Proof:
    """Add a proof to the suite."""
    PROOFS.append(function)
    return function


class Follower:
    """One member's use of a log: it keeps what arrives."""

    def __init__(self, log: SharedLog) -> None:
        self.log = log
        self.records: list[LogRecord] = []
        self._count = Mark(0)
        self._in_call = False

    def arrived(self, records: Sequence[LogRecord]) -> None:
        assert records, "a batch without a record"
        assert not self._in_call, "records arrived within a call of the log"
        self.records += records
        self._count.advance(len(self.records))

    def append(self, *records: bytes) -> None:
        self._in_call = True
        for record in records:
            self.log.append(record)
        self._in_call = False

    def pause(self) -> None:
        self._in_call = True
        self.log.pause()
        self._in_call = False

    def resume(self) -> None:
        self._in_call = True
        self.log.resume()
        self._in_call = False

    @property
    def data(self) -> list[bytes]:
        return [record.data for record in self.records]

    async def has(self, count: int) -> None:
        """Return when so many records have arrived."""
        with trio.fail_after(HANGS_S):
            await self._count.reached(count)


@asynccontextmanager
async def following(place: LogPlace, position: int = 0) -> AsyncIterator[Follower]:
    """A member that reads from a position on."""
    follower = Follower(place.open())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.log.run, position, follower.arrived)
        yield follower
        nursery.cancel_scope.cancel()


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of a log that does answer, even if a busy machine makes it miss its time limit."""
    with trio.fail_after(HANGS_S):
        while True:
            try:
                return await ask()
            except LogUnavailable:
                await trio.sleep(0.1)


async def written(place: LogPlace, *records: bytes) -> list[LogRecord]:
    """Append to a log that is empty; what it has then."""
    async with following(place) as follower:
        follower.append(*records)
        await follower.has(len(records))
        return follower.records


async def run_to_its_end(log: SharedLog, position: int) -> None:
    """Run a log that ends by itself."""
    with trio.fail_after(HANGS_S):
        await log.run(position, lambda _: None)


def numbered(count: int, name: str = "") -> list[bytes]:
    return [f"{name}{number}".encode() for number in range(count)]


@proof
async def records_arrive_in_the_order_of_their_appends(place: LogPlace) -> None:
    sent = numbered(200)
    async with following(place) as follower:
        for start in range(0, 200, 40):
            follower.append(*sent[start : start + 40])
            await follower.has(start + 40)
    assert follower.data == sent


@proof
async def as_many_as_may_be_in_flight_are_taken_at_once(place: LogPlace) -> None:
    sent = numbered(IN_FLIGHT_MAX)
    assert [record.data for record in await written(place, *sent)] == sent


@proof
async def positions_grow_and_are_the_same_for_all_members(place: LogPlace) -> None:
    async with following(place) as one, following(place) as other:
        one.append(*numbered(20, "a"))
        other.append(*numbered(20, "b"))
        await one.has(40)
        await other.has(40)
    assert one.records == other.records
    positions = [record.position for record in one.records]
    assert positions == sorted({*positions}) and positions[0] >= 0
    for name in ("a", "b"):
        assert [data for data in one.data if data.startswith(name.encode())] == numbered(20, name)


@proof
async def a_member_reads_from_its_position_on(place: LogPlace) -> None:
    records = await written(place, *numbered(30))
    for first in (0, 1, 17, 29):
        async with following(place, records[first].position) as follower:
            await follower.has(30 - first)
        assert follower.records == records[first:]


@proof
async def a_member_at_the_end_reads_what_comes_then(place: LogPlace) -> None:
    records = await written(place, *numbered(5))
    end = await answered(place.open().ask)
    async with following(place, records[-1].position + 1) as behind_the_last, following(place, end) as at_the_end:
        at_the_end.append(b"next")
        await behind_the_last.has(1)
        await at_the_end.has(1)
    assert behind_the_last.data == at_the_end.data == [b"next"]


@proof
async def bytes_come_back_as_they_were(place: LogPlace) -> None:
    sent = [b"\x00", bytes(range(256)), b"\xff" * 3, bytes(1 << 20)]
    records = await written(place, *sent)
    assert [record.data for record in records] == sent
    assert {type(record.data) for record in records} == {bytes}


@proof
async def the_longest_record_is_taken(place: LogPlace) -> None:
    longest = bytes(range(256)) * (RECORD_BYTES_MAX // 256)
    records = await written(place, b"before", longest, b"behind")
    assert [len(record.data) for record in records] == [6, RECORD_BYTES_MAX, 6]
    assert records[1].data == longest


@proof
async def what_is_appended_before_the_run_lands(place: LogPlace) -> None:
    follower = Follower(place.open())
    follower.append(b"early", b"bird")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.log.run, 0, follower.arrived)
        await follower.has(2)
        nursery.cancel_scope.cancel()
    assert follower.data == [b"early", b"bird"]


@proof
async def nothing_arrives_after_the_end_of_a_run(place: LogPlace) -> None:
    async with following(place) as other:
        async with following(place) as follower:
            follower.append(b"in time")
            await follower.has(1)
        other.append(b"late")
        await other.has(2)
        await trio.sleep(QUIET_S)
    assert follower.data == [b"in time"]


@proof
async def what_is_appended_after_the_end_of_a_run_is_dropped(place: LogPlace) -> None:
    async with following(place) as other:
        async with following(place) as follower:
            follower.append(b"in time")
            await follower.has(1)
        follower.append(b"dropped")
        await trio.sleep(QUIET_S)
        other.append(b"last")
        await other.has(2)
    assert other.data == [b"in time", b"last"]


@proof
async def nothing_arrives_while_a_member_pauses(place: LogPlace) -> None:
    sent = numbered(40)
    async with following(place) as paused, following(place) as other:
        paused.append(*sent[:10])
        await paused.has(10)
        paused.pause()
        paused.append(*sent[10:20])
        other.append(*sent[20:])
        # Appends of a member that pauses go on.
        await other.has(40)
        await trio.sleep(QUIET_S)
        assert len(paused.records) == 10
        paused.resume()
        await paused.has(40)
        # A resume without a pause changes nothing.
        paused.resume()
        other.append(b"more")
        await paused.has(41)
    assert paused.records[:40] == other.records[:40]


@proof
async def a_member_may_pause_while_records_arrive(place: LogPlace) -> None:
    records = await written(place, *numbered(60))
    log = place.open()
    found: list[LogRecord] = []
    paused = trio.Event()

    def arrived(batch: Sequence[LogRecord]) -> None:
        assert not paused.is_set()
        found.extend(batch)
        log.pause()
        paused.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run, 0, arrived)
        with trio.fail_after(HANGS_S):
            while len(found) < 60:
                await paused.wait()
                await trio.sleep(QUIET_S / 10)
                paused = trio.Event()
                log.resume()
        nursery.cancel_scope.cancel()
    assert found == records


@proof
async def an_error_of_the_member_ends_the_run(place: LogPlace) -> None:
    await written(place, *numbered(3))
    calls = 0

    def arrived(_: Sequence[LogRecord]) -> None:
        nonlocal calls
        calls += 1
        raise KeyError("of the member")

    with pytest.raises(KeyError, match="of the member"), trio.fail_after(HANGS_S):
        await place.open().run(0, arrived)
    assert calls == 1


@proof
async def the_end_is_behind_all_that_has_arrived(place: LogPlace) -> None:
    async with following(place) as follower:
        assert await answered(follower.log.ask) == 0
        ends = []
        for count in (1, 5):
            follower.append(*numbered(count))
            await follower.has(len(follower.records) + count)
            ends.append(await answered(follower.log.ask))
            assert ends[-1] == follower.records[-1].position + 1
    assert ends == sorted(ends)


@proof
async def a_description_says_where_the_log_begins_and_ends(place: LogPlace) -> None:
    log = place.open()
    empty = await answered(log.describe)
    assert (empty.first, empty.end) == (0, 0)
    assert empty.copies >= empty.in_sync_min >= 1 and empty.record_bytes_max >= RECORD_BYTES_MAX
    records = await written(place, *numbered(7))
    full = await answered(log.describe)
    assert (full.first, full.end) == (0, records[-1].position + 1)
    for fault in full.faults:
        assert fault.text and fault.remedy


@proof
async def what_is_trimmed_is_gone_and_the_rest_is_there(place: LogPlace) -> None:
    records = await written(place, *numbered(20))
    cut = records[12].position
    async with following(place) as before:
        await before.has(20)

        async def trim() -> None:
            await before.log.trim(cut)

        await answered(trim)
        # A member that has read on is not disturbed.
        before.append(b"more")
        await before.has(21)
    described = await answered(place.open().describe)
    assert (described.first, described.end) == (cut, before.records[-1].position + 1)
    async with following(place, cut) as behind:
        await behind.has(9)
    assert behind.data == [*numbered(20)[12:], b"more"]


@proof
async def a_member_behind_the_trimmed_part_is_told_so(place: LogPlace) -> None:
    records = await written(place, *numbered(20))

    async def trim() -> None:
        await place.open().trim(records[12].position)

    await answered(trim)
    for position in (0, records[11].position):
        with pytest.raises(LogTrimmed) as lost:
            await run_to_its_end(place.open(), position)
        assert (lost.value.shard, lost.value.start) == (place.shard, position)
        assert position < lost.value.stop <= records[12].position


@proof
async def a_member_ahead_of_the_log_is_told_so(place: LogPlace) -> None:
    records = await written(place, *numbered(3))
    end = records[-1].position + 1
    with pytest.raises(LogLost) as lost:
        await run_to_its_end(place.open(), end + 5)
    assert (lost.value.shard, lost.value.start, lost.value.stop) == (place.shard, end, end + 5)


@proof
async def a_log_that_does_not_exist_is_refused_by_name(place: LogPlace) -> None:
    with pytest.raises(LogUnusable):
        await run_to_its_end(place.engine.open(place.missing), 0)
    log = place.engine.open(place.missing)

    async def trim() -> None:
        await log.trim(0)

    calls: list[Callable[[], Awaitable[object]]] = [log.ask, log.describe, trim]
    for call in calls:
        with pytest.raises(LogUnusable):
            await answered(call)


@proof
async def a_log_that_does_not_answer_says_so_and_loses_nothing(place: LogPlace) -> None:
    async with following(place) as follower, following(place) as other:
        follower.append(b"before")
        await follower.has(1)
        await other.has(1)
        # These may land before it stands still, or behind.
        follower.append(*numbered(10, "under way"))
        async with place.stalled():
            follower.append(*numbered(10, "meanwhile"))
            with pytest.raises(LogUnavailable), trio.fail_after(HANGS_S):
                await follower.log.ask()
            with pytest.raises(LogUnavailable), trio.fail_after(HANGS_S):
                await follower.log.describe()
            assert b"meanwhile0" not in {*follower.data, *other.data}
        await other.has(21)
        await follower.has(21)
        assert await answered(follower.log.ask) == other.records[-1].position + 1
    assert follower.records == other.records
    assert follower.data == [b"before", *numbered(10, "under way"), *numbered(10, "meanwhile")]


@proof
async def a_log_can_be_left_while_it_does_not_answer(place: LogPlace) -> None:
    await written(place, *numbered(2))
    async with place.stalled():
        with trio.fail_after(HANGS_S):
            async with following(place) as follower:
                follower.append(b"in doubt")
                await trio.sleep(QUIET_S)
    async with following(place) as other:
        other.append(b"last")
        await other.has(3)
        while other.data[-1] != b"last":
            await other.has(len(other.records) + 1)
    # What was in flight may land, before or behind, and not twice.
    assert other.data[:2] == numbered(2) and other.data[2:] in ([b"last"], [b"in doubt", b"last"])
