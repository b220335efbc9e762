"""The process is killed, or the power fails, at each moment around redeliveries and dead letters: each message is in one
place afterwards."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from delayserver.protocol.errors import DelayServerError, GroupUnknown
from tests.fakes.disk import SimulatedCrash
from tests.fakes.host import Boot, Client, Host, small_settings

# The changing calls of the disk in the script below.
OPERATIONS = 150
GONE = (OSError, SimulatedCrash, trio.BrokenResourceError, trio.ClosedResourceError, DelayServerError)
BODIES = [f"{number}" for number in range(6)]


@dataclass
class Told:
    """What was answered: the accepted messages and the acked ones. `asked`: acks that may have had no answer."""

    accepted: bool = False
    asked: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)


async def settle(client: Client, operation: str, messages: list[dict[str, Any]], **rest: Any) -> None:
    for message in messages:
        deliveries = {"count": 1, "deliveries": message["delivery"]}
        reply = await client.request(operation, {"subject": "s", "group": "g", **deliveries, **rest})
        if "error" in reply:
            raise OSError(reply["error"])


async def pulled(client: Client, told: Told) -> list[dict[str, Any]]:
    """Pulls, and acks message 5, and message 0 when it comes again."""
    messages = await client.pull(ack_timeout_ms=2_000)
    for message in messages:
        body = message["body"].decode()
        if body == "5" or (body == "0" and message["attempt"] > 1):
            told.asked.add(body)
            await settle(client, "ack", [message])
            told.acked.add(body)
    return messages


def named(messages: list[dict[str, Any]], *bodies: bytes) -> list[dict[str, Any]]:
    return [message for message in messages if message["body"] in bodies]


async def script(host: Host, client: Client, told: Told) -> None:
    """Six messages with two attempts each. Message 0 is nacked and comes again, 1 and 2 fail by the ack timeout, 3 is given
    up, 4 is nacked and never comes again here, 5 is acked. The letter of 3 is sent again."""
    await client.request("policy", {"subject": "s", "group": "g", "set": {"attempts": 2, "first_ms": 500}})
    for row in await client.send(*[{"subject": "s", "body": body, "due_ms": host.now_ms} for body in BODIES]):
        assert "receipt" in row
    told.accepted = True
    await host.sleep_ms(100)
    messages = await pulled(client, told)
    await settle(client, "nack", named(messages, b"0", b"3"), delay_ms=100)
    await settle(client, "nack", named(messages, b"4"), delay_ms=20_000)
    await host.sleep_ms(300)
    again = await pulled(client, told)
    await settle(client, "nack", named(again, b"3"), delay_ms=100)
    await host.sleep_ms(3_000)
    for message in await pulled(client, told):
        told.asked.add(body := message["body"].decode())
        await settle(client, "ack", [message])
        told.acked.add(body)
    await client.request("dead_letters", {"action": "resend", "subject": "s", "group": "g"})
    await host.sleep_ms(500)


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("first", range(1, 7))
async def test_a_crash_at_any_call_of_the_disk_doubles_no_message(boot: Boot, first: int, power: bool) -> None:
    for operation in range(first, OPERATIONS, 6):
        host, client = await boot.connected(small_settings())
        told = Told()
        host.disk.crash_after(operation)
        try:
            await script(host, client, told)
        except GONE:
            pass
        await (host.lose_power(operation) if power else host.kill())
        await host.start()
        await judge(host, await host.client(), told, operation)
        await host.stop()


async def judge(host: Host, client: Client, told: Told, operation: int) -> None:
    """What comes from now on is acked, until nothing comes."""
    seen: Counter[str] = Counter()
    for _ in range(14):
        for message in await client.pull():
            seen[message["body"].decode()] += 1
            await settle(client, "ack", [message])
        await host.sleep_ms(2_000)
    letters = Counter[str]()
    with suppress(GroupUnknown):  # the crash came before its policy
        listed = await client.request("dead_letters", {"action": "list", "subject": "s", "group": "g", "bodies": True})
        letters.update([letter["body"].decode() for letter in listed["letters"]])
    doubled = [body for body in BODIES if seen[body] + letters[body] > 1]
    assert not doubled, (operation, seen, letters)
    assert not told.acked & (set(seen) | set(letters)), (operation, told, seen, letters)
    if told.accepted:
        assert set(seen) | set(letters) | told.asked >= set(BODIES), (operation, told, seen, letters)


async def test_the_script_has_as_many_calls_as_are_tried(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    before = host.disk.operations
    told = Told()
    await script(host, client, told)
    assert told.acked == {"0", "1", "2", "5"}
    assert OPERATIONS - 20 <= host.disk.operations - before <= OPERATIONS + 20
    await judge(host, client, told, 0)
