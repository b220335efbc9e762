"""A running listener: its subscriptions in one shielded task, so that it ends cleanly although its program is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.consuming.node_clients import NodeClients
from delayserver.client.listening.handling import ListenerStats
from delayserver.client.listening.subscription import Subscriptions
from delayserver.client.listening.subscription_run import HandlerWorkers, SubscriptionRun
from delayserver.logs.events import EventLogger
from delayserver.logs.told import text_of, type_of
from delayserver.protocol.errors import InvalidArgument

events = EventLogger("delayserver.client")

MakeWorkers = Callable[[SubscriptionRun], HandlerWorkers]


class ListenerRun:
    """The block in which a listener consumes: ``async with listener.running(client) as running``.

    Leaving the block stops the listener: it pulls no more, gives back what no handler has seen, lets running handlers end
    for ``stop_s`` at most, and flushes their acks. It does so also when the block is left by an error or is cancelled. An
    error of the listener itself, such as that of a refused group or of a hook, cancels the block and is raised at its end.
    """

    def __init__(self, subscriptions: Subscriptions[Any], client: AsyncClient, make_workers: MakeWorkers) -> None:
        if not subscriptions.items:
            raise InvalidArgument("the listener has no handler: decorate a function with @listener('subject')")
        self._subscriptions = subscriptions
        self._client = client
        self._make_workers = make_workers
        self._runs: list[SubscriptionRun] = []
        self._tasks: anyio.abc.TaskGroup | None = None
        self._block = anyio.CancelScope()
        self._ended = anyio.Event()
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._runs = [
            SubscriptionRun(subscription, self._client, self._subscriptions.hooks, self._make_workers, self._fail)
            for subscription in self._subscriptions.items
        ]
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        # It does not wait for the task: a cancelled program would end here and leave the task, which is shielded, behind.
        self._tasks.start_soon(self._run)
        self._block.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._tasks is not None
        try:
            with anyio.CancelScope(shield=True):
                self.stop()
                await self._ended.wait()
        finally:
            absorbed = self._block.__exit__(kind, value, trace)
            # The group's only task raises nothing, so an error of the block is not wrapped.
            await self._tasks.__aexit__(None, None, None)
        if self._failure is not None:
            raise self._failure
        return absorbed

    def stop(self) -> None:
        """Begin to stop. The block goes on, and `stopped` returns when the listener has ended."""
        for run in self._runs:
            run.stop()

    def cut_off(self) -> None:
        """Stop, and give running handlers no more time: they are cancelled, and their messages come again."""
        for run in self._runs:
            run.cut_off()

    async def stopped(self) -> None:
        """Wait until the listener was stopped and has ended."""
        await self._ended.wait()

    @property
    def running(self) -> int:
        """How many handlers run now."""
        return sum(run.core.running for run in self._runs)

    @property
    def stats(self) -> list[ListenerStats]:
        """The counts of each subscription, in the order of the decorators."""
        return [run.core.stats for run in self._runs]

    async def _run(self) -> None:
        try:
            # Only `stop` ends the tasks inside, not a cancelled program: handlers and acks get their time.
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as tasks:
                    nodes = NodeClients(self._client, tasks)
                    for run in self._runs:
                        tasks.start_soon(run.run, nodes)
        except BaseExceptionGroup as errors:
            self._fail(_only(errors))
        finally:
            self._ended.set()

    def _fail(self, error: BaseException) -> None:
        """Keep the first error, stop, and end the block."""
        if self._failure is None:
            self._failure = error
            events.error("listener_failed", "the listener ends: {reason}", reason=text_of(error) or type_of(error))
        self.stop()
        self._block.cancel()


def _only(error: BaseException) -> BaseException:
    """The error inside groups of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
