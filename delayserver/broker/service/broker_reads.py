"""Runs the read plans of the broker's core in worker threads, so that the event loop never waits for the disk.

Reads run a few at a time, in the order in which they were asked for. A caller has at most one in line, so the line is
fair between callers. Callers that need the same bytes share one read. While the results that calls hold take too much,
one read runs at a time, and calls that hold results go first, so that they free them.

A result is held until the call that asked for it has been made again, so progress does not depend on the size of the
cache. A segment from which a thread reads is not removed: its descriptor could name another file in the middle of the
read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

import trio

from delayserver.broker.reads import HELD_PER_CALL, ReadPlan, Reads, Steps, having_read
from delayserver.protocol.errors import ShuttingDown
from delayserver.runtime.runtime import Runtime

T = TypeVar("T")

# Reads at a time. A disk with a queue is as fast as it gets by then, and the process's other work needs threads too.
READS_AT_ONCE = 8
# No further read begins while those under way, and the results that calls still need, take more than this. Each takes a
# MiB, or as much as a reply may have.
BYTES_MAX = 32 << 20
# Of these, reads that ask filters. They work more than they wait for the disk, and the event loop waits for the GIL behind
# each of them.
FILTERS_AT_ONCE = 2


class Reading:
    """The results that one call needs. `release` ends it."""

    __slots__ = ("_held", "_reads", "_release")

    def __init__(self, reads: Reads, release: Callable[[ReadPlan], None]) -> None:
        self._reads = reads
        self._release = release
        self._held: deque[ReadPlan] = deque()

    def hold(self, plan: ReadPlan) -> None:
        """Hold one more result, and let go of what is older than the last two."""
        self._held.append(plan)
        if len(self._held) > HELD_PER_CALL:
            self._release(self._held.popleft())

    def drop(self, kind: str) -> None:
        """Releases the results of this kind: the call needs them no more."""
        for plan in [plan for plan in self._held if plan.kind == kind]:
            self._held.remove(plan)
            self._release(plan)

    @property
    def holds_results(self) -> bool:
        """Whether it holds a result, or waits for that of a read under way."""
        return bool(self._held)

    def release(self) -> None:
        """Ends the call: frees its results."""
        while self._held:
            self._release(self._held.popleft())


class BrokerReads:
    """The reads of one broker. `run` is a task of the server."""

    def __init__(self, reads: Reads, runtime: Runtime) -> None:
        self._reads = reads
        self._workers = runtime.workers
        self._turns = runtime.turns
        self._line: deque[ReadPlan] = deque()
        # Those in line for whose calls a result is held.
        self._goes_on: set[ReadPlan] = set()
        self._then: dict[ReadPlan, list[Callable[[], None]]] = {}
        self._idle = trio.lowlevel.ParkingLot()
        self._closed = False
        self._running = 0
        self._running_bytes = 0
        self._running_filters = 0
        self._ended = trio.Event()
        # Reads so far, for `status`.
        self.done = 0

    @property
    def waiting(self) -> int:
        """Reads in line and under way."""
        return len(self._then)

    async def run(self) -> None:
        """Read until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(READS_AT_ONCE):
                nursery.start_soon(self._read_all)

    async def finish(self, call: Steps[T]) -> T:
        """Carry a call out, and run the reads that it asks for. Without a read it is done in this step, unless it is long.

        Raises the errors of the call, and ShuttingDown. A cancelled call is given up; its read goes on."""
        reading = self.reading()
        try:
            while True:
                try:
                    plan = next(call)
                except StopIteration as end:
                    result: T = end.value
                    return result
                if plan is None:
                    await self._turns.take()
                else:
                    done = trio.Event()
                    self.begin(plan, reading, done.set)
                    await done.wait()
                if self._closed:
                    raise ShuttingDown("the server is stopping", retry_after_ms=1000)
        finally:
            call.close()
            reading.release()

    async def answer(self, ask: Callable[[], T]) -> T:
        """The result of `ask`, after the reads that it needs. Raises as `finish`."""
        return await self.finish(having_read(ask))

    def reading(self) -> Reading:
        """To hold the results of one call."""
        return Reading(self._reads, self._let_go)

    def begin(self, plan: ReadPlan, reading: Reading, then: Callable[[], None]) -> None:
        """Have a plan run, and hold its result in `reading`. Calls `then` when it has run, and after a stop."""
        if self._closed:
            then()
            return
        chosen, new = self._reads.begin(plan)
        if reading.holds_results:
            self._goes_on.add(chosen)
        reading.hold(chosen)
        self._then.setdefault(chosen, []).append(then)
        if new:
            self._line.append(chosen)
            self._idle.unpark()

    def ahead(self, plan: ReadPlan) -> None:
        """Have a plan run for a later call, if the disk has nothing else to do."""
        if not self._line and not self._closed:
            reading = self.reading()
            self.begin(plan, reading, reading.release)

    async def close(self) -> None:
        """Begin no more reads, and wait for those under way: the files will be closed. Callers that wait go on."""
        self._closed = True
        while self._line:
            plan = self._line.popleft()
            self._reads.give_up(plan)
            self._go_on(plan)
        if self._running:
            await self._ended.wait()

    def _let_go(self, plan: ReadPlan) -> None:
        self._reads.release(plan)
        if not self._reads.wanted(plan) and plan in self._line:
            self._line.remove(plan)
            self._reads.give_up(plan)
            self._goes_on.discard(plan)
            del self._then[plan]
        if self._next() is not None:
            self._idle.unpark()

    @property
    def _in_bounds(self) -> bool:
        return self._running_bytes + self._reads.held_bytes <= BYTES_MAX

    def _next(self) -> ReadPlan | None:
        """The next read of the line that may begin. One always may, if none runs: the calls that hold results can wait for
        reads themselves."""
        if self._running and not self._in_bounds:
            return None
        line: Iterable[ReadPlan] = self._line
        if self._running_filters >= FILTERS_AT_ONCE:
            line = [plan for plan in line if not plan.asks_filter]
        plan = next(iter(line), None)
        return plan if self._in_bounds else next((each for each in line if each in self._goes_on), plan)

    async def _read_all(self) -> None:
        while True:
            while (plan := self._next()) is None:
                await self._idle.park()
            self._line.remove(plan)
            self._running += 1
            self._running_bytes += plan.size_bytes
            self._running_filters += plan.asks_filter
            try:
                await self._workers.run(plan.run)
            finally:
                self._running -= 1
                self._running_bytes -= plan.size_bytes
                self._running_filters -= plan.asks_filter
            self.done += 1
            self._reads.finish(plan)
            self._go_on(plan)
            if self._closed and not self._running:
                self._ended.set()

    def _go_on(self, plan: ReadPlan) -> None:
        self._goes_on.discard(plan)
        for then in self._then.pop(plan):
            then()
