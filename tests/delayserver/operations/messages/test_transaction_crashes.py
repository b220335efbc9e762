"""The power fails at each moment between a prepare and its end: what was answered holds, and the rest ends one way."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from delayserver.protocol.errors import DelayServerError
from tests.delayserver.operations.messages.test_transactions import end, findings_of, prepare
from tests.fakes.disk import SimulatedCrash
from tests.fakes.host import Boot, Client, Host, small_settings, texts

# The changing calls of the disk in the script below. The last ones are those of its check-backs.
OPERATIONS = 102
GONE = (OSError, SimulatedCrash, trio.BrokenResourceError, trio.ClosedResourceError, DelayServerError)
TERMS: dict[str, Any] = {"check_after_ms": 1_000, "checks_max": 1}


async def script(host: Host, client: Client, told: dict[str, str], receipts: dict[str, str]) -> None:
    """Prepares four transactions, commits one, rolls one back, and leaves two to their policies. `told` has what was
    answered, by body; `receipts` those of the prepared ones."""
    for body, policy in (("commit", "rollback"), ("back", "commit"), ("asked", "rollback"), ("kept", "commit")):
        (row,) = await prepare(client, body, due_ms=host.now_ms, policy=policy, **TERMS)
        receipts[body], told[body] = row["receipt"], "prepared"
    for body, operation in (("commit", "commit"), ("back", "rollback")):
        told[body] = f"{operation} asked"
        (row,) = await end(client, operation, receipts[body])
        if "error" in row:
            assert row["error"] == "storage_failed", row
            return
        told[body] = row["outcome"]
    await host.sleep_ms(4_000)


@pytest.mark.parametrize("first", range(1, 7))
async def test_a_power_failure_at_any_call_of_the_disk_breaks_no_promise(boot: Boot, first: int) -> None:
    for operation in range(first, OPERATIONS, 6):
        host, client = await boot.connected(small_settings())
        told: dict[str, str] = {}
        receipts: dict[str, str] = {}
        host.disk.crash_after(operation)
        try:
            await script(host, client, told, receipts)
        except GONE:
            pass
        await host.restart_unpowered(operation)
        client = await host.client()
        await judge(host, client, told, receipts)
        await host.stop()
        assert findings_of(host) == [], operation


async def judge(host: Host, client: Client, told: dict[str, str], receipts: dict[str, str]) -> None:
    """What was answered holds now, and also when all policies have decided."""
    found = dict(zip(receipts, await client.lookup(*receipts.values()), strict=True)) if receipts else {}
    for body, state in found.items():
        assert state in ("prepared", "committed", "rolled_back"), (body, state)
        if told[body] in ("committed", "rolled_back"):
            assert state == told[body], body
    await host.sleep_ms(10_000)
    seen = texts(await client.pull())
    assert len(set(seen)) == len(seen)
    ended = dict(zip(receipts, await client.lookup(*receipts.values()), strict=True)) if receipts else {}
    for body, state in ended.items():
        assert state in ("committed", "rolled_back"), (body, state)
        assert (body in seen) == (state == "committed"), (body, state)
        if found[body] != "prepared":
            assert state == found[body], body
    by_policy = {"asked": "rolled_back", "kept": "committed", "commit": "rolled_back", "back": "committed"}
    for body in ended:
        if told[body] == "prepared":
            assert ended[body] == by_policy[body], body
    # A prepare without an answer may have happened: then its policy has ended it as well.
    assert set(seen) <= {"commit", "back", "kept"}
    await host.balanced(pending=0)
    for check in await client.pull("p.check"):
        raise AssertionError(f"asked behind the last check: {check}")


async def test_the_script_has_as_many_calls_as_are_tried(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    before = host.disk.operations
    told: dict[str, str] = {}
    await script(host, client, told, {})
    assert told == {"commit": "committed", "back": "rolled_back", "asked": "prepared", "kept": "prepared"}
    assert OPERATIONS - 20 <= host.disk.operations - before <= OPERATIONS + 20
