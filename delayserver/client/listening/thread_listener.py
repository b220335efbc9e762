"""`ThreadListener`: plain functions as handlers of messages, in threads."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from delayserver.client.blocking.client import Client
from delayserver.client.listening.handling import Hooks, ListenerStats
from delayserver.client.listening.listener import STOP_SIGNALS
from delayserver.client.listening.listener_run import ListenerRun
from delayserver.client.listening.listener_settings import ListenerSettings
from delayserver.client.listening.listener_threads import HandlerThreads
from delayserver.client.listening.subscription import Choice, Choices, Subscriptions
from delayserver.client.listening.subscription_run import SubscriptionRun
from delayserver.client.values.messages import Delivery
from delayserver.protocol.errors import InvalidArgument

Handler = Callable[[Delivery], object]
H = TypeVar("H", bound=Handler)


class ThreadListener:
    """Calls plain functions in threads, with the messages of subjects::

        listener = ThreadListener("shop")

        @listener("orders", "refunds*")
        def cancel_if_unpaid(message): ...

        with Client("127.0.0.1:20801") as client:
            listener.run(client)

    All else is as for `Listener`, but no error of a handler ends it: a `KeyboardInterrupt` in a thread is not the user's.
    ``concurrency`` handlers of each function run at once, each in a thread of its own. At
    the end a handler that needs more than ``stop_s`` is left behind: its thread goes on, and its message comes again.
    """

    def __init__(
        self,
        group: str | None = None,
        *,
        concurrency: int | None = None,
        settings: ListenerSettings | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self._subscriptions: Subscriptions[Handler] = Subscriptions.of(group, concurrency, settings, hooks)

    def __call__(
        self, *subjects: str, group: str | None = None, concurrency: int | None = None, **choice: Unpack[Choices]
    ) -> Callable[[H], H]:
        """Decorate the handler of these subjects and patterns. ``group`` and ``concurrency`` default to the listener's.
        ``start``, ``tags`` and ``where`` are those of `AsyncClient.pull_columns`: where a new group starts, and its filter.
        """

        def register(handler: H) -> H:
            if inspect.iscoroutinefunction(handler):
                raise InvalidArgument(f"{handler!r} is an async function: a Listener calls those")
            self._subscriptions.add(subjects, group, concurrency, handler, Choice(**choice))
            return handler

        return register

    def running(self, client: Client) -> ThreadRun:
        """Consume during a ``with`` block; see `ThreadRun`. ``client`` names the server and the settings of connections."""
        return ThreadRun(self._subscriptions, client)

    def run(self, client: Client, signals: Sequence[signal.Signals] = STOP_SIGNALS) -> None:
        """Consume until one of the ``signals`` comes, then end as `ThreadRun` says. A second signal has its usual effect.
        Only the main thread hears signals. Raises the error of a listener that fails.
        """
        with self.running(client) as running:
            if threading.current_thread() is not threading.main_thread():
                signals = ()
            before = {number: signal.getsignal(number) for number in signals}

            def stop(_number: int, _frame: object) -> None:
                for number, handler in before.items():
                    signal.signal(number, handler)
                running.stop()

            for number in signals:
                signal.signal(number, stop)
            try:
                running.wait()
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)


class ThreadRun:
    """The block in which a listener consumes. An event loop in a thread of its own pulls and acks.

    Leaving the block stops the listener as `ListenerRun` says. An error of the listener itself ends it, is logged at once,
    and is raised by `wait` and at the end of the block.
    """

    def __init__(self, subscriptions: Subscriptions[Handler], client: Client) -> None:
        self._subscriptions = subscriptions
        self._client = client
        self._thread = threading.Thread(target=self._main, name="delayserver listener", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run: ListenerRun | None = None
        self._begun = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._begun.wait()
        if self._run is None:
            self._thread.join()
            self._raise()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._thread.join()
        if kind is None or self._failure is not None:
            self._raise()

    def stop(self) -> None:
        """Begin to stop, from any thread. `wait` returns when the listener has ended."""
        loop, run = self._loop, self._run
        if loop is not None and run is not None:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(run.stop)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the listener has ended, or so long: whether it has. Raises the error that ended it."""
        ended = self._ended.wait(timeout_s)
        if ended:
            self._raise()
        return ended

    @property
    def stats(self) -> list[ListenerStats]:
        """The counts of each subscription, in the order of the decorators."""
        return [] if self._run is None else self._run.stats

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _main(self) -> None:
        try:
            asyncio.run(self._listen())
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the block
            self._failure = error
        finally:
            self._begun.set()
            self._ended.set()

    async def _listen(self) -> None:
        async with self._client.asynchronous() as client:
            async with ListenerRun(self._subscriptions, client, _make_workers) as run:
                self._loop, self._run = asyncio.get_running_loop(), run
                self._begun.set()
                await run.stopped()


def _make_workers(run: SubscriptionRun) -> HandlerThreads:
    handler: Any = run.subscription.handler
    return HandlerThreads(run, handler, run.subscription.settings.concurrency)
