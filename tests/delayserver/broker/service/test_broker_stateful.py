"""The whole broker against a model, on a disk that forgets: nothing acked comes again, nothing else is lost.

The model knows records (by sequence), and per consumer group what became of each: free, leased, done or durably done.
"""

from __future__ import annotations

import os
from random import Random

import msgpack
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delayserver.broker.actions.retries import RetryBatch
from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.filters.filter import Filter
from delayserver.broker.filters.program import compile_expression
from delayserver.broker.queues.group_cursors import Cursor
from delayserver.broker.queues.places import LEASED as LEASED_AGAIN
from delayserver.broker.redelivery_policy import RedeliveryPolicy
from store.records.batches import StoredBatch
from tests.delayserver.broker.brokers import DirectBroker
from tests.fakes.disk import FakeDisk

SERVER = 7
SUBJECTS = (1, 2)
FILTERED = 13
GROUPS = (11, 12, FILTERED)
# The group with a filter gets tag 1, and that only where the property has this value.
WANTED = Filter([1], compile_expression("kind = 'b' OR n > 40"))
# Small enough that every bound is met: segments roll, index rows spill, the cache evicts, the progress log compacts.
LIMITS = BrokerLimits(
    segment_bytes=6000,
    queue_segment_bytes=1500,
    cache_bytes_max=6000,
    read_ahead_bytes=1000,
    queue_runs_max=4,
    blocks_cached_max=2,
    outstanding_max=40,
    progress_bytes_max=1500,
    window_extents_max=3,
    known_rows_max=30,
    retry_bytes_max=400,
    ack_timeout_ms_default=1000,
    retention_ms=10_000,
    redelivery=RedeliveryPolicy(100, 1_600),
    redelivery_bytes_max=3_000,
    redelivery_kept_ms=8_000,
    lease_ranges_max=24,
)
OWNERS = (0, 1, 2)
FREE, LEASED, DONE, DURABLE, MAYBE = "free", "leased", "done", "durable", "done or free"
Key = tuple[int, int]


# Milliseconds until a message expires, by its sequence; 0 means never.
LIVES_MS = (0, 0, 0, 700, 0, 0, 2_500, 0, 0, 0, 20_000)


def properties_of(sequence: int) -> dict[str, str]:
    return {"kind": "ab"[sequence % 2], "n": str(sequence)} if sequence % 5 else {}


def groups_of(sequence: int, target_group: int) -> list[int]:
    """The groups that get a message."""
    if target_group:
        return [target_group]
    wanted = sequence % 3 == 1 and sequence % 5 and (sequence % 2 or sequence > 40)
    return [group for group in GROUPS if group != FILTERED or wanted]


def body_of(sequence: int) -> bytes:
    return b"%d/" % sequence * (sequence % 5)


class BrokerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = FakeDisk()
        self.now_us = 1_900_000_000_000_000
        self.sequence = 1
        self.batches: list[StoredBatch] = []
        self.synced_batches = 0
        self.state: dict[Key, dict[int, str]] = {(s, g): {} for s in SUBJECTS for g in GROUPS}
        self.leases: dict[Key, dict[int, int]] = {key: {} for key in self.state}
        self.old_leases: dict[Key, dict[int, int]] = {key: {} for key in self.state}
        self.to_send: list[RetryBatch] = []
        self.expires_ms: dict[int, int] = {}
        self.expired_durable: dict[Key, int] = {}
        # Of what waits in its place: not before this time, and how often each message was handed out.
        self.not_before_us: dict[Key, dict[int, int]] = {key: {} for key in self.state}
        self.attempts: dict[Key, dict[int, int]] = {key: {} for key in self.state}
        # When a lease ends, by delivery, of leases for which that is known. Not before this time.
        self.until_us: dict[Key, dict[int, int]] = {key: {} for key in self.state}
        # To which owner a lease belongs, by delivery; the others belong to nobody.
        self.owner: dict[Key, dict[int, int]] = {key: {} for key in self.state}

    @initialize()
    def start(self) -> None:
        self._open()

    def _open(self) -> None:
        self.broker = DirectBroker.open(self.disk, "/data/broker", SERVER, self.now_us, LIMITS)
        for subject in SUBJECTS:
            self.broker.consuming.use_filter((subject, FILTERED), WANTED)

    # Delivering

    @rule(subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=12), window=st.sampled_from((0, 60_000)))
    def deliver(self, subjects: list[int], window: int) -> None:
        count = len(subjects)
        sequence = np.arange(self.sequence, self.sequence + count)
        self.sequence += count
        for number in sequence.tolist():
            life_ms = LIVES_MS[number % len(LIVES_MS)]
            self.expires_ms[number] = self.now_us // 1000 + life_ms if life_ms else 0
        self._send(self._batch(sequence, window, np.array(subjects, np.uint32), 0, 0, 0))

    def _batch(self, sequence, window, subject, target, redelivery, origin) -> StoredBatch:  # type: ignore[no-untyped-def]
        bodies = [body_of(number) for number in sequence.tolist()]
        properties = [msgpack.packb(properties_of(number)) for number in sequence.tolist()]
        return StoredBatch.filled(
            len(sequence),
            sequence=sequence,
            server_id=SERVER,
            window_ms=window,
            subject=subject,
            target_group=target,
            redelivery=redelivery,
            origin_sequence=origin,
            expires_ms=np.array([self.expires_ms[number] for number in sequence.tolist()], np.int64),
            bodies_length=np.array([len(body) for body in bodies], np.uint32),
            bodies=b"".join(bodies),
            tag=(sequence % 3).astype(np.uint32),
            properties_length=np.array([len(each) for each in properties], np.uint32),
            properties=b"".join(properties),
        )

    def _send(self, batch: StoredBatch) -> None:
        delivered = self.broker.deliver(batch, False, self.now_us)
        assert delivered.outcome.tolist() == [1] * len(batch)
        self.batches.append(batch)
        for sequence, subject, target in zip(batch.sequence, batch.subject, batch.target_group, strict=True):
            for group in groups_of(int(sequence), int(target)):
                self.state[int(subject), int(group)][int(sequence)] = FREE

    @precondition(lambda self: self.to_send)
    @rule()
    def send_retries(self) -> None:
        for retry in self.to_send:
            messages = retry.messages
            assert messages is not None
            sequence = np.arange(self.sequence, self.sequence + len(messages))
            self.sequence += len(messages)
            self.expires_ms |= zip(sequence.tolist(), messages.expires_ms.tolist(), strict=True)
            self._send(
                self._batch(
                    sequence, 0, messages.subject, messages.target_group, messages.redelivery, messages.origin_sequence
                )
            )
        self.to_send = []

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def deliver_again_uncertain(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.batches))
        assert self.broker.deliver(batch, True, self.now_us).outcome.tolist() == [2] * len(batch)

    # Consuming

    @rule(
        subject=st.sampled_from(SUBJECTS),
        group=st.sampled_from(GROUPS),
        count=st.integers(1, 20),
        owner=st.sampled_from(OWNERS),
    )
    def pull(self, subject: int, group: int, count: int, owner: int) -> None:
        self._pull((subject, group), count, 1 << 20, owner)

    @rule(subject=st.sampled_from(SUBJECTS), group=st.sampled_from(GROUPS))
    def look_at_an_arrival(self, subject: int, group: int) -> None:
        """As for a group whose pull waits."""
        if self.broker.consuming.passes_over((subject, group)):
            cursor = self.broker.state.groups[subject, group].main
            assert group == FILTERED and cursor.next == self.broker.positions.bounds(subject)[1]

    def _pull(self, key: Key, count: int, max_bytes: int, owner: int = 0) -> int:
        arguments = (*key, count, max_bytes, self.now_us, self.now_us, None, owner)
        pulled = self.broker.pull(*arguments)
        while pulled is None and self.broker.consuming.is_unfinished(key):
            pulled = self.broker.pull(*arguments)
        if pulled is None:
            return 0
        assert len(pulled) <= count
        bodies, position = bytes(pulled.batch.bodies), 0
        for sequence, delivery, length, attempt in zip(
            pulled.batch.sequence.tolist(),
            pulled.delivery.tolist(),
            pulled.batch.bodies_length.tolist(),
            pulled.attempt.tolist(),
            strict=True,
        ):
            assert self.not_before_us[key].pop(sequence, 0) <= self.now_us, f"{sequence} came before its pause was over"
            assert attempt > self.attempts[key].get(sequence, 0), f"{sequence} came as attempt {attempt} again"
            self.attempts[key][sequence] = attempt
            assert self.state[key][sequence] in (FREE, MAYBE), f"{sequence} is {self.state[key][sequence]}"
            assert bodies[position : position + length] == body_of(sequence)
            position += length
            assert not self._has_expired(sequence, self.now_us // 1000), f"{sequence} had expired"
            self.state[key][sequence] = LEASED
            self.leases[key][delivery] = sequence
            self.until_us[key][delivery] = self.now_us + LIMITS.ack_timeout_ms_default * 1000
            self.owner[key][delivery] = owner
        return len(pulled)

    def _has_expired(self, sequence: int, now_ms: int) -> bool:
        return 0 < self.expires_ms[sequence] <= now_ms

    @rule(data=st.data(), key=st.sampled_from([(s, g) for s in SUBJECTS for g in GROUPS]))
    def ack(self, data: st.DataObject, key: Key) -> None:
        deliveries = self._some(data, self.leases[key])
        acked = self.broker.consuming.ack(key, np.array(deliveries, np.int64))
        assert (acked.acked, acked.unknown) == (len(deliveries), 0)
        for delivery in deliveries:
            self.state[key][self.leases[key].pop(delivery)] = DONE

    def _some(self, data: st.DataObject, leases: dict[int, int]) -> list[int]:
        if not leases:
            return []
        every = sorted(leases)
        if data.draw(st.booleans()):
            return every
        return data.draw(st.lists(st.sampled_from(every), unique=True))

    @rule(data=st.data(), key=st.sampled_from([(s, g) for s in SUBJECTS for g in GROUPS]))
    def ack_what_was_pulled_before_the_restart(self, data: st.DataObject, key: Key) -> None:
        deliveries = self._some(data, self.old_leases[key])
        fresh = [
            d
            for d in deliveries
            # A pull may have passed over it since, because it has expired.
            if self.state[key][self.old_leases[key][d]] in (FREE, LEASED) and not self._is_done(key, d)
        ]
        acked = self.broker.consuming.ack(key, np.array(deliveries, np.int64))
        assert acked.acked == len(fresh)
        for delivery in fresh:
            sequence = self.old_leases[key][delivery]
            self.state[key][sequence] = DONE
            self.leases[key] = {d: s for d, s in self.leases[key].items() if s != sequence}

    @rule(
        data=st.data(),
        key=st.sampled_from([(s, g) for s in SUBJECTS for g in GROUPS]),
        timeout_ms=st.sampled_from((1, 700, 5_000)),
        owner=st.sampled_from(OWNERS),
    )
    def extend(self, data: st.DataObject, key: Key, timeout_ms: int, owner: int) -> None:
        deliveries = self._some(data, self.leases[key])
        before = self._some(data, self.old_leases[key])
        asked = np.array(deliveries + before, np.int64)
        extended = self.broker.consuming.extend(key, np.unique(asked), self.now_us, timeout_ms, owner)
        if not extended.full:
            assert (extended.extended, extended.unknown) == (len(deliveries), len(set(before) - set(deliveries)))
            self.until_us[key] |= dict.fromkeys(deliveries, self.now_us + timeout_ms * 1000)
            self.owner[key] |= dict.fromkeys(deliveries, owner)
        else:  # some of them may be extended
            for delivery in deliveries:
                self.until_us[key].pop(delivery, None)
                self.owner[key].pop(delivery, None)

    @rule(owners=st.sampled_from(({1}, {1, 2})), settle=st.booleans())
    def end_owners(self, owners: set[int], settle: bool) -> None:
        """Connections end."""
        for key in self.state:
            before = dict(self.leases[key])
            batch = self.broker.end_leases_of(key, owners, self.now_us, self.now_us)
            if batch is not None:
                self._retry(key, batch, settle, None, attempts=-1)
            gone = before.keys() - self.leases[key].keys()
            assert all(self.owner[key].get(delivery, 1) in owners for delivery in gone), "the lease of another owner"
            kept = [delivery for delivery in self.leases[key] if self.owner[key].get(delivery) in owners]
            assert batch is not None or not kept, "a lease outlived its owner"
            for delivery in kept:  # abandoned, or beyond the bound of a step: it belongs to nobody
                self.until_us[key].pop(delivery, None)
                self.owner[key].pop(delivery)

    @rule(
        data=st.data(),
        key=st.sampled_from([(s, g) for s in SUBJECTS for g in GROUPS]),
        settle=st.booleans(),
        delay_ms=st.sampled_from((None, 0, 5, 3_000)),
    )
    def nack(self, data: st.DataObject, key: Key, settle: bool, delay_ms: int | None) -> None:
        deliveries = self._some(data, self.leases[key])
        batch = self.broker.nack(*key, np.array(deliveries, np.int64), delay_ms, self.now_us, self.now_us)
        assert batch.unknown == 0
        for delivery in deliveries:  # what had no room or could not be settled is leased for longer, by nobody
            self.until_us[key].pop(delivery, None)
            self.owner[key].pop(delivery, None)
        self._retry(key, batch, settle, delay_ms)

    @rule(step_ms=st.sampled_from((1, 600, 1500)), settle=st.booleans())
    def expire(self, step_ms: int, settle: bool) -> None:
        self.now_us += step_ms * 1000
        deadline = self.broker.retries.next_deadline_us()
        batches = self.broker.expired_leases(self.now_us, self.now_us, 10)
        assert deadline is None or bool(batches) == (deadline <= self.now_us)
        for batch in batches:
            key = (batch.subject, batch.group)
            before = dict(self.leases[key])
            self._retry(key, batch, settle, None)
            for delivery in before.keys() - self.leases[key].keys():
                assert self.until_us[key].pop(delivery, 0) <= self.now_us, "a lease ended before its time"
            for delivery, until_us in list(self.until_us[key].items()):
                if until_us <= self.now_us:  # abandoned, and leased for another ack timeout
                    del self.until_us[key][delivery]
                    self.owner[key].pop(delivery, None)
        for key, leases in self.leases.items():
            known = [until for delivery, until in self.until_us[key].items() if delivery in leases]
            assert all(until > self.now_us for until in known) or len(batches) > 0, "a lease did not end in its time"

    def _retry(self, key: Key, batch: RetryBatch, settle: bool, delay_ms: int | None, attempts: int = 0) -> None:
        """`attempts`: the pause is as long as after so many more."""
        self._waits(key, delay_ms, attempts)
        gone = [delivery for delivery in self.leases[key] if self._is_done(key, delivery)]
        assert len(gone) == batch.expired
        for delivery in gone:
            sequence = self.leases[key].pop(delivery)
            assert self._has_expired(
                sequence, self.now_us // 1000 + self._pause_ms(key, sequence, delay_ms, attempts)
            ), f"{sequence} had not expired"
            self.state[key][sequence] = DONE
        if not settle:
            self.broker.retries.abandon(batch, self.now_us)
            return
        self.broker.retries.settle(batch)
        if not len(batch):
            return
        assert batch.messages is not None
        self.to_send.append(batch)
        due_ms = iter(batch.messages.due_ms.tolist())
        position, bodies = 0, bytes(batch.messages.bodies)
        retried = {d for retry, ranges in ((0, batch.main), (1, batch.retry)) for d in self._in(key, retry, ranges)}
        assert len(retried) == len(batch)
        expected = [self.leases[key][d] for d in sorted(retried)]
        for sequence, length in zip(expected, batch.messages.bodies_length.tolist(), strict=True):
            assert bodies[position : position + length] == body_of(sequence)
            position += length
            self.state[key][sequence] = DONE
            assert next(due_ms) == self.now_us // 1000 + self._pause_ms(key, sequence, delay_ms, attempts)
        for delivery in retried:
            del self.leases[key][delivery]

    def _pause_ms(self, key: Key, sequence: int, delay_ms: int | None, more: int = 0) -> int:
        """As long as asked for, or 100 ms, 200 ms and so on, by how often it was handed out."""
        number = self.attempts[key][sequence] + more
        return (min(100 * 2 ** (number - 1), 1_600) if number else 0) if delay_ms is None else delay_ms

    def _waits(self, key: Key, delay_ms: int | None, attempts: int) -> None:
        """What waits in its place since now is leased no more."""
        for delivery, sequence in list(self.leases[key].items()):
            cursor, position = self._cursor(key, delivery)
            if [place for place in cursor.places.parts(position, position + 1) if place.state != LEASED_AGAIN]:
                del self.leases[key][delivery]
                self.state[key][sequence] = FREE
                self.not_before_us[key][sequence] = (
                    self.now_us + self._pause_ms(key, sequence, delay_ms, attempts) * 1000
                )

    def _cursor(self, key: Key, delivery: int) -> tuple[Cursor, int]:
        return self.broker.state.groups[key].cursor(bool(delivery >> 62)), delivery & ((1 << 44) - 1)

    def _is_done(self, key: Key, delivery: int) -> bool:
        if key not in self.broker.state.groups:
            return False
        cursor, position = self._cursor(key, delivery)
        return position < cursor.committed or cursor.acked.following(position) is not None

    def _in(self, key: Key, retry: int, ranges) -> list[int]:  # type: ignore[no-untyped-def]
        mask = (1 << 44) - 1
        return [
            delivery
            for delivery in self.leases[key]
            if delivery >> 62 == retry and any(start <= delivery & mask < stop for start, stop in ranges)
        ]

    # Durability

    @rule()
    def sync(self) -> None:
        self.broker.durability.sync()
        self._synced()

    def _synced(self) -> None:
        assert self.broker.state.files.store.synced == self.broker.state.files.store.end
        assert not self.broker.durability.needs_sync()
        self.synced_batches = len(self.batches)
        self.expired_durable = {key: group.expired for key, group in self.broker.state.groups.items()}
        for states in self.state.values():
            states.update({sequence: DURABLE for sequence, state in states.items() if state == DONE})

    @rule()
    def checkpoint(self) -> None:
        self.broker.durability.checkpoint()

    @rule()
    def retire(self) -> None:
        self.now_us += 11_000_000
        self.broker.retention.retire(self.now_us)
        # What is gone from the store cannot be recognised any more; windows that are open keep their records.

    @rule(seed=st.integers(0, 1 << 20), clean=st.booleans())
    def restart(self, seed: int, clean: bool) -> None:
        if clean:
            self.broker.close()
            self._synced()
            self.disk.kill()
        else:
            self.disk.crash(Random(seed))
        self._open()
        assert not self.broker.state.damages.texts
        for key, count in self.expired_durable.items():
            assert self.broker.state.groups[key].expired >= count, "a count of expired messages fell"
        if not clean:  # what was not synced is not known any more
            self.not_before_us = {key: {} for key in self.state}
            self.attempts = {key: {} for key in self.state}
        self.old_leases = self.leases
        self.until_us = {key: {} for key in self.state}
        self.owner = {key: {} for key in self.state}
        self.leases = {key: {} for key in self.state}
        for states in self.state.values():
            changes = {LEASED: FREE, DONE: MAYBE}
            states.update({sequence: changes.get(state, state) for sequence, state in states.items()})
        self._deliver_again()

    def _deliver_again(self) -> None:
        """The server repeats what it has no durable answer for; what was lost stands at another position now."""
        for batch in self.batches[self.synced_batches :]:
            outcome = self.broker.deliver(batch, True, self.now_us).outcome.tolist()
            for sequence, subject, target, code in zip(
                batch.sequence.tolist(), batch.subject.tolist(), batch.target_group.tolist(), outcome, strict=True
            ):
                assert code in (1, 2)
                for key in [(subject, group) for group in groups_of(sequence, target)]:
                    if code == 1:
                        self.state[key][sequence] = FREE
                        self.old_leases[key] = {d: s for d, s in self.old_leases[key].items() if s != sequence}
        for batch in self.batches[: self.synced_batches]:
            assert self.broker.deliver(batch, True, self.now_us).outcome.tolist() == [2] * len(batch)

    @invariant()
    def holds_its_invariants(self) -> None:
        self.broker.check_invariants()
        state = self.broker.state
        assert state.files.store.cache_bytes <= LIMITS.cache_bytes_max
        assert all(queue.runs_in_memory <= LIMITS.queue_runs_max for queue in state.queues.values())
        for backlog, (key, group) in zip(
            self.broker.group_rows.backlogs(list(state.groups)), state.groups.items(), strict=True
        ):
            cursors = (group.main, group.retry)
            ends = [(state.queues.bounds(queue) or (0, 0))[1] for queue in ((key[0], 0), key)]
            unacked = [end - each.committed - each.acked.count() for each, end in zip(cursors, ends, strict=True)]
            assert (backlog.key, backlog.lag) == (key, sum(max(0, each) for each in unacked))
            assert backlog.leased == sum(each.leased() for each in cursors)
            assert backlog.retrying == sum(each.retrying.count() for each in cursors)
            assert group.redelivery_bytes <= LIMITS.redelivery_bytes_max
            group.kept(LIMITS.redelivery_kept_ms).check_invariants()
        assert all(len(extents) <= LIMITS.window_extents_max for extents in state.windows.extents.values())

    def teardown(self) -> None:
        """Everything that is not done can still be had."""
        self.now_us += 4_000_000
        for key, states in self.state.items():
            for delivery in [*self.leases[key]]:
                self.broker.consuming.ack(key, np.array([delivery]))
                states[self.leases[key].pop(delivery)] = DONE
            while self._pull(key, 7, 60):
                deliveries = np.array(list(self.leases[key]), np.int64)
                assert self.broker.consuming.ack(key, deliveries).acked == len(deliveries)
                for sequence in self.leases[key].values():
                    states[sequence] = DONE
                self.leases[key] = {}
            never = [s for s in states if states[s] == FREE and not self._has_expired(s, self.now_us // 1000)]
            assert not never, f"{key} never got {never}"


TestBroker = BrokerMachine.TestCase
TestBroker.settings = settings(
    max_examples=int(os.environ.get("BROKER_EXAMPLES", "30")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
