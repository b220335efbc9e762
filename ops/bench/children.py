"""Clients in processes of their own: started, held at a gate until all are connected, let go together, their results read.

A child is a function whose first argument is its `Gate`. What it raises is raised again in the parent.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

# Forked from a small process that has no threads and has imported the clients already: a start takes milliseconds.
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["ops.bench.producing", "ops.bench.consuming", "ops.bench.cancelling", "ops.bench.restart", "ops.bench.fairness"]
)
JOIN_TIMEOUT_S: Final = 10.0


class ChildFailed(Exception):
    """A client process raised or went away; holds its traceback."""


class Gate:
    """The child's end: says "ready", waits for the start, and hears the call to stop."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def wait(self) -> None:
        """Say that everything is set up, and wait for the start."""
        self._pipe.send(("ready", None))
        self._pipe.recv()

    def stopped(self) -> bool:
        """Whether the parent has called to stop; asked between two requests."""
        return self._pipe.poll()

    def take(self) -> None:
        """Take one call of the parent, so that `stopped` waits for the next one."""
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
        """Wait until the child stands at its gate. Raises `ChildFailed`."""
        self._receive("ready")

    def tell(self) -> None:
        """Let the child go, or, once it runs, call it to stop."""
        self._pipe.send(None)

    def done(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for the result to be there (or the failure)."""
        return self._pipe.poll(timeout_s)

    def result(self) -> Any:
        """What the child returned. Raises `ChildFailed`."""
        return self._receive("result")

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    def end(self) -> None:
        """Wait for the process to end, or kill it."""
        self._process.join(0.0 if self._process.exitcode is not None else JOIN_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


@contextmanager
def children(targets: Sequence[tuple[Any, ...]]) -> Iterator[list[Child]]:
    """Start one child for each ``(function, arguments…)``, all of them at their gates on entering; ended on leaving."""
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
    """Let all children go at once and give their results, in order; ``watch`` is called every ``watch_s`` meanwhile."""
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
