"""A listener of each flavour behind one face: it runs in a thread, its handlers are plain functions that may block."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from delayserver.client import (
    AsyncClient,
    Client,
    ConsumerGroup,
    Delivery,
    Hooks,
    Listener,
    ListenerSettings,
    ListenerStats,
    ThreadListener,
)

KINDS: Final = ("trio", "asyncio", "threads")
WAIT_S: Final = 60.0

Handler = Callable[[Delivery], object]


def until(true: Callable[[], object], what: str = "it") -> None:
    """Wait until something is true; a test fails if that never happens."""
    deadline_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.005)


class Listening:
    """A listener that runs in a thread."""

    def __init__(self, kind: str, address: str, group: str, settings: ListenerSettings, hooks: Hooks) -> None:
        self._kind = kind
        self._address = address
        self._blocking = kind == "threads"
        self._listener: Any = (ThreadListener if self._blocking else Listener)(group, settings=settings, hooks=hooks)
        self._thread = threading.Thread(target=self._main)
        self._running: Any = None
        self._begun = threading.Event()
        self._token: Any = None
        self.error: BaseException | None = None

    def on(self, *subjects: str, handler: Handler, **options: Any) -> None:
        """Handle these subjects. An asynchronous listener calls the handler in a thread, as it may block."""

        async def handle(delivery: Delivery) -> None:
            await anyio.to_thread.run_sync(handler, delivery, abandon_on_cancel=True)

        self._listener(*subjects, **options)(handler if self._blocking else handle)

    def start(self) -> None:
        self._thread.start()
        self._begun.wait(WAIT_S)

    def ask_to_stop(self) -> None:
        if self._blocking:
            self._running.stop()
        else:
            anyio.from_thread.run_sync(self._running.stop, token=self._token)

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the listener did not end"

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def stats(self) -> ListenerStats:
        (stats,) = self._running.stats
        assert isinstance(stats, ListenerStats)
        return stats

    def _main(self) -> None:
        try:
            if self._blocking:
                with Client(self._address) as client, self._listener.running(client) as running:
                    self._running = running
                    self._begun.set()
                    running.wait()
            else:
                anyio.run(self._listen, backend=self._kind)
        except BaseException as error:  # noqa: BLE001 - for the test
            self.error = error
        finally:
            self._begun.set()

    async def _listen(self) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 100
        async with AsyncClient(self._address) as client, self._listener.running(client) as running:
            self._running = running
            self._token = anyio.lowlevel.current_token()
            self._begun.set()
            await running.stopped()


class Seen:
    """A handler that keeps the bodies that it saw, and their attempts."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.attempts: list[int] = []

    def __call__(self, message: Delivery) -> None:
        self.bodies.append(message.body)
        self.attempts.append(message.attempt)


class Held(Seen):
    """A handler that waits until the test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def __call__(self, message: Delivery) -> None:
        super().__call__(message)
        self.go.wait(60)


def send(client: Client, subject: str, *bodies: bytes) -> None:
    now_ms = client.ping() // 1000
    assert client.send_columns(subject, now_ms, list(bodies)).accepted == len(bodies)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def group_of(client: Client, subject: str) -> ConsumerGroup:
    (group,) = client.groups(subject)
    return group


def is_done(client: Client, subject: str, count: int = 1) -> bool:
    """Whether so many messages came to the broker, and all are acked."""
    return [(group.lag, group.end >= count) for group in client.groups(subject)] == [(0, True)]


@contextmanager
def listening(
    kind: str,
    address: str,
    subscriptions: dict[tuple[str, ...], Handler],
    *,
    group: str = "shop",
    hooks: Hooks | None = None,
    choice: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Listening]:
    """Listen during the block, and stop cleanly. The listener must not have failed."""
    listener = Listening(kind, address, group, ListenerSettings(**settings), hooks or Hooks())
    for subjects, handler in subscriptions.items():
        listener.on(*subjects, handler=handler, **(choice or {}))
    listener.start()
    try:
        yield listener
    finally:
        if not listener.ended:
            listener.ask_to_stop()
        listener.join()
    if listener.error is not None:
        raise listener.error
