"""`bench compare --bursts`: sends to this project and its peers in short bursts in turns, on servers that stay up.

The speed of a shared machine changes by more than a factor of two within minutes, and so do the rates of whole runs.
The ratio of neighbouring bursts does not change.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from ops.bench.bodies import make_bodies
from ops.bench.figures import expect
from ops.bench.producing import DAY_MS, SUBJECT, open_client, send_batch

BURST_S: Final = 0.3
# The time from the order to the first request, so that all senders have received the order.
HEAD_START_S: Final = 0.02
JOIN_TIMEOUT_S: Final = 10.0

Send = Callable[[int], None]
"""Sends one batch that is due at the given time in ms, and returns when it is durable."""
OpenSend = Callable[[int], Send]
"""Makes the `Send` of one sender from the sender's number."""

# Forked, because a peer of the harness has functions of modules that a new process cannot import by name.
_CONTEXT: Final = multiprocessing.get_context("fork")


def ours(address: str, batch: int) -> OpenSend:
    """Sends like the rows of this bench: one message as a row, several as prepared columns."""

    def open_send(_: int) -> Send:
        client = open_client(address)
        blob = make_bodies(batch).tobytes()

        def send_row(due_ms: int) -> None:
            client.send(SUBJECT, blob, due_ms=due_ms)

        def send_columns(due_ms: int) -> None:
            send_batch(client, SUBJECT, due_ms, blob, batch)

        return send_row if batch == 1 else send_columns

    return open_send


def theirs(harness: Any, peer: Any, batch: int) -> OpenSend:
    """Sends like the harness sends to a peer."""

    def open_send(sender: int) -> Send:
        producer = peer.producer()
        numbers = iter(range(sender << 40, (sender + 1) << 40, batch))

        def send(due_ms: int) -> None:
            due_s, first = due_ms / 1000, next(numbers)
            producer.send([(due_s, harness.body(due_s, first + place)) for place in range(batch)])

        return send

    return open_send


def bursts_in_turns(
    opened: dict[str, OpenSend], connections: int, batch: int, bursts: int, burst_s: float = BURST_S
) -> dict[str, list[float]]:
    """Messages per second of each system, by burst. The systems take turns, in another order each time."""
    rates: dict[str, list[float]] = {who: [] for who in opened}
    with ExitStack() as stack:
        senders = {who: stack.enter_context(_senders(send, connections)) for who, send in opened.items()}
        names = list(opened)
        for turn in range(bursts):
            for who in names[turn % len(names) :] + names[: turn % len(names)]:
                rates[who].append(batch * _burst(senders[who], burst_s) / burst_s)
    return rates


def ratios_of(rates: dict[str, list[float]], mine: str) -> dict[str, tuple[float, float, float]]:
    """The quartiles (lower, median, upper) of the ratio of ``mine`` to each of the others, burst by burst."""
    found = {}
    for who, theirs_ in rates.items():
        if who != mine:
            ratio = np.array(rates[mine]) / np.array(theirs_)
            lower, median, upper = np.percentile(ratio, [25, 50, 75]).tolist()
            found[who] = (lower, median, upper)
    return found


def medians_of(rates: dict[str, list[float]]) -> dict[str, float]:
    """The median rate of each system."""
    return {who: statistics.median(found) for who, found in rates.items()}


def check_pending(who: str, peer: Any, rates: Sequence[float], burst_s: float = BURST_S) -> None:
    """Raises `WrongResult` unless a server holds all messages that it acknowledged."""
    sent, held = round(sum(rates) * burst_s), peer.pending()
    expect(held is None or held == sent, f"{who} holds {held} of {sent} messages")


def _burst(pipes: list[Connection], burst_s: float) -> int:
    begin_s = time.monotonic() + HEAD_START_S
    for pipe in pipes:
        pipe.send((begin_s, begin_s + burst_s))
    return sum(_received(pipe) for pipe in pipes)


@contextmanager
def _senders(open_send: OpenSend, connections: int) -> Iterator[list[Connection]]:
    processes, pipes = [], []
    try:
        for number in range(connections):
            pipe, child = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_send_bursts, args=(child, open_send, number + 1), daemon=True)
            process.start()
            child.close()
            processes.append(process)
            pipes.append(pipe)
        for pipe in pipes:
            _received(pipe)
        yield pipes
    finally:
        for pipe in pipes:
            with suppress(OSError):  # the sender has failed
                pipe.send(None)
        for process in processes:
            process.join(JOIN_TIMEOUT_S)
            if process.is_alive():
                process.kill()


def _received(pipe: Connection) -> int:
    try:
        answer = pipe.recv()
    except EOFError:
        answer = "it went away without a word"
    expect(type(answer) is int, f"a sender failed: {answer}")
    return int(answer)


def _send_bursts(pipe: Connection, open_send: OpenSend, number: int) -> None:
    try:
        send = open_send(number)
        pipe.send(0)
        while (burst := pipe.recv()) is not None:
            begin_s, end_s = burst
            time.sleep(max(0.0, begin_s - time.monotonic()))
            batches = 0
            while not batches or time.monotonic() < end_s:
                send(time.time_ns() // 1_000_000 + DAY_MS)
                batches += 1
            pipe.send(batches)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        pipe.send(f"{type(error).__name__}: {error}")
