"""The simulated log keeps what every engine keeps, has all its faults, and members that follow it agree in spite of them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from random import Random

import pytest
import trio

from delayserver.runtime.shared_log import AppendFailed, LogLost, LogRecord, LogUnavailable, SharedLog, SharedLogError
from store.shared.envelope import Envelope, EnvelopeKind, LogWriter, ShardIdentity, unwrap, wrap
from store.shared.log_order import LogOrder, Validity
from tests.delayserver.shared_log.conformance import PROOFS, LogPlace, Proof, following
from tests.simulation.clocks import SimulatedTime
from tests.simulation.log import SURVIVED, LogFault, SimulatedLogs, drawn_faults
from tests.simulation.run import schedule_by

SHARD = ShardIdentity(1, 2)
IN_FLIGHT_MAX = 5


@pytest.fixture
def simulated_time() -> SimulatedTime:
    """The plugin finds it among the arguments of a test, and runs the test by it."""
    return SimulatedTime()


@pytest.fixture
def place(simulated_time: SimulatedTime) -> LogPlace:
    logs = SimulatedLogs(simulated_time, Random(1))
    logs.make(7)

    @asynccontextmanager
    async def stalled() -> AsyncIterator[None]:
        logs.stall()
        yield
        logs.go_on()

    return LogPlace(logs.engine("a"), 7, 8, stalled)


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.__name__)
async def test_the_simulated_log(proof: Proof, place: LogPlace, simulated_time: SimulatedTime) -> None:
    assert trio.lowlevel.current_clock() is simulated_time
    await proof(place)


async def test_a_member_that_is_cut_off_reads_and_appends_later(simulated_time: SimulatedTime) -> None:
    logs = SimulatedLogs(simulated_time, Random(1))
    logs.make(7)
    places = [LogPlace(logs.engine(name), 7, 8, nullcontext) for name in "ab"]
    async with following(places[0]) as cut_off, following(places[1]) as other:
        logs.cut("a")
        cut_off.append(b"late")
        other.append(b"in time")
        await other.has(1)
        with pytest.raises(LogUnavailable):
            await cut_off.log.ask()
        assert await other.log.ask() == 1 and cut_off.data == []
        async with trio.open_nursery() as nursery:
            # It is healed before the time limit of the question.
            nursery.start_soon(cut_off.log.ask)
            await simulated_time.sleep(0.5)
            logs.heal("a")
        await cut_off.has(2)
        await other.has(2)
    assert cut_off.data == other.data == [b"in time", b"late"]


async def test_a_record_that_a_reader_sees_late_arrives(simulated_time: SimulatedTime) -> None:
    logs = SimulatedLogs(simulated_time, Random(1), {LogFault.UNSEEN: 1.0})
    logs.make(7)
    async with following(LogPlace(logs.engine("a"), 7, 8, nullcontext)) as follower:
        follower.append(b"late")
        await follower.has(1)
    assert logs.happened == {LogFault.UNSEEN: 1} and simulated_time.now_s > 0.1


class Member:
    """A member without files or clients: it follows, claims now and then, and appends while it leads."""

    def __init__(self, name: str, number: int, logs: SimulatedLogs, chance: Random) -> None:
        self.name = name
        self._number = number
        self._logs = logs
        self._chance = chance
        self._engine = logs.engine(name)
        # What survives a step down, as the files of a member do.
        self.position = 0
        self.order = LogOrder()
        self.valid: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.judged: Counter[Validity] = Counter()
        self.failures: Counter[type[SharedLogError]] = Counter()
        self._steps_down()

    def _steps_down(self) -> None:
        self._writer = LogWriter(self._number, self._chance.getrandbits(64))
        self._leads = False
        self._index = 0
        self._unconfirmed: set[bytes] = set()

    async def live(self) -> None:
        """Follow, and open the log again when an append cannot be confirmed, or as if the process had been killed."""
        while True:
            log = self._engine.open(SHARD.server_id)
            self._steps_down()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._work, log, nursery.cancel_scope)
                    await log.run(self.position, self.arrived)
            except* AppendFailed:
                self.failures[AppendFailed] += 1

    def arrived(self, records: Sequence[LogRecord]) -> None:
        for position, data in records:
            assert position >= self.position, "read twice"
            self.position = position + 1
            envelope, _ = unwrap(data, SHARD, position)
            validity = self.order.judge(envelope)
            self.judged[validity] += 1
            if validity is Validity.LOST:
                raise Lost(self.name, position)
            if validity is Validity.VALID:
                self._apply(envelope, data)

    def _apply(self, envelope: Envelope, data: bytes) -> None:
        self.valid.append(data)
        if envelope.kind is EnvelopeKind.CLAIM:
            self._leads, self._index = envelope.writer == self._writer, 0
            self._unconfirmed.clear()
        elif self._leads:
            self._unconfirmed.remove(data)
            self.acknowledged.append(data)

    async def _work(self, log: SharedLog, life: trio.CancelScope) -> None:
        while True:
            await self._logs.time.sleep(self._chance.uniform(0, 0.05))
            if self._leads:
                if len(self._unconfirmed) < IN_FLIGHT_MAX:
                    self._index += 1
                    data = self._record(EnvelopeKind.RECORDS, self.order.epoch, self._index)
                    self._unconfirmed.add(data)
                    log.append(data)
                    if self._chance.random() < 0.01:
                        life.cancel()
            elif self._chance.random() < 0.005 and await self._answers(log):
                log.append(self._record(EnvelopeKind.CLAIM, self.order.epoch + 1, 0))

    async def _answers(self, log: SharedLog) -> bool:
        position = self.position
        try:
            end = await log.ask()
        except LogUnavailable:
            self.failures[LogUnavailable] += 1
            return False
        if end < position:  # read before it was asked
            raise Lost(self.name, end)
        return True

    def _record(self, kind: EnvelopeKind, epoch: int, index: int) -> bytes:
        return wrap(Envelope(kind, SHARD, epoch, index, self._writer, 0), [self.name.encode()])


class Lost(Exception):
    """A member found that records are missing."""


class Shard:
    """Three members that follow one log."""

    def __init__(self, seed: int, faults: Mapping[LogFault, float]) -> None:
        self.time = SimulatedTime()
        self.chance = Random(seed)
        self.logs = SimulatedLogs(self.time, self.chance, faults)
        self.log = self.logs.make(SHARD.server_id)
        self.members = [Member(name, number, self.logs, self.chance) for number, name in enumerate("abc", 1)]
        self.ended: dict[str, list[BaseException]] = {}
        """By the name of a member: what ended it."""

    async def live(self, duration_s: float) -> None:
        """Let the members work. Then let nothing more go wrong, until all of them have read all."""
        with trio.move_on_after(duration_s):
            async with trio.open_nursery() as nursery:
                for member in self.members:
                    nursery.start_soon(self._unless_lost, member, member.live)
        self.logs.faults.clear()
        # The longest stall, and all that comes late.
        await self.time.sleep(60)
        self.log.check_invariants()
        async with trio.open_nursery() as nursery:
            for member in self.members:
                nursery.start_soon(self._unless_lost, member, functools.partial(self._read_all, member))

    async def _unless_lost(self, member: Member, act: Callable[[], Awaitable[None]]) -> None:
        if member.name not in self.ended:
            try:
                await act()
            except* (Lost, LogLost) as errors:
                self.ended[member.name] = leaves(errors)

    async def _read_all(self, member: Member) -> None:
        with trio.move_on_after(60):
            await self.logs.engine(member.name).open(SHARD.server_id).run(member.position, member.arrived)
        assert member.position == self.log.end


def leaves(error: BaseException) -> list[BaseException]:
    """The errors of a group."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


@functools.cache
def lived(seed: int, *often: LogFault) -> Shard:
    """A shard after a minute with the faults of a seed, or with some faults alone, which are frequent."""
    frequent = {fault: max(0.1, SURVIVED.get(fault, 0)) for fault in often}
    shard = Shard(seed, frequent or drawn_faults(Random(f"{seed}:faults")))
    schedule_by(seed)
    trio.run(shard.live, 40.0, clock=shard.time)
    return shard


SEEDS = range(12)


def check_agreement(shard: Shard) -> None:
    """All members have the same valid records, and all that one of them has acknowledged."""
    assert shard.ended == {}
    first = shard.members[0]
    for member in shard.members:
        assert member.valid == first.valid
        assert member.judged[Validity.LOST] == 0
    assert len({*first.valid}) == len(first.valid)
    acknowledged = [data for member in shard.members for data in member.acknowledged]
    assert len({*acknowledged}) == len(acknowledged) and {*acknowledged} <= {*first.valid}


@pytest.mark.parametrize("seed", SEEDS)
def test_members_agree_whatever_goes_wrong(seed: int) -> None:
    check_agreement(lived(seed))


@pytest.mark.parametrize("fault", SURVIVED)
def test_members_agree_where_one_fault_is_frequent(fault: LogFault) -> None:
    shard = lived(1, fault)
    assert shard.logs.happened[fault] > 0 and shard.logs.happened.keys() == {fault}
    check_agreement(shard)


def test_each_fault_and_each_void_record_happens_for_some_seed() -> None:
    shards = [lived(seed) for seed in SEEDS]
    assert {fault for shard in shards for fault in shard.logs.happened} == {*SURVIVED}
    members = [member for shard in shards for member in shard.members]
    assert {validity for member in members for validity in member.judged} == {*Validity} - {Validity.LOST}
    assert sum(member.failures[AppendFailed] for member in members) > 0
    assert sum(len(member.acknowledged) for member in members) > 1000
    assert {member.order.epoch > 2 for member in members} == {True}


def test_each_fault_is_survived_or_breaks_the_order() -> None:
    assert {*LogFault} == {*SURVIVED, LogFault.BROKEN_ORDER}


def test_a_log_without_faults_meets_none() -> None:
    shard = lived(3, LogFault.SPARSE)
    assert shard.logs.happened.keys() == {LogFault.SPARSE}
    quiet = Shard(3, {})
    trio.run(quiet.live, 20.0, clock=quiet.time)
    assert not quiet.logs.happened and quiet.log.records() == quiet.log.landed


def test_a_seed_repeats_exactly() -> None:
    first = lived(2)
    again = lived.__wrapped__(2)
    assert again.log.landed == first.log.landed and again.logs.happened == first.logs.happened


def test_what_landed_is_known_to_the_judge() -> None:
    log = lived(4).log
    assert [record.position for record in log.landed] == sorted({record.position for record in log.landed})
    assert log.records() == log.landed and {record.member for record in log.landed} == {"a", "b", "c"}


def lost_after_a_while(seed: int, count: int) -> Shard:
    """A shard that has lost its last records. Each member that had read one of them has ended."""
    shard = Shard(seed, {LogFault.AWAY: 0.03})
    ahead: set[str] = set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.live, 30.0)
            await shard.time.sleep(20)
            shard.log.lose_tail(count)
            ahead.update(member.name for member in shard.members if member.position > shard.log.end)

    schedule_by(seed)
    trio.run(main, clock=shard.time)
    assert ahead <= shard.ended.keys()
    return shard


def test_a_lost_tail_is_noticed_by_all_who_had_read_it() -> None:
    """By the log itself, or by the order of its records where it has grown again before a member read on."""
    shards = [lost_after_a_while(seed, 1 + seed % 3) for seed in range(10)]
    found = {type(error) for shard in shards for errors in shard.ended.values() for error in errors}
    assert found == {Lost, LogLost}


def test_a_broken_order_is_noticed_by_all() -> None:
    for seed in range(3):
        shard = Shard(seed, {LogFault.BROKEN_ORDER: 0.2, LogFault.LATE: 0.02})
        schedule_by(seed)
        trio.run(shard.live, 30.0, clock=shard.time)
        assert shard.logs.happened[LogFault.BROKEN_ORDER]
        assert [[type(error) for error in shard.ended[name]] for name in "abc"] == [[Lost]] * 3
