"""The map says who the members of a cluster are: the last start of each, but for those that were forgotten since."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from delayserver.members.member_map import (
    Announced,
    Forgotten,
    Founded,
    Healed,
    Led,
    MemberMap,
    Note,
    ShardAdded,
    ShardState,
    TokenNote,
    TokenRevoked,
)
from delayserver.runtime.shared_log import LogRecord
from store.tables.stored_tokens import TOKENS_MAX, StoredSecret, StoredToken


def started(name: str, instance: str) -> Announced:
    return Announced(name, 0, f"{instance}:1", "", "1", instance)


def map_of(*notes: Note) -> MemberMap:
    found = MemberMap()
    for position, note in enumerate(notes):
        found.take(LogRecord(position, msgspec.json.encode(note)), "topic")
    return found


A, B, C = started("a", "1"), started("b", "2"), started("c", "3")


def test_a_forgotten_member_is_none_and_the_numbers_of_the_others_stay() -> None:
    found = map_of(A, B, Forgotten("a", "1"), C)
    assert [each.name for each in found.of_shard(0)] == ["b", "c"]
    assert (found.number("b"), found.number("c")) == (2, 3)
    assert (found.rank("b"), found.rank("c")) == (0, 1)


def test_a_member_that_comes_back_has_its_number_and_its_rank_again() -> None:
    found = map_of(A, B, Forgotten("a", "1"), C, started("a", "4"))
    assert [each.name for each in found.of_shard(0)] == ["a", "b", "c"]
    assert (found.number("a"), found.rank("a")) == (1, 0)


def test_a_start_that_nobody_had_seen_is_not_forgotten() -> None:
    found = map_of(A, started("a", "4"), Forgotten("a", "1"), Forgotten("z", "1"))
    assert found.members["a"].instance == "4"


FOUNDED = Founded(1, "0" * 12, ("00000000000a", "00000000000b", "00000000000c"))


def test_the_shards_of_the_founding_have_all_slots_and_an_added_one_has_none() -> None:
    slots = [[0, 340, 0], [341, 681, 1], [682, 1023, 2]]
    assert map_of(FOUNDED).shown().slots == slots
    grown = map_of(FOUNDED, ShardAdded(3, "00000000000d"), ShardAdded(3, "00000000000e"), ShardState(3, "draining"))
    assert grown.shown().slots == slots
    assert [(each.server_id[-1], each.state) for each in grown.shown().shards[2:]] == [("c", "open"), ("d", "draining")]
    assert grown.version == 4
    assert map_of().shown().slots == []


def test_the_map_names_the_last_leader_of_each_shard_and_its_standbys() -> None:
    shown = map_of(FOUNDED, A, B, Led("a", 0, 1), Led("b", 0, 3), Led("a", 0, 2)).shown().shards
    assert [(each.epoch, each.primary, each.standbys) for each in shown[:2]] == [(3, "2:1", ["1:1"]), (0, "", [])]
    (gone, *_) = map_of(FOUNDED, A, B, Led("b", 0, 3), Forgotten("b", "2")).shown().shards
    assert (gone.primary, gone.standbys) == ("", ["1:1"])


def test_a_log_that_was_healed_without_its_last_claim_is_led_in_that_epoch_anew() -> None:
    healed = Healed(0, 90, 2, 7, until=3)
    found = map_of(FOUNDED, A, B, Led("a", 0, 4), Forgotten("a", "1"), healed)
    assert found.shown().shards[0].epoch == 3
    found.take(LogRecord(6, msgspec.json.encode(Led("b", 0, 4))), "topic")
    assert (found.shown().shards[0].epoch, found.shown().shards[0].primary) == (4, "2:1")


def test_a_token_is_made_once_and_one_that_was_revoked_gets_no_new_secret() -> None:
    token = StoredToken("1", "one", ("admin",), ("*",), (StoredSecret(bytes(32)),), 1)
    new = replace(token, secrets=(StoredSecret(b"x" * 32), StoredSecret(bytes(32), 7)))
    assert map_of(A).token_table() is None
    made = TokenNote(token, made=True)
    assert map_of(made, TokenNote(new, made=False)).token_table() == (new,)
    assert map_of(made, TokenNote(new, made=True)).token_table() == (token,)
    assert map_of(made, TokenRevoked("1"), TokenNote(new, made=False)).token_table() == ()
    assert map_of(TokenRevoked("1")).token_table() is None
    many = [TokenNote(replace(token, token_id=str(number)), made=True) for number in range(TOKENS_MAX + 1)]
    assert len(map_of(*many).token_table() or ()) == TOKENS_MAX


def test_a_start_that_was_forgotten_stays_forgotten_when_its_process_says_whom_it_reaches() -> None:
    reaching = Announced(A.name, 0, A.address, "", "1", A.instance, reaches=("b",))
    assert map_of(A, reaching).members == {"a": reaching}
    assert not map_of(A, Forgotten("a", "1"), reaching).members
    assert map_of(A, Forgotten("a", "1"), reaching, started("a", "4")).members["a"].instance == "4"
