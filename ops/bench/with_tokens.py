"""Row `tokens`: rates with access tokens, against the same without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ops.bench.children import run_together
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import SUBJECT, ingest, open_client, rate_of
from ops.bench.pulling import DELIVERED_S_MAX, consume_all, send_all
from ops.bench.server_process import ServerProcess, fresh_directory

SECONDS: Final = 1.0
PAIRS: Final = 8
MESSAGES: Final = 100_000
SHAPES: Final = {"c1b1": (1, 1), "c8b1": (8, 1), "c8b1000": (8, 1000)}
"""Connections and batches of `ingest-*`."""


@dataclass(frozen=True, slots=True)
class Place:
    """A server, as its clients and as its operator reach it."""

    server: ServerProcess
    client: str
    operator: str

    def wait(self, done: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Wait for a status. Raises `WrongResult`."""
        until_s = time.monotonic() + DELIVERED_S_MAX
        with open_client(self.operator) as client:
            while not done(client.status()):
                expect(time.monotonic() < until_s, what)
                time.sleep(0.02)


Burst = Callable[[Place], tuple[float, int]]
"""The rate of one burst, and its messages."""


def measure_tokens(options: Options) -> Run:
    """Two servers, one with tokens, in bursts that take turns. The value is the smallest of the median ratios."""
    seconds = options.seconds or SECONDS
    bursts: dict[str, Burst] = {name: _ingest(*shape, seconds) for name, shape in SHAPES.items()}
    bursts["deliver"] = _deliver(options.messages or MESSAGES)
    ratios: list[float] = []
    details: dict[str, Any] = {}
    with (
        fresh_directory(options.data_dir) as plain_directory,
        fresh_directory(options.data_dir) as guarded_directory,
        ServerProcess(plain_directory) as without,
        ServerProcess(guarded_directory) as guarded,
    ):
        plain, place = Place(without, without.address, without.address), _with_tokens(guarded)
        for name, burst in bursts.items():
            pairs = [_pair(burst, plain, place, turn) for turn in range(PAIRS)]
            rate, ratio, cpu_ratio = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratios.append(ratio)
            details |= {
                f"{name}_rate": rounded(rate),
                f"{name}_ratio": rounded(ratio),
                f"{name}_cpu_ratio": rounded(cpu_ratio),
            }
    return Run(min(ratios), details)


def _with_tokens(server: ServerProcess) -> Place:
    """Makes an administrator's token, and one that may send and consume the subject of the bench."""
    address = server.address
    with open_client(address) as client:
        operator = f"{address}#{client.token('admin').text}"
    with open_client(operator) as client:
        return Place(server, f"{address}#{client.token(['send', 'consume'], SUBJECT).text}", operator)


def _pair(burst: Burst, plain: Place, guarded: Place, turn: int) -> tuple[float, float, float]:
    """The rate without tokens, the ratio to it of the rate with them, and the same of messages for a second of the server's
    processor. Which comes first takes turns as well."""
    found = {place: _measured(burst, place) for place in ([plain, guarded] if turn % 2 else [guarded, plain])}
    (rate, for_cpu), (guarded_rate, guarded_for_cpu) = found[plain], found[guarded]
    return rate, guarded_rate / rate, guarded_for_cpu / for_cpu


def _measured(burst: Burst, place: Place) -> tuple[float, float]:
    before_s = place.server.cpu_s()
    rate, messages = burst(place)
    # The kernel counts in steps of 10 ms.
    return rate, messages / max(place.server.cpu_s() - before_s, 0.01)


def _ingest(connections: int, batch: int, seconds: float) -> Burst:
    def burst(place: Place) -> tuple[float, int]:
        sent = run_together([(ingest, place.client, batch, seconds, 0)] * connections)
        # The replay would run beside the next burst.
        place.wait(lambda status: not status["storage"]["replay_lag_bytes"], "the replay does not end")
        return rate_of(sent), sum(each.messages for each in sent)

    return burst


def _deliver(messages: int) -> Burst:
    """A backlog of messages, as `consume-1m` reads it."""

    def burst(place: Place) -> tuple[float, int]:
        with open_client(place.operator) as client:
            until = client.status()["broker"]["delivered"] + messages
        run_together([(send_all, place.client, messages)])
        place.wait(lambda status: status["broker"]["delivered"] >= until, f"{messages} messages were not delivered")
        [seconds] = run_together([(consume_all, place.client, messages)])
        return messages / float(seconds), messages

    return burst
