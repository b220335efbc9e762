"""Reads of the broker's files as plans, so that the event loop never waits for the disk.

The synchronous core serves from memory. Where a record or a block of index rows is not in memory, it raises `ReadNeeded`
with a `ReadPlan`, or yields the plan if the call goes on in steps (`Steps`). The caller then

1. gives the plan to `Reads.begin`, which returns the plan to wait for: one that is under way may cover it;
2. runs it, in any thread (`ReadPlan.run`);
3. calls `Reads.finish` on the event loop, which puts what was read into the caches;
4. makes its call again, or goes on with the steps;
5. calls `Reads.release`. Until then the result is held, so a cache that is too small for it changes nothing.

A file from which a plan reads is not removed before the plan has run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable
from typing import Any, TypeVar

from store.errors import StoreError, UnreadableError
from store.failed_reads import FailedReads

T = TypeVar("T")

Steps = Generator["ReadPlan | None", None, T]
"""A call of the core that may need several reads. It yields plans, each to be run before the next step, and None between
steps that are long together. It returns its result. `close` gives the call up."""

# A call may need a block of index rows and then the record that a row points to, so the last two results are held.
HELD_PER_CALL = 2
# Places whose failed reads are counted: more than a failing disk has at once.
_FAILED_PLACES_MAX = 1024
STORE, BLOCKS, REBUILD, KEYS, SELECTED, TIMES = "store", "blocks", "rebuild", "keys", "selected", "times"


class ReadPlan:
    """One read. `run` blocks, in any thread; all else belongs to the event loop.

    `kind` and `key` name what is read. It begins at the offset `start`, of the store or (BLOCKS) of the index blocks.
    `stop` is the offset up to which a read of records (STORE, SELECTED) reaches. `size_bytes`: about what its result takes.
    """

    __slots__ = ("_error", "_found", "_put", "_read", "key", "kind", "size_bytes", "start", "stop")

    def __init__(
        self,
        kind: str,
        key: Hashable,
        reach: tuple[int, int],
        size_bytes: int,
        read: Callable[[], dict[Any, Any]],
        put: Callable[[dict[Any, Any]], None],
    ) -> None:
        """`reach` is (start, stop). `read` reads, in a thread; `put` takes what it found, or {}, on the event loop."""
        self.kind = kind
        self.key = key
        self.start, self.stop = reach
        self.size_bytes = size_bytes
        self._read = read
        self._put = put
        self._found: dict[Any, Any] = {}
        self._error: StoreError | None = None

    def run(self) -> None:
        """Read. An error of the disk is kept for the call that needs the bytes."""
        try:
            self._found = self._read()
        except StoreError as error:
            # Without its traceback: that would keep what the read held in memory.
            self._error = error.with_traceback(None)

    @property
    def asks_filter(self) -> bool:
        """Whether it asks a filter about what it reads."""
        return self.kind == SELECTED

    @property
    def unreadable(self) -> bool:
        """Whether the disk could not read the bytes."""
        return isinstance(self._error, UnreadableError)

    def put(self) -> None:
        """Put what was found into the caches; nothing after an error."""
        self._put(self._found)

    def find(self, key: Hashable) -> Any:
        """The result of the read for a key; None if it was not read. Raises the error of the read that began there."""
        if self._error is not None and key == self.key:
            raise _fresh(self._error)
        return self._found.get(key)

    def covers(self, other: ReadPlan) -> bool:
        """Whether the other plan may find in this one's result all that it needs."""
        if self.kind != other.kind:
            return False
        return self.key == other.key or (self.kind == STORE and self.start <= other.start < self.stop)


class ReadNeeded(Exception):
    """A call needs what is not in memory. Nothing has changed: run the plan, then make the call again."""

    def __init__(self, plan: ReadPlan) -> None:
        super().__init__(f"a read of {plan.kind} at offset {plan.start} comes first")
        self.plan = plan


class Reads:
    """The plans under way, and the results that calls still need."""

    def __init__(self) -> None:
        self._running: list[ReadPlan] = []
        self._held: list[ReadPlan] = []
        self._holders: dict[ReadPlan, int] = {}
        self._failed = FailedReads[tuple[str, int]](_FAILED_PLACES_MAX)

    @property
    def held_bytes(self) -> int:
        """About how many bytes the results take that calls still need."""
        return sum([plan.size_bytes for plan in self._held])

    def begin(self, plan: ReadPlan) -> tuple[ReadPlan, bool]:
        """The plan to wait for, and whether the caller must see that it is run. Each call needs a `release`."""
        running = next((one for one in self._running if one.covers(plan)), None)
        if running is None:
            self._running.append(plan)
        chosen = running or plan
        self._holders[chosen] = self._holders.get(chosen, 0) + 1
        return chosen, running is None

    def finish(self, plan: ReadPlan) -> None:
        """Ends a plan that has run."""
        self._running.remove(plan)
        if plan.unreadable:
            self._failed.count((plan.kind, plan.start))
        plan.put()
        if self._holders.get(plan):
            self._held.append(plan)

    def give_up(self, plan: ReadPlan) -> None:
        """Gives up a plan that will not run."""
        self._running.remove(plan)

    def release(self, plan: ReadPlan) -> None:
        """Frees the result of a plan that a call needs no more."""
        left = self._holders[plan] - 1
        if left:
            self._holders[plan] = left
            return
        del self._holders[plan]
        if plan in self._held:
            self._held.remove(plan)

    def wanted(self, plan: ReadPlan) -> bool:
        """Whether a call waits for the plan."""
        return plan in self._holders

    def find(self, kind: str, key: Hashable) -> Any:
        """The entry of a key in a held result; None if no result has it. Raises the error of a read that began there."""
        for plan in self._held:
            if plan.kind == kind and (found := plan.find(key)) is not None:
                return found
        return None

    def failures(self, kind: str, start: int) -> int:
        """How many reads that began at this offset the disk has failed."""
        return self._failed.of((kind, start))

    def lowest(self, *kinds: str) -> int | None:
        """The lowest offset that plans of these kinds read; None if there is no such plan."""
        return min([plan.start for plan in self._running if plan.kind in kinds], default=None)

    def check_invariants(self) -> None:
        """Each held result has a holder, and no plan that runs covers another one."""
        assert all(self._holders[plan] > 0 for plan in self._held)
        assert all(plan in self._running or plan in self._held for plan in self._holders)
        assert not any(a is not b and a.key == b.key and a.kind == b.kind for a in self._running for b in self._running)


def having_read(ask: Callable[[], T]) -> Steps[T]:
    """A call in steps: `ask` until it needs no read."""
    while True:
        try:
            return ask()
        except ReadNeeded as needed:
            plan = needed.plan
        yield plan


def read_at_once(reads: Reads, call: Steps[T]) -> T:
    """Carry a call out in this step, its reads too: for tools and tests. No other read may be under way."""
    held: deque[ReadPlan] = deque()
    try:
        while True:
            try:
                plan = next(call)
            except StopIteration as end:
                result: T = end.value
                return result
            if plan is None:
                continue
            chosen, new = reads.begin(plan)
            assert new, "another read is under way, and its thread would have to be waited for"
            held.append(chosen)
            chosen.run()
            reads.finish(chosen)
            if len(held) > HELD_PER_CALL:
                reads.release(held.popleft())
    finally:
        call.close()
        for plan in held:
            reads.release(plan)


def _fresh(error: StoreError) -> StoreError:
    """The same error as another object: a shared one would collect the frames of all callers."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    return copy
