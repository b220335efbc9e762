"""The requests of one connection that wait for messages. Ends one by its number, or some at the end of the connection."""

from __future__ import annotations

import trio


class Waits:
    """Cancel scopes by number."""

    __slots__ = ("_scopes",)

    def __init__(self) -> None:
        self._scopes: dict[int, trio.CancelScope] = {}

    def begin(self, number: int) -> trio.CancelScope:
        """A request begins to wait. Its task enters the scope."""
        scope = self._scopes[number] = trio.CancelScope()
        return scope

    def end(self, number: int, scope: trio.CancelScope) -> None:
        """It waits no more; idempotent. A later request may have its number."""
        if self._scopes.get(number) is scope:
            del self._scopes[number]

    def cancel(self, number: int) -> bool:
        """Ends a wait; whether there was one."""
        scope = self._scopes.pop(number, None)
        if scope is not None:
            scope.cancel()
        return scope is not None

    def cancel_some(self, count: int) -> bool:
        """Ends so many waits; whether there were any."""
        numbers = [number for number, _ in zip(self._scopes, range(count), strict=False)]
        for number in numbers:
            self.cancel(number)
        return bool(numbers)
