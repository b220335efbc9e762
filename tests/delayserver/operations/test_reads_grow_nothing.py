"""No request that only reads leaves anything in memory, whatever names it asks for and however often it comes.

The test adds up all that can be reached from the server before and after, so it needs no list of caches.
"""

from __future__ import annotations

import gc
import sys
import types
from contextlib import suppress
from typing import Any

import numpy as np

from delayserver.protocol.errors import DelayServerError
from tests.fakes.host import Boot, Client, Host, small_settings

_NO_STATE = (types.ModuleType, type, types.FunctionType, types.CodeType, types.FrameType, types.CoroutineType)
# The clock, the scheduler and the disk are fakes: what they remember is not the server's.
_NOT_THE_SERVERS = ("trio", "tests", "_pytest", "pytest", "logging")
# Numbers that have more digits than before, and a histogram that has its first value.
SLACK_BYTES = 16 * 1024


def reachable_bytes(root: object) -> dict[str, int]:
    """Bytes of everything that can be reached from an object, by type."""
    seen: set[int] = set()
    stack, found = [root], dict[str, int]()
    while stack:
        each = stack.pop()
        if id(each) in seen or isinstance(each, _NO_STATE) or type(each).__module__.split(".")[0] in _NOT_THE_SERVERS:
            continue
        seen.add(id(each))
        size = sys.getsizeof(each, 0)
        if isinstance(each, np.ndarray) and each.base is not None:
            stack.append(each.base)
        name = type(each).__qualname__
        found[name] = found.get(name, 0) + size
        stack.extend(gc.get_referents(each))
    return found


async def ask_all(client: Client, host: Host, receipts: list[str], turn: int) -> None:
    """Every operation that only reads, for names that exist and names that are asked for once."""
    new, at = f"never-sent.{turn}", {"due_ms": host.now_ms + turn}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("status", {}),
        ("metrics", {}),
        ("pending", {"by": "subject"}),
        ("pending", {"by": "message", "subject": new, "tag": new}),
        ("pending", {"by": "message", "subject": f"*{turn}", "where": "a = 'b'", "count": True}),
        ("pending", {"by": "minute", "from_ms": host.now_ms, "to_ms": host.now_ms + 86_400_000}),
        ("subjects", {}),
        ("subjects", {"pattern": f"*{turn}", "prefix": new}),
        ("groups", {}),
        ("groups", {"subject": new}),
        ("group", {"subject": "s.1", "group": "g"}),
        ("group", {"subject": new, "group": new}),
        ("policy", {"subject": new, "group": new}),
        ("dead_letters", {"subject": new, "group": new}),
        ("waiting_keys", {"subject": new, "group": new, "action": "list"}),
        ("route", {"subject": new, "order_key": new}),
        ("read", {"subject": "s.1", "position": 1}),
        ("read", {"subject": new, "position": turn}),
        ("read", {"subject": new, "position": turn, "wait_ms": 1}),
        ("find", {"subject": "s.1", "message_id": new}),
        ("find", {"subject": new, "message_id": new}),
        ("lookup", {"receipts": receipts}),
        ("lookup", {"messages": [{"subject": new, "message_id": new, **at}]}),
        ("pull", {"subject": new, "group": new}),
        ("pull", {"subject": new, "group": new, "wait_ms": 1}),
        ("token", {"do": "list"}),
        ("no_such_operation", {new: new}),
    ]
    for operation, arguments in requests:
        with suppress(DelayServerError):
            await client.request(operation, arguments)


async def test_requests_that_only_read_grow_nothing(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    server = host.server
    now, later = host.now_ms, host.now_ms + 3_600_000
    await client.send(*[{"subject": f"s.{number}", "body": "x", "due_ms": now} for number in range(1_500)])
    kept = await client.send(*[{"subject": f"later.{number}", "body": "x", "due_ms": later} for number in range(600)])
    # In one request, so that the tallies grow by different steps.
    count = 3_000
    columns = {
        "subjects": [f"column.{number}" for number in range(count)],
        "subject_index": np.arange(count, dtype="<u4").tobytes(),
        "due_ms": np.full(count, now, "<i8").tobytes(),
        "bodies": b"x" * count,
        "body_length": np.ones(count, "<u4").tobytes(),
    }
    await client.request("send", {"count": count, **columns})
    await host.until(lambda: host.status()["pending"] == 600)
    await client.pull("s.1", "g")
    receipts = [row["receipt"] for row in kept[:5]]
    for turn in range(3):
        await ask_all(client, host, receipts, turn)
    before = reachable_bytes(server)
    # First a few turns: growth that doubles would take all memory.
    for turns in (range(3, 6), range(6, 30)):
        for turn in turns:
            await ask_all(client, host, receipts, turn)
        after = reachable_bytes(server)
        grown = {name: size - before.get(name, 0) for name, size in after.items() if size > before.get(name, 0)}
        most = sorted(grown.items(), key=lambda row: -row[1])[:8]
        assert sum(after.values()) - sum(before.values()) < SLACK_BYTES, most
