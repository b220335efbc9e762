"""Bad days of the broker, on a real process with real files and sockets: damage at rest, a consumer that dies with order
keys in its hands, two producers that answer a check-back differently, and a group that lags too far.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from delayserver.client import Client, Delivery
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.outcomes import Outcome
from tests.crash.process import KIB, ServerUnderTest, small_settings
from tests.delayserver.client.listening.listeners import until
from tests.delayserver.recover.directories import in_process

SUBJECT, GROUP = "bad.day", "g"
WAIT_S = 60.0
BATCH = 10
PULL_MAX = 16_384  # of `broker.pull_messages_max`


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerUnderTest]:
    made = ServerUnderTest(tmp_path)
    yield made
    made.clean_up()


def publish_batch(client: Client, name: str, body_bytes: int = 1 * KIB) -> None:
    """A record of the store for itself, of messages with a key that `find` knows."""
    for number in range(BATCH):
        body = f"{name} {number} ".encode().ljust(body_bytes, b".")
        client.publish(SUBJECT, body, message_id=f"{name}-{number}", properties={"keys": name})


def name_of(delivery: Delivery) -> str:
    return delivery.body.decode().partition(" .")[0].rstrip()


def pull(client: Client, group: str, count: int, subject: str = SUBJECT) -> list[Delivery]:
    """This many deliveries, acked."""
    came: list[Delivery] = []
    while len(came) < count:
        some = client.pull(subject, group, min(count - len(came), PULL_MAX), WAIT_S)
        assert some, f"only {[name_of(delivery) for delivery in came]}"
        client.ack(subject, group, some)
        came += some
    return came


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_damage_in_store_index_and_checkpoint_is_named_and_the_rest_is_served(server: ServerUnderTest) -> None:
    broker = Path(server.data_dir) / "broker"
    assert server.start(), server.said()
    with Client(server.address) as client:
        for name in ("one", "two", "three", "four"):
            publish_batch(client, name)
        segments = sorted((broker / "store").glob("0*.log"))
        assert len(segments) >= 2, "a segment is sealed"
        assert len(client.find(subject=SUBJECT, key="one")) == BATCH
        # A background task makes the index of a sealed segment.
        until(lambda: list((broker / "index").glob("*.index")), "the index of the sealed segment")
        index = sorted((broker / "index").glob("*.index"))
        assert {name_of(delivery) for delivery in pull(client, "before", 2 * BATCH)} >= {"one 0", "two 9"}
    assert server.stop() == 0
    first = segments[0].read_bytes()
    flip(segments[0], first.index(b"two 5 "))
    flip(index[0], index[0].stat().st_size - 3)
    flip(broker / "checkpoint", 60)
    assert server.start(), server.said()
    with Client(server.address) as client:
        lost = {"two 5"}
        everything = {f"{name} {n}" for name in ("one", "two", "three", "four") for n in range(BATCH)}
        came = pull(client, "a new group", len(everything - lost))
        assert {name_of(delivery) for delivery in came} == everything - lost
        for name in ("one", "three", "four"):
            assert len(client.find(subject=SUBJECT, key=name)) == BATCH
        # The group of before goes on, and nothing comes again.
        rest = {name_of(delivery) for delivery in pull(client, "before", 2 * BATCH)}
        assert rest == {found for found in everything if found.split()[0] not in ("one", "two")}
        publish_batch(client, "seven")
        assert len(pull(client, "before", BATCH)) == BATCH
    assert server.stop() == 0
    done = in_process("check", server.data_dir, "--json")
    assert done.code == 1 and {Path(finding["file"]).name for finding in done.last["findings"]} == {segments[0].name}


def test_a_consumer_that_dies_with_keys_in_its_hands_holds_up_its_keys_alone_and_for_its_lease(
    server: ServerUnderTest,
) -> None:
    assert server.start(), server.said()
    with Client(server.address) as client:
        # A machine that stands still may outlast a lease. Then the next subject has a longer one.
        for lease_s in (3.0, 20.0, 120.0):
            subject = f"{SUBJECT}.{lease_s:.0f}"
            for number in range(3):
                for key in ("a", "b"):
                    client.publish(subject, f"{key}{number}", order_key=key)
            began_s = time.monotonic()
            dying = Client(server.address)
            held = dying.pull(subject, GROUP, 1, WAIT_S, ack_timeout_s=lease_s)
            assert [delivery.body for delivery in held] == [b"a0"]
            dying.close()
            came = client.pull(subject, GROUP, 10, WAIT_S)
            if time.monotonic() - began_s < lease_s:
                break
        assert [delivery.body for delivery in came] == [b"b0", b"b1", b"b2"], "the other key goes on"
        client.ack(subject, GROUP, came)
        again: list[Delivery] = []
        while len(again) < 3:
            some = client.pull(subject, GROUP, 10, WAIT_S)
            again += some
            client.ack(subject, GROUP, some)
        assert [(delivery.body, delivery.attempt) for delivery in again] == [(b"a0", 2), (b"a1", 1), (b"a2", 1)]
        assert client.ack(subject, GROUP, held).acked == 0, "the lease of the dead consumer is over"


def test_one_of_two_producers_that_answer_a_check_back_differently_wins_for_ever(server: ServerUnderTest) -> None:
    assert server.start(), server.said()
    with Client(server.address) as one, Client(server.address) as other:
        prepared = one.prepare(SUBJECT, "deal", group="shop", check_after=timedelta(seconds=1), checks_max=3)
        (check,) = one.check_backs("shop", wait_s=WAIT_S)
        assert other.rollback(check.receipt).outcome is Outcome.ROLLED_BACK
        assert one.answer(check, commit=True) is Outcome.ROLLED_BACK
        assert one.lookup(prepared.receipt).outcome is Outcome.ROLLED_BACK
    server.kill()
    assert server.start(), server.said()
    with Client(server.address) as client:
        with pytest.raises(DelayServerError, match="rolled_back") as ended:
            client.commit(prepared.receipt)
        assert ended.value.name == "transaction_ended"
        assert client.lookup(prepared.receipt).outcome is Outcome.ROLLED_BACK
        assert client.pull(SUBJECT, GROUP, 1) == []


def one_more(client: Client) -> tuple[list[int], Delivery]:
    """The next delivery, and the positions where the group was told before that it goes on."""
    told: list[int] = []
    while True:
        try:
            (delivery,) = client.pull(SUBJECT, GROUP, 1, WAIT_S)
        except DelayServerError as error:
            assert error.name == "position_out_of_range"
            told.append(error.details["first"])
        else:
            return told, delivery


def test_a_group_that_lags_too_far_is_told_where_it_goes_on_although_a_block_of_its_queue_is_damaged(
    tmp_path: Path,
) -> None:
    settings = small_settings(str(tmp_path / "data"))
    server = ServerUnderTest(tmp_path, settings)
    broker, count = Path(server.data_dir) / "broker", 0
    try:
        assert server.start(), server.said()
        with Client(server.address) as client:
            client.publish(SUBJECT, b"first")
            pull(client, GROUP, 1)
            # Of 4,097 rows of the queue the oldest 2,048 go to a block on disk. One-way messages may share a row.
            while not any((broker / "queue" / f"{0:020d}.log").read_bytes()[64:128]):
                for number in range(count, count + 300):
                    client.publish_one_way(SUBJECT, (b"%d" % number).ljust(150, b"."))
                client.ping()
                count += 300
            stored = client.status()["broker"]["store_bytes"]
        assert server.stop() == 0
        # What goes ends within the block, which has 2,048 messages of 150 bytes at least.
        kept = stored - 2048 * 150 // 2
        bounded = replace(settings.broker, retention_ms=1, lag_bytes_max=kept)
        server = ServerUnderTest(tmp_path, replace(settings, broker=bounded))
        assert server.start(), server.said()
        with Client(server.address) as client:
            deadline_s = time.monotonic() + WAIT_S
            while client.read(SUBJECT, 1, 1).status != "retired":
                assert time.monotonic() < deadline_s, "retention has removed nothing"
            told, next_one = one_more(client)
            assert told and next_one.position == told[-1] > 1
        assert server.stop() == 0
        block = broker / "queue" / f"{0:020d}.log"
        flip(block, 200)
        server = ServerUnderTest(tmp_path, settings)
        assert server.start(), server.said()
        with Client(server.address) as client:
            _, next_one = one_more(client)
            first = int(next_one.body.rstrip(b"."))
            came = [next_one, *pull(client, GROUP, count - first - 1)]
            assert [int(each.body.rstrip(b".")) for each in came] == list(range(first, count))
            assert [each.position for each in came] == list(range(first + 1, count + 1))
            assert block.name in str(client.status())
        assert server.stop() == 0
    finally:
        server.clean_up()
