"""A broker group has its own queue, workers, back-off and failover. A dead or slow group does not delay the others.

Rows leave the queue in batches by count and bytes. A row whose attempt failed goes back to the front; retries never give
up by themselves (dead-lettering is an explicit setting). When every node is down the rows go to the next group of their
route if there is one, otherwise they wait; past the bound of the queue they leave memory and are read again later.

Rows with an order key take another way: one task hands out batches of them, each to the node of its keys. The rows of a key
are in one batch at a time, and go to the node in their order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import trio

from delayserver.config.settings import DispatchSettings
from delayserver.dispatch.broker_node import BrokerNode, choose
from delayserver.dispatch.delivery import ChangedRowsError, Shipment, by_file, keyed_shipments, shipments
from delayserver.dispatch.judge import Judgement, RowFate, judge, unanswered_elsewhere
from delayserver.dispatch.key_nodes import KeyNodes
from delayserver.dispatch.message_reader import AHEAD_MS, MessageReader
from delayserver.dispatch.verdicts import Verdicts
from delayserver.runtime.clock import LOOK_AGAIN_MS
from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.turns import LARGE_ROWS
from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.keyed_lane import Buckets, bucket_of, buckets_of
from delayserver.state.memory.left_rows import again_us
from delayserver.state.memory.queueing import Queueing
from delayserver.state.memory.rows import has_order_key
from delayserver.targets.answer import Answer
from delayserver.targets.target import DeliveryError
from store.errors import CorruptionError, DiskError
from store.records.batches import U32, StoredBatch
from store.records.shared_column import REDELIVERY
from wheel.due_rows import DueRows

# So many rows with an order key show whether a node that counts as down is back. They wait for it, so these are few.
KEYED_PROBE_ROWS = 64
# So many batches of rows with an order key a node has at once, of different keys: the next ones are read while the first is
# synced, and a slow node does not get all.
KEYED_BATCHES_MAX = 4


class BrokerGroup:
    """Delivers what is routed to it."""

    def __init__(
        self,
        rows: GroupRows,
        nodes: Sequence[BrokerNode],
        reader: MessageReader,
        queueing: Queueing,
        verdicts: Verdicts,
        settings: DispatchSettings,
        runtime: Runtime,
    ) -> None:
        self.rows = rows
        self.nodes = tuple(nodes)
        self.reader = reader
        # Rung when no node may be tried and every node counts as down.
        self.stuck = Bell()
        self._queue = rows.queue
        self._queueing = queueing
        self._verdicts = verdicts
        self._settings = settings
        self._clock = runtime.clock
        self._stages = runtime.stages
        self._damage = runtime.damage
        self._turns = runtime.turns
        self._backlog_batches = 0
        self._stopping = False
        self._put_aside = Bell()
        self._pausing = False
        self._key_nodes = KeyNodes()
        # Batches with order keys in flight, by the numbers of their nodes.
        self._keyed_batches: Counter[int] = Counter()

    @property
    def name(self) -> str:
        """As in the settings."""
        return self.rows.name

    @property
    def idle_workers(self) -> int:
        """Workers that have nothing to do."""
        return self.rows.idle.statistics().tasks_waiting

    @property
    def is_idle(self) -> bool:
        """Whether the group has no messages that wait or are on their way."""
        return not self.rows.rows_held

    def change_nodes(self, nodes: Sequence[BrokerNode]) -> None:
        """These nodes take the messages from now on. A node that leaves settles the batches that it has."""
        self.nodes = tuple(nodes)
        self.rows.change_nodes([node.health for node in nodes])
        self._queue.keyed.changed.ring()

    def node_of_key(self, order_key: bytes) -> BrokerNode:
        """The node that gets the next messages of an order key."""
        places = self._key_nodes.places([node.health for node in self.nodes], self._clock.monotonic_us())
        return self.nodes[int(places[bucket_of(order_key)])]

    def stop(self) -> None:
        """Begin no further attempt; those in flight go on."""
        self._stopping = True

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_back)
            nursery.start_soon(self.reader.run)
            nursery.start_soon(self._hand_out_keyed, nursery)
            for _ in range(self._settings.workers):
                nursery.start_soon(self._worker)

    async def _take_back(self) -> None:
        while True:
            self._put_aside.hush()
            soonest_us = self._queue.next_back_us
            if soonest_us is None:
                await self._put_aside.rung()
                continue
            pause_ms = (soonest_us - self._clock.monotonic_us()) / 1000
            await self._clock.sleep_ms(min(max(pause_ms, 0), LOOK_AGAIN_MS))
            self._queueing.take_back(self.rows)

    async def _worker(self) -> None:
        while True:
            if self._stopping:
                await trio.sleep_forever()
            if not self._queue.keyless_rows:
                self._queueing.announce_emptied()
                await self.rows.idle.park()
                continue
            if self._leaves_backlog and self._queue.backlog_rows == self._queue.keyless_rows:
                await (
                    self.rows.idle.park()
                )  # for what is fresh: the workers with batches of the backlog take the next ones
                continue
            await self._verdicts.wait_for_room()
            if self._queue.keyless_rows > LARGE_ROWS:
                await self._turns.take()
            node = choose(self.nodes, self._clock.monotonic_us())
            if node is None:
                await self._pause()
                continue
            before = self._queue.backlog_rows
            rows = self._take()
            if self._queue.keyless_rows:
                self.rows.idle.unpark()  # one was woken for all that came; the next one takes what is left
            if rows is None:
                continue
            if self._queue.backlog_rows == before:
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
        """The next batch: rows that are due, or else the rows that become due next."""
        settings = self._settings
        rows = self._queue.take(settings.batch_messages_max, settings.batch_bytes_max, backlog=not self._leaves_backlog)
        if rows is not None:
            later = rows.due_ms > max(self._clock.now_ms(), int(rows.due_ms.min()))
            if later.any():
                self._queue.push_front(rows.take(np.flatnonzero(later)))
                rows = rows.take(np.flatnonzero(~later))
        return rows

    async def _pause(self) -> None:
        """One worker looks for all: the others are woken when there is something to take again."""
        if self._pausing:
            await self.rows.idle.park()
            return
        self._pausing = True
        try:
            await self._nobody_ready()
        finally:
            self._pausing = False

    async def _nobody_ready(self) -> None:
        """Every node pauses: wait for the first pause to end. Meanwhile rows may go to the next groups of their routes."""
        if self.rows.failing:
            self.stuck.ring()
        now_us = self._clock.monotonic_us()
        # Pauses are durations: a step of the wall clock makes none longer. A node whose pause is over is being tried, and
        # the end of that attempt shows whether it is back.
        until_us = [node.health.closed_until_us for node in self.nodes if node.health.closed_until_us > now_us]
        soonest_us = min(until_us, default=now_us + LOOK_AGAIN_MS * 1000)
        with trio.move_on_after(min((soonest_us - now_us) / 1000, LOOK_AGAIN_MS) / 1000):
            await self.rows.ended.reached(self.rows.ended.value + 1)

    # -- rows with an order key

    async def _hand_out_keyed(self, nursery: trio.Nursery) -> None:
        lane = self._queue.keyed
        while True:
            if self._stopping:
                await trio.sleep_forever()
            lane.changed.hush()
            if not self._queue.keyless_rows:
                self._queueing.announce_emptied()
            if not len(lane):
                await lane.changed.rung()
                continue
            await self._verdicts.wait_for_room()
            now_us = self._clock.monotonic_us()
            lane.resume(now_us)
            if self._begin_keyed(nursery, now_us):
                await trio.lowlevel.checkpoint()
                continue
            if self.rows.failing:
                self.stuck.ring()
            with trio.move_on_after(self._keyed_pause_ms(now_us) / 1000):
                await lane.changed.rung()

    def _keyed_pause_ms(self, now_us: int) -> float:
        """Until a node may be tried again, or keys of rows that were refused. At most LOOK_AGAIN_MS."""
        until_us = [node.health.closed_until_us for node in self.nodes if node.health.closed_until_us > now_us]
        resume_us = self._queue.keyed.next_resume_us
        soonest_us = min(
            until_us if resume_us is None else [*until_us, resume_us], default=now_us + LOOK_AGAIN_MS * 1000
        )
        return min(max((soonest_us - now_us) / 1000, 1), LOOK_AGAIN_MS)

    def _begin_keyed(self, nursery: trio.Nursery, now_us: int) -> bool:
        """Give a node the first rows of its keys. False if there is no node that may be tried, or no such rows."""
        lane, settings = self._queue.keyed, self._settings
        places = self._key_nodes.places([node.health for node in self.nodes], now_us)
        for place, node in enumerate(self.nodes):
            health = node.health
            if not health.weight or not health.ready(now_us) or self._keyed_batches[health.number] >= KEYED_BATCHES_MAX:
                continue
            rows_max = settings.batch_messages_max
            if health.open_circuit:
                rows_max = min(KEYED_PROBE_ROWS, rows_max)
            rows = lane.take(rows_max, settings.batch_bytes_max, places == place)
            if rows is None:
                continue
            later = rows.due_ms > self._clock.now_ms() + AHEAD_MS
            if later.any():  # the clock went back since they left the wheel
                back = rows.take(np.flatnonzero(later))
                self._queueing.put_back(self.rows, back)
                rows = rows.take(np.flatnonzero(~later))
            if len(rows):
                buckets = np.unique(buckets_of(rows))
                lane.hold(buckets)
                self._keyed_batches[health.number] += 1
                health.take()
                # They are in flight from this step on.
                nursery.start_soon(partial(self._deliver_keyed, node, self._begin(keyed_shipments(rows)), buckets))
            return True
        return False

    async def _deliver_keyed(self, node: BrokerNode, parts: dict[int, Shipment], buckets: Buckets) -> None:
        try:
            await self._deliver_parts(node, parts, in_order=True)
        finally:
            node.health.give()
            self._keyed_batches[node.health.number] -= 1
            self._queue.keyed.release(buckets)

    # -- hand-overs

    async def _deliver(self, node: BrokerNode, rows: DueRows) -> None:
        node.health.take()
        try:
            await self._deliver_parts(node, self._begin(shipments(rows)))
        finally:
            node.health.give()

    def _begin(self, parts: list[Shipment]) -> dict[int, Shipment]:
        """Every row is in flight from the step in which it left the queue: a cancel must find it somewhere."""
        return {self.rows.begin(shipment.rows.sequence): shipment for shipment in parts}

    async def _deliver_parts(self, node: BrokerNode, parts: dict[int, Shipment], *, in_order: bool = False) -> None:
        """`in_order`: no part goes before an earlier one."""
        failed, back = self.rows.counters.attempts_failed, None
        try:
            waiting = deque(parts.items())
            while waiting:
                attempt, shipment = waiting.popleft()
                # A node that answers, and refuses one message again and again, must not keep it before all others.
                if self.rows.counters.attempts_failed != failed and (
                    in_order or not node.health.ready(self._clock.monotonic_us())
                ):
                    break
                rows, now_us = shipment.rows, self._clock.now_us()
                # Overdue rows that have expired are not worth a read. All others are judged at their hand-off.
                if now_us >= int(rows.due_ms.max()) * 1000:
                    kept = self._verdicts.record_expired(rows, rows.payload["expires_ms"], now_us)
                    rows = rows if kept is None else rows.take(kept)
                self.rows.narrow(attempt, rows.sequence)
                rest = await self._attempt(node, replace(shipment, rows=rows)) if len(rows) else []
                self.rows.end(attempt)
                if rest is None:
                    if in_order:
                        back = rows
                        break
                    self._queueing.put_back(self.rows, rows)
                    continue
                begun = self._begin(rest)
                parts |= begun
                waiting.extendleft(reversed(begun.items()))
            # The node failed meanwhile: what it was not tried with is free for another one, a stand-in or a cancel.
            left = [shipment.rows for attempt, shipment in parts.items() if self.rows.is_running(attempt)]
            for rows in reversed(left):
                self._queueing.push_front(self.rows, rows)
            if back is not None:
                self._queueing.put_back(self.rows, back)
        finally:
            for attempt in parts:
                self.rows.end(attempt)

    async def _attempt(self, node: BrokerNode, shipment: Shipment) -> list[Shipment] | None:
        """Hand a shipment over. Returns what is to be tried in its place: of several files one cannot be read. None: its
        rows are not due any more."""
        rows = shipment.rows
        due_us = int(rows.due_ms.max()) * 1000
        queued_us = self._left_queue(rows, due_us)
        try:
            batch = await self.reader.read(shipment)
        except ChangedRowsError as error:
            if shipment.mixed:
                return by_file(shipment)
            # They stay pending on disk; what can be served goes on being served.
            reason = error.unreadable or error
            self._damage.report(reason)
            self._queueing.leave(rows.take(np.flatnonzero(~error.sound)), again_us(reason))
            if error.sound.any():
                return [replace(shipment, rows=rows.take(np.flatnonzero(error.sound)))]
            return []
        except (CorruptionError, DiskError, FileNotFoundError, KeyError) as error:
            if shipment.mixed:
                return by_file(shipment)
            self._damage.report(error)
            self._queueing.leave(rows, again_us(error))
            return []
        dispatched_us = self._clock.now_us()
        if dispatched_us < due_us:
            with self._turns.reserve(due_us) if len(rows) <= LARGE_ROWS else nullcontext():
                await self._clock.sleep_until_us(due_us)  # ready a moment before: now the moment itself
            dispatched_us = self._clock.now_us()
        # The clock stepped back since the wheel released them, or a member lost its lease.
        if self._stopping or dispatched_us < due_us or not self._verdicts.may_attempt(due_us):
            return None
        kept = self._verdicts.record_expired(rows, batch.expires_ms, dispatched_us)
        if kept is not None:
            if not len(kept):
                return []
            rows, batch = rows.take(kept), batch.take(kept)
        batch = batch.with_columns(dispatched_us=dispatched_us)
        elsewhere = None
        if shipment.uncertain:
            elsewhere = unanswered_elsewhere(rows.payload, self._verdicts.policy(node))
        if elsewhere is not None or int(batch.redelivery.max()) > REDELIVERY.number_max:
            unanswered = elsewhere if elsewhere is not None else np.zeros(len(rows), np.uint32)
            batch = batch.with_columns(redelivery=REDELIVERY.pack(batch.redelivery, unanswered))
        rows.payload["attempts"] += 1
        began_us = self._clock.monotonic_us()
        answer = await self._hand_over(node, batch, began_us, uncertain=shipment.uncertain)
        self._answered(node, rows, answer, elsewhere, (queued_us, dispatched_us, began_us))
        return []

    async def _hand_over(self, node: BrokerNode, batch: StoredBatch, began_us: int, *, uncertain: bool) -> Answer:
        probe = node.health.begin()
        try:
            with trio.fail_after(self._settings.deliver_timeout_ms / 1000):
                answer = await node.target.deliver(batch, uncertain=uncertain)
        except DeliveryError as error:
            return Answer.failed(len(batch), str(error), known=error.known)
        except trio.TooSlowError:
            return Answer.failed(len(batch), "no answer in time", known=False)
        finally:
            node.health.end(probe)
            if probe and len(self._queue.keyed):  # these wait for the end of this one attempt
                self._queue.keyed.changed.ring()
        self._stages.hand_off.add(self._clock.monotonic_us() - began_us)
        if len(batch) > LARGE_ROWS:
            await self._turns.take()
        return answer

    def _left_queue(self, rows: DueRows, due_us: int) -> int:
        """When the rows were taken for this attempt, or are due if that is later."""
        queued_us = max(self._clock.now_us(), due_us)
        self._stages.queue.add(queued_us - max(int(rows.payload["released_us"][0]), due_us))
        return queued_us

    def _answered(
        self, node: BrokerNode, rows: DueRows, answer: Answer, elsewhere: U32 | None, times_us: tuple[int, int, int]
    ) -> None:
        """`times_us`: when the rows were queued for this attempt, when they were dispatched, and when the hand-over began,
        which is monotonic."""
        queued_us, dispatched_us, began_us = times_us
        judged = judge(rows.payload, answer, self._verdicts.policy(node))
        if judged.failed:
            node.health.record_failure(answer.reason, self._clock.monotonic_us(), began_us)
        else:
            node.health.record_success(self._clock.monotonic_us())
        if not judged.complete:
            self.rows.counters.count_failed_attempt()
            self._not_taken(node, rows, answer, judged)
            delivered = judged.places(RowFate.DELIVERED)
            if not len(delivered):
                return
            rows, answer = rows.take(delivered), Answer(answer.rows[delivered])
            elsewhere = elsewhere[delivered] if elsewhere is not None else None
        self._verdicts.record_delivered(rows, answer.rows, elsewhere, queued_us=queued_us, dispatched_us=dispatched_us)

    def _not_taken(self, node: BrokerNode, rows: DueRows, answer: Answer, judged: Judgement) -> None:
        """Rows that are not delivered go back, or are given up."""
        self._verdicts.mark_unanswered(rows, np.flatnonzero(judged.unanswered), node.health.number)
        dead = judged.places(RowFate.DEAD)
        if len(dead):
            self._verdicts.dead(rows.take(dead), answer.reason)
        again = judged.places(RowFate.AGAIN)
        if len(again):
            self._retry(rows.take(again))
        aside = judged.places(RowFate.ASIDE)
        if len(aside):
            self._wait_aside(rows.take(aside))

    def _retry(self, rows: DueRows) -> None:
        self._queueing.push_front(self.rows, rows)

    def _wait_aside(self, rows: DueRows) -> None:
        """Rows that a node did not take, while it takes others: they wait behind those, each longer every time."""
        if has_order_key(rows.payload[:1]).any():
            self._queue.keyed.pause(buckets_of(rows), self._clock.monotonic_us() + self._pause_aside_ms(rows) * 1000)
            self._queueing.push_front(self.rows, rows)
            return
        until_us = self._clock.monotonic_us() + self._pause_aside_ms(rows) * 1000
        if self._queueing.put_aside(self.rows, rows, until_us):
            self._put_aside.ring()
        else:
            self._queueing.leave(rows, self._settings.backoff_ms_max * 1000)

    def _pause_aside_ms(self, rows: DueRows) -> int:
        settings, attempts = self._settings, int(rows.payload["attempts"].min())
        pause_ms: int = min(settings.backoff_ms_min * 2 ** min(attempts - 1, 30), settings.backoff_ms_max)
        return pause_ms
