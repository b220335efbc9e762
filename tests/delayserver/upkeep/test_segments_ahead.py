"""The server makes the next segments of its logs beside commits, and no commit makes a file."""

from __future__ import annotations

import errno
import re
from collections import Counter

import trio

from tests.fakes.host import Boot, Host, small_settings

SEGMENT = re.compile(r"/data/(.*)/\d{20}\.log")


class Allocations:
    """The allocations of a disk: by folder of the log, those of segments themselves and those of next ones."""

    def __init__(self, host: Host) -> None:
        self.segments: Counter[str] = Counter()
        self.ahead: Counter[str] = Counter()
        self.refused = False
        host.disk.refuse = self.look

    def look(self, operation: str, path: str) -> int:
        if operation != "allocate":
            return 0
        if path.endswith("/next.tmp"):
            self.ahead[path.removeprefix("/data/").removesuffix("/next.tmp")] += 1
            return errno.ENOSPC if self.refused else 0
        match = SEGMENT.fullmatch(path)
        self.segments[match[1] if match else path] += 1
        return 0


async def send_much(host: Host, count: int, body_bytes: int = 60_000) -> None:
    client = await host.client()
    for _ in range(count):
        results = await client.send({"subject": "s", "body": b"x" * body_bytes, "delay_ms": 0})
        assert "error" not in results[0], results
        await trio.sleep(0.05)


async def test_no_commit_at_the_end_of_a_segment_makes_a_file(boot: Boot) -> None:
    host = await boot.started(small_settings())
    seen = Allocations(host)
    await send_much(host, 60)
    bases = [name for name in host.disk.files("/data/message_log") if SEGMENT.fullmatch(name)]
    assert len(bases) >= 4 and len(host.disk.files("/data/broker/store")) >= 10
    assert seen.segments["message_log"] == 0 and seen.segments["broker/store"] == 0
    assert seen.ahead["message_log"] >= len(bases) - 1 and seen.ahead["broker/store"] >= 10
    await host.stop()
    assert not [name for name in host.disk.files("/data") if name.endswith("next.tmp")], "a clean stop gives room back"


async def test_a_disk_that_refuses_a_next_segment_refuses_no_commit(boot: Boot) -> None:
    host = await boot.started(small_settings())
    seen = Allocations(host)
    seen.refused = True
    await send_much(host, 40)
    assert seen.ahead["message_log"] and seen.segments["message_log"] >= 2 and seen.segments["broker/store"] >= 5
    seen.refused = False
    segments = seen.segments["message_log"]
    await trio.sleep(2)
    await send_much(host, 40)
    assert seen.segments["message_log"] <= segments + 1, "it tries again by itself"


async def test_no_next_segment_is_made_where_sends_would_be_refused_for_its_room(boot: Boot) -> None:
    host = await boot.started(small_settings(storage={"free_bytes_min": 1 << 20}))
    seen = Allocations(host)
    host.disk.capacity_bytes = host.disk.used_bytes + 3_200_000
    await send_much(host, 14)
    assert not seen.ahead["message_log"]
    host.disk.capacity_bytes = None
    await send_much(host, 20)
    assert seen.ahead["message_log"]


async def test_a_killed_server_leaves_its_next_segment_and_the_next_life_makes_one_anew(boot: Boot) -> None:
    host = await boot.started(small_settings())
    await send_much(host, 15)
    assert "/data/message_log/next.tmp" in host.disk.files("/data")
    await host.kill()
    seen = Allocations(host)
    await host.start()
    await trio.sleep(1)
    assert seen.ahead["message_log"] == 1
    client = await host.client()
    assert (await client.status())["accepted"] == 15


async def test_a_next_segment_that_cannot_be_synced_is_a_refusal_of_the_disk_and_no_corruption(boot: Boot) -> None:
    host = await boot.started(small_settings())
    host.disk.fail_next_sync("/data/message_log/next.tmp")
    await send_much(host, 30)
    status = host.status()
    assert status["corruption"] == []
    assert "next.tmp: sync failed" in status["storage"]["disk_error_last"]
    assert len(host.disk.files("/data/message_log")) >= 2, "it was made again"
