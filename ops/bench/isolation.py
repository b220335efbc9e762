"""The row `isolation`: p99 lateness of a quiet broker group beside a flood, against the quiet group alone.

The flood is very many messages of another group that are due in one second."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from ops.bench.children import children, run_together
from ops.bench.consuming import Consumers, Received, lateness, verify
from ops.bench.delivering import DELAY_MS, LOAD_RATE_MIN, load_targets, whole_second_ms
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import Sent, steady
from ops.bench.server_process import ServerProcess, fresh_directory

MESSAGES: Final = 1_000_000
RATE: Final = 1000
SECONDS: Final = 12.0
FLOOD, CALM = "flood", "calm"
WINDOW_MS_MIN: Final = 1000

CONFIG: Final = """
[[groups]]
name = "calm"
nodes = ["embedded"]

[[groups]]
name = "flood"
nodes = ["embedded"]

[[routes]]
pattern = "flood*"
groups = ["flood"]

[[routes]]
pattern = "*"
groups = ["calm"]
"""


def measure_isolation(options: Options) -> Run:
    """The value is the ratio for messages due between the second of the flood and the arrival of its last message."""
    messages = options.messages or MESSAGES
    seconds = options.seconds or SECONDS
    alone, _ = _measure(options, 0, seconds)
    beside, flood = _measure(options, messages, seconds)
    begin_ms = int(flood.due_ms[0])
    end_ms = max(int(flood.received_us.max()) // 1000, begin_ms + WINDOW_MS_MIN)
    during = beside.within(begin_ms, end_ms)
    expect(len(during.number) > 0, "nothing of the quiet group was due during the flood: the flood came too late")
    quiet, loaded, whole = lateness(alone), lateness(during), lateness(beside)
    details: dict[str, Any] = {
        "flood_messages": messages,
        "flood_drain_s": rounded(float(flood.late_ms.max()) / 1000),
        "messages_during": len(during.number),
    }
    for name in ("p50_ms", "p99_ms", "dispatched_p99_ms"):
        details |= {f"alone_{name}": quiet[name], f"during_{name}": loaded[name], f"whole_{name}": whole[name]}
    details["dispatched_ratio"] = rounded(loaded["dispatched_p99_ms"] / quiet["dispatched_p99_ms"])
    details["whole_ratio"] = rounded(whole["p99_ms"] / quiet["p99_ms"])
    return Run(loaded["p99_ms"] / quiet["p99_ms"], details)


def _measure(options: Options, flood_messages: int, seconds: float) -> tuple[Received, Received]:
    with fresh_directory(options.data_dir) as directory:
        config = f"{directory}/config.toml"
        Path(config).write_text(CONFIG)
        with ServerProcess(directory, config) as server:
            return _run(server, flood_messages, seconds)


def _run(server: ServerProcess, flood_messages: int, seconds: float) -> tuple[Received, Received]:
    calm, flood = Consumers(server.address, CALM), Consumers(server.address, FLOOD)
    targets = [*calm.targets, *flood.targets, (steady, server.address, CALM, RATE, seconds, DELAY_MS)]
    with children(targets) as (calm_child, flood_child, producer):
        calm_child.tell()
        flood_child.tell()
        # The flood is due after a third of the quiet group's messages, so that all of it is beside such messages.
        before_s = DELAY_MS / 1000 + seconds / 3
        flood_ms = whole_second_ms(flood_messages / LOAD_RATE_MIN + 1 + before_s)
        if flood_messages:
            run_together(load_targets(server, FLOOD, flood_messages, flood_ms))
            expect(time.time() < flood_ms / 1000 - before_s, "the flood could not be loaded in time")
            time.sleep(flood_ms / 1000 - before_s - time.time())
        producer.tell()
        sent: Sent = producer.result()
        calm.wait_for(sent.messages, time.time_ns() // 1_000_000 + DELAY_MS)
        if flood_messages:
            flood.wait_for(flood_messages, flood_ms)
        received = calm.stop([calm_child]), flood.stop([flood_child])
    verify(received[0], sent.messages)
    verify(received[1], flood_messages)
    delivered = server.status()["delivered"]
    expect(delivered == sent.messages + flood_messages, f"the server says delivered = {delivered}")
    return received
