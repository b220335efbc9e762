"""A client of several shards tells what all of them have, or says which shard did not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from delayserver.client import Client
from delayserver.client.calls.shard_places import position_at
from delayserver.protocol.errors import (
    ConnectionLost,
    DelayServerError,
    GroupUnknown,
    InvalidArgument,
    NotPrimary,
    NotReady,
)
from tests.delayserver.client.both import Connect
from tests.delayserver.client.fake_cluster import FakeCluster
from tests.delayserver.client.fake_server import Fail, FakeServer
from tests.delayserver.client.groups_of_shards import group, letter, waiting

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def answer(cluster: FakeCluster, operation: str, *answers: Answer) -> None:
    """Each shard answers an operation like this."""
    for member, each in zip(cluster.members, answers, strict=True):
        member.answers[operation] = each


def no_group(_: dict[str, Any]) -> dict[str, Any]:
    raise GroupUnknown("none here")


class Letters:
    """The dead letters or the waiting keys of a group at one shard, by position, two a page."""

    def __init__(self, *positions: int) -> None:
        self.positions = list(positions)
        self.first_ms: list[int] = []

    def __call__(self, asked: dict[str, Any]) -> dict[str, Any]:
        action, chosen, count = asked["action"], asked.get("positions"), asked.get("max", 2)
        if action == "list":
            behind = [each for each in self.positions if each > asked.get("after", -1)]
            page = behind[:2]
            rows = [msgspec.to_builtins(letter(each) if asked["group"] == "dead" else waiting(each)) for each in page]
            name = "letters" if asked["group"] == "dead" else "keys"
            following = page[-1] if len(behind) > 2 else None
            return {name: rows, "next": following, "left": len(self.positions), "unreadable": 0}
        self.first_ms.append(asked.get("first_ms", 0))
        gone = [each for each in self.positions if chosen is None or each in chosen][:count]
        if action != "retry":
            self.positions = [each for each in self.positions if each not in gone]
        done = {"resend": "resent", "drop": "dropped", "skip": "skipped", "retry": "retried"}[action]
        more = {"next_ms": asked.get("first_ms", 0) + 10 * len(gone), "unreadable": 0} if action == "resend" else {}
        return {done: len(gone), "left": len(self.positions)} | more


def buckets(*rows: tuple[int, int], next_ms: int | None = None) -> dict[str, Any]:
    told = [{"start_ms": start, "width_ms": 60_000, "pending": count} for start, count in rows]
    return {"buckets": told, "next_ms": next_ms, "unplaced": 1}


def test_pending_messages_are_added_over_the_shards_page_by_page(cluster: FakeCluster, client: Client) -> None:
    def first(asked: dict[str, Any]) -> dict[str, Any]:
        return buckets() if asked.get("from_ms") else buckets((0, 1))

    def second(asked: dict[str, Any]) -> dict[str, Any]:
        return buckets((60, 3)) if asked.get("from_ms") else buckets((0, 2), next_ms=60)

    answer(cluster, "pending", first, second, lambda _: buckets())
    assert client.pending_page().unplaced == 3
    assert [(each.start_ms, each.pending) for each in client.pending()] == [(0, 3), (60, 3)]


def test_pending_messages_of_a_subject_are_added(cluster: FakeCluster, client: Client) -> None:
    def second(asked: dict[str, Any]) -> dict[str, Any]:
        rows = [("b", 2), ("a", 5), ("c", 1)][asked.get("after", 0) :][:2]
        more = 2 if not asked.get("after") else None
        return {"subjects": [{"subject": name, "pending": count} for name, count in rows], "next": more}

    one = {"subjects": [{"subject": "b", "pending": 7}], "next": None}
    answer(cluster, "pending", lambda _: one, second, lambda _: {"subjects": [], "next": None})
    assert [(each.subject, each.pending) for each in client.pending_by_subject()] == [("a", 5), ("b", 9), ("c", 1)]


def test_subjects_of_all_shards_come_once_and_their_pages_join(cluster: FakeCluster, client: Client) -> None:
    for number in range(30):
        client.send(f"s.{number % 7}", b"", due_ms=1, message_id=f"m-{number}")
    client.send("other", b"", due_ms=1)
    names = [f"s.{number}" for number in range(7)]
    assert client.subjects("s.*") == names
    page = client.subjects_page(prefix="s.", after="s.3")
    assert (page.subjects, page.more, page.next) == (names[4:], False, "s.6")


def test_consumer_groups_of_all_shards_come_once_with_the_sums(cluster: FakeCluster, client: Client) -> None:
    for shard, member in enumerate(cluster.members):
        member.groups = [
            msgspec.to_builtins(group("s", name, lag=10**shard, oldest_ms=5 - shard)) for name in ("a", "b", "c")
        ]
    cluster.members[1].groups.append(msgspec.to_builtins(group("t", "a", lag=7)))
    assert [(each.subject, each.group, each.lag) for each in client.groups()] == [
        ("s", "a", 111), ("s", "b", 111), ("s", "c", 111), ("t", "a", 7),
    ]  # fmt: skip
    page = client.groups_page(max_groups=3)
    assert page.next == ["s", "c"] and {each.oldest_ms for each in page.groups} == {3}
    assert [each.subject for each in client.groups_page(after=page.next, max_groups=3).groups] == ["t"]


def test_one_group_is_that_of_the_shards_that_know_it(cluster: FakeCluster, client: Client) -> None:
    known: Answer = lambda _: msgspec.to_builtins(group("s", "g", lag=4))  # noqa: E731 - as the others
    answer(cluster, "group", known, no_group, known)
    assert client.group("s", "g").lag == 8
    answer(cluster, "group", no_group, no_group, no_group)
    with pytest.raises(GroupUnknown):
        client.group("s", "g")


def test_a_group_that_one_shard_has_is_removed_there(cluster: FakeCluster, client: Client) -> None:
    answer(cluster, "remove_group", no_group, lambda _: {}, no_group)
    client.remove_group("s", "g")
    assert [member.count("remove_group") for member in cluster.members] == [1, 1, 1]


def test_a_shard_that_does_not_answer_is_named_and_no_part_is_told(cluster: FakeCluster, connect: Connect) -> None:
    with connect(cluster.members[0].address, retries=0) as client:
        client.send("s", b"", due_ms=1)
        cluster.members[1].misbehave("subjects", Fail(NotReady("it starts")))
        with pytest.raises(NotReady, match="shard 1: it starts"):
            client.subjects()
        cluster.members[2].close()
        with pytest.raises(DelayServerError, match="shard 2: "):
            client.subjects()


def test_a_shard_whose_members_are_gone_is_named(cluster: FakeCluster, connect: Connect) -> None:
    cluster.show(1, primary="", standbys=[])
    with connect(cluster.members[0].address, retries=0) as client, pytest.raises(NotPrimary, match="shard 1"):
        client.subjects()


def test_a_shard_that_never_led_has_nothing(cluster: FakeCluster, client: Client) -> None:
    cluster.add("f" * 12)
    assert client.subjects() == []


def test_transactions_of_all_shards_come_shard_by_shard(cluster: FakeCluster, client: Client) -> None:
    def listing(shard: int, count: int) -> Answer:
        def page(asked: dict[str, Any]) -> dict[str, Any]:
            first = int(asked.get("after", "0"))
            rows = [
                {"receipt": f"{shard}-{n}", "subject": "s", "due_ms": 5, "group": "g", "accepted_us": 5,
                 "next_check_ms": 5, "checks": 0, "checks_max": 5, "policy": "rollback"}
                for n in range(first, min(first + 2, count))
            ]  # fmt: skip
            return {"transactions": rows, "next": str(first + 2) if first + 2 < count else None}

        return page

    answer(cluster, "transactions", listing(0, 3), listing(1, 0), listing(2, 2))
    assert [each.receipt for each in client.transactions()] == ["0-0", "0-1", "0-2", "2-0", "2-1"]
    page = client.transactions_page()
    assert [each.receipt for each in client.transactions_page(page.next).transactions] == ["0-2"]


def test_found_messages_are_those_of_all_shards(cluster: FakeCluster, client: Client) -> None:
    def stored(shard: int) -> Answer:
        def page(asked: dict[str, Any]) -> dict[str, Any]:
            first = asked.get("after", [-1, 0])[0] + 1
            row = {
                "message_id": f"{shard}-{first}", "subject": "s", "position": first, "sequence": first, "due_ms": 5,
                "server_id": "a" * 12, "accepted_us": 5, "dispatched_us": 5, "body": b"",
            }  # fmt: skip
            return {"messages": [row], "next": [first, 0] if first < 1 else None}

        return page

    answer(cluster, "find", *map(stored, range(3)))
    assert [each.message_id for each in client.find(subject="s")] == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]
    assert len(client.find(subject="s", max_messages=3)) == 3


def test_dead_letters_of_all_shards_are_listed_sent_again_and_dropped(cluster: FakeCluster, client: Client) -> None:
    shards = [Letters(1, 2, 3), Letters(), Letters(2, 9)]
    answer(cluster, "dead_letters", shards[0], no_group, shards[2])
    positions = [each.position for each in client.dead_letters("s", "dead")]
    assert positions == [*(position_at(0, each) for each in (1, 2, 3)), position_at(2, 2), position_at(2, 9)]
    assert [each.position for each in client.dead_letters("s", "dead", after=positions[3])] == positions[4:]
    dropped = client.drop_dead_letters("s", "dead", positions=[positions[1], positions[3]])
    assert (dropped.dropped, dropped.left) == (2, 3)
    assert (shards[0].positions, shards[2].positions) == ([1, 3], [9])
    # The rate holds over the shards: the second one goes on where the first one ends.
    sent = client.resend_dead_letters("s", "dead", rate=100.0, positions=[positions[0], positions[4]])
    assert (sent.resent, sent.left, shards[2].first_ms[-1]) == (2, 1, 10)
    assert (client.resend_dead_letters("s", "dead").left, shards[0].positions) == (0, [])
    with pytest.raises(InvalidArgument, match="shard 5"):
        client.drop_dead_letters("s", "dead", positions=[position_at(5, 1)])


def test_nothing_is_dropped_where_a_shard_does_not_say_what_it_has(cluster: FakeCluster, connect: Connect) -> None:
    with connect(cluster.members[0].address, retries=0) as client:
        shards = [Letters(1), Letters(1), Letters()]
        answer(cluster, "dead_letters", *shards)
        cluster.members[2].misbehave("dead_letters", Fail(ConnectionLost("away")))
        with pytest.raises(ConnectionLost, match="shard 2"):
            client.drop_dead_letters("s", "dead")
        assert [each.positions for each in shards] == [[1], [1], []]


def test_a_group_without_letters_at_any_shard_is_unknown(cluster: FakeCluster, client: Client) -> None:
    answer(cluster, "dead_letters", no_group, no_group, no_group)
    with pytest.raises(GroupUnknown):
        client.dead_letters("s", "dead")
    answer(cluster, "dead_letters", Letters(), no_group, no_group)
    assert client.dead_letters("s", "dead") == []
    assert client.drop_dead_letters("s", "dead").dropped == 0


def test_waiting_keys_of_all_shards_are_listed_skipped_and_tried_again(cluster: FakeCluster, client: Client) -> None:
    shards = [Letters(4), Letters(1, 2, 3), Letters()]
    answer(cluster, "waiting_keys", *shards)
    positions = [each.position for each in client.waiting_keys("s", "keys")]
    assert positions == [position_at(0, 4), position_at(1, 1), position_at(1, 2), position_at(1, 3)]
    tried = client.retry_waiting_keys("s", "keys")
    assert (tried.retried, tried.left) == (1 + 2, 4)
    skipped = client.skip_waiting_keys("s", "keys", 2)
    assert (skipped.skipped, skipped.left, shards[0].positions) == (2, 2, [])


def test_a_position_of_a_queue_is_refused(cluster: FakeCluster, client: Client) -> None:
    client.send("s", b"", due_ms=1)
    with pytest.raises(InvalidArgument, match="single shard"):
        client.read("s", 0)
    with pytest.raises(InvalidArgument, match="single shard"):
        client.seek("s", "g", 7)


def test_a_client_of_one_shard_tells_what_that_shard_has(cluster: FakeCluster) -> None:
    with Client(cluster.members[0].address) as client:
        for number in range(9):
            client.send(f"s.{number}", b"", due_ms=1)
        alone = {shard: set(each.subjects()) for shard, each in client.shard_clients().items()}
        assert alone == {n: {each.subject for each in cluster.members[n].messages} for n in range(3)}
        assert all(alone.values())


def test_a_server_without_shards_is_the_only_one(server: FakeServer) -> None:
    with Client(server.address) as client:
        assert client.shard_clients() == {0: client}
