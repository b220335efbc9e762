"""`Workers` without threads: they do the work in the step that asks for it, or as a test wants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from tests.fakes.disk import FakeDisk

T = TypeVar("T")


class FakeWorkers:
    """A test that sets `around` decides when work is done and when its result arrives."""

    def __init__(self) -> None:
        # Given the name of the function and the work; returns the result.
        self.around: Callable[[str, Callable[[], Any]], Awaitable[Any]] | None = None

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        if self.around is None:
            return work()
        function = work.func if isinstance(work, partial) else work
        result: T = await self.around(getattr(function, "__name__", ""), work)
        return result


class PlacesOfReads:
    """Counts the reads of some files by where they run: in work `beside` the event loop, or on it."""

    def __init__(self, workers: FakeWorkers, disk: FakeDisk, part: str) -> None:
        """`part` is in the paths of the files."""
        self.beside = self.on_loop = 0
        self._part = part
        self._works_beside = False
        workers.around, disk.refuse = self._work, self._read

    async def _work(self, _name: str, work: Callable[[], Any]) -> Any:
        self._works_beside = True
        try:
            return work()
        finally:
            self._works_beside = False

    def _read(self, operation: str, path: str) -> int:
        if operation == "pread" and self._part in path:
            self.beside += self._works_beside
            self.on_loop += not self._works_beside
        return 0
