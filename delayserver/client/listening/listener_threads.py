"""Runs plain handlers in threads, beside an event loop that pulls and acks.

The core belongs to the loop. Started messages go to the threads by one queue, and their ends come back by another.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from delayserver.client.listening.handling import CutOff, Handling
from delayserver.client.listening.subscription_run import SubscriptionRun
from delayserver.client.tracing import processing
from delayserver.client.values.messages import Delivery


class HandlerThreads:
    """Up to ``concurrency`` threads, made when they are needed. They are daemons: a handler that hangs does not keep the
    program from ending.
    """

    def __init__(self, run: SubscriptionRun, handler: Callable[[Delivery], object], concurrency: int) -> None:
        self._run = run
        self._core = run.core
        self._handler = handler
        self._concurrency = concurrency
        self._loop = asyncio.get_running_loop()
        self._threads: list[threading.Thread] = []
        self._started: SimpleQueue[Handling | None] = SimpleQueue()
        self._done: deque[tuple[Handling, BaseException | None, float]] = deque()
        self._collecting = False  # a call of `_collect` is on its way
        self._running: set[Handling] = set()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Run handlers until the core stops and the last one has ended, or was cut off."""
        self.wake()
        await self._ended.wait()
        for _ in self._threads:
            self._started.put(None)

    def wake(self) -> None:
        """Hands messages to the threads, as many as may run."""
        while (handling := self._run.start(self._loop.time())) is not None:
            self._run.pull_again(handling)
            self._running.add(handling)
            if len(self._threads) < len(self._running):
                self._add_thread()
            if self._threads:
                self._started.put(handling)
            else:
                self._running.remove(handling)
                self._run.finish(handling, CutOff("no thread could be started for its handler"), self._loop.time())
        if self._core.stopping and not self._running:
            self._ended.set()

    def _add_thread(self) -> None:
        """If the system has no room for another thread, those that there are take its messages. Without any the listener
        fails.
        """
        name = f"{self._run.subscription.name} {len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                self._run.fail(error)
            return
        self._threads.append(thread)

    def cut_off(self) -> None:
        """Give up the handlers that still run. Their threads go on, and what they do is not counted."""
        for handling in self._running:
            self._run.finish(handling, CutOff("the listener ended before its handler"), self._loop.time())
        self._running.clear()
        self._ended.set()

    def _collect(self) -> None:
        """Take what the threads have done."""
        self._collecting = False
        while self._done:
            handling, error, ended_s = self._done.popleft()
            if handling in self._running:
                self._running.remove(handling)
                self._run.finish(handling, error, ended_s)
        self.wake()

    # -- in the threads

    def _work(self) -> None:
        while (handling := self._started.get()) is not None:
            error = self._handle(handling)
            self._done.append((handling, error, time.monotonic()))
            # The loop clears the mark before it takes what is done, so it misses nothing.
            if not self._collecting:
                self._collecting = True
                with suppress(RuntimeError):  # the loop is closed: the handler was cut off
                    self._loop.call_soon_threadsafe(self._collect)

    def _handle(self, handling: Handling) -> BaseException | None:
        try:
            self._run.begins(handling)
        except BaseException as raised:  # noqa: BLE001 - a hook's; raised where the listener ends
            self._fail(raised)
        try:
            with processing(handling.delivery, handling.group):
                self._handler(handling.delivery)
        except BaseException as raised:  # noqa: BLE001 - reported by `raised` and `ended`
            error: BaseException = raised  # SystemExit and the like too: they would end a thread, not the program
        else:
            return None
        handling.end(time.monotonic(), error)
        try:
            self._run.report_raised(handling, error)
        except BaseException as raised:  # noqa: BLE001 - a hook's; raised where the listener ends
            self._fail(raised)
        return error

    def _fail(self, error: BaseException) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._run.fail, error)
