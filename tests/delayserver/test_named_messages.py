"""Messages named by their ids: a search may be long, and what a name stands for may change meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from tests.fakes.host import Host, faked_settings

Boot = Callable[..., Host]


@pytest.mark.parametrize("operation", ["cancel", "lookup"])
async def test_a_name_beside_a_reschedule_to_the_same_time_is_the_one_that_lives(boot: Boot, operation: str) -> None:
    host = boot(faked_settings())
    await host.start()
    one, two = await host.client(), await host.client()
    outcomes = set()
    for number in range(20):
        due_ms, name = host.now_ms + 500, f"name{number}"
        receipt = (await one.put("old", due_ms, message_id=name))["receipt"]
        moved = await one.ask("reschedule", {"items": [{"receipt": receipt, "due_ms": due_ms, "body": "new"}]})
        asked = await two.ask(operation, {"messages": [{"subject": "s", "message_id": name, "due_ms": due_ms}]})
        (moved_to,) = (await one.reply(moved))["results"]
        (answer,) = (await two.reply(asked))["results"]
        outcomes.add((moved_to["outcome"], answer["outcome"]))
        await host.sleep_ms(1_000)
        if answer["outcome"] in ("cancelled", "already_cancelled"):
            assert host.fake().texts == [], (moved_to["outcome"], answer["outcome"])
        host.fake().stored.clear()
    assert any(first == "cancelled" for first, _ in outcomes), "in some rounds the reschedule came first"


@pytest.mark.parametrize("rows", [1, 5_000])
async def test_an_id_is_looked_for_beside_the_event_loop_where_its_window_is_large(
    boot: Boot, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = boot(faked_settings())
    await host.start()
    client = await host.client()
    due_ms = host.now_ms + 1_800_000
    ids = b"".join(b"%08d" % number for number in range(rows))
    columns = {"count": rows, "subject": "s", "due_ms": due_ms, "bodies": b"x" * rows, "body_length": 1}
    await client.request("send", columns | {"message_ids": ids, "message_id_length": 8})
    await host.settled()
    in_threads = []

    async def run_sync(work: partial[Any]) -> Any:
        in_threads.append(work.func)
        return work()

    host.server.cancellation._inline = False
    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    name = {"subject": "s", "message_id": f"{rows - 1:08}", "due_ms": due_ms}
    (found,) = (await client.request("lookup", {"messages": [name]}))["results"]
    assert found["outcome"] == "pending"
    assert (host.server.locator.by_id in in_threads) == (rows > 1)
