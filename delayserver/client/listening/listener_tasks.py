"""Runs asynchronous handlers as tasks, on trio and on asyncio."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import sniffio

from delayserver.client.listening.handling import CutOff, Handling
from delayserver.client.listening.loop_clock import loop_clock
from delayserver.client.listening.subscription_run import SubscriptionRun
from delayserver.client.tracing import processing
from delayserver.client.values.messages import Delivery

RUN_S: Final = 0.001
"""A worker lets other tasks run after this long, if its handlers did not wait for anything."""


class TaskWorkers:
    """As many tasks as handlers may run at once. Each takes the next message when its handler has ended.

    A task that takes a message wakes another one if there are more. So handlers that do not wait are run by one task, and
    the others cost nothing.
    """

    def __init__(
        self, run: SubscriptionRun, handler: Callable[[Delivery], Awaitable[object]], concurrency: int
    ) -> None:
        self._run = run
        self._core = run.core
        self._handler = handler
        self._concurrency = concurrency
        self._now = loop_clock()
        self._idle: deque[anyio.Event] = deque()
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        """Run handlers until the core stops."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                for _ in range(self._concurrency):
                    tasks.start_soon(self._work)

    def wake(self) -> None:
        """Wakes a task; of a core that stops, all."""
        for _ in range(len(self._idle) if self._core.stopping else min(len(self._idle), 1)):
            self._idle.popleft().set()

    def cut_off(self) -> None:
        """Cancel all handlers."""
        self._scope.cancel()

    async def _work(self) -> None:
        now_s = yielded_s = self._now()
        while not self._core.stopping:
            handling = self._run.start(now_s)
            if handling is None:
                awoken = anyio.Event()
                self._idle.append(awoken)
                await awoken.wait()
                now_s = yielded_s = self._now()
                continue
            if self._idle and self._core.may_start:
                self._idle.popleft().set()
            self._run.pull_again(handling)
            now_s = await self._handle(handling)
            if now_s - yielded_s > RUN_S:
                await anyio.sleep(0)
                now_s = yielded_s = self._now()

    async def _handle(self, handling: Handling) -> float:
        """Run the handler. The result is the time of its end."""
        error: BaseException | None = None
        try:
            self._run.begins(handling)
        except Exception as raised:  # noqa: BLE001 - a hook's; raised where the listener ends
            self._run.fail(raised)
        try:
            with processing(handling.delivery, handling.group):
                await self._handler(handling.delivery)
        except BaseException as raised:  # reported by `raised` and `ended`
            error = raised
            if isinstance(raised, GeneratorExit) and not _in_a_loop():  # the loop is gone, and the task is thrown away
                raise
            if _holds(raised, KeyboardInterrupt):  # of the user: an event loop raises it wherever code runs
                self._run.fail(raised)
            elif anyio.current_effective_deadline() == -math.inf and _holds(raised, anyio.get_cancelled_exc_class()):
                error = CutOff("the listener ended before its handler")
                raise
            # Otherwise it is the handler's own, also a cancellation: on asyncio it waited for a task that was cancelled.
        finally:
            ended_s = self._now()
            if error is not None:
                handling.end(ended_s, error)
                self._tell(handling, error)
            self._run.finish(handling, error, ended_s)
        return ended_s

    def _tell(self, handling: Handling, error: BaseException) -> None:
        try:
            self._run.report_raised(handling, error)
        except Exception as raised:  # noqa: BLE001 - a hook's; raised where the listener ends
            self._run.fail(raised)


def _holds(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error is of this kind. A nursery in a handler makes a group of it."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kind) is not None
    return isinstance(error, kind)


def _in_a_loop() -> bool:
    try:
        sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return False
    return True
