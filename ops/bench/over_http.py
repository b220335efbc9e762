"""Rows `http-*`: sends through the gateway, one at a time and in lines, and what they cost the deliveries beside them."""

from __future__ import annotations

import http.client
import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, Final

from ops.bench.bodies import BODY_BYTES
from ops.bench.children import Gate, children, run_together
from ops.bench.consuming import Consumers
from ops.bench.delivering import DELAY_MS, verified
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.gateway_process import Gateway
from ops.bench.producing import DAY_MS, SUBJECT, Sent, ingest, rate_of, sent_of, steady
from ops.bench.server_process import ServerProcess, fresh_directory

CONNECTIONS: Final = 8
SECONDS: Final = 4.0
BODY: Final = "x" * BODY_BYTES
LINES: Final = 20_000
"""Lines of one request."""
LINE_CONNECTIONS: Final = 2
STEADY_RATE: Final = 10_000
HTTP_RATE: Final = 2_000
STEADY_SECONDS: Final = 10.0
BESIDE: Final = "beside"
ANSWER_BYTES: Final = 1 << 16


def measure_singles(options: Options) -> Run:
    """The rate of single sends with keep-alive; the next one of a connection follows its answer."""
    seconds = options.seconds or SECONDS
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        with Gateway(server.address) as gateway:
            [sent] = run_together([(_post_singles, gateway.port, SUBJECT, seconds, None)])
            cpu_s = gateway.cpu_s()
        accepted = server.status()["accepted"]
    expect(accepted == sent.messages, f"{sent.messages} were answered, but the server says accepted = {accepted}")
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        rpc = run_together([(ingest, server.address, 1, seconds, 0)] * CONNECTIONS)
    rate = rate_of([sent])
    return Run(
        rate,
        {
            "messages": sent.messages,
            "call_p50_ms": sent.call_p50_ms,
            "call_p99_ms": sent.call_p99_ms,
            "gateway_cpu_s": rounded(cpu_s),
            "rpc_rate": rounded(rate_of(rpc)),
            "of_rpc": rounded(rate / rate_of(rpc)),
        },
    )


def measure_lines(options: Options) -> Run:
    """The rate of messages in lines of JSON, each answered with a line."""
    seconds = options.seconds or SECONDS
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        with Gateway(server.address) as gateway:
            results = run_together([(_post_lines, gateway.port, seconds)] * LINE_CONNECTIONS)
        accepted = server.status()["accepted"]
    messages = sum(sent.messages for sent in results)
    expect(accepted == messages, f"{messages} were answered, but the server says accepted = {accepted}")
    return Run(rate_of(results), {"messages": messages, "call_p99_ms": max(sent.call_p99_ms for sent in results)})


def measure_beside_steady(options: Options) -> Run:
    """The p99 lateness at 10,000 messages a second while HTTP takes 2,000 requests a second, against without."""
    seconds = options.seconds or STEADY_SECONDS
    p99_ms, http_rate = [], 0.0
    for beside in (False, True):
        with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
            with Gateway(server.address) as gateway:
                details, rate = _steady(server, gateway if beside else None, seconds)
        p99_ms.append(float(details["p99_ms"]))
        http_rate = max(http_rate, rate)
    return Run(
        p99_ms[1] / p99_ms[0],
        {"alone_p99_ms": rounded(p99_ms[0]), "beside_p99_ms": rounded(p99_ms[1]), "http_rate": rounded(http_rate)},
    )


def _steady(server: ServerProcess, gateway: Gateway | None, seconds: float) -> tuple[dict[str, Any], float]:
    """Details of the deliveries, and the rate of HTTP requests beside them."""
    consumers = Consumers(server.address, SUBJECT)
    targets: list[tuple[Any, ...]] = [(steady, server.address, SUBJECT, STEADY_RATE, seconds, DELAY_MS)]
    if gateway is not None:
        targets.append((_post_singles, gateway.port, BESIDE, seconds, HTTP_RATE))
    pulls = len(consumers.targets)
    with children([*consumers.targets, *targets]) as started:
        pulling, sending = started[:pulls], started[pulls:]
        for child in started:
            child.tell()
        results: list[Sent] = [child.result() for child in sending]
        consumers.wait_for(results[0].messages, time.time_ns() // 1_000_000 + DELAY_MS)
        received = consumers.stop(pulling)
    beside = results[1:]
    details = verified(server, received, results[0].messages, others=sum(sent.messages for sent in beside))
    return details, rate_of(beside) if beside else 0.0


def _post_singles(gate: Gate, port: int, subject: str, seconds: float, rate: int | None) -> Sent:
    """Posts single messages, due one day ahead, over 8 connections: as fast as they are answered, or at a rate. With bare
    sockets, so that this process costs little beside those that are measured."""
    body = json.dumps({"subject": subject, "body": BODY, "delay_ms": DAY_MS}).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    request = head.encode() + b"\r\n\r\n" + body
    calls: list[float] = []
    with ExitStack() as stack, closing(select.epoll()) as poll:
        made = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(CONNECTIONS)]
        connections = {connection.fileno(): connection for connection in made}
        for number in connections:
            poll.register(number, select.EPOLLIN)
        idle = [*connections]
        begun: dict[int, float] = {}
        parts: dict[int, bytes] = {}
        gate.wait()
        begin = now = time.perf_counter()
        sent = 0
        while now - begin < seconds or begun:
            due = len(idle) if rate is None else min(int((now - begin) * rate) - sent, len(idle))
            while due > 0 and now - begin < seconds:
                number = idle.pop()
                begun[number] = now
                connections[number].sendall(request)
                sent, due = sent + 1, due - 1
            for number, _ in poll.poll(0.001 if rate else 1.0):
                answer = parts.pop(number, b"") + connections[number].recv(ANSWER_BYTES)
                if not answer.endswith(b"}"):  # only the head, or a part of it
                    parts[number] = answer
                    continue
                expect(answer.startswith(b"HTTP/1.1 201 "), f"a send was answered with {answer[:200]!r}")
                calls.append(time.perf_counter() - begun.pop(number))
                idle.append(number)
            now = time.perf_counter()
    return sent_of(sent, begin, now, calls)


def _post_lines(gate: Gate, port: int, seconds: float) -> Sent:
    """Posts requests of many lines, one after the other."""
    line = json.dumps({"subject": SUBJECT, "body": BODY, "delay_ms": DAY_MS}).encode() + b"\n"
    calls = []
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)) as connection:
        connection.connect()
        gate.wait()
        begin = now = time.perf_counter()
        while now - begin < seconds:
            connection.request(
                "POST", "/v1/messages", _pieces(line), {"Content-Type": "application/x-ndjson"}, encode_chunked=True
            )
            answer = connection.getresponse()
            results = answer.read().count(b'"receipt"')
            expect(answer.status == 200 and results == LINES, f"{results} of {LINES} lines were taken")
            before, now = now, time.perf_counter()
            calls.append(now - before)
    return sent_of(len(calls) * LINES, begin, now, calls)


def _pieces(line: bytes) -> Iterator[bytes]:
    at_once = 500
    for _ in range(LINES // at_once):
        yield line * at_once
