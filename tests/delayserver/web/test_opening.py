"""The gateway of a server that cannot open its data directory yet: something else takes all the room of its disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import trio

from delayserver.config.settings import Settings, for_memory
from delayserver.server.process import serve
from store.disk.memory_filesystem import MemoryFileSystem
from tests.delayserver.web.web_server import SECONDS_MAX, Reply, Web
from tests.ports import free_port

FOREIGN = "./foreign"


class Opening:
    """A server with its gateway, in a thread. Its disk is full."""

    def __init__(self) -> None:
        self._port = free_port()
        plain = Settings()
        settings = for_memory(
            replace(plain, listen=replace(plain.listen, port=0), http=replace(plain.http, port=self._port))
        )
        self._disk = MemoryFileSystem(settings.storage.memory_bytes_max)
        foreign = self._disk.open(FOREIGN, create=True)
        foreign.allocate(self._disk.free_bytes("."))
        foreign.close()
        self._serve = partial(serve, settings, fs=self._disk, http=True)
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=trio.run, args=(self._run,))

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            await self._serve()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ends it at the end of the block."""
        self._thread.start()
        try:
            yield
        finally:
            while self._token is None:
                time.sleep(0.01)
            self._token.run_sync_soon(self._scope.cancel)
            self._thread.join(SECONDS_MAX)

    def make_room(self) -> None:
        """Remove what takes the room."""
        self._disk.remove(FOREIGN)

    def ask(self, path: str) -> Reply:
        """A request, once the gateway listens."""
        until = time.monotonic() + SECONDS_MAX
        while True:
            try:
                return Web.ask(self, "GET", path)  # type: ignore[arg-type]
            except ConnectionRefusedError:
                assert time.monotonic() < until
                time.sleep(0.02)

    host = "127.0.0.1"

    @property
    def port(self) -> int:
        """The port of the gateway."""
        return self._port


def test_a_server_that_waits_for_room_lives_and_is_not_ready() -> None:
    """Whoever ended it for that would have it begin anew, and it goes on by itself."""
    server = Opening()
    with server.running():
        assert (server.ask("/healthz").status, server.ask("/healthz").json) == (200, {"status": "ok"})
        ready = server.ask("/readyz")
        assert (ready.status, ready.json["error"]) == (503, "not_ready")
        assert "the start of the server needs about" in ready.json["detail"]
        scraped = server.ask("/metrics").body.decode().splitlines()
        assert "delayserver_up 1.0" in scraped and "delayserver_ready 0.0" in scraped
        server.make_room()
        until = time.monotonic() + SECONDS_MAX
        while server.ask("/readyz").status != 200:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert server.ask("/healthz").status == 200
