"""A client that reads slowly is waited for, one that does not read is cut off, and what it never received comes again."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any

import pytest
import trio

from delayserver.broker.pulled_batch import PulledBatch
from delayserver.protocol.errors import FrameTimeout
from delayserver.protocol.frames import encode_request
from tests.fakes.host import Boot, Client, Host, small_settings, texts

KIB = 1024
# Small bounds, so that replies of some KiB meet them.
LISTEN = {"unsent_bytes_max": 4 * KIB, "unsent_timeout_ms": 5_000, "memory_bytes_each": 8 * KIB}
PULL = {"subject": "s", "group": "g", "max_messages": 4, "wait_ms": 10_000}


async def fill(host: Host, client: Client, count: int, size: int = KIB) -> None:
    """So many messages wait for a consumer."""
    await client.send(
        *[{"subject": "s", "body": b"%05d" % n + b"x" * size, "due_ms": host.now_ms} for n in range(count)]
    )
    await host.settled()
    await host.until(lambda: host.status()["delivered"] == count)


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    return sorted(int(text[:5]) for text in texts(messages))


async def ack(client: Client, message: dict[str, Any]) -> dict[str, Any]:
    return await client.request("ack", {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"]})


async def test_pipelined_pulls_of_a_client_that_reads_are_all_answered(boot: Boot) -> None:
    host = boot(small_settings(listen=LISTEN))
    host.network.window_bytes = 1_000
    client = await host.start_connected()
    await fill(host, client, 80)
    asked = [await client.ask("pull", PULL) for _ in range(20)]
    messages = [message for number in asked for message in (await client.reply(number))["messages"]]
    assert numbers(messages) == list(range(80))
    assert {message["attempt"] for message in messages} == {1}
    assert "client_stopped_reading" not in (await client.status())["errors"]
    assert host.server.connections.memory.used_bytes == 0


async def test_nothing_is_handed_out_to_a_client_with_much_unread_and_others_get_it(boot: Boot) -> None:
    host = boot(small_settings(listen=LISTEN))
    host.network.window_bytes = 1_000
    await host.start()
    client, other = await host.client(), await host.client()
    await fill(host, client, 80)
    for _ in range(20):
        await client.ask("pull", PULL)
    await host.sleep_ms(1_000)
    rest = await other.pull()
    assert len(rest) >= 80 - 2 * 4, "at most two replies are made for who does not read"


async def test_broadcast_groups_of_a_client_that_does_not_read_hold_no_reply_each(boot: Boot) -> None:
    host = boot(small_settings(listen=LISTEN))
    host.network.window_bytes = 1_000
    await host.start()
    client, other = await host.client(), await host.client()
    groups = [PULL | {"group": f"g{number}", "broadcast": True} for number in range(30)]
    waiting = [await client.ask("pull", pull) for pull in groups]
    await host.sleep_ms(50)
    await fill(host, other, 1, 6 * KIB)
    await host.sleep_ms(100)
    assert host.server.connections.memory.used_bytes <= 2 * 7 * KIB
    for number in waiting:
        assert numbers((await client.reply(number))["messages"]) == [0]
    assert host.server.connections.memory.used_bytes == 0


@pytest.mark.parametrize("operation", ["read", "pull"])
async def test_reads_of_a_client_that_does_not_read_hold_no_messages_each(boot: Boot, operation: str) -> None:
    host = boot(small_settings(listen=LISTEN))
    host.network.window_bytes = 1_000
    await host.start()
    await fill(host, await host.client(), 12, 6 * KIB)
    await host.stop()
    await host.start()  # the messages have to be read from the disk
    client = await host.client()
    asked = []
    for number in range(30):
        broadcast = {"group": f"g{number}", "broadcast": True, "start": "earliest"}
        rest = {"position": 0} if operation == "read" else broadcast
        asked.append(await client.ask(operation, {"subject": "s", "max_messages": 12} | rest))
    await host.sleep_ms(200)
    gc.collect()
    held = [each for each in gc.get_objects() if type(each) is PulledBatch]
    assert len(held) <= 2
    for number in asked:
        assert numbers((await client.reply(number))["messages"]) == list(range(12))


@pytest.mark.parametrize("end", ["cut off", "closed", "reset"])
async def test_a_message_handed_out_and_never_sent_comes_again_at_once(boot: Boot, end: str) -> None:
    host = boot(small_settings(listen=LISTEN, broker={"ack_timeout_ms": 3_600_000}))
    host.network.window_bytes = 3_000
    await host.start()
    client, other = await host.client(), await host.client()
    await fill(host, client, 40)
    for _ in range(10):
        await client.ask("pull", PULL)
    await host.sleep_ms(1_000)
    first = await other.pull()
    assert 0 < len(first) < 40
    if end == "cut off":
        await host.until(lambda: host.connections == 1, within_ms=11_000)
    elif end == "closed":
        client.transport.close()
    else:
        client.transport.reset()
    await host.sleep_ms(50)
    again = await other.pull()
    assert numbers(first + again) == list(range(40)), "no reply came whole, so all of it comes again"
    assert {message["attempt"] for message in again} == {1}, "nobody has seen one"
    assert host.status()["broker"]["given_back"] == len(again)
    for message in first + again:
        assert await ack(other, message) == {"acked": 1, "unknown": 0}
    host.check_balance(pending=0)
    host.server.parts.broker.core.check_invariants()


async def test_a_reply_whose_last_byte_was_sent_is_not_given_back(boot: Boot) -> None:
    host = await boot.started(small_settings(listen=LISTEN, broker={"ack_timeout_ms": 3_600_000}))
    client, other = await host.client(), await host.client()
    await fill(host, client, 4)
    await client.ask("pull", PULL)
    await host.sleep_ms(10)
    client.transport.close()
    await host.sleep_ms(1_000)
    assert await other.pull() == []
    assert host.status()["broker"]["given_back"] == 0


async def test_a_message_handed_out_to_a_connection_that_has_ended_comes_again(boot: Boot) -> None:
    host = await boot.started(small_settings(broker={"ack_timeout_ms": 3_600_000}))
    client, other = await host.client(), await host.client()
    await client.pull()
    await client.ask("pull", PULL | {"wait_ms": 30_000})
    await host.sleep_ms(10)
    host.listener.accepted[0].fail_sends = True
    await other.put("m", host.now_ms)
    await host.sleep_ms(100)
    assert texts(await other.pull()) == ["m"]


async def test_a_waiting_pull_without_room_ends_with_its_time_and_holds_up_no_other(boot: Boot) -> None:
    host = boot(small_settings(listen=LISTEN | {"unsent_timeout_ms": 600_000}))
    host.network.window_bytes = 1_000
    await host.start()
    client, other = await host.client(), await host.client()
    pull = await client.ask("pull", PULL | {"wait_ms": 2_000})
    await host.sleep_ms(10)
    for _ in range(10):
        await client.ask("status")
    await host.sleep_ms(10)
    await other.put("m", host.now_ms)
    assert texts(await other.pull(wait_ms=1_000)) == ["m"], "it goes to who has room"
    await host.sleep_ms(3_000)
    assert (await client.reply(pull))["messages"] == []
    assert host.server.parts.broker.pulls.waiting == 0


async def test_results_that_have_no_room_wait_in_order_with_their_requests(boot: Boot) -> None:
    host = boot(small_settings(listen=LISTEN))
    host.network.window_bytes = 1_000
    client = await host.start_connected()
    client.transport.window_bytes = 1 << 20
    receipt = (await client.put("m", host.now_ms + 60_000))["receipt"]
    asked = [await client.ask("lookup", {"receipts": [receipt] * 30}) for _ in range(40)]
    await host.sleep_ms(1_000)
    assert host.server.connections.memory.used_bytes <= 8 * KIB
    for number in asked:
        assert len((await client.reply(number))["results"]) == 30


# -- frames


def frame_of(size: int) -> bytes:
    return encode_request(1, "send", {"messages": [{"subject": "s", "body": b"x" * size, "delay_ms": 60_000}]})


FRAMES = {
    "memory_bytes_max": 100 * KIB,
    "memory_bytes_each": 8 * KIB,
    "idle_frame_timeout_ms": 5_000,
    "frame_bytes_max": 128 * KIB,
}


async def test_frames_beyond_the_bound_wait_and_small_requests_get_through(boot: Boot) -> None:
    host = await boot.started(small_settings(listen=FRAMES))
    frame = frame_of(60 * KIB)
    clients = [await host.client() for _ in range(5)]
    for client in clients:
        await client.send_bytes(frame[: 30 * KIB])
        await host.sleep_ms(10)
    memory = host.server.connections.memory
    assert memory.frames_waiting == 4
    memory.check_invariants()
    small = await host.client()
    await small.put("y" * 4 * KIB, host.now_ms + 60_000)
    assert (await small.status())["connection_memory"]["frames_waiting"] == 4
    for client in clients:
        await client.send_bytes(frame[30 * KIB :])
        assert "receipt" in (await client.reply(1))["results"][0]
    assert memory.frames_waiting == memory.used_bytes == 0


async def test_half_frames_that_hold_all_memory_are_cut_off_and_those_that_wait_go_on(boot: Boot) -> None:
    host = boot(small_settings(listen=FRAMES))
    host.network.window_bytes = 200 * KIB
    await host.start()
    frame = frame_of(90 * KIB)
    silent, dripping, waiting = [await host.client() for _ in range(3)]
    await silent.send_bytes(frame[: 20 * KIB])
    await host.sleep_ms(10)
    await dripping.send_bytes(frame[: 20 * KIB])
    await host.sleep_ms(10)
    await waiting.send_bytes(frame)
    with suppress(OSError):  # a byte now and then is no progress while others wait
        for _ in range(30):
            await dripping.send_bytes(b"x")
            await host.sleep_ms(1_000)
    with pytest.raises(FrameTimeout):
        await silent.reply(0)
    with pytest.raises(FrameTimeout):
        await dripping.reply(0)
    assert "receipt" in (await waiting.reply(1))["results"][0]
    assert host.server.connections.memory.used_bytes == 0


async def test_a_frame_that_comes_slowly_is_waited_for_while_there_is_room(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(listen=FRAMES))
    frame = frame_of(60 * KIB)
    for start in range(0, len(frame), 4 * KIB):
        await client.send_bytes(frame[start : start + 4 * KIB])
        await host.sleep_ms(4_000)
    assert "receipt" in (await client.reply(1))["results"][0]


async def test_a_client_that_goes_while_its_frame_waits_for_room_is_noticed(boot: Boot) -> None:
    host = await boot.started(small_settings(listen=FRAMES))
    frame = frame_of(90 * KIB)
    holding, waiting = await host.client(), await host.client()
    for client in (holding, waiting):
        await client.send_bytes(frame[: 20 * KIB])
        await host.sleep_ms(10)
    waiting.transport.close()
    await host.sleep_ms(10)
    assert host.connections == 1
    assert host.server.connections.memory.frames_waiting == 0


async def test_the_bound_over_all_connections_holds_among_greedy_clients(boot: Boot) -> None:
    bounds = LISTEN | {"memory_bytes_max": 64 * KIB, "memory_bytes_each": 2 * KIB}
    host = boot(small_settings(listen=bounds))
    host.network.window_bytes = 1_000
    await host.start()
    clients = [await host.client() for _ in range(40)]
    await fill(host, clients[0], 400)
    frame = frame_of(60 * KIB)
    for place, client in enumerate(clients[1:]):
        if place % 2:
            await client.send_bytes(frame[:900])
        else:
            for _ in range(4):
                await client.ask("pull", PULL | {"group": f"g{place}"})
        await host.sleep_ms(1)
        memory = host.server.connections.memory
        memory.check_invariants()
        # By one reply to each client that pulls, of the allowance or of one message.
        assert memory.used_bytes <= 64 * KIB + 60 * KIB + 20 * 2 * KIB
    with trio.fail_after(1):
        await (await host.client()).put("m", host.now_ms + 60_000)
