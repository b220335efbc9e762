"""A relay between a server and a node that delays each reply, so that a real node is slow.

It passes requests on at once. Runs in a child process of the bench."""

from __future__ import annotations

import queue
import socket
import threading
import time
from typing import Final

from ops.bench.children import Gate

RECEIVE_BYTES: Final = 1 << 16
LOOK_S: Final = 0.1


def relay(gate: Gate, port: int, node: str, reply_after_s: float) -> int:
    """Relays every connection on `port` to `node`, and delays replies by `reply_after_s`. The first call of the parent
    ends the delay, the second one ends the relay. Returns the number of connections."""
    connections = 0
    quick = threading.Event()
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(LOOK_S)
        gate.wait()
        while not (quick.is_set() and gate.stopped()):
            if not quick.is_set() and gate.stopped():
                gate.take()
                quick.set()
            try:
                near, _ = listener.accept()
            except TimeoutError:
                continue
            connections += 1
            host, _, node_port = node.rpartition(":")
            far = socket.create_connection((host, int(node_port)))
            held: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            for work, arguments in (
                (_pass_on, (near, far)),
                (_hold, (far, held, reply_after_s)),
                (_release, (held, near, quick)),
            ):
                threading.Thread(target=work, args=arguments, daemon=True).start()
    return connections


def _pass_on(near: socket.socket, far: socket.socket) -> None:
    try:
        while data := near.recv(RECEIVE_BYTES):
            far.sendall(data)
    except OSError:
        pass
    far.close()


def _hold(far: socket.socket, held: queue.SimpleQueue[tuple[float, bytes]], reply_after_s: float) -> None:
    try:
        while data := far.recv(RECEIVE_BYTES):
            held.put((time.monotonic() + reply_after_s, data))
    except OSError:
        pass
    held.put((0.0, b""))


def _release(held: queue.SimpleQueue[tuple[float, bytes]], near: socket.socket, quick: threading.Event) -> None:
    while True:
        moment_s, data = held.get()
        if not data:
            near.close()
            return
        quick.wait(max(moment_s - time.monotonic(), 0.0))
        try:
            near.sendall(data)
        except OSError:
            return
