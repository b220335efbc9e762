"""Messages of one order key go out one after the other: across nacks, ended leases, consumers that die, and restarts.

The model knows each message by its sequence, which rises with its position. It judges every pull and every ack.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from delayserver.broker.actions.retries import NACKED, Failure, RetryBatch
from delayserver.broker.policy import WAIT, ConsumerPolicy
from delayserver.broker.pulled_batch import PulledBatch
from delayserver.broker.redelivery_policy import RedeliveryPolicy
from store.records.batches import StoredBatch
from store.records.id_hash import hash_ids
from tests.delayserver.broker.brokers import GROUP, LIMITS, NOW_US, SERVER, SUBJECT, DirectBroker, open_broker
from tests.fakes.disk import FakeDisk

ACK_TIMEOUT_US = 1_000_000
# No message of a nack has room in the delay pipeline: those without a key wait in their place as well.
ORDER_LIMITS = replace(
    LIMITS,
    ack_timeout_ms_default=ACK_TIMEOUT_US // 1000,
    redelivery=RedeliveryPolicy(100, 400),
    redelivery_bytes_max=0,
    blocked_messages_max=60,
)


def keyed(first: int, keys: list[str], expires_ms: int = 0) -> StoredBatch:
    """Messages with these order keys, "" for none, and sequences from `first` on."""
    data = [key.encode() for key in keys]
    lengths = np.array([len(each) for each in data], np.uint32)
    return StoredBatch.filled(
        len(keys),
        sequence=np.arange(first, first + len(keys)),
        server_id=SERVER,
        window_ms=60_000,
        subject=SUBJECT,
        expires_ms=expires_ms,
        bodies_length=50,
        bodies=bytes(50 * len(keys)),
        order_keys=b"".join(data),
        order_keys_length=lengths,
        order_hash=hash_ids(b"".join(data), lengths),
    )


def set_policy(broker: DirectBroker, policy: ConsumerPolicy) -> None:
    broker.state.policies.apply(broker.state.policies.write((SUBJECT, GROUP), policy, 77))


class Scene:
    """A broker with messages, and consumers of one group."""

    def __init__(self, keys: list[str], limits: object = ORDER_LIMITS) -> None:
        self.disk = FakeDisk()
        self.limits = limits
        self.now_us = NOW_US
        self.broker = self._open()
        self.sent = 0
        if keys:
            self.send(keys)

    def _open(self) -> DirectBroker:
        return open_broker(self.disk, self.limits, self.now_us)  # type: ignore[arg-type]

    def send(self, keys: list[str], group: int = 0) -> None:
        """To all groups, or to one: then they come in its retry queue."""
        batch = keyed(self.sent + 1, keys)
        self.broker.deliver(replace(batch, target_group=np.full(len(keys), group, np.uint32)), False, self.now_us)
        self.sent += len(keys)

    def pull(self, count: int = 100) -> PulledBatch | None:
        return self.broker.pull(SUBJECT, GROUP, count, 1 << 20, self.now_us, self.now_us)

    def pulled(self, count: int = 100) -> list[int]:
        found = self.pull(count)
        return [] if found is None else found.batch.sequence.tolist()

    def ack(self, pulled: PulledBatch, *rows: int) -> int:
        deliveries = pulled.delivery[list(rows)] if rows else pulled.delivery
        return self.broker.consuming.ack((SUBJECT, GROUP), deliveries).acked

    def nack(self, pulled: PulledBatch, *rows: int, delay_ms: int | None = 0, failed: bool = True) -> RetryBatch:
        deliveries = pulled.delivery[list(rows)] if rows else pulled.delivery
        failure = Failure(NACKED, "no") if failed else None
        batch = self.broker.nack(SUBJECT, GROUP, deliveries, delay_ms, self.now_us, self.now_us, failure)
        self._settle(batch)
        return batch

    def _settle(self, batch: RetryBatch) -> None:
        if batch.given_up is not None:
            self.broker.dead_letters.bury(batch, "subject", "group", 1000 + self.now_us % 1000, self.now_us)
        self.broker.retries.settle(batch)

    def wait(self, duration_us: int) -> None:
        self.now_us += duration_us
        for batch in self.broker.expired_leases(self.now_us, self.now_us, 1000):
            self._settle(batch)

    def restart(self, *, synced: bool = True) -> None:
        if synced:
            self.broker.durability.sync()
        self.disk.kill()
        self.broker = self._open()

    def check(self) -> None:
        for group in self.broker.state.groups.values():
            group.check_invariants()


def test_a_message_waits_until_the_one_before_it_of_its_key_is_acked() -> None:
    scene = Scene(["a", "b", "a", "", "b", "a"])
    first = scene.pull(1)
    assert first is not None and first.batch.sequence.tolist() == [1]
    assert scene.pulled() == [2, 4, 5], "another key, and no key, go on; a key may go out as a run"
    assert scene.pulled() == []
    assert scene.ack(first) == 1
    assert scene.pulled() == [3, 6]
    scene.check()


def test_one_pull_gets_neighbours_of_a_key_in_order() -> None:
    scene = Scene(["a"] * 50)
    assert scene.pulled(20) == list(range(1, 21))
    assert scene.pulled() == []


def test_a_key_that_becomes_free_gives_out_its_neighbours_together() -> None:
    scene = Scene(["a"] * 30)
    first = scene.pull(1)
    assert first is not None
    assert scene.pulled() == []
    scene.ack(first)
    assert scene.pulled() == list(range(2, 31))
    scene.check()


def test_the_key_waits_behind_a_nacked_message() -> None:
    scene = Scene(["a", "a", "b", "a"])
    first = scene.pull(3)
    assert first is not None
    scene.nack(first, 0, delay_ms=200)
    assert scene.ack(first, 1) == 0, "the second message of the key was taken back with the first one"
    assert scene.ack(first, 2) == 1
    assert scene.pulled() == []
    scene.wait(200_000)
    again = scene.pull()
    assert again is not None and again.batch.sequence.tolist() == [1]
    assert again.attempt.tolist() == [2]
    assert scene.ack(again) == 1
    rest = scene.pull()
    assert rest is not None and rest.batch.sequence.tolist()[:1] == [2]
    assert rest.attempt.tolist()[0] == 1, "it did not fail"


def test_an_ack_of_one_of_a_thousand_leases_before_is_unknown() -> None:
    scene = Scene(["a"])
    old: list[PulledBatch] = []
    for number in range(70):
        pulled = scene.pull(1)
        assert pulled is not None and pulled.batch.sequence.tolist() == [1], number
        assert all(scene.ack(each) == 0 for each in old)
        old.append(pulled)
        scene.nack(pulled)
    last = scene.pull(1)
    assert last is not None and last.batch.sequence.tolist() == [1]
    assert len({int(each.delivery[0]) for each in [*old, last]}) == 71
    assert [scene.ack(each) for each in old] == [0] * 70
    assert scene.ack(last) == 1
    scene.check()


def test_an_ended_lease_passes_the_key_to_another_consumer_and_refuses_the_old_one() -> None:
    scene = Scene(["a", "a"])
    dead = scene.pull()
    assert dead is not None and len(dead) == 2
    scene.wait(ACK_TIMEOUT_US)
    scene.wait(100_000)
    second = scene.pull()
    assert second is not None and second.batch.sequence.tolist() == [1]
    assert scene.ack(dead) == 0, "its lease has ended, and another consumer has the key"
    assert scene.nack(dead).unknown == 2
    assert scene.ack(second) == 1
    assert scene.pulled() == [2]
    scene.check()


def test_a_restart_gives_out_a_key_from_its_first_unfinished_message() -> None:
    scene = Scene(["a", "b", "a", "a", "b"])
    first = scene.pull(2)
    assert first is not None
    scene.pulled()
    scene.ack(first, 1)
    scene.nack(first, 0, delay_ms=60_000)
    scene.restart()
    assert scene.pulled() == [1, 3, 4, 5], "in order; the pause of the nack ends with the process"


def test_deliveries_of_the_process_before_do_not_ack_a_lease_of_this_one() -> None:
    scene = Scene(["a", "a"])
    before = scene.pull(1)
    assert before is not None
    scene.restart()
    now = scene.pull(1)
    assert now is not None and now.batch.sequence.tolist() == [1]
    assert scene.ack(before) == 0
    assert scene.ack(now) == 1


def test_a_dead_letter_frees_its_key() -> None:
    scene = Scene(["a", "a"])
    set_policy(scene.broker, ConsumerPolicy(attempts=1))
    first = scene.pull(1)
    assert first is not None and scene.pulled() == []
    scene.nack(first)
    assert scene.pulled() == [2]
    scene.check()


def test_with_the_policy_wait_a_key_waits_for_its_failed_message_without_end() -> None:
    scene = Scene(["a", "a"])
    set_policy(scene.broker, ConsumerPolicy(attempts=1, failed_key=WAIT))
    for attempt in (1, 2, 3):
        pulled = scene.pull(1)
        assert pulled is not None and pulled.batch.sequence.tolist() == [1] and pulled.attempt.tolist() == [attempt]
        assert scene.nack(pulled, delay_ms=None).given_up is None
        scene.wait(400_000)


def test_a_group_reads_no_further_when_many_messages_wait_for_keys() -> None:
    scene = Scene(["a"] * 200)
    scene.pull(1)
    for _ in range(10):
        scene.pulled(25)
    blocked = scene.broker.state.groups[SUBJECT, GROUP].main.blocked()
    assert ORDER_LIMITS.blocked_messages_max <= blocked < ORDER_LIMITS.blocked_messages_max + 25


def test_a_seek_forgets_which_messages_wait_for_their_key() -> None:
    scene = Scene(["a", "a", "a"])
    scene.pull(1)
    scene.pulled()
    scene.broker.positions.seek((SUBJECT, GROUP), 1)
    assert scene.pulled() == [2, 3]
    scene.check()


def test_a_failed_message_comes_alone_and_the_rest_of_its_key_in_a_run() -> None:
    scene = Scene(["a"] * 5)
    first = scene.pull()
    assert first is not None and len(first) == 5
    scene.nack(first, 0)
    again = scene.pull()
    assert again is not None and again.batch.sequence.tolist() == [1], "a poisonous one takes no other attempts with it"
    scene.ack(again)
    rest = scene.pull()
    assert rest is not None and rest.batch.sequence.tolist() == [2, 3, 4, 5] and rest.attempt.tolist() == [1] * 4
    scene.check()


def test_fresh_messages_do_not_go_out_with_a_failed_one_of_their_key() -> None:
    scene = Scene(["a", "a"])
    first = scene.pull()
    assert first is not None
    scene.nack(first, 0)
    scene.send(["a", "b"])
    assert scene.pulled() == [1, 4], "3 must not pass 2, which waits for 1"
    scene.check()


def test_only_the_first_message_of_a_key_uses_up_an_attempt() -> None:
    scene = Scene(["a", "a", "a", "b"])
    set_policy(scene.broker, ConsumerPolicy(attempts=1))
    assert scene.pulled() == [1, 2, 3, 4]
    scene.wait(ACK_TIMEOUT_US)
    rest = scene.pull()
    assert rest is not None and rest.batch.sequence.tolist() == [2, 3], "the consumer died with 1 and 4"
    assert scene.nack(rest).given_up is not None
    assert scene.pulled() == [3]
    scene.check()


def test_a_message_that_fails_behind_a_leased_one_waits_for_its_pause_and_its_attempt_counts() -> None:
    scene = Scene(["a", "a"])
    first = scene.pull()
    assert first is not None
    scene.nack(first, 1, delay_ms=200)
    assert scene.ack(first, 0) == 1
    assert scene.pulled() == [], "its pause does not end with the ack"
    scene.wait(200_000)
    again = scene.pull()
    assert again is not None and again.batch.sequence.tolist() == [2] and again.attempt.tolist() == [2]


def test_a_message_that_expires_at_the_head_of_its_key_frees_it_in_the_same_pull() -> None:
    scene = Scene([])
    scene.broker.deliver(keyed(1, ["a"], expires_ms=NOW_US // 1000 + 300), False, NOW_US)
    scene.broker.deliver(keyed(2, ["a"]), False, NOW_US)
    first = scene.pull(1)
    assert first is not None
    assert scene.pulled() == []
    scene.nack(first, delay_ms=0)
    scene.now_us += 400_000
    assert scene.pulled() == [2], "nothing would wake the next pull"
    scene.check()


def test_a_message_that_was_sent_again_has_its_key_for_itself() -> None:
    scene = Scene(["a", "a"])
    first = scene.pull(1)
    assert first is not None
    scene.broker.deliver(replace(keyed(50, ["a"]), target_group=np.full(1, GROUP, np.uint32)), False, NOW_US)
    scene.broker.deliver(keyed(60, ["b"]), False, NOW_US)
    assert scene.pulled() == [60], "1 is out: neither 2 nor the one for the group alone may go out"
    scene.ack(first)
    both = scene.pull()
    assert both is not None and sorted(both.batch.sequence.tolist()) in ([2], [50], [2, 50])
    assert scene.pulled() == []
    scene.ack(both)
    if len(both) == 1:
        assert len(scene.pulled()) == 1
    scene.check()


def test_a_nacked_message_of_the_retry_queue_waits_in_its_place_too() -> None:
    scene = Scene([], replace(ORDER_LIMITS, redelivery_bytes_max=1 << 30))
    scene.broker.deliver(replace(keyed(50, ["a"]), target_group=np.full(1, GROUP, np.uint32)), False, NOW_US)
    scene.send(["a"])
    first = scene.pull(1)
    assert first is not None and first.batch.sequence.tolist() == [50]
    batch = scene.nack(first, delay_ms=0)
    assert batch.messages is None, "no record goes to the delay pipeline"
    assert scene.pulled(1) == [50]
    scene.check()


def test_leases_of_messages_without_a_key_do_not_end_with_those_around_them() -> None:
    scene = Scene(["a", "", "b", "", "a", ""])
    keyed_one = scene.pull(1)
    assert keyed_one is not None
    scene.now_us += ACK_TIMEOUT_US // 2
    rest = scene.pull()
    assert rest is not None and rest.batch.sequence.tolist() == [2, 3, 4, 6]
    scene.wait(ACK_TIMEOUT_US // 2)
    assert scene.ack(rest) == 4, "only the lease of 1 has ended"
    scene.wait(400_000)
    assert scene.pulled() == [1]


def test_a_key_that_was_blocked_has_a_deadline_of_its_own() -> None:
    scene = Scene(["a", "", "a"])
    first = scene.pull(1)
    assert first is not None and scene.pulled() == [2]
    scene.now_us += ACK_TIMEOUT_US // 2
    scene.ack(first)
    second = scene.pull()
    assert second is not None and second.batch.sequence.tolist() == [3]
    scene.wait(ACK_TIMEOUT_US // 2)  # the lease of the pull that looked at it first
    assert scene.ack(second) == 1
    scene.check()


def test_acks_of_many_scattered_messages_are_one_step_and_count_each() -> None:
    scene = Scene([f"k{number % 100}" for number in range(200)])
    first = scene.pull(100)
    assert first is not None and len(first) == 100
    assert scene.ack(first, *range(0, 100, 2)) == 50
    assert scene.pulled() == list(range(101, 201, 2))
    assert scene.ack(first, *range(0, 100, 2)) == 0, "twice"
    assert scene.ack(first, *range(1, 100, 2)) == 50
    assert scene.pulled() == list(range(102, 201, 2))
    scene.restart()
    assert scene.pulled(200) == list(range(101, 201))


def test_attempts_of_a_failed_message_outlive_a_restart_and_a_snapshot_of_the_progress_log() -> None:
    scene = Scene(["a", "a", "a"], replace(ORDER_LIMITS, progress_bytes_max=0))
    for number in (1, 2):
        pulled = scene.pull(1)
        assert pulled is not None and pulled.attempt.tolist() == [number]
        scene.nack(pulled)
        scene.broker.durability.sync()
    scene.restart()
    pulled = scene.pull()
    assert pulled is not None and pulled.batch.sequence.tolist() == [1, 2, 3]
    assert pulled.attempt.tolist()[0] == 3
    scene.nack(pulled, 0)
    scene.restart()
    again = scene.pull()
    assert again is not None and again.attempt.tolist() == [4, 1, 1], "2 and 3 were taken back: no attempt of theirs"


def test_attempts_before_a_restart_count_behind_it() -> None:
    scene = Scene(["a", "a"])
    for number in (1, 2):
        pulled = scene.pull(1)
        assert pulled is not None and pulled.attempt.tolist() == [number]
        scene.nack(pulled)
    scene.restart()
    third = scene.pull(1)
    assert third is not None and third.attempt.tolist() == [3], "the progress log has the two attempts"
    scene.nack(third)
    assert scene.pulled(1) == [1]
    scene.restart()
    fifth = scene.pull(1)
    assert fifth is not None and fifth.attempt.tolist() == [5], "the fourth was leased when the process ended"


def test_a_failed_attempt_counts_once_however_often_the_server_restarts() -> None:
    scene = Scene(["b", "a"])
    first = scene.pull()
    assert first is not None
    scene.nack(first, 1, delay_ms=60_000)
    for _ in range(3):  # in each process the group has a lease of something
        scene.restart()
        (row,) = [each for each in [scene.pull(1)] if each is not None]
        assert row.batch.sequence.tolist() == [1]
    scene.restart()
    again = scene.pull()
    assert again is not None and again.batch.sequence.tolist() == [1, 2] and again.attempt.tolist()[1] == 2


def test_a_message_that_was_looked_at_again_and_stayed_behind_has_no_further_attempt() -> None:
    scene = Scene(["a", "a", "a"])
    first = scene.pull()
    assert first is not None
    scene.nack(first, 0, delay_ms=60_000)
    scene.restart()
    assert scene.pulled(1) == [1]
    assert scene.pulled() == [], "2 and 3 are ready in their places, and blocked again"
    scene.restart()
    again = scene.pull()
    assert again is not None and again.batch.sequence.tolist() == [1, 2, 3] and again.attempt.tolist() == [3, 1, 1]


def test_the_last_attempt_is_the_one_that_the_policy_names() -> None:
    scene = Scene(["a", "a"])
    set_policy(scene.broker, ConsumerPolicy(attempts=3))
    for number in (1, 2, 3):
        pulled = scene.pull()
        assert pulled is not None and pulled.attempt.tolist()[0] == number
        assert (scene.nack(pulled, 0).given_up is not None) == (number == 3)
    rest = scene.pull()
    assert rest is not None and rest.batch.sequence.tolist() == [2] and rest.attempt.tolist() == [1]


def test_unseen_messages_come_again_as_a_run() -> None:
    scene = Scene(["a", "a", "a"])
    first = scene.pull()
    assert first is not None
    scene.nack(first, failed=False)
    assert scene.pulled() == [1, 2, 3]
    scene.check()


def test_a_last_attempt_without_room_for_its_letter_holds_its_key() -> None:
    scene = Scene(["a", "a"])
    set_policy(scene.broker, ConsumerPolicy(attempts=1))
    first = scene.pull()
    assert first is not None
    failure = Failure(NACKED, "no")
    batch = scene.broker.nack(SUBJECT, GROUP, first.delivery, 0, scene.now_us, scene.now_us, failure)
    scene.broker.retries.keep_unburied(batch, scene.now_us)
    scene.check()
    assert scene.pulled() == []
    scene.wait(ACK_TIMEOUT_US)
    assert scene.pulled() == [2], "there was room at the end of the lease"
    scene.check()


def test_an_operator_may_take_messages_that_wait_for_their_key_and_give_them_back() -> None:
    scene = Scene(["a", "a", "b", "a"])
    broker, key = scene.broker, (SUBJECT, GROUP)
    first = scene.pull(1)
    assert first is not None and scene.pulled() == [3]
    claim = broker.claim_dead(key, None, -1, 10, 1 << 20)
    assert claim.letters.batch.sequence.tolist() == [2, 4], "those that wait for 1"
    scene.check()
    scene.send(["c", "a"])
    scene.ack(first)
    assert scene.pulled() == [5, 6], "nothing of the key is out or waits"
    broker.dead_queue.give_back(claim)
    assert scene.pulled() == []
    scene.check()
    scene.wait(ACK_TIMEOUT_US)
    scene.wait(400_000)
    again = scene.pull()
    assert again is not None and [each for each in again.batch.sequence.tolist() if each in (2, 4, 6)] == [2, 4]
    assert broker.dead_queue.drop(key, None, 10) == 1, "6 comes alone, behind them"
    scene.check()


@pytest.mark.parametrize("seed", range(30))
def test_any_order_of_events_keeps_the_order_of_every_key(seed: int) -> None:
    chance = Random(seed)
    names = ["", "a", "b", "c", *[f"k{number}" for number in range(chance.choice([0, 20]))]]
    scene = Scene([chance.choice(names) for _ in range(30)])
    keys = _Keys(scene, chance, names)
    for _ in range(150):
        keys.step()
    keys.finish()


class _Keys:
    """The model of one group: who has which message, and what is done."""

    def __init__(self, scene: Scene, chance: Random, names: list[str]) -> None:
        self.scene, self.chance, self.names = scene, chance, names
        self.key_of: dict[int, str] = {}
        self._learn()
        self.done: set[int] = set()
        self.leased: dict[int, int] = {}
        self.pulls: list[tuple[PulledBatch, int]] = []
        self.restarted_at = 0
        # Messages that wait for their pause: no other consumer has them, so a late ack of them counts.
        self.failed: set[int] = set()

    def _learn(self) -> None:
        store = self.scene.broker.state.files.store
        for run in store.columns(0, store.end):
            for sequence, order_hash in zip(
                run.columns["sequence"].tolist(), run.columns["order_hash"].tolist(), strict=True
            ):
                self.key_of[sequence] = str(order_hash) if order_hash else ""
            for sequence, group in zip(
                run.columns["sequence"].tolist(), run.columns["target_group"].tolist(), strict=True
            ):
                if group and self.key_of[sequence]:
                    self.key_of[sequence] += "again"

    def before(self, sequence: int) -> set[int]:
        """The earlier messages of its key and queue that are not done."""
        key = self.key_of[sequence]
        return {other for other, of in self.key_of.items() if key and of == key and other < sequence} - self.done

    def step(self) -> None:
        chance = self.chance
        act = chance.choice(
            ["pull"] * 5 + ["ack"] * 5 + ["nack", "nack", "wait", "send", "restart", "stale", "long wait"]
        )
        if act == "pull":
            self.pull(chance.choice([1, 3, 20]))
        elif act in ("ack", "stale"):
            self.ack(stale=act == "stale")
        elif act == "nack":
            self.nack()
        elif act == "send" and self.scene.sent < 200:
            again = chance.random() < 0.2
            names = [chance.choice(self.names) for _ in range(chance.randrange(1, 4 if again else 20))]
            self.scene.send(names, GROUP if again else 0)
            self._learn()
        elif act == "restart" and chance.random() < 0.3:
            self.scene.restart()
            self.leased.clear()
            self.restarted_at = len(self.pulls)
        elif act == "wait":
            self.wait(chance.choice([1_000, 150_000]))
        elif act == "long wait":
            self.wait(ACK_TIMEOUT_US)
        self.scene.check()

    def pull(self, count: int) -> int:
        pulled = self.scene.pull(count)
        if pulled is None:
            return 0
        sequences = pulled.batch.sequence.tolist()
        held = {self.key_of[sequence].removesuffix("again") for sequence in self.leased} - {""}
        for place, sequence in enumerate(sequences):
            assert self.key_of[sequence].removesuffix("again") not in held, f"two consumers have the key of {sequence}"
            assert sequence not in self.done, f"{sequence} was acked, and came again"
            assert sequence not in self.leased, f"{sequence} is leased twice"
            assert self.before(sequence) <= set(sequences[:place]), f"{sequence} overtook {self.before(sequence)}"
        self.pulls.append((pulled, self.scene.now_us + ACK_TIMEOUT_US))
        self.leased |= dict.fromkeys(sequences, len(self.pulls) - 1)
        self.failed -= set(sequences)
        return len(sequences)

    def ack(self, *, stale: bool) -> None:
        if not self.pulls:
            return
        number = self.chance.randrange(len(self.pulls)) if stale else len(self.pulls) - 1
        pulled = self.pulls[number][0]
        for row, sequence in enumerate(pulled.batch.sequence.tolist()):
            if self.chance.random() < 0.2:
                continue
            acked, key = self.scene.ack(pulled, row), self.key_of[sequence]
            if self.leased.get(sequence) == number:
                assert acked == 1, f"the lease of {sequence} counts"
            elif acked and key:
                assert sequence not in self.leased, f"{sequence} belongs to another consumer"
                # A new process does not know what the one before took back. It believes the consumer that had it.
                known = number < self.restarted_at or sequence in self.failed
                assert known or not self.before(sequence), f"{sequence} was taken back"
            if acked:
                self.done.add(sequence)
                self.leased.pop(sequence, None)

    def nack(self) -> None:
        if not self.pulls:
            return
        pulled = self.pulls[-1][0]
        number, sequences = len(self.pulls) - 1, pulled.batch.sequence.tolist()
        rows = [row for row in range(len(sequences)) if self.chance.random() < 0.4]
        if not rows:
            return
        self.scene.nack(pulled, *rows, delay_ms=self.chance.choice([0, 0, 100, None]))
        first: dict[str, int] = defaultdict(lambda: 1 << 62)
        for row in rows:
            if self.leased.get(sequences[row]) == number:
                del self.leased[sequences[row]]
                key = self.key_of[sequences[row]]
                first[key] = min(first[key], sequences[row])
        self.failed |= set(first.values())
        for sequence in list(self.leased):
            key = self.key_of[sequence]
            if key and sequence > first[key]:
                del self.leased[sequence]

    def wait(self, duration_us: int) -> None:
        self.scene.wait(duration_us)
        ended = {number for number, (_, until_us) in enumerate(self.pulls) if until_us <= self.scene.now_us}
        lost = {sequence for sequence, number in self.leased.items() if number in ended}
        self.failed |= {sequence for sequence in lost if not self.before(sequence) & lost}
        for sequence in list(self.leased):
            if sequence in lost or any(earlier in lost for earlier in self.before(sequence)):
                del self.leased[sequence]

    def finish(self) -> None:
        """Every message comes in the end."""
        for _ in range(2_000):
            if len(self.done) == self.scene.sent:
                return
            if self.pull(50):
                number = len(self.pulls) - 1
                pulled = self.pulls[number][0]
                assert self.scene.ack(pulled) == len(pulled)
                self.done |= set(pulled.batch.sequence.tolist())
                for sequence in pulled.batch.sequence.tolist():
                    self.leased.pop(sequence, None)
            else:
                self.wait(ACK_TIMEOUT_US)
        raise AssertionError(f"these never came: {sorted(set(self.key_of) - self.done)}")
