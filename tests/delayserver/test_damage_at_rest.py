"""Bits that flip at rest: what can be served goes on being served, and what cannot is named (rule 11)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fakes.host import Host, faked_settings

Boot = Callable[..., Host]


def only_file(host: Host, folder: str, suffix: str = ".log") -> str:
    """The path of the only file there."""
    (path,) = [path for path in host.disk.files(f"/data/{folder}") if path.endswith(suffix)]
    return path


@pytest.mark.parametrize("offset", [3, 12, 20, 41, 50])
@pytest.mark.parametrize("replay", ["behind the start", "within the start"])
async def test_messages_go_on_into_a_window_whose_file_has_a_damaged_header(
    boot: Boot, offset: int, replay: str
) -> None:
    host = boot(faked_settings(storage={"checkpoint_interval_ms": 1 << 40}))
    await host.start()
    client = await host.client()
    due_ms = host.now_ms // 60_000 * 60_000 + 90_000
    await client.put("0", due_ms)
    await host.settled()
    await host.server.checkpointing.write()
    path = only_file(host, "schedule_log", ".direct.log")
    if replay == "within the start":
        await client.put("1", due_ms)
        await host.settled()
        await host.lose_power(1)
    else:
        await host.stop()
    host.disk.flip_bit(path, offset)
    await host.start()
    assert host.died_of is None, host.died_of
    if replay == "behind the start":
        await (await host.client()).put("1", due_ms)
    await host.sleep_ms(120_000)
    assert host.died_of is None, host.died_of
    assert sorted(host.fake().texts) == ["0", "1"]
    await host.settled()
    status = host.check_balance(pending=0)
    assert any(path in text for text in status["corruption"])
