"""Rows `publish-*`: the rate of messages that are stored durably for consumers, against that of the rows `ingest-*`.

C connections publish and send batches of B in turns on one server, in slots of the clock that they share. So the ratio
does not depend on how quick the machine is at the moment.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from delayserver.client import Client
from ops.bench.bodies import BODY_BYTES, make_bodies
from ops.bench.children import Gate, run_together
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import HOUR_MS, SUBJECT, open_client, send_batch
from ops.bench.server_process import ServerProcess, fresh_directory

SECONDS: Final = 12.0
SLOT_S: Final = 0.3
# At the begin of a slot the server still replays what was sent in the one before. These messages do not count.
SETTLE_S: Final = 0.05
# So many slots have a whole pair between the parts at both ends.
SLOTS_MIN: Final = 5


@dataclass(frozen=True, slots=True)
class Turns:
    """The messages of one connection by slot: all, and those that count."""

    messages: Counter[int]
    counted: Counter[int]


def publish_and_send(gate: Gate, address: str, batch: int, seconds: float) -> Turns:
    """Publishes in the even slots of the clock, and sends messages due in a day in the odd ones."""
    blob = make_bodies(batch).tobytes()
    turns = Turns(Counter(), Counter())
    with open_client(address) as client:
        gate.wait()
        end = time.monotonic() + max(seconds, SLOTS_MIN * SLOT_S)
        while (now := time.monotonic()) < end:
            slot, into_s = divmod(now, SLOT_S)
            count = _send(client, batch, blob) if slot % 2 else _publish(client, batch, blob)
            turns.messages[int(slot)] += count
            if into_s >= SETTLE_S:
                turns.counted[int(slot)] += count
    return turns


def _publish(client: Client, batch: int, blob: bytes) -> int:
    if batch == 1:
        client.publish(SUBJECT, blob)
        return 1
    published = client.publish_columns(SUBJECT, blob, body_length=BODY_BYTES, count=batch)
    expect(published.accepted == batch, f"{published.accepted} of {batch} accepted")
    return batch


def _send(client: Client, batch: int, blob: bytes) -> int:
    due_ms = time.time_ns() // 1_000_000 + 24 * HOUR_MS
    if batch == 1:
        client.send(SUBJECT, blob, due_ms=due_ms)
        return 1
    send_batch(client, SUBJECT, due_ms, blob, batch)
    return batch


def measure_publish(connections: int, batch: int) -> Callable[[Options], Run]:
    """A row: publishes to one subject without consumers. The value is the median ratio of neighbouring slots."""

    def measure(options: Options) -> Run:
        with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
            target = (publish_and_send, server.address, batch, options.seconds or SECONDS)
            results: list[Turns] = run_together([target] * connections)
            status = server.status()
        messages: Counter[int] = sum([turns.messages for turns in results], Counter())
        published = sum([count for slot, count in messages.items() if slot % 2 == 0])
        for name, count, told in (
            ("published", published, status["broker"]["published"]),
            ("sent", messages.total() - published, status["accepted"]),
        ):
            expect(told == count, f"{count} were {name}, but the server says {told}")
        # The first and the last slot of a connection are parts.
        whole = range(
            max([min(turns.messages) for turns in results]) + 1, min([max(turns.messages) for turns in results])
        )
        even = [slot for slot in whole if slot % 2 == 0 and slot + 1 in whole]
        counted: Counter[int] = sum([turns.counted for turns in results], Counter())
        pairs = [(counted[slot], counted[slot + 1]) for slot in even if counted[slot] and counted[slot + 1]]
        expect(len(pairs) > 0, "no slot of publishes and the one behind it have an answer each")
        rates = [statistics.median(rate) / (SLOT_S - SETTLE_S) for rate in zip(*pairs, strict=True)]
        details = {"messages": messages.total(), "published_rate": rounded(rates[0]), "sent_rate": rounded(rates[1])}
        return Run(statistics.median([published / sent for published, sent in pairs]), details)

    return measure
