"""Dead letters: a message that a group gave up is stored for it once, with its reason, and can be sent again or dropped."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.protocol.errors import DelayServerError
from tests.delayserver.protocol import vectors
from tests.fakes.host import Boot, Client, Host, small_settings

NAMES = {"subject": "orders", "group": "shop"}
DEAD = "orders.dead.shop"


class Shop:
    """A consumer group `shop` of `orders` with a policy, over one client."""

    def __init__(self, host: Host, client: Client) -> None:
        self.host, self.client = host, client

    async def set(self, **fields: Any) -> None:
        await self.client.request("policy", NAMES | {"set": {"first_ms": 100, "factor": 1} | fields})

    async def send(self, *bodies: str, **fields: Any) -> None:
        message = {"subject": "orders", "due_ms": self.host.now_ms} | fields
        await self.client.send(*[message | {"body": body, "message_id": f"id-{body}"} for body in bodies])
        await self.host.sleep_ms(100)

    async def pull(self, count: int = 100, wait_ms: int = 0, **names: Any) -> list[dict[str, Any]]:
        arguments = NAMES | {"max_messages": count, "wait_ms": wait_ms} | names
        messages: list[dict[str, Any]] = (await self.client.request("pull", arguments))["messages"]
        return messages

    async def nack(self, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
        deliveries = [message["delivery"] for message in messages]
        found: dict[str, Any] = await self.client.request("nack", NAMES | packed(deliveries) | fields)
        return found

    async def ack(self, *messages: dict[str, Any], **names: Any) -> dict[str, Any]:
        found: dict[str, Any] = await self.client.request(
            "ack", NAMES | packed([message["delivery"] for message in messages]) | names
        )
        return found

    async def fail(self, times: int) -> None:
        """Pull everything and nack it, so many times."""
        for _ in range(times):
            messages = await self.pull(wait_ms=10_000)
            assert messages
            await self.nack(*messages, delay_ms=0)
            await self.host.sleep_ms(300)

    async def dead(self, action: str = "list", **fields: Any) -> dict[str, Any]:
        found: dict[str, Any] = await self.client.request("dead_letters", NAMES | {"action": action} | fields)
        return found

    async def letters(self, **fields: Any) -> list[dict[str, Any]]:
        letters: list[dict[str, Any]] = (await self.dead(**fields))["letters"]
        return letters

    async def restarted(self) -> Shop:
        await self.host.start()
        return Shop(self.host, await self.host.client())


def packed(deliveries: list[int]) -> dict[str, Any]:
    return {"count": len(deliveries), "deliveries": b"".join([each.to_bytes(8, "little") for each in deliveries])}


async def opened(boot: Boot, **settings: Any) -> Shop:
    host = await boot.started(small_settings(**settings))
    return Shop(host, await host.client())


async def test_after_its_last_attempt_a_message_is_a_dead_letter_once(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=3)
    await shop.send("m", properties={"trace": "7"})
    sent_ms = shop.host.now_ms
    await shop.fail(2)
    assert await shop.letters() == []
    (message,) = await shop.pull(wait_ms=10_000)
    assert message["attempt"] == 3
    done = await shop.nack(message, reason="it does not fit")
    assert done == {"nacked": 1, "unknown": 0, "dead_lettered": 1}
    await shop.host.sleep_ms(60_000)
    assert await shop.pull() == [], "it does not come again"
    (letter,) = await shop.letters(bodies=True)
    assert sent_ms <= message["due_ms"] == letter.pop("due_ms") <= letter.pop("dead_ms") <= shop.host.now_ms
    assert letter.pop("sequence") > 0
    assert letter == {
        "position": 0,
        "message_id": "id-m",
        "reason": "nacked",
        "text": "it does not fit",
        "attempts": 3,
        "server_id": f"{shop.host.server.parts.opened.directory.server_id:012x}",
        "properties": {"trace": "7"},
        "body": b"m",
        "body_bytes": 1,
    }
    (row,) = (await shop.client.request("groups", {"subject": "orders"}))["groups"]
    assert (row["dead_letters"], row["lag"], row["position"]) == (1, 0, 1)
    assert (await shop.client.request("status"))["broker"]["dead_letters"] == 1


async def test_a_dead_letter_subject_is_pulled_as_any_subject(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=1)
    await shop.send("m", properties={"trace": "7"})
    (message,) = await shop.pull()
    await shop.nack(message, reason="no")
    (letter,) = await shop.pull(subject=DEAD, group="looker", wait_ms=1000)
    marks = letter["properties"]
    due_ms = marks.pop("dead_due_ms")
    assert int(due_ms) == message["due_ms"]
    assert marks == {
        "trace": "7",
        "dead_reason": "nacked",
        "dead_reason_text": "no",
        "dead_attempts": "1",
        "dead_subject": "orders",
        "dead_group": "shop",
        "dead_sequence": str(message["sequence"]),
        "dead_server_id": message["server_id"],
    }
    assert (letter["body"], letter["message_id"], letter["attempt"]) == (b"m", "id-m", 1)
    assert len(await shop.letters()) == 1, "another group took it, and it is still a dead letter"
    (letter,) = await shop.pull(subject=DEAD)
    await shop.ack(letter, subject=DEAD)
    assert await shop.letters() == [], "the group itself took it"


async def test_an_ended_lease_is_an_attempt_with_its_own_reason(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=2)
    await shop.send("m")
    for _ in range(2):
        assert await shop.pull(wait_ms=10_000, ack_timeout_ms=500)
        await shop.host.sleep_ms(1500)
    (letter,) = await shop.letters()
    assert (letter["reason"], letter["text"], letter["attempts"]) == ("ack_timeout", "", 2)


async def test_without_attempts_nothing_is_given_up_and_a_message_acked_in_time_neither(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set()
    await shop.send("m")
    await shop.fail(4)
    await shop.set(attempts=6)
    (message,) = await shop.pull(wait_ms=10_000)
    assert message["attempt"] == 5
    await shop.nack(message, delay_ms=0)
    (message,) = await shop.pull(wait_ms=10_000)
    assert (await shop.ack(message))["acked"] == 1
    assert await shop.letters() == []


async def test_a_policy_that_changes_while_messages_retry_counts_their_attempts(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=10)
    await shop.send("m")
    await shop.fail(3)
    await shop.set(attempts=2)
    await shop.fail(1)
    assert [letter["attempts"] for letter in await shop.letters()] == [4]


async def test_attempts_from_its_place_and_over_restarts_count(boot: Boot) -> None:
    shop = await opened(boot, broker={"redelivery_bytes_max": 0})
    await shop.set(attempts=4)
    await shop.send("m")
    await shop.fail(2)
    await shop.host.stop()
    shop = await shop.restarted()
    await shop.fail(1)
    await shop.host.kill()
    shop = await shop.restarted()
    assert await shop.letters() == []
    await shop.fail(1)
    (letter,) = await shop.letters()
    assert letter["attempts"] in (4, 5), "the crash may count one more"


async def test_a_nack_with_unseen_gives_no_message_up(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=1)
    await shop.send("m")
    (message,) = await shop.pull()
    assert await shop.nack(message, unseen=True, delay_ms=0) == {"nacked": 1, "unknown": 0}
    (message,) = await shop.pull(wait_ms=10_000)
    assert await shop.nack(message) == {"nacked": 1, "unknown": 0, "dead_lettered": 1}


async def test_an_expired_message_is_no_dead_letter(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=1)
    await shop.send("m", expires_ms=shop.host.now_ms + 2_000)
    (message,) = await shop.pull()
    await shop.host.sleep_ms(3_000)
    assert (await shop.nack(message))["expired"] == 1
    assert await shop.letters() == []
    await shop.send("n", expires_ms=shop.host.now_ms + 60_000)
    (message,) = await shop.pull()
    assert (await shop.nack(message, delay_ms=120_000))["dead_lettered"] == 1, "it has not expired yet"


async def test_letters_are_sent_again_to_their_group_alone_with_new_attempts(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=2)
    await shop.send("a", "b", "c", properties={"trace": "7"})
    other = await shop.pull(group="other")
    assert len(other) == 3
    await shop.fail(2)
    assert (await shop.dead("resend", max=2)) == {"resent": 2, "left": 1, "next_ms": 0, "unreadable": 0}
    messages = await shop.pull(wait_ms=10_000)
    await shop.host.sleep_ms(500)
    messages += await shop.pull()
    assert sorted((m["message_id"], m["attempt"], m["body"]) for m in messages) == [
        ("id-a", 1, b"a"),
        ("id-b", 1, b"b"),
    ]
    assert messages[0]["properties"] == {"trace": "7"}, "the marks are gone"
    await shop.host.sleep_ms(500)
    assert await shop.pull(group="other") == []
    await shop.nack(*messages, delay_ms=0)
    await shop.host.sleep_ms(300)
    await shop.fail(1)
    letters = await shop.letters()
    assert letters[0]["message_id"] == "id-c"
    assert {(letter["attempts"], letter["sequence"]) for letter in letters} == {
        (2, message["sequence"]) for message in other
    }, "it dies again after as many attempts, and still has its origin"


async def test_a_rate_spreads_dead_letters_that_are_sent_again(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=1)
    await shop.send(*"abcdef")
    await shop.fail(1)
    first = await shop.dead("resend", max=3, rate=2)
    assert (first["resent"], first["left"], first["next_ms"]) == (3, 3, 1500)
    second = await shop.dead("resend", rate=2, first_ms=first["next_ms"])
    assert (second["resent"], second["left"], second["next_ms"]) == (3, 0, 3000)
    began_ms = shop.host.now_ms
    arrived: list[int] = []
    while len(arrived) < 6:
        for message in await shop.pull(1, wait_ms=10_000):
            arrived.append(shop.host.now_ms - began_ms)
            await shop.ack(message)
    assert [round(each / 500) for each in arrived] == [0, 1, 2, 3, 4, 5]


async def test_chosen_letters_are_sent_again_or_dropped_and_the_others_stay(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=1)
    await shop.send(*"abcdef")
    await shop.fail(1)
    assert (await shop.dead("drop", positions=[1, 3, 99]))["dropped"] == 2
    assert (await shop.dead("drop", positions=[1, 3])) == {"dropped": 0, "left": 4}
    assert (await shop.dead("resend", positions=[4]))["resent"] == 1
    (message,) = await shop.pull(wait_ms=10_000)
    assert message["message_id"] == "id-e"
    assert [letter["position"] for letter in await shop.letters()] == [0, 2, 5]
    taken = await shop.pull(subject=DEAD)
    assert [each["message_id"] for each in taken] == ["id-a", "id-c", "id-f"], "what was passed over can be pulled"
    assert (await shop.dead("resend"))["resent"] == 0, "a consumer has them"
    await shop.ack(*taken[:2], subject=DEAD)
    assert [letter["position"] for letter in await shop.letters()] == [5]


async def test_letters_come_by_pages(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=1)
    for bodies in ("ab", "cd", "e"):
        await shop.send(*bodies)
        await shop.fail(1)
    page = await shop.dead(max=2)
    assert [letter["message_id"] for letter in page["letters"]] == ["id-a", "id-b"]
    assert (page["next"], page["left"]) == (1, 5)
    page = await shop.dead(max=2, after=page["next"])
    assert [letter["message_id"] for letter in page["letters"]] == ["id-c", "id-d"]
    page = await shop.dead(max=2, after=page["next"])
    assert [letter["message_id"] for letter in page["letters"]] == ["id-e"] and page["next"] is None


async def test_dead_letters_their_drops_and_their_resends_survive_a_stop_and_a_kill(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=1)
    await shop.send(*"abcd")
    await shop.fail(1)
    await shop.dead("drop", max=1)
    await shop.dead("resend", max=1)
    for end in (shop.host.kill, shop.host.stop):
        await end()
        shop = await shop.restarted()
        assert [letter["message_id"] for letter in await shop.letters()] == ["id-c", "id-d"]
    (message,) = await shop.pull(wait_ms=10_000)
    assert message["message_id"] == "id-b"
    assert (await shop.dead("resend"))["resent"] == 2


async def test_letters_behind_damaged_ones_are_sent_again(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=1)
    store = shop.host.server.parts.broker.local_broker.core.state.files.store
    places = []
    for body in "abcde":
        await shop.send(body)
        places.append(store.end)
        await shop.fail(1)
    ((base, _, path),) = store.log.segments()
    await shop.host.stop()
    for place in (*places[:3], places[4]):
        shop.host.disk.flip_bit(path, place - base + 40)
    shop = await shop.restarted()
    done = await shop.dead("resend")
    assert (done["resent"], done["left"], done["unreadable"]) == (1, 4, 3)
    assert [message["message_id"] for message in await shop.pull(wait_ms=10_000)] == ["id-d"]
    done = await shop.dead("resend")
    assert (done["resent"], done["left"], done["unreadable"]) == (0, 4, 4)
    assert (await shop.dead("drop"))["dropped"] == 4


async def test_on_a_full_disk_a_message_waits_and_becomes_a_dead_letter_with_its_reason(boot: Boot) -> None:
    shop = await opened(boot, broker={"ack_timeout_ms": 5_000})
    await shop.set(attempts=1)
    message = {"subject": "orders", "body": "m" * 60_000, "due_ms": shop.host.now_ms}
    await shop.client.send(*[message] * 4)  # nearly a segment of the store
    messages = await shop.pull(wait_ms=1000)
    assert len(messages) == 4
    shop.host.disk.capacity_bytes = shop.host.disk.used_bytes
    with pytest.raises(DelayServerError, match="disk_full"):
        await shop.nack(*messages, reason="no")
    await shop.host.sleep_ms(8_000)
    assert await shop.letters() == [] and await shop.pull() == [], "they wait"
    shop.host.disk.capacity_bytes = None
    await shop.host.sleep_ms(8_000)
    letters = await shop.letters()
    assert [(each["reason"], each["text"], each["attempts"]) for each in letters] == [("nacked", "no", 1)] * 4
    assert await shop.pull() == []


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no action": ({"action": None}, "invalid_argument"),
    "other action": ({"action": "burn"}, "invalid_argument"),
    "subject": ({"subject": 7}, "subject_invalid"),
    "unknown group": ({"group": "nobody"}, "group_unknown"),
    "unknown subject": ({"subject": "nothing"}, "group_unknown"),
    "max": ({"max": 257}, "invalid_argument"),
    "after": ({"after": "1"}, "invalid_argument"),
    "bodies": ({"bodies": 1}, "invalid_argument"),
    "positions": ({"action": "drop", "positions": 7}, "invalid_argument"),
    "a position": ({"action": "resend", "positions": [-1]}, "invalid_argument"),
    "rate": ({"action": "resend", "rate": 0}, "invalid_argument"),
    "rate of nan": ({"action": "resend", "rate": float("nan")}, "invalid_argument"),
    "slow rate": ({"action": "resend", "rate": 1e-4}, "invalid_argument"),
    "resend max": ({"action": "resend", "max": 1025}, "invalid_argument"),
}


@pytest.mark.parametrize("what", BAD)
async def test_senseless_arguments_are_refused_by_name(boot: Boot, what: str) -> None:
    shop = await opened(boot)
    await shop.set(attempts=1)
    arguments, name = BAD[what]
    with pytest.raises(DelayServerError) as caught:
        await shop.dead(**{"action": "list"} | arguments)
    assert caught.value.name == name


@pytest.mark.parametrize("fields", [
    {"reason": 7}, {"reason": "r" * 1025}, {"delay_level": 0}, {"delay_level": 19}, {"delay_level": 1, "delay_ms": 1},
    {"unseen": 1},
])  # fmt: skip
async def test_a_nack_that_makes_no_sense_is_refused(boot: Boot, fields: dict[str, Any]) -> None:
    shop = await opened(boot)
    await shop.send("m")
    (message,) = await shop.pull()
    with pytest.raises(DelayServerError, match="invalid_argument"):
        await shop.nack(message, **fields)
    assert (await shop.ack(message))["acked"] == 1


async def test_a_nack_takes_a_delay_level(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.send("m")
    (message,) = await shop.pull()
    await shop.nack(message, delay_level=3)
    nacked_ms = shop.host.now_ms
    await shop.pull(wait_ms=20_000)
    assert 10_000 <= shop.host.now_ms - nacked_ms < 11_000


async def test_a_lone_broker_keeps_dead_letters_of_its_own(boot: Boot) -> None:
    host = await boot.started(small_settings(), role="broker")
    shop = Shop(host, await host.client())
    await shop.set(attempts=2)
    _, operation, arguments = vectors.REQUESTS["deliver request"]
    await shop.client.request(operation, arguments | {"due_ms": host.now_ms})
    pulled = await shop.pull(wait_ms=1000)
    assert pulled
    await shop.nack(*pulled, delay_ms=0)
    await host.sleep_ms(300)
    await host.kill()
    shop = await shop.restarted()
    await shop.fail(1)
    await host.stop()
    shop = await shop.restarted()
    assert len(await shop.letters()) == len(pulled)
    assert (await shop.dead("resend"))["resent"] == len(pulled)
    messages = await shop.pull(wait_ms=10_000)
    assert [message["attempt"] for message in messages] == [1] * len(pulled)


async def test_a_send_takes_a_delay_level_in_rows_and_columns(boot: Boot) -> None:
    shop = await opened(boot, message={"delay_levels": "1s 7s"})
    client, now_ms = shop.client, shop.host.now_ms
    assert (await client.request("hello", {"versions": [1]}))["delay_levels_ms"] == [1_000, 7_000]
    row = {"subject": "levels", "body": "m", "delay_level": 2}
    bad = [row | {"delay_level": 3}, row | {"delay_ms": 1}, row | {"due_ms": now_ms}, row | {"delay_level": True}]
    first, *refused = (await client.request("send", {"messages": [row, *bad]}))["results"]
    assert first["due_ms"] == now_ms + 7_000
    assert [each["error"] for each in refused] == ["invalid_argument"] * 4
    columns = {"count": 3, "subject": "levels", "bodies": b"abc", "body_length": 1}
    levels = b"".join([level.to_bytes(8, "little") for level in (1, 0, 2)])
    sent = await client.request("send", columns | {"delay_level": levels})
    assert [rejected[:2] for rejected in sent["rejected"]] == [[1, "invalid_argument"]]
    for other in ({"delay_ms": 1}, {"due_ms": now_ms}):
        with pytest.raises(DelayServerError, match="invalid_argument"):
            await client.request("send", columns | {"delay_level": 1} | other)
    arrived: list[int] = []
    while len(arrived) < 3:
        for message in await shop.pull(1, wait_ms=10_000, subject="levels"):
            arrived.append(round((shop.host.now_ms - now_ms) / 1000))
            await shop.ack(message, subject="levels")
    assert arrived == [1, 7, 7]


async def test_a_nack_of_more_than_a_step_may_gather_takes_all_back_in_the_same_way(boot: Boot) -> None:
    shop = await opened(boot, broker={"segment_bytes": 1 << 22})
    await shop.set(attempts=1, first_ms=30_000)
    message = {"subject": "orders", "body": "m" * 900_000, "due_ms": shop.host.now_ms}
    for _ in range(4):
        await shop.client.send(*[message] * 6)
    await shop.host.sleep_ms(500)

    async def pull_all() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while messages := await shop.pull(wait_ms=1_000):
            found += messages
        return found

    messages = await pull_all()
    assert len(messages) == 24
    assert await shop.nack(*messages, unseen=True, delay_ms=0) == {"nacked": 24, "unknown": 0}
    messages = await pull_all()
    assert len(messages) == 24, "at once, without the pause of the group"
    assert await shop.nack(*messages, reason="no") == {"nacked": 24, "unknown": 0, "dead_lettered": 24}
    assert {(each["reason"], each["text"], each["attempts"]) for each in await shop.letters()} == {("nacked", "no", 1)}
