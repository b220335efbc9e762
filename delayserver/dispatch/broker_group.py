"""A broker group: its own queue, workers, back-off and failover, so that one that is dead or slow holds up nobody else.

Rows leave the queue in batches by count and bytes. A row whose attempt failed goes back to the front; retries never give
up by themselves (dead-lettering is an explicit setting). When every node is down the rows go to the next group of their
route if there is one, otherwise they wait; past the bound of the queue they leave memory and are read again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.config.settings import DispatchSettings
from delayserver.dispatch.broker_node import DeliveryError, NodeHealth, choose
from delayserver.dispatch.delivery import ChangedRowsError, Shipment, by_file, outcomes, shipments, take_rows
from delayserver.dispatch.message_reader import MessageReader
from delayserver.load.loader import again_us
from delayserver.protocol.outcomes import DeliverOutcome, Outcome
from delayserver.runtime.clock import LOOK_AGAIN_MS
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.turns import LARGE_ROWS
from delayserver.state.attempted import Attempted
from delayserver.state.decided import Decided
from delayserver.state.group_queue import GroupQueue, Spilled
from delayserver.state.latency import LatencyHistogram
from delayserver.state.rows import SEVERAL_NODES
from store.errors import CorruptionError, DiskError
from store.records.batches import I64, U32
from store.records.expiry import expired_rows
from store.records.redelivery import ATTEMPTS, REDELIVERY
from wheel.due_rows import DueRows

# While a single attempt shows whether a node is back, the next one waits in steps of this.
PROBE_LOOK_MS = 5
# After rows went to a stand-in it is looked for the next ones after this: each time the whole queue is looked through.
HAND_ON_MS = 100
# A circuit that is open keeps only this many rows in memory.
FAILING_QUEUE_ROWS_MAX = 65_536
# So many rows that a node refuses, and not their neighbours, wait in memory.
REFUSED_ROWS_MAX = 8_192


@dataclass(slots=True)
class GroupCounters:
    """What a group did since the start."""

    delivered: int = 0
    attempts_failed: int = 0
    duplicates_suppressed: int = 0
    uncertain_failovers: int = 0
    maybe_delivered_twice: int = 0
    failed_over: int = 0
    dropped_from_memory: int = 0


class BrokerGroup:
    """Delivers what is routed to it."""

    def __init__(
        self,
        name: str,
        code: int,
        nodes: list[NodeHealth],
        alone: bool,
        reader: MessageReader,
        decided: Decided,
        attempted: Attempted,
        lateness: LatencyHistogram,
        refused_rows_max: int,
        settings: DispatchSettings,
        runtime: Runtime,
    ) -> None:
        """`alone`: there is one node on all routes of this group, so what it does not have, no other node has.
        `refused_rows_max`: rows that nodes have no room for and that wait in memory; those past it wait on disk."""
        self.name = name
        self.code = code
        self._alone = alone
        self.nodes = nodes
        self.reader = reader
        self.queue = GroupQueue()
        self.counters = GroupCounters()
        self.spilled = Spilled()
        self._refused_rows_max = refused_rows_max
        self.hand_on: Callable[[], Awaitable[bool]] = _nobody
        self.put_back: Callable[[DueRows], None] = lambda _rows: None
        self._lateness = lateness
        self._damage = runtime.damage
        self.on_room: Callable[[], None] = lambda: None
        self.on_dropped: Callable[[list[DueRows]], None] = lambda _rows: None
        self.on_left: Callable[[DueRows, int], None] = lambda _rows, _pause_us: None
        self._decided = decided
        self._attempted = attempted
        self._settings = settings
        self._clock = runtime.clock
        self._in_flight: dict[int, NDArray[np.int64]] = {}
        self._attempts = 0
        self._backlog_batches = 0
        self._stopping = False
        self._turns = runtime.turns
        self._idle = trio.lowlevel.ParkingLot()
        self._put_aside = trio.Event()
        self._pausing = False
        self._stay_until_us = 0

    # -- rows in

    def push(self, rows: DueRows) -> None:
        """Take rows that are due. Past the bound the last ones leave memory and their windows are noted."""
        self.queue.push(rows)
        self._bound()

    def _bound(self) -> None:
        self._idle.unpark()
        rows_max = self._settings.queue_rows_max
        self.keep(min(FAILING_QUEUE_ROWS_MAX, rows_max) if self.failing else rows_max)

    def keep(self, rows_max: int) -> None:
        """Let the last rows past a bound leave memory, and note their windows."""
        dropped = self.queue.drop_behind(rows_max)
        if dropped:
            self.counters.dropped_from_memory += sum(map(len, dropped))
            self.on_dropped(dropped)

    @property
    def full(self) -> bool:
        """Whether one more batch could push rows out of memory."""
        rows = len(self.queue)
        return rows > 0 and rows + self._settings.batch_messages_max > self._settings.queue_rows_max

    @property
    def failing(self) -> bool:
        """Whether every node's circuit is open."""
        return all(node.open_circuit for node in self.nodes)

    @property
    def down(self) -> bool:
        """Whether it fails, and no node may be tried now."""
        return self.failing and not any(node.ready(self._clock.monotonic_us()) for node in self.nodes)

    @property
    def may_work(self) -> bool:
        """Whether another group may give it rows: it does not fail, or has none that would show that it is back."""
        return not self.failing or not (self.rows_held or self.down)

    @property
    def running(self) -> int:
        """Attempts in flight."""
        return len(self._in_flight)

    @property
    def idle_workers(self) -> int:
        """Workers that have nothing to do."""
        return self._idle.statistics().tasks_waiting

    def stop(self) -> None:
        """Begin no further attempt; those in flight go on."""
        self._stopping = True

    @property
    def rows_held(self) -> int:
        """Rows in memory, waiting or in flight."""
        return len(self.queue) + self.queue.rows_aside + self.rows_in_flight

    @property
    def rows_in_flight(self) -> int:
        """Rows of running attempts."""
        return sum([len(sequences) for sequences in self._in_flight.values()])

    def in_flight(self) -> NDArray[np.int64]:
        """Sequences of running attempts."""
        return np.concatenate(list(self._in_flight.values())) if self._in_flight else np.empty(0, np.int64)

    def attempts(self, sequence: int, due_ms: int) -> bool:
        """Whether an attempt with this message runs. Before it is due its batch only waits for the moment."""
        return self._clock.now_ms() >= due_ms and bool((self.in_flight() == sequence).any())

    # -- delivering

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_back)
            nursery.start_soon(self.reader.run)
            for _ in range(self._settings.workers):
                nursery.start_soon(self._worker)

    async def _take_back(self) -> None:
        while True:
            self._put_aside = trio.Event()
            soonest_us = self.queue.next_back_us
            if soonest_us is None:
                await self._put_aside.wait()
                continue
            pause_ms = (soonest_us - self._clock.monotonic_us()) / 1000
            await self._clock.sleep_ms(min(max(pause_ms, 0), LOOK_AGAIN_MS))
            self.queue.take_back(self._clock.monotonic_us())
            self._bound()

    async def _worker(self) -> None:
        while True:
            if self._stopping:
                await trio.sleep_forever()
            if not len(self.queue):
                self.on_room()
                await self._idle.park()
                continue
            if self._leaves_backlog and self.queue.backlog_rows == len(self.queue):
                await self._idle.park()  # for what is fresh: the workers with batches of the backlog take the next ones
                continue
            await self._decided.wait_for_room()
            if len(self.queue) > LARGE_ROWS:
                await self._turns.take()
            node = choose(self.nodes, self._clock.monotonic_us())
            if node is None:
                await self._pause()
                continue
            before = self.queue.backlog_rows
            rows = self._take()
            if len(self.queue):
                self._idle.unpark()  # one was woken for all that came; the next one takes what is left
            if rows is None:
                continue
            if self.queue.backlog_rows == before:
                await self._deliver(node, rows)
                continue
            self._backlog_batches += 1
            try:
                await self._deliver(node, rows)
            finally:
                self._backlog_batches -= 1

    @property
    def _leaves_backlog(self) -> bool:
        """Whether so many workers have batches of the backlog that the next batch is to be a fresh one: one worker of
        several is kept for those."""
        return self._backlog_batches >= max(self._settings.workers - 1, 1)

    def _take(self) -> DueRows | None:
        """The next batch: what is due, or else what becomes due next, so that nobody waits for a later one."""
        settings = self._settings
        rows = self.queue.take(settings.batch_messages_max, settings.batch_bytes_max, backlog=not self._leaves_backlog)
        if rows is not None:
            later = rows.due_ms > max(self._clock.now_ms(), int(rows.due_ms.min()))
            if later.any():
                self.queue.push_front(take_rows(rows, np.flatnonzero(later)))
                rows = take_rows(rows, np.flatnonzero(~later))
        return rows

    async def _pause(self) -> None:
        """One worker looks for all: the others are woken when there is something to take again."""
        if self._pausing:
            await self._idle.park()
            return
        self._pausing = True
        try:
            await self._nobody_ready()
        finally:
            self._pausing = False

    async def _nobody_ready(self) -> None:
        """Every node pauses: fail over to the next group of the route, or wait for the first pause to end."""
        if self.failing and self._clock.monotonic_us() >= self._stay_until_us:
            stay_ms = HAND_ON_MS if await self.hand_on() else LOOK_AGAIN_MS
            self._stay_until_us = self._clock.monotonic_us() + stay_ms * 1000
            if not len(self.queue):
                return
        soonest_us = min(node.closed_until_us for node in self.nodes)
        if self.failing:
            soonest_us = min(soonest_us, self._stay_until_us)
        # Pauses are durations: a step of the wall clock makes none longer.
        pause_ms = (soonest_us - self._clock.monotonic_us()) / 1000
        await self._clock.sleep_ms(min(max(pause_ms, PROBE_LOOK_MS), LOOK_AGAIN_MS))

    async def _deliver(self, node: NodeHealth, rows: DueRows) -> None:
        parts = {}
        for shipment in shipments(rows):
            # Every row is in flight from the step in which it left the queue: a cancel must find it somewhere.
            self._attempts += 1
            parts[self._attempts] = shipment
            self._in_flight[self._attempts] = shipment.rows.sequence
        failed = self.counters.attempts_failed
        try:
            waiting = deque(parts.items())
            while waiting:
                attempt, shipment = waiting.popleft()
                # A node that answers, and refuses one message again and again, must not keep it before all others.
                if self.counters.attempts_failed != failed and not node.ready(self._clock.monotonic_us()):
                    break
                rows, now_us = shipment.rows, self._clock.now_us()
                # Overdue rows that have expired are not worth a read. All others are judged at their hand-off.
                if now_us >= int(rows.due_ms.max()) * 1000:
                    kept = self._expire(rows, rows.payload["expires_ms"], now_us)
                    rows = rows if kept is None else take_rows(rows, kept)
                self._in_flight[attempt] = rows.sequence
                rest = await self._attempt(node, replace(shipment, rows=rows)) if len(rows) else []
                del self._in_flight[attempt]
                for part in rest:
                    self._attempts += 1
                    parts[self._attempts] = part
                    self._in_flight[self._attempts] = part.rows.sequence
                    waiting.append((self._attempts, part))
            # The node failed meanwhile: what it was not tried with is free for another one, a stand-in or a cancel.
            left = [shipment.rows for attempt, shipment in parts.items() if attempt in self._in_flight]
            for rows in reversed(left):
                self.queue.push_front(rows)
            if left:
                self._bound()
        finally:
            for attempt in parts:
                self._in_flight.pop(attempt, None)

    def _expire(self, rows: DueRows, expires_ms: I64, now_us: int) -> NDArray[np.intp] | None:
        """Record the rows that have expired at `now_us`; returns the places of the others, None if no row has expired."""
        expired = expired_rows(expires_ms, now_us)
        if expired is None:
            return None
        # An uncertain row may be delivered already: the node must say. A row for one consumer group is a redelivery:
        # the broker judges it, because the broker counts what expires for each of its groups.
        expired &= (rows.payload["uncertain"] == 0) & (rows.payload["target_group"] == 0)
        if not expired.any():
            return None
        gone = take_rows(rows, np.flatnonzero(expired))
        self._decided.add(
            outcomes(gone, int(Outcome.EXPIRED), self.code, queued_us=now_us, dispatched_us=0, settled_us=now_us)
        )
        return np.flatnonzero(~expired)

    async def _attempt(self, node: NodeHealth, shipment: Shipment) -> list[Shipment]:
        """Hand a shipment over. Returns what is to be tried in its place: of several files one cannot be read."""
        rows = shipment.rows
        due_us = int(rows.due_ms.max()) * 1000
        queued_us = max(self._clock.now_us(), due_us)
        try:
            batch = await self.reader.read(shipment)
        except ChangedRowsError as error:
            if shipment.mixed:
                return by_file(shipment)
            # They stay pending on disk; what can be served goes on being served.
            reason = error.unreadable or error
            self._damage.report(reason)
            self.on_left(take_rows(rows, np.flatnonzero(~error.sound)), again_us(reason))
            if error.sound.any():
                return [replace(shipment, rows=take_rows(rows, np.flatnonzero(error.sound)))]
            return []
        except (CorruptionError, DiskError, FileNotFoundError, KeyError) as error:
            if shipment.mixed:
                return by_file(shipment)
            self._damage.report(error)
            self.on_left(rows, again_us(error))
            return []
        dispatched_us = self._clock.now_us()
        if dispatched_us < due_us:
            with self._turns.reserve(due_us) if len(rows) <= LARGE_ROWS else nullcontext():
                await self._clock.sleep_until_us(due_us)  # ready a moment before: now the moment itself
            dispatched_us = self._clock.now_us()
        if self._stopping or dispatched_us < due_us:  # the clock stepped back since the wheel released them
            self.put_back(rows)
            return []
        kept = self._expire(rows, batch.expires_ms, dispatched_us)
        if kept is not None:
            if not len(kept):
                return []
            rows, batch = take_rows(rows, kept), batch.take(kept)
        batch = batch.with_columns(dispatched_us=dispatched_us)
        elsewhere = self._unanswered_elsewhere(node, shipment.uncertain, rows)
        if elsewhere is not None or int(batch.redelivery.max()) > REDELIVERY.number_max:
            unanswered = elsewhere if elsewhere is not None else np.zeros(len(rows), np.uint32)
            batch = batch.with_columns(redelivery=REDELIVERY.pack(batch.redelivery, unanswered))
        rows.payload["attempts"] += 1
        began_us, probe = self._clock.monotonic_us(), node.begin()
        try:
            with trio.fail_after(self._settings.deliver_timeout_ms / 1000):
                answer = await node.broker.deliver(batch, uncertain=shipment.uncertain)
        except DeliveryError as error:
            self._failed(node, rows, str(error), began_us, known=error.known)
            return []
        except trio.TooSlowError:
            self._failed(node, rows, "no answer in time", began_us, known=False)
            return []
        finally:
            node.end(probe)
        if len(rows) > LARGE_ROWS:
            await self._turns.take()
        self._answered(node, rows, answer, queued_us, dispatched_us, elsewhere)
        return []

    def _unanswered_elsewhere(self, node: NodeHealth, uncertain: bool, rows: DueRows) -> U32 | None:
        """How many hand-overs of each row had no answer, u32[n], where one of them went to another node; None where none
        did. Hand-overs before this start are not known, and count as one."""
        if not uncertain or self._alone:
            return None
        other = rows.payload["unanswered_node"] != node.number
        counts: U32 = np.where(other, np.maximum(rows.payload["unanswered"], 1), 0).astype(np.uint32)
        return counts if counts.any() else None

    def _failed(self, node: NodeHealth, rows: DueRows, reason: str, began_us: int, *, known: bool) -> None:
        self.counters.attempts_failed += 1
        node.failed(reason, self._clock.monotonic_us(), began_us)
        if not known:
            where, certain = rows.payload["unanswered_node"], rows.payload["uncertain"] == 0
            here = certain | (where == node.number)
            rows.payload["unanswered_node"] = np.where(here, node.number, SEVERAL_NODES)
            rows.payload["unanswered"] = np.minimum(
                rows.payload["unanswered"].astype(np.int64) + 1, REDELIVERY.unanswered_max
            )
            rows.payload["uncertain"] = 1
            self._attempted.note(rows.sequence, rows.payload)
        self._retry(rows)

    def _retry(self, rows: DueRows) -> None:
        self.queue.push_front(self._without_dead(rows))
        self._bound()

    def _refused(self, rows: DueRows) -> None:
        """Rows that a node has no room for, while it takes others: they wait behind those, each longer every time."""
        settings, rows = self._settings, self._without_dead(rows)
        if self.queue.rows_aside + len(rows) > self._refused_rows_max:
            self.on_left(rows, settings.backoff_ms_max * 1000)
            return
        attempts = int(rows.payload["attempts"].min(initial=1 << 30))
        pause_ms = min(settings.backoff_ms_min * 2 ** min(attempts - 1, 30), settings.backoff_ms_max)
        self.queue.put_aside(rows, self._clock.monotonic_us() + pause_ms * 1000)
        self._put_aside.set()

    def _without_dead(self, rows: DueRows) -> DueRows:
        limit = self._settings.dead_letter_attempts
        if limit:
            dead = (rows.payload["attempts"] >= limit) & (rows.payload["uncertain"] == 0)
            if dead.any():
                now_us = self._clock.now_us()
                self._decided.add(
                    outcomes(
                        take_rows(rows, np.flatnonzero(dead)),
                        int(Outcome.DEAD_LETTERED),
                        self.code,
                        queued_us=now_us,
                        dispatched_us=0,
                        settled_us=now_us,
                    )
                )
                rows = take_rows(rows, np.flatnonzero(~dead))
        return rows

    def _answered(
        self,
        node: NodeHealth,
        rows: DueRows,
        answer: NDArray[np.uint8],
        queued_us: int,
        dispatched_us: int,
        elsewhere: U32 | None,
    ) -> None:
        refused = answer == int(DeliverOutcome.REFUSED)
        if refused.any():
            self.counters.attempts_failed += 1
            self._refused(take_rows(rows, np.flatnonzero(refused)))
            rows = take_rows(rows, np.flatnonzero(~refused))
            answer = answer[~refused]
            elsewhere = elsewhere[~refused] if elsewhere is not None else None
        node.succeeded()
        if not len(rows):
            return
        self._attempted.settled(rows.sequence)
        self.counters.delivered += len(rows)
        self.counters.duplicates_suppressed += int((answer == int(DeliverOutcome.DUPLICATE)).sum())
        self._lateness.add(_lateness_us(rows, dispatched_us))
        if elsewhere is not None:
            # A hand-over before this start without an answer is found where the node has the message already.
            found = (answer == int(DeliverOutcome.DUPLICATE)) & (rows.payload["unanswered_node"] == 0)
            elsewhere = np.where(found, 0, elsewhere).astype(np.uint32)
            self.counters.maybe_delivered_twice += int((elsewhere > 0).sum())
            rows.payload["attempts"] = ATTEMPTS.pack(rows.payload["attempts"], elsewhere)
        self._decided.add(
            outcomes(
                rows,
                int(Outcome.DELIVERED),
                self.code,
                queued_us=queued_us,
                dispatched_us=dispatched_us,
                settled_us=self._clock.now_us(),
            )
        )


def _lateness_us(rows: DueRows, dispatched_us: int) -> NDArray[np.int64]:
    """Since it was due, or accepted if that was later, i64[n]."""
    due_us, accepted_us = rows.due_ms * 1000, rows.payload["accepted_us"]
    lateness_us: NDArray[np.int64] = dispatched_us - due_us
    if int(accepted_us.max()) > int(due_us.min()):
        # Handed over at an earlier time than accepted: the clock went back in between, and only before `due` is early.
        lateness_us = np.maximum(dispatched_us - np.maximum(due_us, accepted_us), np.minimum(lateness_us, 0))
    return lateness_us


async def _nobody() -> bool:
    return False
