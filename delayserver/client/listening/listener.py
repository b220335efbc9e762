"""`Listener`: asynchronous handlers of messages, on trio and on asyncio."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, Unpack

import anyio

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.listening.handling import Hooks
from delayserver.client.listening.listener_run import ListenerRun
from delayserver.client.listening.listener_settings import ListenerSettings
from delayserver.client.listening.listener_tasks import TaskWorkers
from delayserver.client.listening.subscription import Choice, Choices, Subscriptions
from delayserver.client.listening.subscription_run import SubscriptionRun
from delayserver.client.values.messages import Delivery
from delayserver.protocol.errors import InvalidArgument

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""The signals at which `Listener.run` and `ThreadListener.run` stop cleanly."""

AsyncHandler = Callable[[Delivery], Awaitable[object]]
H = TypeVar("H", bound=AsyncHandler)


class Listener:
    """Calls asynchronous functions with the messages of subjects::

        listener = Listener("shop")

        @listener("orders", "refunds*")
        async def cancel_if_unpaid(message): ...

        async with AsyncClient("127.0.0.1:20801") as client:
            await listener.run(client)

    A handler that returns acks its message. One that raises nacks it: the message comes again after the server's growing
    pauses, or after the delay of `Retry`. That holds for whatever it raises, `SystemExit` too. Only a `KeyboardInterrupt`
    ends the listener, cleanly, because an event loop raises it where it happens to be. A pattern (``*``, ``?``, ``[a-z]``)
    finds the subjects that exist and, within a
    second, those that come later; it finds dead-letter subjects only if it contains ``.dead.``.

    ``concurrency`` handlers of each decorated function run at once. The subject with the fewest running handlers goes first.
    Messages come from all nodes of the route of each subject. While a handler runs, its lease is extended, for
    ``extend_max_s`` of the ``settings`` at most: after that the message comes again, perhaps while the handler runs. A line
    of the log and the hook ``overdue`` report it.
    """

    def __init__(
        self,
        group: str | None = None,
        *,
        concurrency: int | None = None,
        settings: ListenerSettings | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self._subscriptions: Subscriptions[AsyncHandler] = Subscriptions.of(group, concurrency, settings, hooks)

    def __call__(
        self, *subjects: str, group: str | None = None, concurrency: int | None = None, **choice: Unpack[Choices]
    ) -> Callable[[H], H]:
        """Decorate the handler of these subjects and patterns. ``group`` and ``concurrency`` default to the listener's.
        ``start``, ``tags`` and ``where`` are those of `AsyncClient.pull_columns`: where a new group starts, and its filter.
        """

        def register(handler: H) -> H:
            if not inspect.iscoroutinefunction(handler) and not inspect.iscoroutinefunction(
                getattr(handler, "__call__", None)  # noqa: B004 - an object with an asynchronous __call__
            ):
                raise InvalidArgument(f"{handler!r} is no async function: a ThreadListener calls plain functions")
            self._subscriptions.add(subjects, group, concurrency, handler, Choice(**choice))
            return handler

        return register

    def running(self, client: AsyncClient) -> ListenerRun:
        """Consume during an ``async with`` block; see `ListenerRun`. ``client`` names the server, and is used meanwhile."""
        return ListenerRun(self._subscriptions, client, _make_workers)

    async def run(self, client: AsyncClient, signals: Sequence[signal.Signals] = STOP_SIGNALS) -> None:
        """Consume until one of the ``signals`` comes or the caller is cancelled, then end as `ListenerRun` says. A second
        signal has its usual effect. Only the main thread hears signals. Raises the error of a listener that fails.
        """
        async with self.running(client) as running:
            if not signals or threading.current_thread() is not threading.main_thread():
                await running.stopped()
                return
            with anyio.open_signal_receiver(*signals) as received:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cancel_at, received, tasks.cancel_scope)
                    await running.stopped()
                    tasks.cancel_scope.cancel()


async def _cancel_at(received: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    await anext(received)
    scope.cancel()


def _make_workers(run: SubscriptionRun) -> TaskWorkers:
    handler: Any = run.subscription.handler
    return TaskWorkers(run, handler, run.subscription.settings.concurrency)
