"""Those who only look: a Prometheus that scrapes each second, and a browser tab with the console that stays open all day."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from typing import Final

TIMEOUT_S: Final = 30.0
CONSOLE: Final = ("/", "/v1/session", "/v1/groups", "/v1/status")


class Watchers:
    """Two threads, until `stop`. `counts` says what they have got."""

    def __init__(self, port: int, counts: Counter[str]) -> None:
        self._port = port
        self._counts = counts
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._scrape, self._console)]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads and waits for them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S * 2)

    def _scrape(self) -> None:
        while not self._stop.wait(1.0):
            self._try(lambda: self._get("/metrics", "scrapes"))

    def _console(self) -> None:
        while not self._stop.wait(0.5):
            self._try(self._watch)

    def _watch(self) -> None:
        for path in CONSOLE:
            self._get(path, f"console {path}")
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/v1/live", headers={"Accept": "text/event-stream"})
            answer = connection.getresponse()
            while not self._stop.is_set() and answer.readline():
                self._counts["console lines"] += 1
        finally:
            connection.close()

    def _get(self, path: str, name: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            self._counts[name if answer.status < 400 else f"{name} {answer.status}"] += 1
        finally:
            connection.close()

    def _try(self, step: object) -> None:
        assert callable(step)
        try:
            step()
        except (OSError, http.client.HTTPException):
            self._counts["watchers cut off"] += 1
            self._stop.wait(0.5)
