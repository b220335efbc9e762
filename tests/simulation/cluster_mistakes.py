"""Mistakes of a shard, put into its servers one at a time: the simulation must notice each of them.

As in `mistakes.py`, each is a change of one function while a block runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import trio

from delayserver.broker.service import shared_broker
from delayserver.broker.service.commit import BrokerCommit
from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.dispatch.dispatcher import Dispatcher
from delayserver.follow import follower
from delayserver.follow.follower import Follower
from delayserver.follow.shard_outcome_writer import ShardOutcomeWriter
from delayserver.lead.beating import Beating
from delayserver.lead.front_probe import FrontProbe
from delayserver.replay.deduplication import Deduplication
from delayserver.replay.replayer import Replayer
from delayserver.runtime.damage import DamageReport
from delayserver.server import broker_parts, cluster_parts
from delayserver.server.delay_server import DelayServer
from delayserver.state.memory.attempted import Attempted
from delayserver.state.shard.fronts import Fronts
from delayserver.state.shard.leading import Leading
from delayserver.state.shard.shard_sequences import ShardSequences
from store.shared.envelope import EnvelopeKind, unwrap
from store.shared.followed import FollowedTo
from store.shared.log_order import Validity
from tests.simulation.mistakes import Change


def outcomes_written_before_they_came_back() -> list[Change]:
    """Files are written before the record came back."""

    def mistaken(right: Any) -> Any:
        async def write(self: Any, batches: Any, new: Any) -> Any:
            keys = await self._local.write(batches, new)
            if self._proposing.decides:
                local, self._local = self._local, _Wrote(keys)
                try:
                    await right(self, batches, new)
                finally:
                    self._local = local
            return keys

        return write

    return [(ShardOutcomeWriter, "write", mistaken)]


class _Wrote:
    """A writer of outcomes that are written."""

    def __init__(self, keys: Any) -> None:
        self._keys = keys

    async def write(self, _batches: Any, _new: Any) -> Any:
        return self._keys


def zombies_count() -> list[Change]:
    """The record of a deposed primary behind a claim counts."""

    def mistaken(right: Any) -> Any:
        def read(self: Any, record: Any) -> None:
            before = self.void[Validity.OLD_EPOCH]
            right(self, record)
            if self.void[Validity.OLD_EPOCH] > before:
                _take_all_the_same(self, record)

        return read

    return [(Follower, "_read", mistaken)]


def copies_count() -> list[Change]:
    """A record that stands in the log twice counts twice."""

    def mistaken(right: Any) -> Any:
        def read(self: Any, record: Any) -> None:
            before = self.void[Validity.COPY]
            right(self, record)
            if self.void[Validity.COPY] > before:
                _take_all_the_same(self, record)

        return read

    return [(Follower, "_read", mistaken)]


def _take_all_the_same(follower: Any, record: Any) -> None:
    found = unwrap(record.data, follower._standing.seat.identity, record.position)
    if found.envelope.kind is EnvelopeKind.RECORDS and found.envelope.writer != follower._standing.seat.me:
        follower._take_records(found, record.position, len(record.data))


def horizon_forgotten() -> list[Change]:
    """A new primary does not know what the former one may have attempted."""
    return [(Attempted, "begin", lambda _: lambda *_: None)]


def no_lease() -> list[Change]:
    """A primary that stood still, or hears nothing of the log, goes on as before."""
    return [(Leading, "left_us", lambda _: property(lambda self: int(self._standing.leads)))]


def from_the_beginning() -> list[Change]:
    """A member that starts again reads the log from its beginning, whatever it has."""
    return [
        (cluster_parts, "followed_to", lambda _: lambda *_: FollowedTo()),
        (cluster_parts, "_require_place", lambda _: lambda *_: None),
    ]


def outcomes_of_others_ignored() -> list[Change]:
    """A standby does not apply the outcomes that the log brings."""

    def mistaken(right: Any) -> Any:
        def place(self: Any, entries: Any, done: Any) -> None:
            led_from, self._positions.led_from = self._positions.led_from, 0
            try:
                right(self, entries, done)
            finally:
                self._positions.led_from = led_from

        return place

    return [(Replayer, "_place", mistaken)]


def sequences_of_its_own() -> list[Change]:
    """A primary counts its sequences on from its own last one."""

    def mistaken(_right: Any) -> Any:
        def take(self: Any, count: int) -> int:
            first = int(self._next)
            self._next = first + count
            return first

        return take

    return [(ShardSequences, "take", mistaken)]


def follows_behind_its_end() -> list[Change]:
    """A primary that was superseded takes what its successor writes for two seconds, with a memory that ran ahead of the
    log. It takes it at once, and does not gather."""

    def mistaken(right: Any) -> Any:
        def arrived(self: Any, log: Any, records: Any) -> None:
            for record in records:
                self._superseded = False
                right(self, log, [record])

        return arrived

    def late(right: Any) -> Any:
        async def end(self: Any, scope: Any, cluster: Any) -> None:
            while cluster.standing.leads:
                await cluster.standing.epoch.reached(cluster.standing.epoch.value + 1)
            await self.clock.sleep_ms(2_000)
            await right(self, scope, cluster)

        return end

    return [
        (Follower, "_arrived", mistaken),
        (Follower, "_gathers", lambda _: property(lambda _self: False)),
        (DelayServer, "_end_when_superseded", late),
    ]


def acks_beside_the_log() -> list[Change]:
    """A primary answers acks that the log does not have."""
    return [(shared_broker, "_envelopes", lambda right: lambda plan: right(replace(plan, rows=type(plan.rows)())))]


def published_before_it_came_back() -> list[Change]:
    """A publish is answered before its record came back."""
    return [(BrokerCommit, "when_stored", lambda _: lambda self, _end, done: (done(None), self.soon()))]


def a_duplicate_dropped() -> list[Change]:
    """The replay of one member takes one copy for a message of its own."""

    def mistaken(right: Any) -> Any:
        dropped: list[Any] = []

        def mark(self: Any, key: Any, rows: Any, *, may_read: bool) -> Any:
            marked = right(self, key, rows, may_read=may_read)
            if not dropped and marked.duplicate_of.any():
                dropped.append(key)
                return marked.with_columns(duplicate_of=np.zeros(len(marked), np.int64))
            return marked

        return mark

    return [(Deduplication, "mark", mistaken)]


def stays_where_no_client_reaches_it() -> list[Change]:
    """A primary that no member reaches goes on: its beats do."""

    def mistaken(_right: Any) -> Any:
        async def leave(_self: Any) -> None:
            await trio.lowlevel.checkpoint()

        return leave

    return [(FrontProbe, "_leave", mistaken)]


def hands_over_in_a_common_fault() -> list[Change]:
    """A primary that no member reaches hands over, though no other one is reached either."""

    def mistaken(right: Any) -> Any:
        def heir(self: Any, living: Any, now_us: int) -> str:
            return right(self, living, now_us) or (
                living[0].member if len(self.unreached_by) == len(living) > 0 else ""
            )

        return heir

    return [(Fronts, "_heir", mistaken)]


def redeliveries_without_bound() -> list[Change]:
    """A primary writes redeliveries for a group that has no room for them."""

    def mistaken(right: Any) -> Any:
        def limits(ground: Any) -> Any:
            found = right(ground)
            return found if ground.outside.membership is None else replace(found, redelivery_bytes_max=1 << 60)

        return limits

    return [(broker_parts, "_limits", mistaken)]


def by_the_time_of_the_log() -> list[Change]:
    """A primary takes the latest time that any primary wrote into the log for its own, where that is later."""
    latest_us = [0]

    def arrived(right: Any) -> Any:
        def arrived(self: Any, log: Any, records: Any) -> None:
            right(self, log, records)
            latest_us[0] = max(latest_us[0], self._standing.written_us.value)

        return arrived

    def made(right: Any) -> Any:
        def made(self: Any, *args: Any, **named: Any) -> None:
            right(self, *args, **named)
            self._clock = _Ahead(self._clock, latest_us)

        return made

    return [(Follower, "_arrived", arrived), (Dispatcher, "__init__", made), (BrokerGroup, "__init__", made)]


def beats_with_a_disk_that_hangs() -> list[Change]:
    """A primary beats on while its disk confirms nothing."""

    def mistaken(_right: Any) -> Any:
        async def run(self: Any) -> None:
            while self._standing.leads and not self._stopped:
                self._came_back.hush()
                self._beat()
                await self._clock.sleep_ms(self._settings.beat_ms)
                await self._came_back.rung()

        return run

    return [(Beating, "run", mistaken)]


class _Ahead:
    """A clock that shows at least the time in `latest_us`."""

    def __init__(self, clock: Any, latest_us: list[int]) -> None:
        self._clock = clock
        self._latest_us = latest_us

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def _ahead_us(self) -> int:
        return max(self._latest_us[0] - int(self._clock.now_us()), 0)

    def now_us(self) -> int:
        return int(self._clock.now_us()) + self._ahead_us()

    def now_ms(self) -> int:
        return self.now_us() // 1000

    def wait_s(self, wall_us: int) -> float:
        return float(self._clock.wait_s(wall_us - self._ahead_us()))

    async def sleep_until_us(self, wall_us: int) -> None:
        await self._clock.sleep_until_us(wall_us - self._ahead_us())


def given_up_in_front_of_the_barrier() -> list[Change]:
    """The primary writes a new kind of record before all members read it."""
    return [(broker_parts, "_has_kept", lambda _: lambda *_: True)]


def a_barrier_forgotten() -> list[Change]:
    """What a member keeps of its place in the log is without the version of the log."""

    def mistaken(right: Any) -> Any:
        def marker(came: Any, place: Any) -> Any:
            return right([(replace(each, barrier=0), count) for each, count in came], replace(place, barrier=0))

        return marker

    return [(follower, "marker", mistaken)]


def reads_on_behind_a_barrier() -> list[Change]:
    """A member goes on behind a barrier that its program does not read."""
    return [(module, "require_readable", lambda _: lambda *_: None) for module in (follower, cluster_parts)]


def a_lost_place_begins_anew() -> list[Change]:
    """A member that lost its message_log follows the shared log from its beginning, beside files that have all of it."""
    return [(cluster_parts, "_require_place", lambda _: lambda *_: None)]


def leads_with_known_damage() -> list[Change]:
    """A member that knows of damage in its directory claims all the same."""
    return [(DamageReport, "forbids_leading", lambda _: lambda _self: False)]


# Each with a seed that notices it.
CLUSTER_MISTAKES: tuple[tuple[Callable[[], list[Change]], int], ...] = (
    (outcomes_written_before_they_came_back, 6),
    (zombies_count, 5),
    (copies_count, 5),
    (horizon_forgotten, 12),
    (no_lease, 5),
    (from_the_beginning, 4),
    (outcomes_of_others_ignored, 4),
    (sequences_of_its_own, 4),
    (follows_behind_its_end, 38),
    (acks_beside_the_log, 3),
    (published_before_it_came_back, 0),
    (a_duplicate_dropped, 4),
    (stays_where_no_client_reaches_it, 9),
    (hands_over_in_a_common_fault, 2),
    (redeliveries_without_bound, 0),
    (by_the_time_of_the_log, 14),
    (beats_with_a_disk_that_hangs, 1),
    (given_up_in_front_of_the_barrier, 13),
    (a_barrier_forgotten, 0),
    (reads_on_behind_a_barrier, 94),
    (a_lost_place_begins_anew, 40),
    (leads_with_known_damage, 0),
)
