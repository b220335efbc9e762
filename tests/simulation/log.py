"""A shared log in simulated time: a list that only grows, with an end that readers see late. Its faults come from the seed.

The log itself is always whole and known: `LogShard.landed` has each record that ever came into it, for the judge. What a
member sees of it is late, in pieces, and sometimes nothing. `LogFault` has all that can go wrong. Two of them break what the
door promises: a lost tail and a broken order. For these the only right answer of a member is that the log has lost records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from random import Random
from typing import NamedTuple, NoReturn

import trio

from delayserver.runtime.marks import Bell
from delayserver.runtime.shared_log import (
    ANSWER_MS_MAX,
    ASK_MS_MAX,
    IN_FLIGHT_MAX,
    RECORD_BYTES_MAX,
    AppendFailed,
    LogDescription,
    LogLost,
    LogRecord,
    LogTrimmed,
    LogUnavailable,
    LogUnusable,
    SharedLog,
)
from tests.simulation.clocks import SimulatedTime, Timer

# The usual times of a log: to land, to be seen by a reader, to answer.
HOP_S_MIN, HOP_S_MAX = 0.0002, 0.003
# The longest of each fault: most are over before a standby claims, some last longer than a lease and a silence.
LATE_S_MAX = 8.0
STALL_S_MAX = 12.0
AWAY_S_MAX = 4.0
COPY_S_MAX = 6.0
# A batch has at most so many records.
BATCH_RECORDS_MAX = 100


class LogFault(Enum):
    """What can go wrong. Each is drawn with a probability of its own; 0 switches it off."""

    STALL = "the log stands still for all members: drawn as a record lands"
    CUT = "a member is cut off for a while: drawn as a record of it lands"
    AWAY = "a reader loses its connection for a while: drawn as it reads"
    LATE = "a record lands seconds later: drawn as it is handed over"
    UNSEEN = "a reader sees a record seconds later: drawn for each reader as it lands"
    PIECES = "a reader gets less than there is: drawn as it reads"
    SPARSE = "positions are left out in front of a record: drawn as it lands"
    COPY = "a record lands once more, by a retry: drawn as it lands"
    UNCONFIRMED = "a record lands and can never be confirmed: drawn as it lands"
    REFUSED = "a record never lands and can never be confirmed: drawn as it lands"
    AFTER_END = "what was in flight lands after its writer has ended or was superseded: drawn at the end of a run"
    UNANSWERED = "a log that works gives no answer in time: drawn as it is asked; a trim may be done"
    BROKEN_ORDER = "a record lands behind the next one of its writer: drawn as it lands"


# All that a shard survives, as often as a seed of some minutes needs.
SURVIVED: Mapping[LogFault, float] = {
    LogFault.STALL: 0.002,
    LogFault.CUT: 0.004,
    LogFault.AWAY: 0.003,
    LogFault.LATE: 0.004,
    LogFault.UNSEEN: 0.01,
    LogFault.PIECES: 0.3,
    LogFault.SPARSE: 0.05,
    LogFault.COPY: 0.02,
    LogFault.UNCONFIRMED: 0.001,
    LogFault.REFUSED: 0.001,
    LogFault.AFTER_END: 0.5,
    LogFault.UNANSWERED: 0.1,
}


def drawn_faults(chance: Random) -> dict[LogFault, float]:
    """The faults of a seed: about half of those that a shard survives, some of them often."""
    return {fault: much * chance.choice([1, 1, 5]) for fault, much in SURVIVED.items() if chance.random() < 0.5}


class Landed(NamedTuple):
    """A record that came into the log."""

    position: int
    data: bytes
    member: str
    landed_s: float


class LogShard:
    """The records of one shard. Writer: the logs of its members, and who trims or cuts it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.landed: list[Landed] = []
        """Each record that ever landed, in the order in which they did: also what was trimmed or lost later."""
        self.lost: list[Landed] = []
        """Those that a cut has taken away."""
        self.first = 0
        self.end = 0
        self.readers: dict[SimulatedLog, None] = {}
        self._records: list[Landed] = []

    def land(self, data: bytes, member: str, now_s: float, skipped: int = 0) -> None:
        """Add a record behind the end, with `skipped` positions between."""
        landed = Landed(self.end + skipped, data, member, now_s)
        self.landed.append(landed)
        self._records.append(landed)
        self.end = landed.position + 1

    def read(self, start: int, stop: int, count_max: int) -> list[LogRecord]:
        """Records from position `start` to before `stop`, in order."""
        place = self._place(start)
        found = self._records[place : min(place + count_max, self._place(stop))]
        return [LogRecord(record.position, record.data) for record in found]

    def records(self) -> list[Landed]:
        """What the log has now."""
        return [*self._records]

    def trim(self, position: int) -> None:
        """Remove all records below a position."""
        assert position <= self.end, "nothing is trimmed that is not there"
        self.first = max(self.first, position)
        del self._records[: self._place(self.first)]
        self.wake()

    def lose_tail(self, count: int) -> int:
        """Lose the last records, although they were confirmed; how many there were. Their positions are given again."""
        count = min(count, len(self._records))
        if count:
            self.lost += self._records[-count:]
            self.end = self._records[-count].position
            del self._records[-count:]
        self.wake()
        return count

    def wake(self) -> None:
        """Let all readers look again."""
        for reader in self.readers:
            reader.look_again()

    def _place(self, position: int) -> int:
        return bisect_left(self._records, position, key=lambda record: record.position)

    def check_invariants(self) -> None:
        """Positions grow, and lie between the first one and the end."""
        positions = [record.position for record in self._records]
        assert positions == sorted({*positions})
        assert not positions or self.first <= positions[0] <= positions[-1] == self.end - 1
        assert len(self.landed) >= len(positions) + len(self.lost)


class SimulatedLogs:
    """All shards of one log engine, and who can reach them."""

    def __init__(self, time: SimulatedTime, chance: Random, faults: Mapping[LogFault, float] | None = None) -> None:
        self.time = time
        self.chance = chance
        self.faults = dict(faults or {})
        """How probable each fault is. It may be changed at any time."""
        self.happened: Counter[LogFault] = Counter()
        self.shards: dict[int, LogShard] = {}
        self._stalls = 0
        self._cuts: Counter[str] = Counter()
        self._changed = trio.Event()

    def make(self, number: int) -> LogShard:
        """A log for a shard."""
        shard = self.shards[number] = LogShard(number)
        return shard

    def engine(self, member: str) -> SimulatedEngine:
        """The engine as a member reaches it."""
        return SimulatedEngine(self, member)

    def strikes(self, fault: LogFault) -> bool:
        """Draw whether a fault happens now."""
        much = self.faults.get(fault, 0.0)
        return much > 0 and self.chance.random() < much

    def note(self, fault: LogFault) -> None:
        """A fault happened."""
        self.happened[fault] += 1

    def hop_s(self) -> float:
        """How long one way of a message takes."""
        return self.chance.uniform(HOP_S_MIN, HOP_S_MAX)

    # Who can reach the log

    def reaches(self, member: str) -> bool:
        """Whether a member gets answers now."""
        return not self._stalls and not self._cuts[member]

    def stall(self) -> None:
        """Stand still for all members, until `go_on` was called as often."""
        self._stalls += 1

    def go_on(self) -> None:
        """End one stall."""
        assert self._stalls, "it does not stand still"
        self._stalls -= 1
        self._reachable()

    def cut(self, member: str) -> None:
        """Cut a member off, until `heal` was called as often."""
        self._cuts[member] += 1

    def heal(self, member: str) -> None:
        """End one cut of a member."""
        assert self._cuts[member], "it is not cut off"
        self._cuts[member] -= 1
        self._reachable()

    def stall_for(self, duration_s: float) -> None:
        """Stand still for a while."""
        self.note(LogFault.STALL)
        self.stall()
        self.time.at(self.time.now_s + duration_s, self.go_on)

    def cut_for(self, member: str, duration_s: float) -> None:
        """Cut a member off for a while."""
        self.note(LogFault.CUT)
        self.cut(member)
        self.time.at(self.time.now_s + duration_s, lambda: self.heal(member))

    def _reachable(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        for shard in self.shards.values():
            shard.wake()

    async def answer(self, member: str, limit_ms: int) -> None:
        """Return when the log has answered a member. Raises LogUnavailable if it does not within the limit."""
        until_s = self.time.now_s + limit_ms / 1000
        if self.strikes(LogFault.UNANSWERED):
            self.note(LogFault.UNANSWERED)
            await self.time.sleep_until(until_s)
        else:
            await self.time.sleep(self.hop_s())
            while not self.reaches(member) and self.time.now_s < until_s:
                with trio.move_on_at(until_s):
                    await self._changed.wait()
            if self.reaches(member):
                await self.time.sleep(self.hop_s())
                return
        raise LogUnavailable(f"the log did not answer {member} within {limit_ms} ms")


class SimulatedEngine:
    """The `LogEngine` of one member."""

    def __init__(self, logs: SimulatedLogs, member: str) -> None:
        self._logs = logs
        self._member = member

    def open(self, shard: int) -> SharedLog:
        """See `LogEngine`."""
        return SimulatedLog(self._logs, shard, self._member)


class SimulatedLog:
    """The `SharedLog` of one member."""

    def __init__(self, logs: SimulatedLogs, number: int, member: str) -> None:
        self._logs = logs
        self._number = number
        self._member = member
        self._time = logs.time
        self._look = Bell()
        self._began = False
        self._ended = False
        # Reading
        self._visible = 0
        self._paused = False
        self._away_until_s = 0.0
        # Appending: what was handed over and has not landed, in order. The timer lands the first of them.
        self._pending: deque[bytes] = deque()
        self._timer: Timer | None = None
        self._gave_up = False
        self._failure: AppendFailed | None = None

    # Reading

    async def run(self, position: int, arrived: Callable[[Sequence[LogRecord]], None]) -> NoReturn:
        """See `SharedLog`."""
        assert not self._began, "a log runs once"
        self._began = True
        shard = self._shard()
        shard.readers[self] = None
        self._visible = shard.end
        self._land_later()
        try:
            while True:
                self._look.hush()
                records = self._read(shard, position)
                if records:
                    position = records[-1].position + 1
                    arrived(records)
                    await self._time.sleep(self._logs.hop_s())
                else:
                    await self._look.rung()
        finally:
            del shard.readers[self]
            self._end()

    def _read(self, shard: LogShard, position: int) -> list[LogRecord]:
        """What arrives now. Raises what ends the run."""
        logs = self._logs
        if self._failure is not None:
            raise self._failure
        if self._time.now_s < self._away_until_s or not logs.reaches(self._member):
            return []
        if position < shard.first:
            raise LogTrimmed(shard.number, position, shard.first)
        if position > shard.end:
            raise LogLost(shard.number, shard.end, position, f"it ends at position {shard.end}")
        if self._paused or position >= min(self._visible, shard.end):
            return []
        if logs.strikes(LogFault.AWAY):
            logs.note(LogFault.AWAY)
            self._away_until_s = self._time.now_s + logs.chance.uniform(0, AWAY_S_MAX)
            self._time.at(self._away_until_s, self.look_again)
            return []
        count_max = BATCH_RECORDS_MAX
        if logs.strikes(LogFault.PIECES):
            logs.note(LogFault.PIECES)
            count_max = logs.chance.randint(1, 3)
        return shard.read(position, self._visible, count_max)

    def look_again(self) -> None:
        """Something changed: the reader reads on, and appends land."""
        self._look.ring()
        self._land_later()

    def see(self, end: int) -> None:
        """The reader sees the log up to `end`, from now on."""
        if end > self._visible:
            self._visible = end
            self._look.ring()

    def pause(self) -> None:
        """See `SharedLog`."""
        self._paused = True

    def resume(self) -> None:
        """See `SharedLog`."""
        self._paused = False
        self._look.ring()

    # Appending

    def append(self, record: bytes) -> None:
        """See `SharedLog`."""
        assert 0 < len(record) <= RECORD_BYTES_MAX, f"a record of {len(record)} bytes"
        if self._ended or self._gave_up:
            return
        self._pending.append(record)
        assert len(self._pending) <= IN_FLIGHT_MAX, f"{len(self._pending)} records in flight"
        self._land_later()

    def _land_later(self) -> None:
        """Land the next record in a while, if there is one that can."""
        logs = self._logs
        if self._timer is not None or not self._pending or not self._began or not logs.reaches(self._member):
            return
        delay_s = logs.hop_s()
        if logs.strikes(LogFault.LATE):
            logs.note(LogFault.LATE)
            delay_s = logs.chance.uniform(0, LATE_S_MAX)
        self._timer = self._time.at(self._time.now_s + delay_s, self._land)

    def _land(self) -> None:
        """The first record in flight lands, or meets a fault. Some that wait behind it land with it."""
        self._timer = None
        for _ in range(self._logs.chance.randint(1, len(self._pending))):
            if not self._logs.reaches(self._member) or not self._pending:
                break  # who ends the stall or the cut calls again
            self._land_one()
        self._land_later()

    def _land_one(self) -> None:
        logs, chance = self._logs, self._logs.chance
        if logs.strikes(LogFault.STALL):
            logs.stall_for(chance.uniform(0, STALL_S_MAX))
            return
        if logs.strikes(LogFault.CUT):
            logs.cut_for(self._member, chance.uniform(0, STALL_S_MAX))
            return
        if logs.strikes(LogFault.REFUSED):
            logs.note(LogFault.REFUSED)
            self._give_up()
            return
        if len(self._pending) > 1 and logs.strikes(LogFault.BROKEN_ORDER):
            logs.note(LogFault.BROKEN_ORDER)
            self._pending.rotate(-1)
            behind = self._pending.pop()
            self._add(self._pending.popleft())
            self._pending.appendleft(behind)
            return
        record = self._pending.popleft()
        self._add(record)
        if self._ended:
            logs.note(LogFault.AFTER_END)
        if logs.strikes(LogFault.COPY):
            logs.note(LogFault.COPY)
            self._time.at(self._time.now_s + chance.uniform(0, COPY_S_MAX), lambda: self._add(record))
        if logs.strikes(LogFault.UNCONFIRMED):
            logs.note(LogFault.UNCONFIRMED)
            self._give_up()

    def _add(self, record: bytes) -> None:
        """A record comes into the log, and the readers see it, each at its time."""
        logs, time, shard = self._logs, self._time, self._shard()
        skipped = 0
        if logs.strikes(LogFault.SPARSE):
            logs.note(LogFault.SPARSE)
            skipped = logs.chance.randint(1, 3)
        shard.land(record, self._member, time.now_s, skipped)
        for reader in shard.readers:
            delay_s = logs.hop_s()
            if logs.strikes(LogFault.UNSEEN):
                logs.note(LogFault.UNSEEN)
                delay_s = logs.chance.uniform(0, LATE_S_MAX)
            time.at(time.now_s + delay_s, _seeing(reader, shard.end))

    def _give_up(self) -> None:
        """No more is appended. The member learns it a while later."""
        self._gave_up = True
        self._pending.clear()
        failure = AppendFailed(f"an append of {self._member} to shard {self._number} cannot be confirmed")
        self._time.at(self._time.now_s + self._logs.chance.uniform(0, AWAY_S_MAX), lambda: self._fail(failure))

    def _fail(self, failure: AppendFailed) -> None:
        self._failure = failure
        self._look.ring()

    def _end(self) -> None:
        """The run has ended. Some of what is in flight may land all the same, whenever it does."""
        self._ended = True
        if self._timer is not None:
            self._timer.action = None
            self._timer = None
        left = 0
        if self._pending and self._logs.strikes(LogFault.AFTER_END):
            left = self._logs.chance.randint(1, len(self._pending))
        while len(self._pending) > left:
            self._pending.pop()
        if left:
            self._timer = self._time.at(self._time.now_s + self._logs.chance.uniform(0, LATE_S_MAX), self._land)

    # Questions

    def _shard(self) -> LogShard:
        shard = self._logs.shards.get(self._number)
        if shard is None:
            raise LogUnusable(f"there is no log of shard {self._number}: make it before the members start")
        return shard

    async def ask(self) -> int:
        """See `SharedLog`."""
        await self._logs.answer(self._member, ASK_MS_MAX)
        return self._shard().end

    async def trim(self, position: int) -> None:
        """See `SharedLog`."""
        try:
            await self._logs.answer(self._member, ANSWER_MS_MAX)
        except LogUnavailable:
            # The request may have come there, and only the answer not come back.
            if self._logs.reaches(self._member):
                self._shard().trim(position)
            raise
        self._shard().trim(position)

    async def describe(self) -> LogDescription:
        """See `SharedLog`."""
        await self._logs.answer(self._member, ANSWER_MS_MAX)
        shard = self._shard()
        return LogDescription(3, 2, RECORD_BYTES_MAX, shard.first, shard.end, 3)


def _seeing(reader: SimulatedLog, end: int) -> Callable[[], None]:
    return lambda: reader.see(end)
