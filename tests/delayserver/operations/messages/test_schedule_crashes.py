"""The power fails at each moment between the making of schedules and their firings: each moment gives one message."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from delayserver.protocol.errors import DelayServerError
from tests.delayserver.operations.messages.test_schedules import act, moments, put
from tests.delayserver.operations.messages.test_transactions import findings_of
from tests.fakes.disk import SimulatedCrash
from tests.fakes.host import Boot, Client, Host, small_settings

# The changing calls of the disk in the script below.
OPERATIONS = 170
GONE = (OSError, SimulatedCrash, trio.BrokenResourceError, trio.ClosedResourceError, DelayServerError)


async def script(host: Host, client: Client, told: dict[str, Any]) -> None:
    """Makes two schedules, changes one, pauses and deletes the other, and runs the first. `told` has what was answered."""
    told["start_ms"] = host.now_ms + 300
    for name in ("kept", "gone"):
        told[name] = "asked"
        await put(client, name, start_ms=told["start_ms"], every_ms=1_000)
        told[name] = "made"
    await host.sleep_ms(2_000)
    for action in ("pause", "resume", "delete"):
        told["gone"] = f"{action} asked"
        await act(client, action, "gone")
        told["gone"] = action
    told["run"] = "asked"
    told["run"] = (await act(client, "run", "kept"))["message_id"]
    await host.sleep_ms(2_000)


@pytest.mark.parametrize("first", range(1, 7))
async def test_a_power_failure_at_any_call_of_the_disk_breaks_no_promise(boot: Boot, first: int) -> None:
    for operation in range(first, OPERATIONS, 6):
        host, client = await boot.connected(small_settings())
        told: dict[str, Any] = {}
        host.disk.crash_after(operation)
        try:
            await script(host, client, told)
        except GONE:
            pass
        died_ms = host.now_ms
        await host.restart_unpowered(operation)
        client = await host.client()
        await judge(host, client, told, died_ms)
        await host.stop()
        assert findings_of(host) == [], operation


async def judge(host: Host, client: Client, told: dict[str, Any], died_ms: int) -> None:
    """What was answered holds, and each moment of the schedule that is kept fired once."""
    await host.sleep_ms(2_000)
    names = [each["name"] for each in (await client.request("schedule", {"action": "list"}))["schedules"]]
    if told.get("kept") == "made":
        assert "kept" in names, told
    if told.get("gone") in ("made", "pause", "resume"):
        assert "gone" in names, told
    if told.get("gone") == "delete":
        assert "gone" not in names, told
    messages = [each for each in await client.pull() if each["properties"]["schedule"] == "kept"]
    ids = [each["message_id"] for each in messages]
    assert len(set(ids)) == len(ids), told
    seen = moments([each for each in messages if ":run-" not in each["message_id"]])
    if "kept" in names:
        count = (host.now_ms - 50 - seen[0]) // 1_000 + 1
        assert seen[:count] == [seen[0] + 1_000 * each for each in range(count)], told
        assert seen[0] == told["start_ms"] or died_ms <= told["start_ms"] + 1_000, told
    if str(told.get("run", "asked")) != "asked":
        assert told["run"] in ids, told
    await host.settled()


async def test_the_script_has_as_many_calls_as_are_tried(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    before = host.disk.operations
    await script(host, client, {})
    assert OPERATIONS - 20 <= host.disk.operations - before <= OPERATIONS + 20
