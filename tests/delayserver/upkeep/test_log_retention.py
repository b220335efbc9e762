"""Segments of message_log go when their time is over, however many they are, and hold up nothing."""

from __future__ import annotations

import trio

from tests.fakes.host import Boot, Host, faked_settings

RETENTION_MS = 60_000
SEGMENTS = 20


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def with_segments(host: Host) -> None:
    """A server whose message_log has many sealed segments, and a checkpoint behind them."""
    server = await host.start()
    client = await host.client()
    while len(server.parts.files.log.segments()) <= SEGMENTS:
        await client.put("x" * 8_000, host.now_ms)
    await host.settled()
    await host.sleep_ms(10_000)


async def test_each_segment_goes_when_it_has_been_sealed_for_its_retention(boot: Boot) -> None:
    host = boot(
        faked_settings(storage={"message_log_segment_bytes": 1 << 14, "message_log_retention_ms": RETENTION_MS})
    )
    await with_segments(host)
    await host.sleep_ms(RETENTION_MS - 30_000)
    assert len(host.server.parts.files.log.segments()) > SEGMENTS
    await host.sleep_ms(45_000)
    assert len(host.server.parts.files.log.segments()) == 1


async def test_segments_that_go_at_once_are_removed_in_a_step_each(boot: Boot) -> None:
    host = boot(
        faked_settings(storage={"message_log_segment_bytes": 1 << 14, "message_log_retention_ms": RETENTION_MS})
    )
    await with_segments(host)
    server = await host.restart()
    steps, removed = Steps(), []

    def note(operation: str, path: str) -> int:
        if operation == "remove" and "/message_log/" in path:
            removed.append(steps.count)
        return 0

    host.disk.refuse = note
    trio.lowlevel.add_instrument(steps)
    await host.sleep_ms(RETENTION_MS + 15_000)
    trio.lowlevel.remove_instrument(steps)
    assert len(server.parts.files.log.segments()) == 1
    assert len(removed) >= SEGMENTS and len(set(removed)) == len(removed)
