"""Rows `publish-*`: messages per second that are stored durably for consumers, from C connections with batches of B.

They are the rows `ingest-*` of the same shape, but for the operation. So their ratio in one run is what publishing costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ops.bench.bodies import BODY_BYTES, make_bodies
from ops.bench.children import Gate, run_together
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import SUBJECT, Sent, open_client, rate_of, sent_of
from ops.bench.server_process import ServerProcess, fresh_directory

SECONDS = 4.0


def publish(gate: Gate, address: str, batch: int, seconds: float) -> Sent:
    """Publishes batches one after the other for some time."""
    blob = make_bodies(batch).tobytes()
    calls = []
    with open_client(address) as client:
        gate.wait()
        begin = now = time.perf_counter()
        while now - begin < seconds:
            if batch == 1:
                client.publish(SUBJECT, blob)
            else:
                published = client.publish_columns(SUBJECT, blob, body_length=BODY_BYTES, count=batch)
                expect(published.accepted == batch, f"{published.accepted} of {batch} accepted")
            before, now = now, time.perf_counter()
            calls.append(now - before)
    return sent_of(len(calls) * batch, begin, now, calls)


def measure_publish(connections: int, batch: int) -> Callable[[Options], Run]:
    """A row: only publishes, to one subject without consumers."""

    def measure(options: Options) -> Run:
        with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
            before_s = server.cpu_s()
            results = run_together([(publish, server.address, batch, options.seconds or SECONDS)] * connections)
            server_cpu_s = server.cpu_s() - before_s
            messages = sum(sent.messages for sent in results)
            stored = server.status()["broker"]["published"]
            expect(stored == messages, f"{messages} were published, but the server says {stored}")
        details = {
            "messages": messages,
            "call_p50_ms": rounded(sum(sent.call_p50_ms for sent in results) / len(results)),
            "call_p99_ms": rounded(max(sent.call_p99_ms for sent in results)),
            "server_cpu_s": rounded(server_cpu_s),
        }
        return Run(rate_of(results), details)

    return measure
