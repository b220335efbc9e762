"""Runs clients in child processes, which wait at a gate until all are connected, start together and return results.

A child is a function whose first argument is its `Gate`. The parent raises `ChildFailed` if the child raises.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

# Forked from a small process without threads that has imported the clients, so a start takes milliseconds.
CONTEXT: Final = multiprocessing.get_context("forkserver")
PRELOADED: Final = (
    "ops.bench.producing",
    "ops.bench.consuming",
    "ops.bench.cancelling",
    "ops.bench.restart",
    "ops.bench.fairness",
    "ops.bench.pushing",
)
CONTEXT.set_forkserver_preload(list(PRELOADED))
JOIN_TIMEOUT_S: Final = 10.0


class ChildFailed(Exception):
    """A client process raised, with its traceback, or ended early."""


class Gate:
    """The child's end: reports "ready", waits for the start, and receives the call to stop."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def wait(self) -> None:
        """Reports "ready" and waits for the start."""
        self._pipe.send(("ready", None))
        self._pipe.recv()

    def stopped(self) -> bool:
        """True if the parent has called to stop; called between two requests."""
        return self._pipe.poll()

    def take(self) -> None:
        """Removes one call of the parent, so that `stopped` reports the next one."""
        self._pipe.recv()


class Child:
    """The parent's end of one client process."""

    def __init__(self, target: Callable[..., Any], *arguments: Any) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_run, args=(theirs, target, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def _receive(self, expected: str) -> Any:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            raise ChildFailed(f"a client process went away without a word (code {self._process.exitcode})") from None
        if kind != expected:
            raise ChildFailed(f"a client failed:\n{value}")
        return value

    def wait_ready(self) -> None:
        """Waits until the child is at its gate. Raises `ChildFailed`."""
        self._receive("ready")

    def tell(self) -> None:
        """Starts the child; if it runs, calls it to stop."""
        self._pipe.send(None)

    def done(self, timeout_s: float) -> bool:
        """Waits up to ``timeout_s`` for the result or failure. True if there is one."""
        return self._pipe.poll(timeout_s)

    def result(self) -> Any:
        """The value that the child returned. Raises `ChildFailed`."""
        return self._receive("result")

    def kill(self) -> None:
        """Kills the process."""
        self._process.kill()

    def end(self) -> None:
        """Waits for the process to end, and kills it after JOIN_TIMEOUT_S."""
        self._process.join(0.0 if self._process.exitcode is not None else JOIN_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


@contextmanager
def children(targets: Sequence[tuple[Any, ...]]) -> Iterator[list[Child]]:
    """Starts one child per ``(function, arguments…)`` and waits until all are at their gates. Ends them on exit."""
    started: list[Child] = []
    try:
        started += [Child(*target) for target in targets]
        for child in started:
            child.wait_ready()
        yield started
    except BaseException:
        for child in started:
            child.kill()
        raise
    finally:
        for child in started:
            child.end()


def run_together(
    targets: Sequence[tuple[Any, ...]], watch: Callable[[], object] | None = None, watch_s: float = 0.25
) -> list[Any]:
    """Starts all children together and returns their results in order. Calls ``watch`` every ``watch_s`` meanwhile."""
    with children(targets) as started:
        for child in started:
            child.tell()
        for child in started:
            while watch is not None and not child.done(watch_s):
                watch()
        return [child.result() for child in started]


def _run(pipe: Connection, target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send(("result", target(Gate(pipe), *arguments)))
    except BaseException:  # noqa: BLE001  the parent raises it
        pipe.send(("failed", traceback.format_exc()))
