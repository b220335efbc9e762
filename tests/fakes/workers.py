"""`Workers` without threads: they do the work in the step that asks for it, or as a test wants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

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
