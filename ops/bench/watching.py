"""Row `console-idle`: ten browsers have the console open on a server that has messages for the next days and is idle."""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import ExitStack
from typing import Final

from delayserver.client import Message
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.gateway_process import Gateway
from ops.bench.producing import open_client
from ops.bench.server_process import ServerProcess, fresh_directory

LISTENERS: Final = 10
SUBJECTS: Final = 100
# Due over two days, so that what is coming has as many minutes, hours and days as a server in use.
MESSAGES: Final = 20_000
SPREAD_MS: Final = 2 * 86_400_000
BEHIND_MS: Final = 3_600_000
IDLE_S: Final = 20.0
SETTLE_S: Final = 3.0


def measure_watching(options: Options) -> Run:
    """The share of a core that server and gateway use more while ten pages listen, in percent."""
    seconds = options.seconds or IDLE_S
    count = options.messages or MESSAGES
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        with open_client(server.address) as client:
            for number in range(SUBJECTS):
                client.send_many(
                    [
                        Message(f"bench.{number}", b"x", delay_ms=BEHIND_MS + place * SUBJECTS * SPREAD_MS // count)
                        for place in range(max(count // SUBJECTS, 1))
                    ]
                )
        server.wait_replayed()
        with Gateway(server.address) as gateway:
            without_s, _ = _use(server, gateway, 0, seconds)
            with_s, events = _use(server, gateway, LISTENERS, seconds)
    expect(events >= LISTENERS * (seconds - 3), f"only {events} events came to {LISTENERS} listeners in {seconds:g} s")
    share = max(with_s - without_s, 0.0) * 100 / seconds
    return Run(share, {"listeners": LISTENERS, "without_percent": rounded(without_s * 100 / seconds), "events": events})


def _use(server: ServerProcess, gateway: Gateway, listeners: int, seconds: float) -> tuple[float, int]:
    """The processor time of both in a while, and the events `live` that the listeners got."""
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(listeners):
            listener = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port)))
            listener.sendall(b"GET /v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            selector.register(listener, selectors.EVENT_READ)
        _listen(selector, SETTLE_S)
        began_s = server.cpu_s() + gateway.cpu_s()
        events = _listen(selector, seconds)
        return server.cpu_s() + gateway.cpu_s() - began_s, events


def _listen(selector: selectors.BaseSelector, seconds: float) -> int:
    """Read what comes for a while; how many events `live` it was."""
    until_s = time.monotonic() + seconds
    events = 0
    while (left_s := until_s - time.monotonic()) > 0:
        for key, _ in selector.select(left_s):
            assert isinstance(key.fileobj, socket.socket)
            got = key.fileobj.recv(1 << 20)
            expect(bool(got), "the gateway ended a stream")
            events += got.count(b"event: live")
    return events
