"""A small reverse proxy that encrypts: TLS towards browsers, HTTP as it came towards the gateway."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import trustme


@contextmanager
def tls_proxy(name: str, host: str, port: int) -> Iterator[int]:
    """A proxy for a public name before a gateway; its port. The authority of its certificate is known to nobody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(name).configure_cert(context)

    class Passing(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            """One connection of a browser, and one to the gateway."""
            with contextlib.suppress(OSError), context.wrap_socket(self.request, server_side=True) as outer:
                with socket.create_connection((host, port)) as inner:
                    answers = threading.Thread(target=_pump, args=(inner, outer))
                    answers.start()
                    _pump(outer, inner)
                    answers.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Passing) as server:
        server.daemon_threads = True
        server.block_on_close = False
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            serving.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
