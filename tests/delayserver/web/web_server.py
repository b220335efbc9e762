"""A real server with its gateway, and a client of HTTP that knows nothing of them."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forked import Program, without_stalls
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
SECONDS_MAX = 60


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its document."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Web:
    """A running `delayserver serve` with HTTP."""

    process: subprocess.Popen[bytes]
    host: str
    port: int
    address: str

    def ask(
        self, method: str, path: str, document: object = None, *, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request on a connection of its own. A document that is not bytes is sent as JSON."""
        body = document if isinstance(document, bytes) or document is None else json.dumps(document).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=SECONDS_MAX)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def post(self, path: str, document: object, **headers: str) -> Reply:
        """`ask` with POST. Underscores in names of headers stand for dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", path, document, headers=named)

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection((self.host, self.port), timeout=SECONDS_MAX)

    def gateway(self) -> int:
        """The process id of a gateway that has answered before."""
        children: list[str] = []
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
                children += task.read_text().split()
        (found,) = [
            int(child) for child in children if b"delayserver.web.child" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
        return found


def serve(*arguments: str, http_port: int | None = None) -> Web:
    """Start a server with HTTP on a free port, or on that of a server before it, and wait until it is ready."""
    while True:
        port = http_port or free_port()
        command = ["serve", "--port", "0", "--http-port", str(port), "--json", *arguments]
        process = Program(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert process.stdout is not None
        line = process.stdout.readline()
        if line:
            ready = json.loads(line)
            assert ready["http_port"] == port
            return Web(process, ready["host"], port, f"{ready['host']}:{ready['port']}")
        _, errors = process.communicate(timeout=SECONDS_MAX)
        # Another process may have taken the port since we looked.
        assert b"cannot listen for HTTP" in errors, errors.decode()


@contextmanager
def gateway_alone(server: str) -> Iterator[Web]:
    """A gateway in a process of its own, for the server at this address. At the end of the block it is killed if it runs."""
    command = ["http", "--server", server, "--port", "0", "--json"]
    with Program(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield Web(process, ready["host"], ready["http_port"], server)
        finally:
            process.kill()


def stop(web: Web) -> str:
    """End a server; its log without stalls."""
    web.process.send_signal(signal.SIGTERM)
    _, errors = web.process.communicate(timeout=SECONDS_MAX)
    assert web.process.returncode == 0
    return without_stalls(errors.decode())
