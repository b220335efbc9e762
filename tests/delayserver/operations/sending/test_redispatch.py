"""The operation `redispatch` of a running server, beside retention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from store.logs.open_files import OpenFiles
from tests.fakes.host import Boot, faked_settings


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("read", ["_columns", "_rows"])
async def test_messages_that_are_retired_beside_a_redispatch_are_neither_an_error_nor_damage(
    boot: Boot, monkeypatch: pytest.MonkeyPatch, read: str, within: bool
) -> None:
    host, client = await boot.connected(faked_settings())
    server = host.server
    due_ms = host.now_ms
    await client.put("m", due_ms)
    await host.until(lambda: host.fake().texts == ["m"])
    await host.settled()
    schedule, pin = server.parts.files.schedule, OpenFiles.pin
    (retired,) = schedule.keys()
    begun: set[str] = set()

    async def around(name: str, work: Callable[[], Any]) -> Any:
        begun.add(name)
        if name == read and not within:
            schedule.remove(retired)
        return work()

    def pin_behind_the_removal(table: Any, key: Any) -> Any:  # a thread saw that there is a file, and it is removed now
        if within and key == retired and read in begun and retired in schedule:
            schedule.remove(retired)
        return pin(table, key)

    host.workers.around = around
    monkeypatch.setattr(OpenFiles, "pin", pin_behind_the_removal)
    reply = await client.request("redispatch", {"from_ms": due_ms, "to_ms": due_ms + 1})
    assert (reply["messages"], reply["unreadable"], reply["damages"]) == (0, 0, [])
    assert retired not in schedule
